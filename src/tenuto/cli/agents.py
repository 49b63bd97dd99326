"""Finding the agents that `--agent`, TENUTO_AGENT or pyproject.toml name."""

import contextlib
import importlib
import os
import re
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tenuto.agent import Agent
from tenuto.errors import ConfigurationError
from tenuto.tools import error_text

_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
_NOT_THEIRS = ("importlib", "_frozen_importlib", __name__)


def named_agents(option: str | None) -> list[str]:
    """The MODULE:ATTRIBUTE names given, else those of the nearest pyproject.toml. Imports nothing.

    Raises `ConfigurationError` for a pyproject.toml that is wrong, ValueError for a name of another form.
    """
    return split_names(option) if option and option.strip() else _project_agents()


def split_names(text: str) -> list[str]:
    """Names with commas or spaces between. Raises ValueError for one of another form."""
    names = re.split(r"[\s,]+", text.strip())
    for name in names:
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} does not name an agent: use MODULE:AGENT, such as shop.desk:agent")
    return names


def load_agents(names: list[str]) -> list[Agent]:
    """Import what `names` name: an agent or a list of agents each. Raises `ConfigurationError`."""
    for place in (_project(), Path.cwd()):
        if place is not None and str(place) not in sys.path:
            sys.path.insert(0, str(place))
    found: list[Agent] = []
    for name in names:
        found += [agent for agent in _load(name) if agent not in found]
    return found


def _project() -> Path | None:
    here = Path.cwd()
    return next((place for place in (here, *here.parents) if (place / "pyproject.toml").is_file()), None)


def _project_agents() -> list[str]:
    place = _project()
    if place is None:
        return []
    path = place / "pyproject.toml"
    try:
        project = tomllib.loads(path.read_text(encoding="utf-8"))
        agents = project.get("tool", {}).get("tenuto", {}).get("agents", [])
    except (ValueError, AttributeError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from error
    if not isinstance(agents, list) or not all(
        isinstance(name, str) and _NAME.fullmatch(name) for name in agents
    ):
        raise ConfigurationError(f'{path}: [tool.tenuto] agents is a list such as ["shop.desk:agent"]')
    return agents


def _load(name: str) -> list[Agent]:
    module_name, _, attribute = name.partition(":")
    value: Any
    try:
        # What a module prints at import does not belong into the output of a command.
        with contextlib.redirect_stdout(sys.stderr):
            value = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if missing and (module_name == missing or module_name.startswith(f"{missing}.")):
            where = f"looked in {os.getcwd()} and the Python path"
            raise ConfigurationError(f"agent {name}: there is no module {missing!r}; {where}") from error
        raise _broken(name, module_name, error) from error
    except (Exception, SystemExit) as error:
        raise _broken(name, module_name, error) from error
    for part in attribute.split("."):
        try:
            value = getattr(value, part)
        except AttributeError as error:
            there = [key for key, entry in vars(sys.modules[module_name]).items() if isinstance(entry, Agent)]
            hint = f"; its agents are: {', '.join(there)}" if there else ""
            raise ConfigurationError(f"agent {name}: {module_name} has no {part!r}{hint}") from error
    agents = list(value) if isinstance(value, list | tuple) else [value]
    if not agents or not all(isinstance(agent, Agent) for agent in agents):
        raise ConfigurationError(
            f"agent {name}: {attribute} is {type(value).__name__}, not an Agent or a list of agents"
        )
    return agents


def _broken(name: str, module_name: str, error: BaseException) -> ConfigurationError:
    place = error.__traceback__
    while place is not None and place.tb_frame.f_globals.get("__name__", "").startswith(_NOT_THEIRS):
        place = place.tb_next
    words = error_text(error.with_traceback(place))
    return ConfigurationError(f"agent {name}: importing {module_name} raised {words}")


def check_models(agents: Iterable[Agent]) -> None:
    """Raises `ConfigurationError` if an agent needs the environment's model and that cannot be had.

    A worker would try again and again, as the environment of the next one may be right; a command says it.
    """
    if any(agent.model is None or isinstance(agent.model, str) for agent in agents):
        from tenuto.models.openai import OpenAIModel

        OpenAIModel.from_environment()

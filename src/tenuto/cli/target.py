"""Where a command finds its threads, in a database or at a server; what else its options share."""

from dataclasses import dataclass
from typing import Any

import typer

from tenuto.cli.agents import load_agents, named_agents
from tenuto.cli.options import DATABASE


@dataclass(frozen=True)
class Target:
    """A server's `url`, or "" and then a `database`. `said`: by options, which another command needs, too."""

    database: str = DATABASE
    url: str = ""
    said: bool = False

    @property
    def hint(self) -> str:
        """The options that name it, to put behind another command; "" when that finds it without."""
        if not self.said:
            return ""
        return f" --url {self.url}" if self.url else f" --database {self.database}"


def target_of(context: typer.Context) -> Target:
    """What the options `database` and `url` of this command and of those around it name.

    An option goes before the environment, and one that is nearer before one that is farther. Raises
    `BadParameter` when both a database and a server are named so.
    """
    said: dict[str, Any] = {}
    found: dict[str, Any] = {}
    inner: Any = context
    while inner is not None:
        for name in ("database", "url"):
            if not inner.params.get(name):
                continue
            source = inner.get_parameter_source(name)
            if source is not None and source.name == "COMMANDLINE":
                said.setdefault(name, inner.params[name])
            elif source is not None and source.name == "ENVIRONMENT":
                found.setdefault(name, inner.params[name])
        inner = inner.parent
    if len(said) > 1:
        raise typer.BadParameter("name a database or a server, not both", param_hint="--url")
    if len(found) > 1 and not said:
        raise typer.BadParameter(
            "TENUTO_DATABASE and TENUTO_URL are both set: say which with --database or --url, or unset one",
            param_hint="--url",
        )
    return Target(**(said or found), said=bool(said))


def given(context: typer.Context, name: str) -> Any:
    """An option of this command, or where it was left out that before the command."""
    source, outer = context.get_parameter_source(name), context.parent
    left_out = source is None or source.name != "COMMANDLINE"
    return (outer if outer is not None and left_out and name in outer.params else context).params[name]


def telling(context: typer.Context) -> dict[str, Any]:
    """What every command that tells a thread something is given, by its name in `tenuto.cli.tell.Word`."""
    return {
        "target": target_of(context),
        "wait": context.params["wait"],
        "as_json": context.params["as_json"],
        "agents": lambda: load_agents(named_agents(given(context, "agent"))),
    }

"""The options that commands share, each checked when it is read: before anything is loaded or touched."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from tenuto.cli.agents import split_names
from tenuto.cli.complete import interrupt_ids, thread_ids
from tenuto.cli.terminal import user
from tenuto.client.where import server_url
from tenuto.errors import ConfigurationError
from tenuto.rows import ThreadStatus
from tenuto.store import open_store


def reading(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Use what `read` makes of an option that is given; what it raises is told as wrong usage."""

    def callback(given: Any) -> Any:
        try:
            return None if given is None else read(given)
        except (ConfigurationError, OSError, ValueError) as error:
            raise typer.BadParameter(str(error)) from error

    return callback


@reading
def _database(url: str) -> str:
    open_store(url)
    return url


def _only_database(context: typer.Context, url: str) -> Any:
    source = context.get_parameter_source("database")
    if source is not None and source.name == "DEFAULT" and os.environ.get("TENUTO_URL"):
        raise typer.BadParameter(
            "TENUTO_URL names a server, and this command works on a database alone: say which"
        )
    return _database(url)


@reading
def _no_url(_url: str) -> None:
    raise ValueError("this command does not work on a server but on a database")


@reading
def agent_names(names: str) -> str:
    split_names(names)
    return names


def server_agent(context: typer.Context) -> str:
    """What `--agent` calls one of the server's agents; "" is its first. TENUTO_AGENT names code: left out."""
    source = context.get_parameter_source("agent")
    name: str = context.params["agent"] if source is not None and source.name == "COMMANDLINE" else ""
    if ":" in name:
        raise typer.BadParameter(
            f"{name!r} is code; with --url give the name that the server's agent has", param_hint="--agent"
        )
    return name


@reading
def id_or_beginning(text: str) -> str:
    if not re.fullmatch(r"[0-9a-f-]{1,36}", text.lower()):
        raise ValueError(f"{text[:60]!r} is not an id or the beginning of one")
    return text.lower()


@reading
def not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("is blank")
    return text


@reading
def json_arguments(text: str) -> str:
    """The JSON text given, or that of the file named; a JSON object in either case."""
    found = Path(text[1:]).read_text(encoding="utf-8") if text.startswith("@") else text
    if not isinstance(json.loads(found), dict):
        raise ValueError("is not a JSON object")  # noqa: TRY004 - as all that is wrong with an option
    return found


@reading
def metadata_pairs(pairs: list[str]) -> list[str]:
    for pair in pairs:
        if not pair.partition("=")[0] or "=" not in pair:
            raise ValueError(f"{pair[:60]!r} is not NAME=VALUE")
    return pairs


_url = reading(server_url)


def _by(name: str) -> str:
    return name or user()


def _database_option(check: Callable[..., str | None]) -> Any:
    where = "Where the log is, such as sqlite:///tenuto.db."
    return typer.Option("--database", envvar="TENUTO_DATABASE", metavar="URL", callback=check, help=where)


Database = Annotated[str, _database_option(_database)]
OnlyDatabase = Annotated[str, _database_option(_only_database)]
Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        envvar="TENUTO_URL",
        metavar="URL",
        callback=_url,
        help="A server instead of a database, such as https://host:8000; its token is in TENUTO_TOKEN.",
    ),
]
NoUrl = Annotated[str | None, typer.Option("--url", hidden=True, callback=_no_url)]
SameUrl = Annotated[
    str | None,
    typer.Option("--url", metavar="URL", callback=_url, help="As before the command."),
]
SameDatabase = Annotated[
    str | None, typer.Option("--database", metavar="URL", callback=_database, help="As before the command.")
]
AgentName = Annotated[
    str | None,
    typer.Option(
        "--agent",
        envvar="TENUTO_AGENT",
        metavar="MODULE:AGENT",
        callback=agent_names,
        help="The agents to load, with commas between; else agents in [tool.tenuto] of pyproject.toml.",
    ),
]
_THREAD: Any = {"callback": id_or_beginning, "autocompletion": thread_ids}
ThreadOption = Annotated[
    str | None,
    typer.Option(
        "--thread", metavar="ID", help="Go on with this thread; the beginning is enough.", **_THREAD
    ),
]
Before = Annotated[
    str | None,
    typer.Option(metavar="ID", help="Only those that started before this one.", **_THREAD),
]
Status = Annotated[
    ThreadStatus | None,
    typer.Option(metavar="STATUS", help="Only these, such as running or awaiting_approval."),
]
ThreadArgument = Annotated[
    str,
    typer.Argument(metavar="THREAD", help="Its id; the beginning is enough.", **_THREAD),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
InterruptId = Annotated[
    str,
    typer.Argument(
        metavar="ID",
        callback=id_or_beginning,
        autocompletion=interrupt_ids,
        help="The id in the inbox; its beginning is enough.",
    ),
]
By = Annotated[str, typer.Option(callback=_by, metavar="NAME", help="Who decides.", show_default="you")]
Comment = Annotated[str, typer.Option(help="Why; the model reads it.")]
Digest = Annotated[str | None, typer.Option(help="Refuse unless this is the digest of the pending call.")]
Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Run the thread here if no worker is alive.")]
DATABASE = "sqlite:///tenuto.db"
AGENT_NEEDED = (
    "name one as MODULE:AGENT, with --agent, TENUTO_AGENT or [tool.tenuto] agents in pyproject.toml"
)

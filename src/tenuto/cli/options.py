"""The options that commands share, each checked when it is read: before anything is loaded or touched."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer


def _database(url: str | None) -> str | None:
    from tenuto.errors import ConfigurationError
    from tenuto.store import open_store

    try:
        if url is not None:
            open_store(url)
    except ConfigurationError as error:
        raise typer.BadParameter(str(error)) from error
    return url


def _only_database(context: typer.Context, url: str | None) -> str | None:
    source = context.get_parameter_source("database")
    if source is not None and source.name == "DEFAULT" and os.environ.get("TENUTO_URL"):
        raise typer.BadParameter(
            "TENUTO_URL names a server, and this command works on a database alone: say which"
        )
    return _database(url)


def _url(url: str | None) -> str | None:
    from tenuto.client.where import server_url
    from tenuto.errors import ConfigurationError

    try:
        return url if url is None else server_url(url)
    except ConfigurationError as error:
        raise typer.BadParameter(str(error)) from error


def _no_url(url: str | None) -> None:
    if url is not None:
        raise typer.BadParameter("this command does not work on a server but on a database")


def agent_names(names: str | None) -> str | None:
    from tenuto.cli.agents import split_names

    try:
        return names if names is None or split_names(names) else None
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def server_agent(context: typer.Context) -> str:
    """What `--agent` calls one of the server's agents; "" is its first. TENUTO_AGENT names code: left out."""
    source = context.get_parameter_source("agent")
    name: str = context.params["agent"] if source is not None and source.name == "COMMANDLINE" else ""
    if ":" in name:
        raise typer.BadParameter(
            f"{name!r} is code; with --url give the name that the server's agent has", param_hint="--agent"
        )
    return name


def id_or_beginning(text: str | None) -> str | None:
    from tenuto.cli.find import ID_FORM

    if text is not None and not ID_FORM.fullmatch(text.lower()):
        raise typer.BadParameter(f"{text[:60]!r} is not an id or the beginning of one")
    return text and text.lower()


def _thread_ids(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    from tenuto.cli.complete import thread_ids

    return thread_ids(ctx, incomplete)


def _interrupt_ids(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    from tenuto.cli.complete import interrupt_ids

    return interrupt_ids(ctx, incomplete)


def _statuses(incomplete: str) -> list[str]:
    from typing import get_args

    from tenuto.rows import ThreadStatus

    return [name for name in get_args(ThreadStatus) if name.startswith(incomplete)]


def not_blank(text: str) -> str:
    if not text.strip():
        raise typer.BadParameter("is blank")
    return text


def json_arguments(text: str) -> str:
    """The JSON text given, or that of the file named; a JSON object in either case."""
    try:
        found = Path(text[1:]).read_text(encoding="utf-8") if text.startswith("@") else text
        if isinstance(json.loads(found), dict):
            return found
    except (OSError, ValueError) as error:
        raise typer.BadParameter(str(error)) from error
    raise typer.BadParameter("is not a JSON object")


def one_status(name: str | None) -> str | None:
    from typing import get_args

    from tenuto.rows import ThreadStatus

    if name is not None and name not in get_args(ThreadStatus):
        raise typer.BadParameter(f"{name[:60]!r} is not one of {', '.join(get_args(ThreadStatus))}")
    return name


def metadata_pairs(pairs: list[str] | None) -> list[str] | None:
    for pair in pairs or ():
        if not pair.partition("=")[0] or "=" not in pair:
            raise typer.BadParameter(f"{pair[:60]!r} is not NAME=VALUE")
    return pairs


def _by(name: str) -> str:
    from tenuto.cli.run import user

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
    str | None, typer.Option("--url", metavar="URL", callback=_url, help="As before the command.")
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
        help="The agents to load; else agents in [tool.tenuto] of pyproject.toml.",
    ),
]
ThreadOption = Annotated[
    str | None,
    typer.Option(
        "--thread",
        callback=id_or_beginning,
        autocompletion=_thread_ids,
        metavar="ID",
        help="Go on with this thread; the beginning is enough.",
    ),
]
Before = Annotated[
    str | None,
    typer.Option(
        callback=id_or_beginning,
        autocompletion=_thread_ids,
        metavar="ID",
        help="Only those that started before this one.",
    ),
]
Status = Annotated[
    str | None,
    typer.Option(
        callback=one_status,
        autocompletion=_statuses,
        help="Only these, such as running or awaiting_approval.",
    ),
]
ThreadArgument = Annotated[
    str,
    typer.Argument(
        metavar="THREAD",
        callback=id_or_beginning,
        autocompletion=_thread_ids,
        help="Its id; the beginning is enough.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
InterruptId = Annotated[
    str,
    typer.Argument(
        metavar="ID",
        callback=id_or_beginning,
        autocompletion=_interrupt_ids,
        help="The id in the inbox; its beginning is enough.",
    ),
]
By = Annotated[
    str,
    typer.Option(callback=_by, metavar="NAME", help="Who decides.", show_default="you"),
]
Comment = Annotated[str, typer.Option(help="Why; the model reads it.")]
Digest = Annotated[str | None, typer.Option(help="Refuse unless this is the digest of the pending call.")]
Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Run the thread here if no worker is alive.")]
DATABASE = "sqlite:///tenuto.db"
AGENT_NEEDED = (
    "name one as MODULE:AGENT, with --agent, TENUTO_AGENT or [tool.tenuto] agents in pyproject.toml"
)

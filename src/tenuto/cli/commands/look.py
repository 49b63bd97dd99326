"""Commands that look at threads: show, threads, verify."""

import asyncio
from typing import Annotated

import typer

from tenuto.cli.options import DATABASE, AsJson, Database, Url, id_or_beginning, one_status
from tenuto.cli.target import target_of

commands = typer.Typer()


@commands.command(epilog="Example: tenuto show 5b1e --after 12")
def show(
    context: typer.Context,
    thread: Annotated[
        str,
        typer.Argument(metavar="THREAD", callback=id_or_beginning, help="Its id; the beginning is enough."),
    ],
    after: Annotated[
        int, typer.Option(min=0, max=1 << 40, metavar="SEQ", help="Only events with a higher seq.")
    ] = 0,
    as_json: AsJson = False,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on as events come, until Ctrl-C.")
    ] = False,
    database: Database = DATABASE,
    url: Url = None,
) -> None:
    """Show what happened in a thread.

    Messages, calls, results, and decisions with who and when.
    """
    from tenuto.cli.look import show as show_thread

    if as_json and follow:
        raise typer.BadParameter("an array has an end: use --json or --follow", param_hint="--json")
    asyncio.run(show_thread(target_of(context), thread, after, as_json, follow))


@commands.command(epilog="Example: tenuto threads --status awaiting_approval")
def threads(
    context: typer.Context,
    status: Annotated[
        str | None,
        typer.Option(callback=one_status, help="Only these, such as running or awaiting_approval."),
    ] = None,
    agent: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only threads of the agent of this name.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="At most this many.")] = 20,
    as_json: AsJson = False,
    database: Database = DATABASE,
    url: Url = None,
) -> None:
    """List threads, newest first."""
    from tenuto.cli.look import threads as list_threads

    asyncio.run(list_threads(target_of(context), status, agent, limit, as_json))


@commands.command(epilog="Example: tenuto verify --all --heads > heads.txt")
def verify(
    context: typer.Context,
    thread: Annotated[
        str | None,
        typer.Argument(metavar="THREAD", callback=id_or_beginning, help="Its id; the beginning is enough."),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Every thread.")] = False,
    heads: Annotated[
        bool, typer.Option(help="Print thread, seq and hash of each head, to keep in another place.")
    ] = False,
    database: Database = DATABASE,
    url: Url = None,
) -> None:
    """Check that logs are as they were written.

    Exits with 1 and names the first event that does not fit.
    """
    from tenuto.cli.look import verify as verify_threads

    if (thread is None) is not every:
        raise typer.BadParameter("name a thread or say --all", param_hint="THREAD")
    raise typer.Exit(asyncio.run(verify_threads(target_of(context), thread, heads)))

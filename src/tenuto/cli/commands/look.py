"""Commands that look at threads: show, follow, threads, export, verify."""

import asyncio
import contextlib
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from tenuto.cli.export import export as export_thread
from tenuto.cli.fleet import fleet as show_fleet
from tenuto.cli.follow import follow as follow_thread
from tenuto.cli.look import show as show_thread
from tenuto.cli.look import threads as list_threads
from tenuto.cli.look import verify as verify_threads
from tenuto.cli.options import (
    DATABASE,
    AsJson,
    Before,
    Database,
    Status,
    ThreadArgument,
    Url,
    id_or_beginning,
    metadata_pairs,
)
from tenuto.cli.target import target_of

commands = typer.Typer()
After = Annotated[int, typer.Option(min=0, max=1 << 40, metavar="SEQ", help="Only events with a higher seq.")]


@commands.command(epilog="Example: tenuto show 5b1e --after 12")
def show(
    context: typer.Context,
    thread: ThreadArgument,
    after: After = 0,
    form: Annotated[
        Literal["text", "markdown", "json"],
        typer.Option("--format", help="markdown is a document of it; json is for programs."),
    ] = "text",
    as_json: Annotated[bool, typer.Option("--json", help="As --format json.")] = False,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on as events come, until Ctrl-C.")
    ] = False,
    database: Database = DATABASE,
    url: Url = None,
) -> None:
    """Show what happened in a thread.

    Messages, calls, results, and decisions with who and when.
    """
    if as_json and form == "markdown":
        raise typer.BadParameter("is another format than --format markdown", param_hint="--json")
    form = "json" if as_json else form
    if form == "json" and follow:
        raise typer.BadParameter("an array has an end: see tenuto follow --jsonl", param_hint="--follow")
    asyncio.run(show_thread(target_of(context), thread, after, form, follow))


@commands.command(epilog="Example: tenuto follow 5b1e --after 12 --jsonl")
def follow(
    context: typer.Context,
    thread: ThreadArgument,
    after: After = 0,
    jsonl: Annotated[
        bool, typer.Option("--jsonl", help="One JSON object a line: events, deltas, the boundary.")
    ] = False,
    until: Annotated[
        Literal["rest"] | None, typer.Option(help="End when the thread ends or waits for somebody.")
    ] = None,
    database: Database = DATABASE,
    url: Url = None,
) -> None:
    """Show what happened in a thread, and what happens from there on.

    Ctrl-C leaves it running and says after which event to go on.
    """
    asyncio.run(follow_thread(target_of(context), thread, after, jsonl, until == "rest"))


@commands.command(epilog="Example: tenuto export 5b1e -o thread.jsonl")
def export(
    context: typer.Context,
    thread: ThreadArgument,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write there; else to standard output."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over a file that is there.")] = False,
    database: Database = DATABASE,
    url: Url = None,
) -> None:
    """Write a thread's events as they are stored, one JSON object a line.

    With salts and hashes, so that the chain can be checked without the database.
    """
    asyncio.run(export_thread(target_of(context), thread, output, force))


@commands.command(epilog="Example: tenuto threads --status awaiting_approval --metadata customer=17")
def threads(
    context: typer.Context,
    status: Status = None,
    agent: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only threads of the agent of this name.")
    ] = None,
    metadata: Annotated[
        list[str] | None,
        typer.Option(callback=metadata_pairs, metavar="NAME=VALUE", help="Only with this; may be repeated."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="At most this many.")] = 20,
    before: Before = None,
    as_json: AsJson = False,
    database: Database = DATABASE,
    url: Url = None,
) -> None:
    """List threads, newest first."""
    filters: dict[str, Any] = {"status": status, "agent": agent, "limit": limit}
    if metadata:
        filters["metadata"] = {name: value for name, _, value in (pair.partition("=") for pair in metadata)}
    asyncio.run(list_threads(target_of(context), filters, before, as_json))


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
    as_json: AsJson = False,
) -> None:
    """Check that logs are as they were written.

    Exits with 1 and names the first event that does not fit.
    """
    if (thread is None) is not every:
        raise typer.BadParameter("name a thread or say --all", param_hint="THREAD")
    raise typer.Exit(asyncio.run(verify_threads(target_of(context), thread, heads=heads, as_json=as_json)))


@commands.command(epilog="Example: tenuto fleet --watch")
def fleet(
    context: typer.Context,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="At a terminal: again every 2 seconds, until Ctrl-C.")
    ] = False,
    as_json: AsJson = False,
    database: Database = DATABASE,
    url: Url = None,
) -> None:
    """Show who works, on which machine, and what waits for workers and for people."""
    if watch and as_json:
        raise typer.BadParameter("is for people, not with --json", param_hint="--watch")
    with contextlib.suppress(KeyboardInterrupt) if watch else contextlib.nullcontext():
        asyncio.run(show_fleet(target_of(context), as_json, watch))

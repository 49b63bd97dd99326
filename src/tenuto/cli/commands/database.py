"""The database itself: which schema it has, bringing it up to date, deleting what is old."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from tenuto.cli.db import schema
from tenuto.cli.options import DATABASE, AsJson, NoUrl, OnlyDatabase
from tenuto.cli.prune import prune as delete

commands = typer.Typer()
db_app = typer.Typer(
    help="The database: which schema it has, bringing it up to date, deleting what is old.",
    epilog="Example: tenuto db status --database postgresql://tenuto@db.example/tenuto",
    no_args_is_help=True,
)
commands.add_typer(db_app, name="db")


@db_app.command(epilog="Example: tenuto db status --json")
def status(database: OnlyDatabase = DATABASE, url: NoUrl = None, as_json: AsJson = False) -> None:
    """Say which schema the database has, and which one this Tenuto makes of it.

    Changes nothing. Exits with 1 when the database cannot be read or a later Tenuto wrote it.
    """
    asyncio.run(schema(database, as_json))


@db_app.command(epilog="Example: tenuto db upgrade --database postgresql://tenuto@db.example/tenuto")
def upgrade(database: OnlyDatabase = DATABASE, url: NoUrl = None, as_json: AsJson = False) -> None:
    """Make the schema, or bring it up to date.

    All of it or nothing, and once, however many do it at the same time. A server or worker does the same when
    it starts; this is for those that may not, or to have it done before.
    """
    asyncio.run(schema(database, as_json, upgrade=True))


@db_app.command(epilog="Example: tenuto db prune --days 90 --export /var/archive/tenuto")
def prune(
    days: Annotated[float, typer.Option(min=0, help="Threads that ended longer ago than so many days.")],
    export: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Export each there before, as tenuto export does, and check it."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    database: OnlyDatabase = DATABASE,
    url: NoUrl = None,
    as_json: AsJson = False,
) -> None:
    """Delete threads that ended long ago: all events, interrupts and labels of each.

    Nothing does that by itself. With --export a damaged thread stops it before anything is deleted.
    """
    if not yes:
        kept = f"after they were exported to {export}" if export else "without an export"
        typer.confirm(f"Delete all threads that ended more than {days:g} days ago, {kept}?", abort=True)
    asyncio.run(delete(database, days, export, as_json))

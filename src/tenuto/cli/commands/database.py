"""The database itself: which schema it has, bringing it up to date."""

import asyncio

import typer

from tenuto.cli.options import DATABASE, AsJson, Database, NoUrl

commands = typer.Typer()
db_app = typer.Typer(
    help="The database's schema: which one it has, bringing it up to date.",
    epilog="Example: tenuto db status --database postgresql://tenuto@db.example/tenuto",
    no_args_is_help=True,
)
commands.add_typer(db_app, name="db")


@db_app.command(epilog="Example: tenuto db status --json")
def status(database: Database = DATABASE, url: NoUrl = None, as_json: AsJson = False) -> None:
    """Say which schema the database has, and which one this Tenuto makes of it.

    Changes nothing. Exits with 1 when the database cannot be read or a later Tenuto wrote it.
    """
    from tenuto.cli.db import status as show_status

    asyncio.run(show_status(database, as_json))


@db_app.command(epilog="Example: tenuto db upgrade --database postgresql://tenuto@db.example/tenuto")
def upgrade(database: Database = DATABASE, url: NoUrl = None, as_json: AsJson = False) -> None:
    """Make the schema, or bring it up to date.

    All of it or nothing, and once, however many do it at the same time. A server or worker does the same when
    it starts; this is for those that may not, or to have it done before.
    """
    from tenuto.cli.db import upgrade as bring_up_to_date

    asyncio.run(bring_up_to_date(database, as_json))

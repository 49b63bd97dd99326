"""`tenuto` itself: the commands of all files together, and what is said before any of them runs."""

from typing import Annotated

import typer

from tenuto import __version__
from tenuto.cli.commands import database, examine, inbox, look, tell, token, work
from tenuto.cli.terminal import log_briefly

app = typer.Typer(
    help="Tenuto runs agents durably: every fact is an event in a database that you own.",
    epilog='Example: tenuto run --agent examples.calculator.agent:agent "multiply 3 and 4"',
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain text: quick to print, and one line per error
)
for part in (work, tell, inbox, look, token, database, examine):
    app.add_typer(part.commands)


@app.callback(invoke_without_command=True)
def start(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Say the version and end.", is_eager=True)
    ] = False,
) -> None:
    if version:
        print(f"tenuto {__version__}")
        raise typer.Exit
    if context.invoked_subcommand not in ("serve", "worker"):
        log_briefly()

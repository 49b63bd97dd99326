"""Commands that try things out and find faults: crashtest, doctor, demo."""

import asyncio
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from tenuto.cli.options import DATABASE, AgentName, AsJson, NoUrl, OnlyDatabase, agent_names
from tenuto.errors import ConfigurationError

commands = typer.Typer()


@commands.command(
    epilog="Example: tenuto crashtest examples.orders.agent:agent --script examples.orders.crash:script "
    "--fakes examples.orders.crash:fakes"
)
def crashtest(
    agent: Annotated[
        str, typer.Argument(metavar="MODULE:AGENT", callback=agent_names, help="The agent to kill.")
    ],
    script: Annotated[
        str,
        typer.Option(
            metavar="FILE.json|MODULE:NAME", help="What is said, what the model replies, what people decide."
        ),
    ],
    fakes: Annotated[
        str, typer.Option(metavar="MODULE:NAME", help="Functions to run in place of tools, by tool name.")
    ] = "",
    only: Annotated[str, typer.Option(metavar="TEXT", help="Only cases with this in their names.")] = "",
    listing: Annotated[bool, typer.Option("--list", help="Print the cases, run none of them.")] = False,
    report: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write report.md and report.json there.")
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep each case's folder, also without fault.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Of the thread's id, and of Python's random.")] = 0,
    seconds: Annotated[float, typer.Option(min=1, help="How long a process may take.")] = 30.0,
    url: NoUrl = None,
) -> None:
    """Kill an agent at every event, restart it, and count what its tools did.

    Its own code runs in real processes, with scripted replies: one run for each point where it could die, one
    with each decision made twice, some with a frozen worker that comes back. Exits with 1 when a promise
    breaks, with 2 when nothing could be run.
    """
    from tenuto.cli.crashtest import crashtest as play
    from tenuto.testing.crashtest import Subject

    subject = Subject(agent, script, fakes, seed, seconds)
    raise typer.Exit(play(subject, only, listing=listing, report=report, keep=keep))


@commands.command(epilog="Example: tenuto doctor --agent examples.orders.agent:agent")
def doctor(
    agent: AgentName = None, database: OnlyDatabase = DATABASE, url: NoUrl = None, as_json: AsJson = False
) -> None:
    """Say what is wrong here, and what to do.

    Looks at the database, its leases and clock, the environment, the provider and the agents. Changes nothing
    and costs nothing. Exits with 1 when there is a problem.
    """
    from tenuto.cli.doctor import doctor as examine

    raise typer.Exit(asyncio.run(examine(database, agent, as_json)))


@commands.command(epilog="Example: ./dev demo")
def demo() -> None:
    """The guided tour, in a checkout; needs no keys.

    An agent, an approval, a crash, a recovery.
    """
    from importlib import import_module

    sys.path.insert(0, os.getcwd())
    try:
        tour = import_module("examples.orders.demo")
    except ModuleNotFoundError as error:
        where = f"which is not in {os.getcwd()}: run ./dev demo in a checkout"
        raise ConfigurationError(f"the demo needs examples/orders, {where}") from error
    raise typer.Exit(tour.demo())

"""Commands that let agents work: run, serve."""

import asyncio
import os
import sys
from typing import Annotated

import typer

from tenuto.cli.options import (
    AGENT_NEEDED,
    DATABASE,
    AgentName,
    AsJson,
    Database,
    agent_names,
    id_or_beginning,
)

commands = typer.Typer()


@commands.command(
    epilog='Example: tenuto run --agent examples.orders.agent:agent "Refund order 17, it arrived damaged."'
)
def run(
    message: Annotated[str | None, typer.Argument(help="What to say; - reads it from stdin.")] = None,
    agent: AgentName = None,
    thread: Annotated[
        str | None,
        typer.Option(
            callback=id_or_beginning, metavar="ID", help="Go on with this thread; the beginning is enough."
        ),
    ] = None,
    database: Database = DATABASE,
    as_json: AsJson = False,
) -> None:
    """Run a thread here and show it.

    It goes on until the thread ends or waits for a person. At a terminal you are asked what a person has to
    decide; without one it stops there, says how to go on and exits with 0.
    """
    from tenuto.cli.agents import check_models, load_agents, named_agents
    from tenuto.cli.run import run as run_thread

    if message is None and thread is None:
        raise typer.BadParameter("say something, or name a thread to go on with", param_hint="MESSAGE")
    names = named_agents(agent)
    if not names:
        raise typer.BadParameter(AGENT_NEEDED, param_hint="--agent")
    if message == "-":
        message = sys.stdin.read().strip()
    if message is not None and not message.strip():
        raise typer.BadParameter("is blank", param_hint="MESSAGE")
    hint = "".join(
        f" {option} {value}"
        for option, value, found in (
            ("--agent", agent, os.environ.get("TENUTO_AGENT")),
            ("--database", database, os.environ.get("TENUTO_DATABASE", DATABASE)),
        )
        if value is not None and value != found
    )
    agents = load_agents(names)
    check_models(agents)
    raise typer.Exit(asyncio.run(run_thread(agents, database, message, thread, as_json, hint)))


@commands.command(epilog="Example: tenuto serve examples.orders.agent:agent --port 8000")
def serve(
    agents: Annotated[
        str | None, typer.Argument(metavar="MODULE:AGENT", callback=agent_names, help="As --agent.")
    ] = None,
    agent: AgentName = None,
    host: Annotated[str, typer.Option(help="Beyond loopback only with tokens set.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8000,
    database: Database = DATABASE,
) -> None:
    """Serve agents over HTTP and run their threads.

    The first agent answers at /api/agent.
    """
    from tenuto.cli.agents import check_models, load_agents, named_agents

    names = named_agents(agents or agent)
    if not names:
        raise typer.BadParameter(AGENT_NEEDED, param_hint="MODULE:AGENT")
    loaded = load_agents(names)
    check_models(loaded)
    from tenuto.server import serve as serve_agents

    def ready(url: str) -> None:
        print(f"serving {', '.join(agent.name for agent in loaded)} on {url}", flush=True)

    serve_agents(loaded, database=database, host=host, port=port, ready=ready)

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
    NoUrl,
    Url,
    agent_names,
    id_or_beginning,
    server_agent,
)
from tenuto.cli.target import target_of

commands = typer.Typer()


@commands.command(
    epilog='Example: tenuto run --agent examples.orders.agent:agent "Refund order 17, it arrived damaged."'
)
def run(
    context: typer.Context,
    message: Annotated[str | None, typer.Argument(help="What to say; - reads it from stdin.")] = None,
    agent: Annotated[
        str | None,
        typer.Option(
            envvar="TENUTO_AGENT",
            metavar="MODULE:AGENT",
            help="The agents to load; else agents in [tool.tenuto] of pyproject.toml. With --url the NAME of "
            "one of the server's; else its first.",
        ),
    ] = None,
    thread: Annotated[
        str | None,
        typer.Option(
            callback=id_or_beginning, metavar="ID", help="Go on with this thread; the beginning is enough."
        ),
    ] = None,
    database: Database = DATABASE,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Run a thread here, or at a server, and show it.

    It goes on until the thread ends or waits for a person. At a terminal you are asked what a person has to
    decide; without one it stops there, says how to go on and exits with 0.
    """
    from tenuto.cli.agents import check_models, load_agents, named_agents
    from tenuto.cli.run import Task, one_agent
    from tenuto.cli.run import run as run_thread

    target = target_of(context)
    if message is None and thread is None:
        raise typer.BadParameter("say something, or name a thread to go on with", param_hint="MESSAGE")
    name = server_agent(context) if target.url else ""
    names = [] if target.url else named_agents(agent_names(agent))
    if not names and not target.url:
        raise typer.BadParameter(AGENT_NEEDED, param_hint="--agent")
    if message == "-":
        message = sys.stdin.read().strip()
    if message is not None and not message.strip():
        raise typer.BadParameter("is blank", param_hint="MESSAGE")
    hint = target.hint
    if agent is not None and agent != os.environ.get("TENUTO_AGENT") and not target.url:
        hint = f" --agent {agent}{hint}"
    agents = load_agents(names)
    check_models(agents)
    if agents and thread is None:
        name = one_agent(agents)
    task = Task(message, thread, name, hint, as_json)
    raise typer.Exit(asyncio.run(run_thread(target, agents, task)))


@commands.command(epilog="Example: tenuto serve examples.orders.agent:agent --port 8000")
def serve(
    agents: Annotated[
        str | None, typer.Argument(metavar="MODULE:AGENT", callback=agent_names, help="As --agent.")
    ] = None,
    agent: AgentName = None,
    host: Annotated[str, typer.Option(help="Beyond loopback only with tokens set.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8000,
    database: Database = DATABASE,
    url: NoUrl = None,
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

"""Commands that let agents work: run, chat, serve, worker."""

import asyncio
import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Annotated, Literal

import typer

from tenuto.agent import Agent
from tenuto.cli.agents import check_models, load_agents, named_agents
from tenuto.cli.options import (
    AGENT_NEEDED,
    DATABASE,
    AgentName,
    AsJson,
    Database,
    NoUrl,
    OnlyDatabase,
    ThreadOption,
    Url,
    agent_names,
    server_agent,
)
from tenuto.cli.run import Task, one_agent
from tenuto.cli.run import run as run_thread
from tenuto.cli.target import Target, target_of
from tenuto.limits import STOP_GRACE_SECONDS, WORKER_CONCURRENCY
from tenuto.observe.environment import looking_on
from tenuto.observe.lines import log_to_stderr
from tenuto.runtime import Runtime, Settings

commands = typer.Typer()


_AgentOrName = Annotated[
    str | None,
    typer.Option(
        envvar="TENUTO_AGENT",
        metavar="MODULE:AGENT",
        help="The agents to load, with commas between; else agents in [tool.tenuto] of pyproject.toml. "
        "With --url the NAME of one of the server's; else its first.",
    ),
]


def _task(context: typer.Context, message: str | None) -> tuple[Target, list[Agent], Task]:
    """Where and what to run, by the options `agent`, `thread`, `database`, `url` and `as_json`.

    Loads the agents. Raises `BadParameter`, `ConfigurationError`.
    """
    given, target = context.params, target_of(context)
    agent, thread = given["agent"], given["thread"]
    name = server_agent(context) if target.url else ""
    names = [] if target.url else named_agents(agent_names(agent))
    if not names and not target.url:
        raise typer.BadParameter(AGENT_NEEDED, param_hint="--agent")
    if message is not None and not message.strip():
        raise typer.BadParameter("is blank", param_hint="MESSAGE")
    hint = target.hint
    if agent is not None and agent != os.environ.get("TENUTO_AGENT") and not target.url:
        hint = f" --agent {agent}{hint}"
    agents = load_agents(names)
    check_models(agents)
    if agents and thread is None:
        name = one_agent(agents)
    return target, agents, Task(message, thread, name, hint, given.get("as_json", False))


@commands.command(
    epilog='Example: tenuto run --agent examples.orders.agent:agent "Refund order 17, it arrived damaged."'
)
def run(
    context: typer.Context,
    message: Annotated[str | None, typer.Argument(help="What to say; - reads it from stdin.")] = None,
    agent: _AgentOrName = None,
    thread: ThreadOption = None,
    database: Database = DATABASE,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Run a thread here, or at a server, and show it.

    It goes on until the thread ends or waits for a person. At a terminal you are asked what a person has to
    decide; without one it stops there, says how to go on and exits with 0.
    """
    if message is None and thread is None:
        raise typer.BadParameter("say something, or name a thread to go on with", param_hint="MESSAGE")
    text = sys.stdin.read().strip() if message == "-" else message
    target, agents, task = _task(context, text)
    raise typer.Exit(asyncio.run(run_thread(target, agents, task)))


@commands.command(epilog="Example: tenuto chat --agent examples.orders.agent:agent")
def chat(
    context: typer.Context,
    message: Annotated[str | None, typer.Argument(help="What to say first.")] = None,
    agent: _AgentOrName = None,
    thread: ThreadOption = None,
    jsonl: Annotated[
        bool, typer.Option("--jsonl", help="For programs: one JSON object a line, in and out.")
    ] = False,
    once: Annotated[
        bool, typer.Option("--once", help="One message, of MESSAGE or stdin, and its turn.")
    ] = False,
    database: Database = DATABASE,
    url: Url = None,
) -> None:
    """Talk with an agent, here or at a server, turn by turn.

    What a person has to decide is asked in between. Ctrl-C stops a turn; at the prompt it leaves, as Ctrl-D
    does, and the thread stays. With --jsonl a line of input is a message or an object with "message",
    "resolve", "extend" or "cancel"; docs/cli.md has the forms. With --once the exit code is 0 when the turn
    completed, 1 when it failed, halted or was cancelled, 3 when it waits for a person or a time.
    """
    text = sys.stdin.read().strip() if once and message is None and not jsonl else message
    target, agents, task = _task(context, text)
    from tenuto.cli.chat import chat as talk

    raise typer.Exit(asyncio.run(talk(target, agents, task, jsonl=jsonl, once=once)))


_Agents = Annotated[
    str | None, typer.Argument(metavar="MODULE:AGENT", callback=agent_names, help="As --agent.")
]
_Concurrency = Annotated[int, typer.Option(min=1, max=10_000, help="Threads that run here at a time.")]
_Limits = Annotated[
    list[str] | None,
    typer.Option(
        "--limit",
        metavar="AGENT=N",
        help="Of this agent's threads no more than N at a time; may be repeated.",
    ),
]
_LogFormat = Annotated[
    Literal["text", "json"], typer.Option(envvar="TENUTO_LOG", help="How this process logs, on stderr.")
]
_LogLevel = Annotated[
    Literal["debug", "info", "warning", "error"],
    typer.Option(envvar="TENUTO_LOG_LEVEL", help="From which level on."),
]
_Grace = Annotated[
    float, typer.Option(min=0, help="Seconds that what runs has to come to rest after SIGTERM or Ctrl-C.")
]


@commands.command(epilog="Example: tenuto serve examples.orders.agent:agent --port 8000")
def serve(
    agents: _Agents = None,
    agent: AgentName = None,
    host: Annotated[str, typer.Option(help="Beyond loopback only with tokens set.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8000,
    worker: Annotated[
        bool, typer.Option("--worker/--no-worker", help="Run threads here too, or leave them to workers.")
    ] = True,
    concurrency: _Concurrency = WORKER_CONCURRENCY,
    limit: _Limits = None,
    grace: _Grace = STOP_GRACE_SECONDS,
    log_format: _LogFormat = "text",
    log_level: _LogLevel = "info",
    database: OnlyDatabase = DATABASE,
    url: NoUrl = None,
) -> None:
    """Serve agents over HTTP and run their threads.

    The first agent answers at /api/agent. /healthz and /readyz are for orchestrators.
    """
    from tenuto.server import serve as serve_agents

    def ready(url: str) -> None:
        print(f"serving {', '.join(runtime.agents)} on {url}", flush=True)

    log_to_stderr(log_format, log_level)
    how = Settings(worker, concurrency, _limits(limit), grace_seconds=grace)
    with _runtime(agents or agent, database, how) as runtime:
        serve_agents(runtime, host=host, port=port, ready=ready)


@commands.command(epilog="Example: tenuto worker examples.orders.agent:agent --concurrency 50")
def worker(
    agents: _Agents = None,
    agent: AgentName = None,
    concurrency: _Concurrency = WORKER_CONCURRENCY,
    limit: _Limits = None,
    grace: _Grace = STOP_GRACE_SECONDS,
    host: Annotated[str, typer.Option(help="Where the probes listen.")] = "127.0.0.1",
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Answer /healthz and /readyz there; else no port.")
    ] = None,
    log_format: _LogFormat = "text",
    log_level: _LogLevel = "info",
    database: OnlyDatabase = DATABASE,
    url: NoUrl = None,
) -> None:
    """Run threads of these agents, without the HTTP API; any number of workers on one database.

    SIGTERM or Ctrl-C: takes no more threads, lets what runs come to rest within the grace time, hands the
    rest over. Nothing is lost by kill -9 either: another worker goes on when the lease ends.
    """
    from tenuto.server import work

    def ready(url: str) -> None:
        probes = f", probes on {url}" if url else ""
        print(f"worker {runtime.owner} runs {', '.join(runtime.agents)}{probes}", flush=True)

    log_to_stderr(log_format, log_level)
    how = Settings(True, concurrency, _limits(limit), grace_seconds=grace)
    with _runtime(agents or agent, database, how) as runtime:
        work(runtime, host=host, port=port, ready=ready)


def _limits(given: list[str] | None) -> dict[str, int]:
    """What --limit says, by agent. Raises `BadParameter`."""
    limits: dict[str, int] = {}
    for text in given or ():
        agent, separator, most = text.rpartition("=")
        if not (separator and agent and most.isascii() and most.isdecimal() and 0 < len(most) <= 6):
            raise typer.BadParameter(f"{text!r} is not of the form AGENT=N", param_hint="--limit")
        limits[agent] = int(most)
    return limits


@contextlib.contextmanager
def _runtime(names: str | None, database: str, settings: Settings) -> Iterator[Runtime]:
    """The runtime of a process that works, looked on but not opened yet."""
    if not (found := named_agents(names)):
        raise typer.BadParameter(AGENT_NEEDED, param_hint="MODULE:AGENT")
    loaded = load_agents(found)
    if settings.worker:
        check_models(loaded)
    # The agents' module comes first: it may have set up a tracer provider of its own.
    with looking_on() as observe:
        yield Runtime(loaded, database, settings=settings, observe=observe)

"""The commands and their options. What they do is imported when they run."""

import asyncio
import os
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from tenuto.cli.options import (
    AGENT_NEEDED,
    DATABASE,
    AgentName,
    AsJson,
    By,
    Comment,
    Database,
    Digest,
    InterruptId,
    SameDatabase,
    Wait,
    agent_names,
    id_or_beginning,
    json_arguments,
    not_blank,
    one_status,
)

app = typer.Typer(
    help="Tenuto runs agents durably: every fact is an event in a database that you own.",
    epilog='Example: tenuto run --agent examples.calculator.agent:agent "multiply 3 and 4"',
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain text: quick to print, and one line per error
)
inbox_app = typer.Typer(
    help="What waits for a person: list it, decide it.",
    epilog="Example: tenuto inbox, then: tenuto inbox approve 3f2a",
)
app.add_typer(inbox_app, name="inbox")


@app.callback(invoke_without_command=True)
def start(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Say the version and end.", is_eager=True)
    ] = False,
) -> None:
    if version:
        from tenuto import __version__

        print(f"tenuto {__version__}")
        raise typer.Exit
    if context.invoked_subcommand != "serve":
        from tenuto.cli.terminal import log_briefly

        log_briefly()


@app.command(
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


@app.command(epilog="Example: tenuto serve examples.orders.agent:agent --port 8000")
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


@inbox_app.callback(invoke_without_command=True)
def inbox(context: typer.Context, database: Database = DATABASE, as_json: AsJson = False) -> None:
    context.obj = database
    if context.invoked_subcommand is None:
        from tenuto.cli.look import inbox as list_inbox

        asyncio.run(list_inbox(database, as_json))
    elif as_json:
        raise typer.BadParameter("goes with the list alone", param_hint="--json")


def _decide(context: typer.Context, verb: str, **decision: str) -> None:
    """The options that all decisions share are in the context."""
    from tenuto.cli.agents import load_agents, named_agents
    from tenuto.cli.inbox import Order, decide
    from tenuto.runtime import Decision

    given = context.params
    whole = Decision(digest=given["digest"], channel="cli", **decision)  # type: ignore[typeddict-item]  # keys are fixed below
    order = Order(
        id=given["id"],
        verb=verb,
        by=given["by"],
        decision=whole,
        database=given["database"] or context.obj,
        wait=given["wait"],
        agents=lambda: load_agents(named_agents(given["agent"])),
    )
    asyncio.run(decide(order))


@inbox_app.command(epilog="Example: tenuto inbox approve 3f2a")
def approve(
    context: typer.Context,
    id: InterruptId,
    by: By = "",
    digest: Digest = None,
    agent: AgentName = None,
    database: SameDatabase = None,
    wait: Wait = True,
) -> None:
    """Let a call run, with exactly the arguments shown."""
    _decide(context, "approve")


@inbox_app.command(epilog='Example: tenuto inbox reject 3f2a --comment "The lamp was used for a year."')
def reject(
    context: typer.Context,
    id: InterruptId,
    comment: Comment = "",
    by: By = "",
    digest: Digest = None,
    agent: AgentName = None,
    database: SameDatabase = None,
    wait: Wait = True,
) -> None:
    """Do not let a call run; the model reads the comment."""
    _decide(context, "reject", comment=comment)


@inbox_app.command(
    epilog='Example: tenuto inbox edit 3f2a --arguments \'{"order_id": "16", "reason": "broken"}\''
)
def edit(
    context: typer.Context,
    id: InterruptId,
    arguments: Annotated[
        str,
        typer.Option(callback=json_arguments, metavar="JSON|@FILE", help="All arguments, as a JSON object."),
    ],
    comment: Comment = "",
    by: By = "",
    digest: Digest = None,
    agent: AgentName = None,
    database: SameDatabase = None,
    wait: Wait = True,
) -> None:
    """Let a call run with other arguments. The agent is needed here, to check them."""
    _decide(context, "edit", arguments=arguments, comment=comment)


@inbox_app.command(epilog='Example: tenuto inbox answer 3f2a "It is 4."')
def answer(
    context: typer.Context,
    id: InterruptId,
    text: Annotated[str, typer.Argument(metavar="TEXT", callback=not_blank, help="The answer.")],
    by: By = "",
    digest: Digest = None,
    agent: AgentName = None,
    database: SameDatabase = None,
    wait: Wait = True,
) -> None:
    """Answer a question."""
    _decide(context, "answer", answer=text)


@inbox_app.command(epilog='Example: tenuto inbox review 3f2a happened --result \'{"id": "R1"}\'')
def review(
    context: typer.Context,
    id: InterruptId,
    verdict: Annotated[
        Literal["happened", "did_not_happen", "drop"],
        typer.Argument(help="drop: nobody knows; the model is told so, and the call does not run again."),
    ],
    result: Annotated[
        str, typer.Option(help="What the call returned, if it happened; the model reads it.")
    ] = "",
    comment: Comment = "",
    by: By = "",
    digest: Digest = None,
    agent: AgentName = None,
    database: SameDatabase = None,
    wait: Wait = True,
) -> None:
    """Say what became of a call whose outcome is unknown. After did_not_happen it runs again."""
    if result and verdict != "happened":
        raise typer.BadParameter("goes with happened alone", param_hint="--result")
    _decide(context, verdict, answer=result, comment=comment)


@app.command(epilog="Example: tenuto show 5b1e --after 12")
def show(
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
) -> None:
    """Show what happened in a thread.

    Messages, calls, results, and decisions with who and when.
    """
    from tenuto.cli.look import show as show_thread

    if as_json and follow:
        raise typer.BadParameter("an array has an end: use --json or --follow", param_hint="--json")
    asyncio.run(show_thread(database, thread, after, as_json, follow))


@app.command(epilog="Example: tenuto threads --status awaiting_approval")
def threads(
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
) -> None:
    """List threads, newest first."""
    from tenuto.cli.look import threads as list_threads

    asyncio.run(list_threads(database, status, agent, limit, as_json))


@app.command(epilog="Example: tenuto verify --all --heads > heads.txt")
def verify(
    thread: Annotated[
        str | None,
        typer.Argument(metavar="THREAD", callback=id_or_beginning, help="Its id; the beginning is enough."),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Every thread.")] = False,
    heads: Annotated[
        bool, typer.Option(help="Print thread, seq and hash of each head, to keep in another place.")
    ] = False,
    database: Database = DATABASE,
) -> None:
    """Check that logs are as they were written.

    Exits with 1 and names the first event that does not fit.
    """
    from tenuto.cli.look import verify as verify_threads

    if (thread is None) is not every:
        raise typer.BadParameter("name a thread or say --all", param_hint="THREAD")
    raise typer.Exit(asyncio.run(verify_threads(database, thread, heads)))


@app.command(
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
) -> None:
    """Kill an agent at every event, restart it, and count what its tools did.

    Its own code runs in real processes, with scripted replies: one run for each point where it could die, one
    with each decision made twice, some with a frozen worker that comes back. Exits with 1 when a promise
    breaks.
    """
    from tenuto.cli.crashtest import crashtest as play
    from tenuto.testing.crashtest import Subject

    subject = Subject(agent, script, fakes, seed, seconds)
    raise typer.Exit(play(subject, only, listing=listing, report=report, keep=keep))


@app.command(epilog="Example: tenuto doctor --agent examples.orders.agent:agent")
def doctor(agent: AgentName = None, database: Database = DATABASE, as_json: AsJson = False) -> None:
    """Say what is wrong here, and what to do.

    Looks at the database, its leases and clock, the environment, the provider and the agents. Changes nothing
    and costs nothing. Exits with 1 when there is a problem.
    """
    from tenuto.cli.doctor import doctor as examine

    raise typer.Exit(asyncio.run(examine(database, agent, as_json)))


@app.command(epilog="Example: ./dev demo")
def demo() -> None:
    """The guided tour, in a checkout; needs no keys.

    An agent, an approval, a crash, a recovery.
    """
    from tenuto.cli.demo import demo as tell

    raise typer.Exit(tell())

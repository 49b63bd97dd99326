"""Commands that tell a thread something: send, cancel, extend."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Annotated

import typer

from tenuto.cli.find import AnyRuntime, find_thread
from tenuto.cli.options import DATABASE, AgentName, AsJson, By, Database, ThreadArgument, Url, Wait
from tenuto.cli.target import telling
from tenuto.cli.tell import Word, tell
from tenuto.rows import ThreadRow

commands = typer.Typer()


def _tell(context: typer.Context, say: Callable[[AnyRuntime, ThreadRow], Awaitable[str]]) -> None:
    """The options that all of them share are in the context."""
    word = Word(
        **telling(context),
        find=lambda runtime: find_thread(runtime, context.params["thread"]),
        say=say,
        outcome=lambda runtime, row: runtime.thread(row.id),
    )
    asyncio.run(tell(word))


@commands.command(epilog='Example: tenuto send 5b1e "The customer called again."')
def send(
    context: typer.Context,
    thread: ThreadArgument,
    message: Annotated[str, typer.Argument(help="What to say; - reads it from stdin.")],
    by: By = "",
    agent: AgentName = None,
    database: Database = DATABASE,
    url: Url = None,
    wait: Wait = True,
    as_json: AsJson = False,
) -> None:
    """Add a message to a thread; one that ended goes on."""
    text = sys.stdin.read().strip() if message == "-" else message
    if not text.strip():
        raise typer.BadParameter("is blank", param_hint="MESSAGE")

    async def do(runtime: AnyRuntime, row: ThreadRow) -> str:
        return f"message {await runtime.send(row.id, text, by=by, channel='cli')} sent"

    _tell(context, do)


@commands.command(epilog='Example: tenuto cancel 5b1e --reason "The order was a mistake."')
def cancel(
    context: typer.Context,
    thread: ThreadArgument,
    reason: Annotated[str, typer.Option(help="Why; kept in the log.")] = "",
    by: By = "",
    agent: AgentName = None,
    database: Database = DATABASE,
    url: Url = None,
    wait: Wait = True,
    as_json: AsJson = False,
) -> None:
    """Ask a thread to stop. What waits for a person in it is withdrawn; a message lets it go on."""

    async def do(runtime: AnyRuntime, row: ThreadRow) -> str:
        await runtime.cancel(row.id, by=by, reason=reason)
        return "asked to stop"

    _tell(context, do)


@commands.command(epilog="Example: tenuto extend 5b1e --steps 10")
def extend(
    context: typer.Context,
    thread: ThreadArgument,
    steps: Annotated[int, typer.Option(min=0, help="Model replies.")] = 0,
    tokens: Annotated[int, typer.Option(min=0, help="Tokens, read and written.")] = 0,
    cost: Annotated[float, typer.Option(min=0, help="Cost, in the provider's currency.")] = 0.0,
    seconds: Annotated[float, typer.Option(min=0, help="Seconds of model and tool time.")] = 0.0,
    by: By = "",
    agent: AgentName = None,
    database: Database = DATABASE,
    url: Url = None,
    wait: Wait = True,
    as_json: AsJson = False,
) -> None:
    """Give a thread's turn more of what it may use; one that halted or failed goes on.

    With no amount at all a failed thread is tried again as it is.
    """

    async def do(runtime: AnyRuntime, row: ThreadRow) -> str:
        await runtime.extend(row.id, by=by, steps=steps, tokens=tokens, cost=cost, seconds=seconds)
        return "extended"

    _tell(context, do)

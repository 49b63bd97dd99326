"""The inbox: list what waits for a person, decide it."""

import asyncio
import os
from typing import Annotated, Literal

import typer

from tenuto.approvals import Decision
from tenuto.cli.inbox import decide, recorded, undecided
from tenuto.cli.look import inbox as list_inbox
from tenuto.cli.options import (
    DATABASE,
    AgentName,
    AsJson,
    By,
    Comment,
    Database,
    Digest,
    InterruptId,
    SameDatabase,
    SameUrl,
    Url,
    Wait,
    json_arguments,
    not_blank,
)
from tenuto.cli.target import given, target_of, telling
from tenuto.cli.tell import Word, tell
from tenuto.cli.terminal import is_interactive

commands = typer.Typer()
inbox_app = typer.Typer(
    epilog="Example: tenuto inbox, then: tenuto inbox approve 3f2a",
)
commands.add_typer(inbox_app, name="inbox")


@inbox_app.callback(invoke_without_command=True)
def inbox(
    context: typer.Context,
    agent: AgentName = None,
    by: By = "",
    database: Database = DATABASE,
    url: Url = None,
    plain: Annotated[bool, typer.Option("--list", help="Print the list and end, at a terminal too.")] = False,
    as_json: AsJson = False,
) -> None:
    """What waits for a person: list it, decide it.

    At a terminal the list lives: enter opens an item with its exact arguments, and a key decides it.
    """
    if context.invoked_subcommand is not None:
        if as_json or plain:
            where = (
                "is for the list here; say it behind the command" if as_json else "goes with the list alone"
            )
            raise typer.BadParameter(where, param_hint="--json" if as_json else "--list")
    elif as_json or plain or not is_interactive() or os.environ.get("TERM", "dumb") == "dumb":
        asyncio.run(list_inbox(target_of(context), as_json))
    else:
        from tenuto.cli.live_inbox import known_agents, live_inbox

        target = target_of(context)
        agents, note = ([], "") if target.url else known_agents(agent)
        asyncio.run(live_inbox(target, agents, by, note))


def _decide(context: typer.Context, verb: str, **decision: str) -> None:
    """The options that all decisions share are in the context."""
    id, by = context.params["id"], given(context, "by")
    whole = Decision(digest=context.params["digest"], channel="cli", **decision)  # type: ignore[typeddict-item]  # keys are fixed below
    word = Word(
        **telling(context),
        find=lambda runtime: undecided(runtime, id),
        say=lambda runtime, row: decide(runtime, row, verb, by, whole),
        outcome=recorded,
        needs_agent=verb == "edit",
    )
    asyncio.run(tell(word))


@inbox_app.command(epilog="Example: tenuto inbox approve 3f2a")
def approve(
    context: typer.Context,
    id: InterruptId,
    by: By = "",
    digest: Digest = None,
    agent: AgentName = None,
    database: SameDatabase = None,
    url: SameUrl = None,
    wait: Wait = True,
    as_json: AsJson = False,
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
    url: SameUrl = None,
    wait: Wait = True,
    as_json: AsJson = False,
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
    url: SameUrl = None,
    wait: Wait = True,
    as_json: AsJson = False,
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
    url: SameUrl = None,
    wait: Wait = True,
    as_json: AsJson = False,
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
    url: SameUrl = None,
    wait: Wait = True,
    as_json: AsJson = False,
) -> None:
    """Say what became of a call whose outcome is unknown. After did_not_happen it runs again."""
    if result and verdict != "happened":
        raise typer.BadParameter("goes with happened alone", param_hint="--result")
    _decide(context, verdict, answer=result, comment=comment)

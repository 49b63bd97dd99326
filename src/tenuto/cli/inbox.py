"""Deciding from a shell what waits for a person."""

from tenuto.approvals import Decision
from tenuto.cli.find import AnyRuntime, all_events, find_interrupt
from tenuto.cli.lines import plain, summary
from tenuto.cli.terminal import moment
from tenuto.errors import AlreadyDecided
from tenuto.events import InterruptResolved
from tenuto.rows import InterruptRow, already_decided


async def undecided(runtime: AnyRuntime, beginning: str) -> InterruptRow:
    """The one whose id begins so. Raises `AlreadyDecided` with by whom, what and when."""
    row = await find_interrupt(runtime, beginning)
    if row.outcome is not None:
        raise _worded(already_decided(row))
    return row


async def decide(runtime: AnyRuntime, row: InterruptRow, verb: str, by: str, decision: Decision) -> str:
    """Decide it, and say so. Raises as `undecided` does."""
    try:
        await runtime.resolve(row.id, verb, by=by, **decision)
    except AlreadyDecided as error:
        raise _worded(error) from error
    return f"{row.id} decided"


async def recorded(runtime: AnyRuntime, row: InterruptRow) -> object:
    """Where the thread stands, with the event that records the decision, as HTTP has it."""
    found = [
        plain(entry)
        async for entry in all_events(runtime, row.thread_id, row.raised_seq)
        if isinstance(entry.event, InterruptResolved) and entry.event.id == row.id
    ]
    return summary(await runtime.state(row.thread_id)) | {"resolution": found[0]}


def _worded(error: AlreadyDecided) -> AlreadyDecided:
    return AlreadyDecided(f"{error}, {moment(error.at_ms)}" if error.at_ms else str(error), **error.facts)

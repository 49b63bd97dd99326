"""Deciding from a shell what waits for a person."""

from dataclasses import dataclass

from tenuto.approvals import Decision
from tenuto.cli.find import AnyRuntime, all_events, find_interrupt
from tenuto.cli.lines import plain, summary
from tenuto.cli.tell import Telling
from tenuto.cli.terminal import moment
from tenuto.errors import AlreadyDecided
from tenuto.events import InterruptResolved
from tenuto.rows import InterruptRow, already_decided


@dataclass(frozen=True)
class Order(Telling):
    """What to decide. `AlreadyDecided` says by whom, what and when."""

    verb: str
    by: str
    decision: Decision

    @property
    def needs_agent(self) -> bool:  # type: ignore[override]  # which a property may be as well
        return self.verb == "edit"

    async def find(self, runtime: AnyRuntime) -> InterruptRow:
        row = await find_interrupt(runtime, self.id)
        if row.outcome is not None:
            raise _worded(already_decided(row))
        return row

    async def tell(self, runtime: AnyRuntime, row: InterruptRow) -> str:
        try:
            await runtime.resolve(row.id, self.verb, by=self.by, **self.decision)
        except AlreadyDecided as error:
            raise _worded(error) from error
        return f"{row.id} decided"

    async def outcome(self, runtime: AnyRuntime, row: InterruptRow) -> object:
        """Where the thread stands, with the event that records the decision, as HTTP has it."""
        recorded = [
            plain(entry)
            async for entry in all_events(runtime, row.thread_id, row.raised_seq)
            if isinstance(entry.event, InterruptResolved) and entry.event.id == row.id
        ]
        return summary(await runtime.state(row.thread_id)) | {"resolution": recorded[0]}


def _worded(error: AlreadyDecided) -> AlreadyDecided:
    return AlreadyDecided(f"{error}, {moment(error.at_ms)}" if error.at_ms else str(error), **error.facts)

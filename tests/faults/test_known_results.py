"""A result that this worker knows is recorded when the store comes back before the thread is handed over."""

import asyncio
from collections.abc import Sequence
from typing import Any

from tenuto import Agent, Runtime, StoreError, tool
from tenuto.events import CallFinished, Event, ThreadId
from tenuto.models.scripted import ScriptedModel, call
from tenuto.rows import Appended
from tenuto.store.sqlite import SQLiteStore


class Moody(SQLiteStore):
    """Refuses the first append of a call's result."""

    refused = 0

    async def append(self, thread_id: ThreadId, events: Sequence[Event], **more: Any) -> Appended:
        if isinstance(events[0], CallFinished) and not self.refused:
            self.refused += 1
            raise StoreError("database or disk is full")
        return await super().append(thread_id, events, **more)


async def test_a_known_result_of_a_once_call_needs_no_review() -> None:
    ran: list[int] = []

    @tool(effect="once")
    async def pay(amount: int) -> str:
        """Pay."""
        ran.append(amount)
        return "paid"

    store = Moody(":memory:")
    model = ScriptedModel([call("pay", amount=3), "done"])
    async with Runtime([Agent("ops", tools=[pay])], store, model=model) as runtime, asyncio.timeout(20):
        thread = await runtime.start("ops", "pay 3")
        state = await runtime.wait(thread)
        while state.status == "running":
            state = await runtime.wait(thread, 1)
        assert (state.status, state.answer) == ("completed", "done")
    assert store.refused == 1
    assert ran == [3]

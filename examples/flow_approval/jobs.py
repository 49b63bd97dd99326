"""The part in this process: Jobs around a thread that outlives them."""

import uuid
from collections.abc import Awaitable, Callable
from typing import Any

from tenuto import Runtime, ThreadState
from tenuto.flow import PASS_WORD, HandlerCoroutine, Job, handler, tasker

ORDERS = uuid.UUID("9b0f6c1e-6f0e-4c5b-9d6e-2f6b8a7d1c34")

# Returns "approve", "reject", or None for "not now".
AskPerson = Callable[[str], Awaitable[str | None]]


class RefundJob(Job):
    """Get an order refunded, with a person's approval."""

    def __init__(
        self, runtime: Runtime, order_id: str, ask_person: AskPerson, show: Callable[[str], None]
    ) -> None:
        super().__init__()
        self.runtime = runtime
        self.order_id = order_id
        self.ask_person = ask_person
        self.show = show
        self.fails_with_children = True

    @property
    def thread_id(self) -> str:
        return str(uuid.uuid5(ORDERS, self.order_id))

    @tasker(PASS_WORD)
    async def task(self) -> HandlerCoroutine[Any]:
        # The same start again is the same thread, so this line needs no memory of the last process.
        await self.runtime.start("refunds", f"Refund order {self.order_id}.", thread_id=self.thread_id)
        return wait_for_approval(self)


@handler(PASS_WORD)
async def wait_for_approval(self_handler: HandlerCoroutine[Any], job: RefundJob) -> None:
    state = await job.runtime.wait(job.thread_id)
    while state.interrupts:
        waiting = state.interrupts[0]
        decision = await job.ask_person(f"{waiting.name} {waiting.arguments}")
        if decision is None:
            job.show(f"thread {job.thread_id} waits; nothing is lost")
            return
        await job.runtime.resolve(
            waiting.id, decision, by="the person at the terminal", digest=waiting.digest
        )
        state = await job.runtime.wait(job.thread_id)
    await self_handler.put_job(LetterJob(state, job.show))


class LetterJob(Job):
    """What comes after the decision; here, the customer is told."""

    def __init__(self, thread: ThreadState, show: Callable[[str], None]) -> None:
        super().__init__()
        self.thread = thread
        self.show = show

    @tasker(PASS_WORD)
    async def task(self) -> None:
        self.show(f"letter to the customer: {self.thread.answer or self.thread.error or self.thread.status}")

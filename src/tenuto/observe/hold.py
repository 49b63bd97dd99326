"""One worker's hold on one thread, as far as looking on needs it: a small fold beside the real one."""

import time
from contextvars import ContextVar
from typing import TYPE_CHECKING

from tenuto.agent import Agent
from tenuto.events import Call, Event, ModelReplied, ThreadId

if TYPE_CHECKING:
    from tenuto.observe.traces import TurnTrace

OTHER = "(other)"


class Hold:
    """Sees each event of its thread once: those read, and those that its own worker appends."""

    def __init__(self, thread_id: ThreadId, agent: Agent, worker: str, trace: "TurnTrace | None") -> None:
        self.thread_id = thread_id
        self.agent = agent
        self.worker = worker
        self.trace = trace
        self.model = agent.model_name
        self.step = 0
        self.seen_seq = 0
        self.fact_at = time.perf_counter()  # when the last fact of this worker came into the log
        self._calls: dict[str, Call] = {}

    def see(self, seq: int, event: Event) -> None:
        """Take in the next event; one that was seen, or that does not follow, is left for the next read."""
        if seq == self.seen_seq + 1:
            self.seen_seq = seq
            self.learn(event)
            if self.trace is not None:
                self.trace.see(seq, event)

    def learn(self, event: Event) -> None:
        """What the results of a reply will be told by; they can come in one append with it."""
        if isinstance(event, ModelReplied):
            self.step = event.step
            self._calls = {call.id: call for call in event.calls}

    def tool(self, call_id: str) -> tuple[str, str]:
        """Name and effect of a call of the last reply; a name that the model made up is not repeated."""
        call = self._calls.get(call_id)
        if call is None or call.name not in self.agent.by_name:
            return OTHER, OTHER
        return call.name, call.effect


holding: ContextVar[Hold | None] = ContextVar("tenuto_hold", default=None)
calling: ContextVar[str] = ContextVar("tenuto_call", default="")

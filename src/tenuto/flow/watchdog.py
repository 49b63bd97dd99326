"""The watchdog: a thread beside each running commander that names who blocks its event loop.

It asks the loop for a sign of life, four times within the limit, and looks into the thread of a loop that
does not answer. So it sees a block while it lasts, even one that never ends.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from tenuto.flow.node import CURRENT, TaskNode

if TYPE_CHECKING:
    from tenuto.flow.scheduler import Scheduler

BLOCKAGES_KEPT = 100
LOOKS_PER_LIMIT = 4


class Blockage(NamedTuple):
    """The thread of a commander was held. `node` is None if it was by something that is not of the tree.

    `seconds` is how long it had lasted when it was seen; `stack` says where it was.
    """

    node: TaskNode | None
    seconds: float
    stack: str


class Watchdog:
    """Watches from its making until `stop`. `tell` is called in its own thread."""

    def __init__(self, scheduler: Scheduler, limit_seconds: float, tell: Callable[[Blockage], None]) -> None:
        self._stopped = threading.Event()
        self._answered = threading.Event()
        self._limit = limit_seconds
        arguments = (scheduler, tell)
        threading.Thread(target=self._watch, args=arguments, name="tenuto-flow-watchdog", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()
        self._answered.set()

    def _watch(self, scheduler: Scheduler, tell: Callable[[Blockage], None]) -> None:
        loop, thread = scheduler._event_loop, scheduler._thread
        while loop is not None and not self._stopped.wait(self._limit / LOOKS_PER_LIMIT):
            asked_at = time.monotonic()
            self._answered.clear()
            try:
                loop.call_soon_threadsafe(self._answered.set)
            except RuntimeError:
                return  # closed just now
            if self._answered.wait(self._limit):
                continue
            frame = sys._current_frames().get(thread or 0)
            stack = "".join(traceback.format_stack(frame)) if frame is not None else ""
            blockage = Blockage(_who_runs(scheduler, loop), time.monotonic() - asked_at, stack)
            if not self._answered.is_set() and not self._stopped.is_set():  # else the name may be wrong
                tell(blockage)
            while not self._stopped.is_set() and not self._answered.wait(self._limit):
                pass  # it is reported once


def _who_runs(scheduler: Scheduler, loop: asyncio.AbstractEventLoop) -> TaskNode | None:
    task = asyncio.current_task(loop)
    if task is None:
        return None
    if task is scheduler._worker and scheduler._running is not None:
        return scheduler._running
    if task in scheduler._handler_tasks:
        return scheduler._handler_tasks[task]
    if sys.version_info >= (3, 12):
        return task.get_context().get(CURRENT)
    return None

"""The watchdog: one thread a process that names who blocks an event loop.

It asks each watched loop for a sign of life, four times within the limit, and looks into the thread of a
loop that does not answer. So it sees a block while it lasts, even one that never ends. A loop that is not
watched costs nothing.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import traceback
from typing import TYPE_CHECKING, NamedTuple

from tenuto.flow.node import CURRENT, TaskNode

if TYPE_CHECKING:
    from tenuto.flow.lifecycle import Lifecycle

BLOCKAGES_KEPT = 100
LOOKS_PER_LIMIT = 4


class Blockage(NamedTuple):
    """The thread of a commander was held. `node` is None if it was by something that is not of the tree.

    `seconds` is how long it had lasted when it was seen; `stack` says where it was.
    """

    node: TaskNode | None
    seconds: float
    stack: str


class _Watch:
    def __init__(self, commander: Lifecycle, limit_seconds: float) -> None:
        self.commander = commander
        self.limit_seconds = limit_seconds
        self.asked_at: float | None = None
        self.reported = False

    def look(self) -> None:
        now = time.monotonic()
        if self.asked_at is None:
            loop = self.commander._event_loop
            self.reported = False
            self.asked_at = now
            try:
                if loop is not None:
                    loop.call_soon_threadsafe(self.answer)
            except RuntimeError:
                return  # closed just now
        elif not self.reported and now - self.asked_at > self.limit_seconds:
            self.reported = True
            self.report(now - self.asked_at)

    def answer(self) -> None:
        self.asked_at = None

    def report(self, seconds: float) -> None:
        commander = self.commander
        frame = sys._current_frames().get(commander._thread or 0)
        stack = "".join(traceback.format_stack(frame)) if frame is not None else ""
        blockage = Blockage(_who_runs(commander), seconds, stack)
        if self.asked_at is None:
            return  # it answered while we looked, so that the name may be wrong
        commander.blockages.append(blockage)
        name = repr(blockage.node) if blockage.node is not None else "something outside of Jobs and handlers"
        commander.logger.warning("%s has blocked the event loop for %.2f s:\n%s", name, seconds, stack)
        if commander.on_blocked is not None:
            try:
                commander.on_blocked(blockage)
            except Exception:
                commander.logger.exception("on_blocked failed")


def _who_runs(commander: Lifecycle) -> TaskNode | None:
    loop = commander._event_loop
    task = asyncio.current_task(loop) if loop is not None else None
    if task is None:
        return None
    if task is commander._worker and commander._running is not None:
        return commander._running
    if task in commander._handler_tasks:
        return commander._handler_tasks[task]
    if sys.version_info >= (3, 12):
        return task.get_context().get(CURRENT)
    return None


class _Watchdog:
    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._watches: dict[int, _Watch] = {}
        self._thread: threading.Thread | None = None

    def add(self, watch: _Watch) -> None:
        with self._changed:
            self._watches[id(watch.commander)] = watch
            if self._thread is None or not self._thread.is_alive():  # after a fork, it is not
                self._thread = threading.Thread(
                    target=self._keep_watch, name="tenuto-flow-watchdog", daemon=True
                )
                self._thread.start()
            self._changed.notify()

    def remove(self, commander: Lifecycle) -> None:
        with self._changed:
            self._watches.pop(id(commander), None)

    def _keep_watch(self) -> None:
        while True:
            with self._changed:
                watches = list(self._watches.values())
                pause = min((watch.limit_seconds for watch in watches), default=None)
                self._changed.wait(None if pause is None else pause / LOOKS_PER_LIMIT)
            for watch in watches:
                watch.look()
            del watches


_watchdog = _Watchdog()


def watch_loop(commander: Lifecycle, limit_seconds: float) -> None:
    _watchdog.add(_Watch(commander, limit_seconds))


def unwatch(commander: Lifecycle) -> None:
    _watchdog.remove(commander)

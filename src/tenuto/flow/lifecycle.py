"""The life of a commander, from start to end.

The phases are idle, running, closing, idle. `_lock` guards every change of phase together with the inbox,
so that a Job from another thread is either taken or refused, and never lost in between. Closing takes as
long as the grace for each of: the running Job, then all that is cancelled. What does not heed its
cancellation is left behind, named in the log, and cannot change the tree any more.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from tenuto.flow._exceptions import CommanderAlreadyRunningError
from tenuto.flow.job import Job
from tenuto.flow.node import NOT_ENDING, TaskNode, call_watchers, close, stop
from tenuto.flow.scheduler import Scheduler
from tenuto.flow.watchdog import Blockage, Watchdog


class Lifecycle(Scheduler):
    """A scheduler that can be started, in a loop of its own or a running one, and ended."""

    on_blocked: Callable[[Blockage], None] | None
    blockages: deque[Blockage]
    _blocked_after: float | None
    _grace: float

    def __init__(self) -> None:
        super().__init__()
        self._id = 1
        self._commander = self  # type: ignore[assignment]  # the commander is the only one of its kind
        self._parent = "Null"
        self._children.clear()
        self._auto_exit = False
        self._dropped: list[Job] = []
        self._stop: asyncio.Future[None] | None = None
        self._return_result: Any = None
        self._watchdog: Watchdog | None = None
        self._ended = threading.Event()
        self._ended.set()

    def _join(self, jobs: list[Job]) -> bool:
        """Give the Jobs to the running commander; False if it does not run."""
        with self._lock:
            if self._accepting:
                for job in jobs:
                    self._post((job, None, None, None))
            return self._accepting

    def _start(
        self,
        loop: asyncio.AbstractEventLoop,
        jobs: list[Job],
        auto_exit: bool,
        new_queue: bool,
        wait: bool = True,
    ) -> None:
        """From idle to running, with the Jobs in the inbox; `wait` for that if it is just closing.

        CommanderAlreadyRunningError.
        """
        while True:
            with self._lock:
                if self._ended.is_set():
                    self._begin(loop, jobs, new_queue)
                    self._auto_exit = auto_exit
                    return
                if self._accepting or not wait:
                    raise CommanderAlreadyRunningError(f"{self!r} runs already")
            self._ended.wait()

    def _begin(self, loop: asyncio.AbstractEventLoop, jobs: list[Job], new_queue: bool) -> None:
        self._ended.clear()
        self._event_loop = loop
        self._thread = threading.get_ident()
        self._stop = self._return_result = None
        self._over = False
        self._state = "ACTIVE"
        self._flow_since = time.monotonic()
        self._accepting = True
        self._inbox.extend((job, None, None, None) for job in jobs)
        self._dropped = [job for job, run in self._queue if job._flow_run == run] if new_queue else []
        if new_queue:
            self._queue.clear()

    def _exit_from_within(self, return_result: Any = None) -> None:
        """From running to closing. Who asks first says what is returned."""
        with self._lock:
            if self._accepting and self._event_loop is not None:
                self._accepting = False
                self._return_result = return_result
                self._event_loop.call_soon_threadsafe(self._signal_stop)

    def _signal_stop(self) -> None:
        if self._stop is not None and not self._stop.done():
            self._stop.set_result(None)

    def _check_idle(self) -> None:
        if not self._auto_exit or self._children or self._queue or self._running is not None:
            return
        if any(one._flow_alive for one in self._handler_tasks.values()):
            return  # under a node that is not of this tree
        with self._lock:
            if self._accepting and not self._inbox and not self._reading:
                self._accepting = False
                self._signal_stop()

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        self._stop = loop.create_future()
        if not self._accepting:
            self._signal_stop()
        if self._blocked_after is not None:
            self._watchdog = Watchdog(self, self._blocked_after, self._tell_blockage)
        worker = self._worker = loop.create_task(self._work())
        try:
            for job in self._dropped:
                await close(job)
            self._read_inbox()
            await asyncio.wait({worker, self._stop}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await self._shut_down(worker)
        if worker.done() and not worker.cancelled():
            worker.result()

    def _tell_blockage(self, blockage: Blockage) -> None:
        self.blockages.append(blockage)
        name = "something outside of Jobs and handlers" if blockage.node is None else repr(blockage.node)
        self.logger.warning(
            "%s has blocked the event loop for %.2f s:\n%s", name, blockage.seconds, blockage.stack
        )
        if self.on_blocked is not None:
            try:
                self.on_blocked(blockage)
            except Exception:
                self.logger.exception("on_blocked failed")

    async def _shut_down(self, worker: asyncio.Task[None]) -> None:
        """From closing to nothing left: the running Job, then handlers, each for as long as the grace."""
        with self._lock:
            self._accepting = False
        self._read_inbox()
        self._wake_worker()
        if not worker.done():
            await asyncio.wait({worker}, timeout=self._grace)
        waiting = {id(job): job for job, run in self._queue if job._flow_alive and job._flow_run == run}
        for job in waiting.values():  # they keep their place for a run without `new_queue`
            if isinstance(job._parent, TaskNode):
                job._parent._children.pop(id(job), None)
            job._parent = self
            self._children.append(job)
        for child in self._children:
            if id(child) not in waiting and child._flow_ending == NOT_ENDING:
                self._spawn(close(child))
        await self._settle()
        if left := [child for child in self._children if id(child) not in waiting] or self._unfinished():
            self.logger.error("%r ends although this does not heed its cancellation: %r", self, left)
            self._abandon(waiting)
            await self._settle()
        for job in waiting.values():
            call_watchers(job)
        self._over = True
        callbacks, self._at_commander_end = self._at_commander_end, []
        for callback in callbacks:
            await self._callback_handle(callback=callback, which="at_commander_end")

    def _abandon(self, waiting: dict[int, Job]) -> None:
        """Cut off what has not ended, but for the Jobs that wait."""
        for child in self._children:
            if id(child) not in waiting:
                stop([child], None)
                child._flow_closing = False
        self._children.clear()
        self._children.extend(waiting.values())
        for task in self._unfinished():
            task.cancel()

    def _unfinished(self) -> list[asyncio.Task[Any]]:
        mine = [*self._handler_tasks, *self._spawned, *([self._worker] if self._worker else [])]
        return [task for task in mine if not task.done()]

    async def _settle(self) -> None:
        """Wait for everything that ends, for as long as the grace."""
        assert self._event_loop is not None
        deadline = self._event_loop.time() + self._grace
        while tasks := self._unfinished():
            left = deadline - self._event_loop.time()
            if left <= 0:
                return
            await asyncio.wait(tasks, timeout=left, return_when=asyncio.FIRST_COMPLETED)

    def _run_own_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        main = loop.create_task(self._serve())
        try:
            loop.run_until_complete(main)
        finally:
            try:
                # A Ctrl-C has left the loop in the middle: it runs on until everything is put away.
                main.cancel()
                loop.run_until_complete(self._sweep(main))
            finally:
                loop.close()
                self._end()

    async def _sweep(self, main: asyncio.Task[None]) -> None:
        """What the program itself started in the loop is cancelled, too."""
        await asyncio.wait({main})
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        if others:
            await asyncio.wait(others, timeout=self._grace)
        for task in (main, *([self._worker] if self._worker else []), *others):
            if task.done() and not task.cancelled():
                task.exception()  # raised where it belongs already
        try:
            await asyncio.wait_for(asyncio.get_running_loop().shutdown_asyncgens(), self._grace)
        except TimeoutError:
            self.logger.exception("asynchronous generators of %r do not close", self)

    def _end(self) -> None:
        """From closing to idle, whatever a second Ctrl-C has left in the tree."""
        if self._watchdog is not None:
            self._watchdog.stop()
        if not self._over:
            for child in self._children:
                child._state = "TERMINATED"
                child._flow_alive = False
            self._children.clear()
            self._queue.clear()
            self._handler_tasks.clear()
            self._spawned.clear()
        with self._lock:
            self._accepting = self._reading = False
            self._event_loop = self._thread = self._worker = self._wake = self._running = None
            self._watchdog = self._flow_since = None
            self._state = "PENDING"
            self._ended.set()

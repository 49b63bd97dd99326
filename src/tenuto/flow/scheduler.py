"""The scheduler: the queue of Jobs, the tasks of handlers, and the way in from other threads.

One worker task runs the Jobs, one after another, within one event loop; a Job that is closed while it
runs gets a cancellation, and the worker goes on with the next one. Each handler has a task of its own.
Everything here belongs to the thread of that loop; the inbox alone, under its lock, is for all threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, NamedTuple

from tenuto.flow._exceptions import (
    CommanderNotRunError,
    CycleError,
    FlowError,
    NotHandlerError,
    TooManyJobsError,
)
from tenuto.flow.callbacks import Callback, CallbackType, entries_of, run_entries
from tenuto.flow.handler import HandlerCoroutine
from tenuto.flow.job import Job, check_job
from tenuto.flow.node import CURRENT, TaskNode, advance, go_on, has_ended
from tenuto.flow.work import BARRIER, WorkNode, begin, do_work, start_task

CALLBACK_FAILURES_KEPT = 100
# How many Jobs may run before timers and signals get a turn. Handlers get one after each Job, but for the
# time when more Jobs than that wait: then a turn for each would cost more than the work.
JOBS_BETWEEN_BREATHS = 32


class CallbackFailure(NamedTuple):
    """A callback raised: of which node (None at the end of the commander), at which moment, what."""

    node: TaskNode | None
    which: str
    error: BaseException


# What came from another thread: a node, its parent, its requester, and a watcher that is called when the node
# has ended or could not be taken. A plain tuple, since there may be many.
Request = tuple[WorkNode, TaskNode | None, TaskNode | None, Callable[[], None] | None]


class StandIn(TaskNode):
    """Holds the place of a node that is to run but cannot be in the tree yet.

    It runs already and has to run again, or it runs in the tree of another commander.
    """

    def _label(self) -> str:
        return "waiting for another run"


@dataclass(frozen=True)
class _Place:
    """Called when the present run of a node has ended: the next one takes the place that was held for it."""

    scheduler: Scheduler
    stand_in: StandIn
    node: WorkNode

    def __call__(self) -> None:
        self.scheduler._take_place(self.stand_in, self.node)


class Scheduler(TaskNode):
    """What a commander does between its start and its end."""

    _flow_root = True
    _flow_kind = "commander"

    logger: logging.Logger
    _max_waiting_jobs: int

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._inbox: deque[Request] = deque()
        self._reading = False  # the inbox is being emptied
        self._accepting = False
        self._over = False  # nothing is taken in any more
        self._event_loop: asyncio.AbstractEventLoop | None = None
        self._thread: int | None = None
        self._queue: deque[tuple[Job, int]] = deque()
        self._runs = 0
        self._ids = 1
        self._running: Job | None = None
        self._wake: asyncio.Future[None] | None = None
        self._worker: asyncio.Task[None] | None = None
        self._handler_tasks: dict[asyncio.Task[Any], WorkNode] = {}
        self._spawned: set[asyncio.Task[None]] = set()
        self._at_commander_end: list[Callback] = []
        self.callback_failures: deque[CallbackFailure] = deque(maxlen=CALLBACK_FAILURES_KEPT)

    # --- the way in --------------------------------------------------------------------------------------

    async def _put_job(
        self, job: Job, parent: TaskNode | None = None, requester: TaskNode | None = None
    ) -> None:
        check_job(job)
        self._submit(job, parent, requester)

    def _call_handler(
        self,
        handler: HandlerCoroutine[Any],
        parent: TaskNode | None = None,
        requester: TaskNode | None = None,
    ) -> asyncio.Task[Any] | None:
        """Returns the task; None if the handler was dropped, or handed to another thread."""
        if not isinstance(handler, HandlerCoroutine):
            raise NotHandlerError(f"{handler!r} is not a call of a handler")
        self._submit(handler, parent, requester)
        return handler._flow_task

    def _submit(self, node: WorkNode, parent: TaskNode | None, requester: TaskNode | None) -> None:
        """Take a node in: now, or through the inbox of the commander and thread that it belongs to."""
        if parent is None:
            parent = self
        if parent._state == "TERMINATED" or (requester is not None and requester._state == "TERMINATED"):
            return
        elsewhere, owner = parent._commander, node._commander
        if elsewhere is not self and isinstance(elsewhere, Scheduler):
            elsewhere._post((node, parent, requester, None))
        elif self._event_loop is None or self._over:
            raise CommanderNotRunError(f"{self!r} does not run")
        elif threading.get_ident() != self._thread:
            self._post((node, parent, requester, None))
        elif owner is not self and isinstance(owner, Scheduler) and owner._accepting:
            self._lend(node, parent, owner)
        elif node._flow_alive or node._flow_closing:
            self._repeat(node, parent)
        else:
            self._admit(node, parent)

    def _post(self, request: Request) -> None:
        """Put into the inbox, from any thread. CommanderNotRunError if it would never be read."""
        with self._lock:
            loop = self._event_loop
            if not self._accepting or loop is None:
                raise CommanderNotRunError(f"{self!r} does not run")
            self._check_room()
            self._inbox.append(request)
            if len(self._inbox) == 1:
                loop.call_soon_threadsafe(self._read_inbox)

    def _check_room(self) -> None:
        if len(self._queue) + len(self._inbox) >= self._max_waiting_jobs:
            raise TooManyJobsError(f"{self._max_waiting_jobs} Jobs wait already")

    def _read_inbox(self) -> None:
        with self._lock:
            requests, self._inbox = self._inbox, deque()
            self._reading = True
        for node, parent, requester, watcher in requests:
            try:
                self._submit(node, parent, requester)
            except Exception:
                self.logger.exception("%r was not taken", node)
            if watcher is not None:
                _watch(node, watcher) if node._flow_alive else watcher()
        self._reading = False
        self._check_idle()

    # --- into the tree -----------------------------------------------------------------------------------

    def _attach(self, node: TaskNode, parent: TaskNode) -> None:
        """Link under the parent; under its nearest living ancestor, if it has ended meanwhile."""
        while not parent._flow_alive and not parent._flow_root and has_ended(parent):
            parent = parent._parent if isinstance(parent._parent, TaskNode) else self
        parent._children[id(node)] = node
        node._parent = parent
        if node._commander is not self:
            if node._id is None or isinstance(node._id, int):
                self._ids += 1
                node._id = self._ids
            node._commander = self  # type: ignore[assignment]  # the commander is the only scheduler

    def _admit(self, node: WorkNode, parent: TaskNode) -> None:
        """Begin a run: a Job goes into the queue, a handler gets its task."""
        if parent is node or len(node._children) > 1:  # it has children before it is in the tree
            _refuse_cycle(node, parent)
        job = node._flow_kind == "job"
        if job and len(self._queue) >= self._max_waiting_jobs:
            self._check_room()
        self._attach(node, parent)
        self._runs += 1
        begin(node, self._runs)
        if job:
            self._queue.append((node, self._runs))  # type: ignore[arg-type]  # a Job, as was asked
            if self._wake is not None:
                self._wake_worker()
            return
        if node._callback is not None:
            self._remember_end(node._callback)
        assert self._event_loop is not None
        start_task(node, self._event_loop, self._handler_tasks)

    def _remember_end(self, callback: Callback) -> None:
        if callback.at_commander_end:
            self._at_commander_end.append(callback)

    def _repeat(self, node: WorkNode, parent: TaskNode) -> None:
        """Run a node once more when its present run has ended. CycleError if it would wait for itself."""
        _refuse_cycle(node, parent)
        stand_in = StandIn()
        self._attach(stand_in, parent)
        _watch(node, _Place(self, stand_in, node))

    def _take_place(self, stand_in: StandIn, node: WorkNode) -> None:
        parent = stand_in._parent
        if stand_in._state == "TERMINATED" or not isinstance(parent, TaskNode):
            return
        take = self._repeat if node._flow_alive or node._flow_closing else self._admit
        try:
            take(node, parent)
        except FlowError:
            self.logger.exception("%r cannot be run again", node)
        self._release(stand_in)

    def _lend(self, node: WorkNode, parent: TaskNode, owner: Scheduler) -> None:
        """Let the commander to which a node belongs run it; the parent here waits for it all the same."""
        stand_in = StandIn()
        self._attach(stand_in, parent)
        try:
            owner._post((node, None, None, functools.partial(self._give_back, stand_in)))
        except CommanderNotRunError:  # it ended just now
            self._admit(node, parent)
            self._release(stand_in)

    def _give_back(self, stand_in: StandIn) -> None:
        """A lent node has ended; called in the thread of the other commander."""
        with self._lock:
            if self._event_loop is not None:
                self._event_loop.call_soon_threadsafe(self._release, stand_in)

    def _release(self, stand_in: StandIn) -> None:
        if stand_in._children.pop(id(stand_in), None) is not None:
            telling = advance(stand_in)
            if telling is not None:
                self._spawn(go_on(telling))

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run something that belongs to the tree and to no node."""
        assert self._event_loop is not None
        task = self._event_loop.create_task(coroutine)
        self._spawned.add(task)
        task.add_done_callback(self._spawned.discard)
        return task

    # --- the worker --------------------------------------------------------------------------------------

    def _wake_worker(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def _check_idle(self) -> None:
        """Hook of the commander: nothing may be left to do."""

    async def _work(self) -> None:
        """Run the Jobs of the queue until the commander stops."""
        worker = asyncio.current_task()
        assert worker is not None
        assert self._event_loop is not None
        jobs = 0
        while self._accepting:
            if not self._queue:
                self._check_idle()
                self._wake = self._event_loop.create_future()
                await self._wake
                self._wake = None
                continue
            job, run = self._queue.popleft()
            if job._flow_run != run or not job._flow_alive:
                continue  # closed while it waited
            self._running = job
            job._flow_task = worker
            if job._callback is not None:
                self._remember_end(job._callback)
            try:  # noqa: SIM105 - for speed
                await do_work(job)
            except asyncio.CancelledError:
                pass  # it came after the Job's own work; the rest of its end goes on elsewhere
            self._running = None
            if worker.cancelling():
                await _forget_cancellation(worker)
            jobs += 1
            crowded = len(self._queue) > JOBS_BETWEEN_BREATHS
            if jobs % JOBS_BETWEEN_BREATHS == 0 or (self._handler_tasks and not crowded):
                await BARRIER

    async def _callback_handle(
        self, callback: Callback | None, which: CallbackType, task_node: TaskNode | None = None
    ) -> None:
        """Run the callbacks of a moment. What they raise is logged and kept in `callback_failures`."""
        if callback is None:
            return
        entries = entries_of(callback, which)
        node = task_node if task_node is not None else callback._task_node

        def report(error: BaseException) -> None:
            self.callback_failures.append(CallbackFailure(node, which, error))
            self.logger.error("A callback %s of %r failed: %r", which, node, error, exc_info=error)

        before = CURRENT.set(task_node)
        try:
            await run_entries(entries, node, report)
        finally:
            CURRENT.reset(before)

    _handle_callback = _callback_handle


async def _forget_cancellation(worker: asyncio.Task[None]) -> None:
    """The cancellation was meant for the Job; the worker goes on."""
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(0)
    while worker.cancelling():
        worker.uncancel()


def _watch(node: TaskNode, watcher: Callable[[], None]) -> None:
    """Call this once, when the present or next run of the node has ended."""
    if node._flow_watchers is None:
        node._flow_watchers = []
    node._flow_watchers.append(watcher)


def _refuse_cycle(node: TaskNode, parent: TaskNode) -> None:
    """CycleError if the parent would wait for a node that waits for it: as an ancestor of it, or of a place
    that is held for the next run of such a one, and so on.
    """
    waiting: list[TaskNode] = [parent]
    seen = {id(parent)}
    for one in waiting:  # grows while it is walked
        if one is node:
            raise CycleError(f"{node!r} would wait for itself under {parent!r}; put it under the commander")
        held = [place.stand_in for place in one._flow_watchers or () if isinstance(place, _Place)]
        for other in (one._parent, *(place for place in held if place._state != "TERMINATED")):
            if isinstance(other, TaskNode) and id(other) not in seen:
                seen.add(id(other))
                waiting.append(other)

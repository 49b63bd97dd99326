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
import time
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple, TypeGuard

from tenuto.flow._exceptions import (
    CommanderNotRunError,
    CycleError,
    FlowError,
    NotHandlerError,
    TooManyJobsError,
)
from tenuto.flow.callbacks import Callback, CallbackType, entries_of, run_entries
from tenuto.flow.handler import BARRIER, HandlerCoroutine, begin, start_task, tell_failure
from tenuto.flow.job import Job, check_job
from tenuto.flow.node import CURRENT, TaskNode, advance, close, go_on, has_ended, is_node
from tenuto.flow.standin import StandIn, watch

CALLBACK_FAILURES_KEPT = 100
JOBS_BETWEEN_BREATHS = 32  # how many Jobs may run before handlers, timers and signals get a turn


class CallbackFailure(NamedTuple):
    """A callback raised: of which node (None at the end of the commander), at which moment, what."""

    node: TaskNode | None
    which: str
    error: Exception


class Request(NamedTuple):
    """What came from another thread."""

    node: Job | HandlerCoroutine[Any]
    parent: TaskNode | None
    requester: TaskNode | None
    watcher: Callable[[], None] | None  # called when the node has ended, or could not be taken


class Scheduler(TaskNode):
    """What a commander does between its start and its end."""

    _flow_root = True

    def _kind(self) -> str:
        return "commander"

    logger: logging.Logger
    callback_failures: deque[CallbackFailure]
    _event_loop: asyncio.AbstractEventLoop | None
    _thread: int | None
    _max_waiting_jobs: int

    def _prepare(self) -> None:
        self._lock = threading.RLock()
        self._inbox: deque[Request] = deque()
        self._reading = False  # the inbox is being emptied
        self._accepting = False
        self._over = False  # nothing is taken in any more
        self._queue: deque[tuple[Job, int]] = deque()
        self._runs = 0
        self._ids = 1
        self._running: Job | None = None
        self._wake: asyncio.Future[None] | None = None
        self._worker: asyncio.Task[None] | None = None
        self._handler_tasks: dict[asyncio.Task[Any], HandlerCoroutine[Any]] = {}
        self._spawned: set[asyncio.Task[None]] = set()
        self._at_commander_end: list[Callback] = []
        self.callback_failures = deque(maxlen=CALLBACK_FAILURES_KEPT)

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

    def _submit(
        self, node: Job | HandlerCoroutine[Any], parent: TaskNode | None, requester: TaskNode | None
    ) -> None:
        """Take a node in: now, or through the inbox of the commander and thread that it belongs to."""
        if parent is None:
            parent = self
        if (
            parent._commander is self
            and node._commander is None
            and not node._flow_closing
            and requester is None
            and parent._state != "TERMINATED"
            and threading.get_ident() == self._thread
            and not self._over
        ):
            self._admit(node, parent)  # what nearly always happens, without further questions
            return
        if parent._state == "TERMINATED" or (requester is not None and requester._state == "TERMINATED"):
            return
        elsewhere = parent._commander
        if is_scheduler(elsewhere) and elsewhere is not self:
            elsewhere._post(node, parent, requester)
        elif self._event_loop is None or self._over:
            raise CommanderNotRunError(f"{self!r} does not run")
        elif threading.get_ident() != self._thread:
            self._post(node, parent, requester)
        else:
            owner = node._commander
            if is_scheduler(owner) and owner is not self and owner._accepting:
                self._lend(node, parent, owner)
            elif node._flow_alive or node._flow_closing:
                self._repeat(node, parent)
            else:
                self._admit(node, parent)

    def _post(
        self,
        node: Job | HandlerCoroutine[Any],
        parent: TaskNode | None = None,
        requester: TaskNode | None = None,
        watcher: Callable[[], None] | None = None,
    ) -> None:
        """Put into the inbox, from any thread. CommanderNotRunError if it would never be read."""
        with self._lock:
            loop = self._event_loop
            if not self._accepting or loop is None:
                raise CommanderNotRunError(f"{self!r} does not run")
            self._check_room()
            self._inbox.append(Request(node, parent, requester, watcher))
            if len(self._inbox) == 1:
                loop.call_soon_threadsafe(self._read_inbox)

    def _check_room(self) -> None:
        if len(self._queue) + len(self._inbox) >= self._max_waiting_jobs:
            raise TooManyJobsError(f"{self._max_waiting_jobs} Jobs wait already")

    def _read_inbox(self) -> None:
        with self._lock:
            requests, self._inbox = self._inbox, deque()
            self._reading = True
        try:
            for request in requests:
                self._take(request)
        finally:
            self._reading = False
        self._check_idle()

    def _take(self, request: Request) -> None:
        node, parent, requester, watcher = request
        try:
            self._submit(node, parent, requester)
        except Exception:
            self.logger.exception("%r was not taken", node)
        if watcher is not None:
            if node._flow_alive:
                watch(node, watcher)
            else:
                watcher()

    # --- into the tree -----------------------------------------------------------------------------------

    def _attach(self, node: TaskNode, parent: TaskNode) -> None:
        """Link under the parent; under its nearest living ancestor, if it has ended meanwhile."""
        place = parent
        while not place._flow_alive and not place._flow_root and has_ended(place):
            place = place._parent if is_node(place._parent) else self
        place._children[id(node)] = node
        node._parent = place
        if node._commander is self:
            return
        if node._id is None or isinstance(node._id, int):
            self._ids += 1
            node._id = self._ids
        node._commander = self  # type: ignore[assignment]  # the commander is the only scheduler

    def _admit(self, node: Job | HandlerCoroutine[Any], parent: TaskNode) -> None:
        """Begin a run: a Job goes into the queue, a handler gets its task."""
        if node._flow_job and len(self._queue) >= self._max_waiting_jobs:
            self._check_room()
        if parent is node or len(node._children) > 1:  # it has children before it is in the tree
            _refuse_cycle(node, parent)
        self._attach(node, parent)
        self._runs += 1
        begin(node, self._runs)
        if node._flow_job:
            self._queue.append((node, self._runs))  # type: ignore[arg-type]  # a Job, as the flag says
            if self._wake is not None:
                self._wake_worker()
            return
        callback = node._callback
        if callback is not None and callback.at_commander_end:
            self._at_commander_end.append(callback)
        assert self._event_loop is not None
        start_task(node, self._event_loop, self._handler_tasks)  # type: ignore[arg-type]  # a handler

    def _repeat(self, node: Job | HandlerCoroutine[Any], parent: TaskNode) -> None:
        """Run a node once more when its present run has ended. CycleError if it would wait for itself."""
        _refuse_cycle(node, parent)
        stand_in = StandIn()
        self._attach(stand_in, parent)
        watch(node, functools.partial(self._take_place, stand_in, node))

    def _take_place(self, stand_in: StandIn, node: Job | HandlerCoroutine[Any]) -> None:
        parent = stand_in._parent
        if stand_in._state == "TERMINATED" or not is_node(parent):
            return
        try:
            self._repeat(node, parent) if node._flow_alive or node._flow_closing else self._admit(
                node, parent
            )
        except FlowError:
            self.logger.exception("%r cannot be run again", node)
        self._release(stand_in)

    def _lend(self, node: Job | HandlerCoroutine[Any], parent: TaskNode, owner: Scheduler) -> None:
        """Let the commander to which a node belongs run it; the parent here waits for it all the same."""
        stand_in = StandIn()
        self._attach(stand_in, parent)
        try:
            owner._post(node, watcher=functools.partial(self._give_back, stand_in))
        except CommanderNotRunError:  # it ended just now
            stand_in._children.clear()
            assert is_node(stand_in._parent)
            stand_in._parent._children.pop(id(stand_in), None)
            self._admit(node, parent)

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

    def _root_emptied(self) -> None:
        self._check_idle()

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
            await self._run_job(job, worker)
            jobs += 1
            if self._handler_tasks or jobs % JOBS_BETWEEN_BREATHS == 0:
                await BARRIER

    async def _run_job(self, job: Job, worker: asyncio.Task[None]) -> None:
        run = job._flow_run
        self._running = job
        job._flow_task = worker
        job._state = "ACTIVE"
        job._flow_since = time.monotonic()
        before = CURRENT.set(job)
        cancelled = failed = False
        result: Any = None
        try:
            callback = job._callback
            if callback is not None:
                if callback.at_commander_end:
                    self._at_commander_end.append(callback)
                if callback.at_job_start:
                    await self._callback_handle(callback=callback, which="at_job_start", task_node=job)
            result = await job.task()
        except asyncio.CancelledError:
            cancelled = True
        except (KeyboardInterrupt, SystemExit, GeneratorExit):
            job._state = "EXCEPTION"
            raise
        except BaseException as error:  # noqa: BLE001 - a failure belongs to its node
            failed = True
            cancelled = await tell_failure(job, run, error)
        finally:
            self._running = None
            CURRENT.reset(before)
        if worker.cancelling():
            await self._forget_cancellation(worker)
        if not job._flow_alive or job._flow_run != run:
            return  # closed meanwhile
        job._flow_task = None
        if cancelled:
            await close(job)
            return
        if not failed:
            job.result = result
            if isinstance(result, HandlerCoroutine) and not self._was_called(result, run):
                self._submit(result, job, None)
        job._children.pop(id(job), None)
        telling = advance(job)
        if telling is not None:
            await go_on(telling)

    async def _forget_cancellation(self, worker: asyncio.Task[None]) -> None:
        """The cancellation was meant for the Job; the worker goes on."""
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0)
        while worker.cancelling():
            worker.uncancel()

    def _was_called(self, handler: HandlerCoroutine[Any], run: int) -> bool:
        """Whether a Job called or awaited the handler itself before returning it."""
        return handler._flow_alive or (handler._commander is self and handler._flow_run > run)

    async def _callback_handle(
        self, callback: Callback | None, which: CallbackType, task_node: TaskNode | None = None
    ) -> None:
        """Run the callbacks of a moment. What they raise is logged and kept in `callback_failures`."""
        if callback is None:
            return
        entries = entries_of(callback, which)
        node = task_node if task_node is not None else callback._task_node

        def report(error: Exception) -> None:
            self.callback_failures.append(CallbackFailure(node, which, error))
            self.logger.error("A callback %s of %r failed: %r", which, node, error, exc_info=error)

        before = CURRENT.set(task_node) if task_node is not None else None
        try:
            await run_entries(entries, node, report)
        finally:
            if before is not None:
                CURRENT.reset(before)

    _handle_callback = _callback_handle


def _refuse_cycle(node: TaskNode, parent: TaskNode) -> None:
    ancestor: Any = parent
    while is_node(ancestor):
        if ancestor is node:
            raise CycleError(f"{node!r} would wait for itself under {parent!r}; put it under the commander")
        ancestor = ancestor._parent


def is_scheduler(value: object) -> TypeGuard[Scheduler]:
    return isinstance(value, Scheduler)

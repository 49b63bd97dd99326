"""The commander: the root of the tree, and what a program says to it.

Programs take the other names of the flow from here, too.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from tenuto.flow._exceptions import CommanderAlreadyRunningError, NestedLoopError, NotHandlerError
from tenuto.flow.callbacks import Callback, CallbackDict, CallbackType, Params, RequiredCallbackDict  # noqa: F401 - for programs
from tenuto.flow.handler import HandlerCoroutine, _is_first_param_bound, handler  # noqa: F401 - for programs
from tenuto.flow.job import BasicJob, Job, check_job, tasker  # noqa: F401 - for programs
from tenuto.flow.lifecycle import Lifecycle
from tenuto.flow.node import TaskNode  # noqa: F401 - for programs
from tenuto.flow.tree import NodeView, view_of
from tenuto.flow.watchdog import BLOCKAGES_KEPT, Blockage
from tenuto.flow.work import PASS_WORD  # noqa: F401 - for programs

T = TypeVar("T")

BLOCKED_AFTER_SECONDS = 1.0
EXIT_GRACE_SECONDS = 1.0
MAX_WAITING_JOBS = 1_000_000


class CommanderAsync(Lifecycle, Generic[T]):
    """Runs Jobs and handlers until it is told to exit or, with `auto_exit`, until nothing is left.

    `blocked_after_seconds`: a Job or handler that holds the thread longer is named, in the log, in
    `blockages` and to `on_blocked` (called in the watchdog's thread); None switches the watchdog off.
    `exit_grace_seconds`: how long the end waits for the running Job, and then for work that does not heed
    its cancellation. `max_waiting_jobs`: how many Jobs may wait. Errors are logged to `tenuto.flow`
    unless another logger is given.
    """

    def __init__(
        self,
        logger: logging.Logger | None = None,
        *,
        blocked_after_seconds: float | None = BLOCKED_AFTER_SECONDS,
        on_blocked: Callable[[Blockage], None] | None = None,
        exit_grace_seconds: float = EXIT_GRACE_SECONDS,
        max_waiting_jobs: int = MAX_WAITING_JOBS,
    ) -> None:
        super().__init__()
        self.logger = logger or logging.getLogger("tenuto.flow")
        self.on_blocked = on_blocked
        self.blockages = deque(maxlen=BLOCKAGES_KEPT)
        self._blocked_after = blocked_after_seconds
        self._grace = exit_grace_seconds
        self._max_waiting_jobs = max_waiting_jobs

    # --- what can be asked -------------------------------------------------------------------------------

    @property
    def running_status(self) -> bool:
        """Started and not told to end."""
        with self._lock:
            return self._accepting

    def is_empty(self) -> bool:
        """No Job waits, nothing runs, and nothing is on its way from another thread."""
        with self._lock:
            return not (self._queue or self._children or self._inbox or self._reading)

    def tree(self) -> NodeView:
        """The live tree with states and durations: `str()` draws it, `.data()` is plain data."""
        return view_of(self)

    # --- running -----------------------------------------------------------------------------------------

    def run(
        self, job: Job | Iterable[Job] | None = None, auto_exit: bool = False, new_queue: bool = True
    ) -> T | None:
        """Run in this thread until the end; returns what the exit was given, None if nothing.

        With `new_queue`, Jobs that still waited when the commander last ended are dropped; without it they
        run now. CommanderAlreadyRunningError; NestedLoopError inside a running event loop (`run_async`
        works there); NotTaskerError before anything has run.
        """
        jobs = _jobs_of(job)
        _refuse_to_block("run")
        loop = asyncio.new_event_loop()
        try:
            self._start(loop, jobs, auto_exit, new_queue)
        except BaseException:
            loop.close()
            raise
        self._run_own_loop(loop)
        return self._result()

    def run_auto(
        self, job: Job | Iterable[Job] | None, auto_exit: bool = True, new_queue: bool = True
    ) -> bool:
        """Give the Jobs to the running commander and return False; or run it, blocking, and return True.

        NestedLoopError if it would have to be run inside a running event loop.
        """
        jobs = _jobs_of(job)
        while not self._join(jobs):
            try:
                self.run(jobs, auto_exit, new_queue)
            except CommanderAlreadyRunningError:
                continue  # another thread has just started it
            return True
        return False

    async def run_async(
        self, job: Job | Iterable[Job] | None = None, auto_exit: bool = False, new_queue: bool = True
    ) -> T | None:
        """As `run`, inside the running event loop. If it is cancelled, the commander ends."""
        self._start(asyncio.get_running_loop(), _jobs_of(job), auto_exit, new_queue, wait=False)
        try:
            await self._serve()
        finally:
            self._end()
        return self._result()

    def exit(self, return_result: T | None = None, wait: bool = True) -> None:
        """End the commander; `run` returns `return_result`. Does nothing if it does not run.

        The running Job may finish its own work, within the grace; handlers are cancelled; Jobs in the queue
        stay there (see `new_queue`). With `wait`, returns when all that has happened, except in the
        commander's own thread, which has to do it.
        """
        self._exit_from_within(return_result)
        if wait and self._thread != threading.get_ident():
            self._ended.wait()

    def wait_for_exit(self) -> T | None:
        """Block until the commander has ended; returns what its exit was given. At once if it is idle."""
        if self._thread == threading.get_ident() and not self._ended.is_set():
            raise NestedLoopError("wait_for_exit would block the thread in which the commander runs")
        self._ended.wait()
        return self._result()

    def _result(self) -> T | None:
        result: T | None = self._return_result
        return result

    def put_job_threadsafe(self, job: Job) -> None:
        """Put a Job from any thread. CommanderNotRunError, NotTaskerError, TooManyJobsError."""
        check_job(job)
        self._post((job, None, None, None))

    def call_handler_threadsafe(self, handler: HandlerCoroutine[Any]) -> None:  # noqa: F811 - its name in agere
        """Start a handler from any thread. CommanderNotRunError, NotHandlerError."""
        if not isinstance(handler, HandlerCoroutine):
            raise NotHandlerError(f"{handler!r} is not a call of a handler")
        self._post((handler, None, None, None))


CommanderAsyncInterface = CommanderAsync  # programs name it in annotations


def _refuse_to_block(what: str) -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise NestedLoopError(f"{what} would block the running event loop; use await commander.run_async(...)")


def _jobs_of(job: Job | Iterable[Job] | None) -> list[Job]:
    if job is None:
        return []
    jobs = [job] if isinstance(job, Job) or not isinstance(job, Iterable) else list(job)
    for one in jobs:
        check_job(one)
    return jobs

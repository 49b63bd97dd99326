"""Jobs: units of work that run one after another, in the order in which they were put."""

from __future__ import annotations

import inspect
from abc import ABCMeta, abstractmethod
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any, Final

from tenuto.flow._exceptions import NotTaskerError
from tenuto.flow.callbacks import Callback, CallbackType
from tenuto.flow.handler import HandlerCoroutine
from tenuto.flow.work import PASS_WORD, WorkNode, require_oath

_TASKER: Final = "__tasker__"


def tasker(password: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Mark the `task` of a Job, plain or async. AssertionError if the password is not `PASS_WORD`.

    The queue goes on when the task returns, so long work belongs into a handler: return it, and it runs
    as a child of the Job.
    """
    require_oath(password)

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        if inspect.iscoroutinefunction(function):
            task: Callable[..., Any] = function
        else:

            @wraps(function)
            async def task(*arguments: Any, **named: Any) -> Any:
                outcome = function(*arguments, **named)
                return await outcome if inspect.iscoroutine(outcome) else outcome

        setattr(task, _TASKER, True)
        return task

    return decorate


class Job(WorkNode, metaclass=ABCMeta):
    """A unit of work in the queue of a commander.

    `result` is what `task` returned, `exception` what it raised. The Job ends when its task and all its
    children have ended; then `at_job_end` runs.
    """

    _flow_kind = "job"
    _flow_start = "at_job_start"
    _flow_end: CallbackType = "at_job_end"

    def __init__(self, callback: Callback | None = None) -> None:
        if callback is not None:
            callback._task_node = self
            self._callback = callback

    @abstractmethod
    async def task(self) -> Any:
        """The work; decorate it with `@tasker(PASS_WORD)`. A handler that it returns is called as a child."""

    def _own_work(self) -> Awaitable[Any]:
        return self.task()

    def _after_work(self) -> None:
        called, commander = self.result, self._commander
        if called is not None and isinstance(called, HandlerCoroutine) and commander is not None:
            awaited = called._commander is commander and called._flow_run > self._flow_run
            if not awaited and not called._flow_alive:
                commander._submit(called, self, None)


class BasicJob(Job):
    """A Job that calls one handler."""

    def __init__(self, job_content: HandlerCoroutine[Any]) -> None:
        super().__init__()
        self.job_content = job_content

    @tasker(PASS_WORD)
    async def task(self) -> HandlerCoroutine[Any]:
        return self.job_content


def check_job(job: Job) -> None:
    """NotTaskerError unless this can be put into a queue; a Job keeps the error as its exception."""
    if getattr(type(job), "_flow_kind", None) != "job":
        raise NotTaskerError(f"{job!r} is not a Job")
    if getattr(job.task, _TASKER, None) is not True:
        error = NotTaskerError(f"the task of {job!r} is not decorated with @tasker(PASS_WORD)")
        if not job._flow_alive:
            job._state = "EXCEPTION"
            job.exception = error
        raise error

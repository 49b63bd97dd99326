"""What Jobs and handlers have in common: an oath, work of their own, and that they put Jobs, call handlers
and have callbacks.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, Final

from tenuto.flow.callbacks import Callback, CallbackDict, CallbackType, current_task, entries_of
from tenuto.flow.node import CURRENT, NOT_ENDING, TaskNode, advance, close, go_on, logger, tell

if TYPE_CHECKING:
    from tenuto.flow.handler import HandlerCoroutine
    from tenuto.flow.job import Job

PASS_WORD: Final = "I assure all time-consuming tasks are delegated externally."  # noqa: S105 - an oath


def require_oath(password: str) -> None:
    """AssertionError unless the password is the oath; `python -O` does not release from it."""
    if password != PASS_WORD:
        raise AssertionError(
            "The password is wrong. Tasks and handlers share one thread: what takes long must be delegated, "
            f"for example to asyncio.to_thread. Whoever keeps to that says: {PASS_WORD!r}"
        )


class WorkNode(TaskNode):
    """A node with work of its own."""

    result: Any = None
    data: Any = None  # what edges hand from node to node

    _flow_start: CallbackType

    def _own_work(self) -> Awaitable[Any]:
        """Begin the node's own work."""
        raise NotImplementedError

    def _after_work(self) -> None:
        """The node's own work is over, and `result` or `exception` is set."""
        raise NotImplementedError

    async def put_job(
        self, job: Job, parent: TaskNode | None = None, requester: TaskNode | None = None
    ) -> None:
        """Put a Job into the queue of the commander, as a child of this node or of `parent`.

        `parent=node.commander` makes a new root: this node does not wait for it. A Job that still waits
        or runs is run again after that. Dropped if this node, the parent or the requester has been
        terminated. NotTaskerError, CycleError, TooManyJobsError, CommanderNotRunError go to the caller.
        """
        if self._state != "TERMINATED":
            parent = self if parent is None else parent
            await self.commander._put_job(job=job, parent=parent, requester=requester)

    def call_handler(
        self,
        handler: HandlerCoroutine[Any],
        parent: TaskNode | None = None,
        requester: TaskNode | None = None,
    ) -> None:
        """Start a handler now, beside everything else, as a child of this node or of `parent`.

        Returns at once; `await handler` waits for its result. NotHandlerError if it is no handler;
        otherwise as `put_job`.
        """
        if self._state != "TERMINATED":
            parent = self if parent is None else parent
            self.commander._call_handler(handler=handler, parent=parent, requester=requester)

    async def exit_commander(self, return_result: Any = None) -> None:
        """End the commander from inside; `run` returns `return_result`."""
        if self._state != "TERMINATED":
            self.commander._exit_from_within(return_result)

    @property
    def callback(self) -> Callback | None:
        return self._callback

    def add_callback_functions(
        self, which: CallbackType, functions_info: CallbackDict | list[CallbackDict]
    ) -> None:
        """Add one callback entry or several. ValueError if there is no moment of that name."""
        callback = Callback() if self._callback is None else self._callback
        entries = functions_info if isinstance(functions_info, list) else [functions_info]
        entries_of(callback, which).extend(entries)
        self._callback = callback
        callback._task_node = self

    def add_callback(self, callback: Callback | list[Callback | None]) -> None:
        """Add the entries of other callbacks. The first one given to a node alone is kept, not copied."""
        added = Callback.merge(callback) if isinstance(callback, list) else callback
        self._callback = added if self._callback is None else self._callback.update(added)
        self._callback._task_node = self

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles hold what the program set; they have not run and are in no tree."""
        gone = {"_id", "_commander", "_parent", "_children", "_state", "result", "exception"}
        kept = vars(self).items()
        return {name: value for name, value in kept if name not in gone and not name.startswith("_flow_")}


def begin(node: WorkNode, run: int) -> None:
    """Make a node ready for a run, the first or another one."""
    node._state = "PENDING"
    node._flow_alive = True
    if node._flow_run:
        node._children[id(node)] = node
        node._flow_ending = NOT_ENDING
        node._flow_failed_by_child = False
        node._flow_since = node._flow_until = None
        node.exception = node.result = None
    node._flow_run = run


class _Barrier:
    """Waiting for nothing but the next step."""

    def __await__(self) -> Any:
        return iter((None,))


BARRIER = _Barrier()


def start_task(
    node: WorkNode, loop: asyncio.AbstractEventLoop, tasks: dict[asyncio.Task[Any], WorkNode]
) -> None:
    """Give a handler its asyncio task, which is kept in `tasks` while it runs.

    The coroutine is driven to its first line inside of `try` here, so that a task which is cancelled
    before its first step still ends its node.
    """
    coroutine = do_work(node, tasks)
    coroutine.send(None)
    task = asyncio.Task(coroutine, loop=loop)  # and no task factory may run it now
    node._flow_task = task
    tasks[task] = node


async def do_work(node: WorkNode, tasks: dict[asyncio.Task[Any], WorkNode] | None = None) -> Any:
    """A node's own work, then its end. With `tasks`, this is a task of its own: that of a handler."""
    run = node._flow_run
    task: asyncio.Task[Any] | None = None
    cancelled = failed = False
    result: Any = None
    try:
        try:
            if tasks is not None:
                await BARRIER
            task = node._flow_task
            CURRENT.set(node)
            if node._flow_alive:
                node._state = "ACTIVE"
            node._flow_since = time.monotonic()
            if node._callback is not None:
                await tell(node, node._flow_start)
            result = await node._own_work()
        except asyncio.CancelledError:
            cancelled = True
        except (KeyboardInterrupt, SystemExit):
            node._state = "EXCEPTION"
            raise
        except BaseException as error:
            if isinstance(error, GeneratorExit) and current_task() is not task:
                raise  # this coroutine is being thrown away
            failed = True
            cancelled = await _tell_failure(node, run, error)
        if not node._flow_alive or node._flow_run != run:
            return None  # closed meanwhile: whatever it did after that is nobody's
        node._flow_task = None
        if cancelled:
            await close(node)
            return None
        if not failed:
            node.result = result
        node._after_work()
        node._children.pop(id(node), None)
        telling = advance(node)
        if telling is not None:
            await go_on(telling)
        return result
    finally:
        if tasks is not None:
            ended = task or current_task()  # closed before its first step, it does not know its task
            if ended is not None:
                tasks.pop(ended, None)
            commander = node._commander
            if commander is not None and not commander._children:
                commander._check_idle()  # it may have been the last one, under a node outside of the tree


async def _tell_failure(node: WorkNode, run: int, error: BaseException) -> bool:
    """The node's own work raised. True if it was cancelled while its callbacks ran."""
    if not node._flow_alive or node._flow_run != run:
        return False  # it is closed: nobody asks any more
    node._state = "EXCEPTION"
    node.exception = error
    log = logger if node._commander is None else node._commander.logger
    log.error("%r failed: %r", node, error, exc_info=error)
    try:
        await tell(node, "at_exception")
    except asyncio.CancelledError:
        return True
    return False

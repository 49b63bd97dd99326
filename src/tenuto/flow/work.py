"""What Jobs and handlers have in common: they do work, put Jobs, call handlers and have callbacks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tenuto.flow.callbacks import Callback, CallbackDict, CallbackType, entries_of
from tenuto.flow.node import TaskNode

if TYPE_CHECKING:
    from tenuto.flow.handler import HandlerCoroutine
    from tenuto.flow.job import Job


class WorkNode(TaskNode):
    """A node with work of its own."""

    result: Any = None
    data: Any = None  # what edges hand from node to node

    async def put_job(
        self, job: Job, parent: TaskNode | None = None, requester: TaskNode | None = None
    ) -> None:
        """Put a Job into the queue of the commander, as a child of this node or of `parent`.

        `parent=node.commander` makes a new root: this node does not wait for it. A Job that still waits
        or runs is run again after that. Dropped if this node, the parent or the requester has been
        terminated. NotTaskerError, CycleError, TooManyJobsError, CommanderNotRunError go to the caller.
        """
        if self._state == "TERMINATED":
            return
        await self.commander._put_job(job=job, parent=self if parent is None else parent, requester=requester)

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
        if self._state == "TERMINATED":
            return
        self.commander._call_handler(
            handler=handler, parent=self if parent is None else parent, requester=requester
        )

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
        entries = entries_of(callback, which)
        entries.extend(functions_info if isinstance(functions_info, list) else [functions_info])
        self._callback = callback
        callback._task_node = self

    def add_callback(self, callback: Callback | list[Callback | None]) -> None:
        """Add the entries of other callbacks. The first one given to a node alone is kept, not copied."""
        added = Callback.merge(callback) if isinstance(callback, list) else callback
        if self._callback is None:
            self._callback = added
        else:
            self._callback.update(added)
        self._callback._task_node = self

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles hold what the program set; they have not run and are in no tree."""
        gone = {"_id", "_commander", "_parent", "_children", "_state", "result", "exception"}
        kept = vars(self).items()
        return {name: value for name, value in kept if name not in gone and not name.startswith("_flow_")}

"""The tree: a node has one parent and any number of children, and ends when nothing of it is left.

A node holds itself among its children while its own work goes on. So "nothing left" is one test: no
children. Ending is a walk from a node towards the root, in a loop and not by recursion, since a chain of
Jobs may be longer than the stack. A node with callbacks interrupts the walk until they have run.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Literal, Self, TypeGuard

from tenuto.flow._exceptions import AttributeNotSetError
from tenuto.flow.callbacks import Callback, CallbackType, run_entries

if TYPE_CHECKING:
    from tenuto.flow._commander import CommanderAsync
    from tenuto.flow.scheduler import Scheduler

logger = logging.getLogger("tenuto.flow")

State = Literal["PENDING", "ACTIVE", "TERMINATED", "EXCEPTION", "COMPLETED"]

# The node whose work is running: a handler that is awaited directly becomes its child.
CURRENT: ContextVar[TaskNode | None] = ContextVar("tenuto_flow_node", default=None)

# How far the end of a node has come.
NOT_ENDING, TELLING, TOLD = range(3)


class Children(dict[int, "TaskNode"]):
    """The children of a node, in order, by identity; reads like a list, and removes in constant time."""

    __slots__ = ()

    def append(self, node: TaskNode) -> None:
        self[id(node)] = node

    def extend(self, nodes: Iterable[TaskNode]) -> None:
        self.update((id(node), node) for node in nodes)

    def __iter__(self) -> Any:  # of nodes, where a dict says keys
        return iter(self.values())

    def __contains__(self, node: object) -> bool:
        return id(node) in self.keys()

    def __eq__(self, other: object) -> bool:
        return list(self) == (list(other) if isinstance(other, Children) else other)

    __hash__ = None


class TaskNode:
    """A node of the task tree: the Commander, a Job or a handler.

    Nothing here needs `__init__`: a subclass that forgets to call it works all the same.
    """

    _id: int | str | None = None
    _commander: CommanderAsync[Any] | None = None
    _parent: TaskNode | Literal["Null"] | None = None
    _children: Children
    _callback: Callback | None = None
    _state: State = "PENDING"

    # A node whose child ends in EXCEPTION ends so too, with the same exception, if this is set.
    fails_with_children: bool = False
    exception: BaseException | None = None

    # What kind of node it is: for people, and the moment at which its callbacks are told of its end.
    _flow_kind = "node"
    _flow_end: CallbackType | None = None

    # The bookkeeping of the present run; the prefix keeps it apart from what subclasses call theirs.
    _flow_root = False
    _flow_alive = False  # scheduled, and not ended
    _flow_closing = False  # terminated, but not told to everybody: its place is still taken
    _flow_run = 0  # the number of this run in its commander
    _flow_ending = NOT_ENDING
    _flow_failed_by_child = False
    _flow_task: asyncio.Task[Any] | None = None  # the asyncio task that does its own work
    _flow_since: float | None = None
    _flow_until: float | None = None
    _flow_watchers: list[Callable[[], None]] | None = None  # called once, when the node has ended

    def __new__(cls, *_arguments: Any, **_named: Any) -> Self:
        node = object.__new__(cls)
        node._children = children = Children()
        children[id(node)] = node
        return node

    def add_child(self, child: TaskNode) -> None:
        """Link a node under this one and mark it active. Does not run it; see `put_job`, `call_handler`."""
        self._children.append(child)
        child._parent = self
        child._state = "ACTIVE"

    async def del_child(self, child: TaskNode) -> None:
        """Unlink a node; if nothing is left of this one, it ends, and so may its ancestors."""
        if self._children.pop(id(child), None) is not None:
            await finish(self)

    @property
    def id(self) -> int | str:
        """Given by the commander when the node is scheduled (a number), unless it was set before.

        Set strings only: a number may be given to another node.
        """
        if self._id is None:
            raise AttributeNotSetError(f"the id of {self!r} is not set yet: it is not scheduled")
        return self._id

    @id.setter
    def id(self, value: int | str) -> None:
        self._id = value

    @property
    def commander(self) -> CommanderAsync[Any]:
        if self._commander is None:
            raise AttributeNotSetError(f"the commander of {self!r} is not set yet: it is not scheduled")
        return self._commander

    @property
    def parent(self) -> TaskNode | Literal["Null"]:
        if self._parent is None:
            raise AttributeNotSetError(f"the parent of {self!r} is not set yet: it is not scheduled")
        return self._parent

    @property
    def children(self) -> list[TaskNode]:
        """The live children; the node itself is among them while its own work goes on."""
        return list(self._children.values())

    @property
    def children_num(self) -> int:
        return len(self._children)

    @property
    def state(self) -> State:
        """PENDING until its work starts, ACTIVE while it or a child runs, then how it ended.

        EXCEPTION and TERMINATED are set at once; the others wait for the children.
        """
        return self._state

    @property
    def ancestor_chain(self) -> list[TaskNode]:
        """This node, its parent, and so on up to the root."""
        chain: list[TaskNode] = []
        node: TaskNode | Literal["Null"] = self
        while node != "Null":
            chain.append(node)
            node = node.parent
        return chain

    async def close_task_node(self) -> None:
        """Stop this node and everything under it, for good.

        Work that waits is cancelled, Jobs in the queue never start, and whatever the closed nodes still
        put or call is dropped. Each node is told by `at_terminate`, children before parents. Inside the
        node's own work, or that of a descendant, this call does not return: it is cancelled with the rest.
        A node that has ended stays as it is. From another thread, the commander's loop does the work.
        """
        commander = self._commander
        if running(commander) and commander._thread != threading.get_ident():
            assert commander._event_loop is not None
            there = asyncio.run_coroutine_threadsafe(close(self), commander._event_loop)
            await asyncio.wrap_future(there)
        else:
            await close(self)

    async def terminate_task_node(self) -> None:
        """The same as `close_task_node`."""
        await self.close_task_node()

    def _label(self) -> str:
        """A name, for people."""
        return type(self).__name__

    def __repr__(self) -> str:
        return f"<{self._flow_kind} {self._label()} #{self._id} {self._state}>"


def running(commander: object) -> TypeGuard[Scheduler]:
    """A commander with a loop, which can run what belongs to the tree and to no node."""
    return isinstance(commander, TaskNode) and getattr(commander, "_event_loop", None) is not None


async def tell(node: TaskNode, which: CallbackType) -> None:
    """Run the node's callbacks for a moment."""
    callback = node._callback
    if callback is None or not getattr(callback, which):
        return
    if node._commander is not None:
        await node._commander._callback_handle(callback=callback, which=which, task_node=node)
    else:
        await run_entries(getattr(callback, which), node, _report_alone)


def _report_alone(error: BaseException) -> None:
    logger.error("A callback of a node without a commander failed.", exc_info=error)


def has_ended(node: TaskNode) -> bool:
    return not node._flow_alive and node._state in ("COMPLETED", "EXCEPTION", "TERMINATED")


def advance(node: TaskNode) -> TaskNode | None:
    """End this node and its ancestors as far as that goes without waiting.

    Returns the node whose callbacks have to run before it goes on; the caller owes them (`go_on`).
    """
    while not node._children and node._state != "TERMINATED":
        if node._flow_root:
            node._check_idle()  # type: ignore[attr-defined]  # the root is a scheduler
            return None
        if node._flow_ending == TELLING:
            return None  # whoever runs the callbacks goes on
        callback, which = node._callback, node._flow_end
        if callback is not None and node._flow_ending == NOT_ENDING:
            failed_by_child = node._flow_failed_by_child and callback.at_exception
            if failed_by_child or (which is not None and getattr(callback, which)):
                node._flow_ending = TELLING
                return node
            node._flow_ending = TOLD
        parent = node._parent
        failed = node._state == "EXCEPTION"
        if not failed:
            node._state = "COMPLETED"
        node._flow_alive = False
        node._flow_until = time.monotonic()
        if isinstance(parent, TaskNode):
            parent._children.pop(id(node), None)
            if failed and parent.fails_with_children and parent._state == "ACTIVE":
                parent._state = "EXCEPTION"
                parent.exception = node.exception
                parent._flow_failed_by_child = True
        if node._flow_watchers is not None:
            call_watchers(node)
        if not isinstance(parent, TaskNode):
            return None
        node = parent
    return None


def call_watchers(node: TaskNode) -> None:
    watchers, node._flow_watchers = node._flow_watchers, None
    for watcher in watchers or ():
        watcher()


async def finish(node: TaskNode) -> None:
    """End this node if nothing of it is left, then its ancestors, with their callbacks."""
    telling = advance(node)
    if telling is not None:
        await go_on(telling)


async def go_on(telling: TaskNode) -> None:
    """The rest of an end: what `advance` left to do. The tree goes on even if the caller is cancelled."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        await _apart(telling._commander, _tell_and_go_on(telling))
    else:
        await _tell_and_go_on(telling)


async def _apart(commander: object, coroutine: Any) -> None:
    """In a task of its own, which no cancellation of the caller reaches."""
    if running(commander):
        await asyncio.shield(commander._spawn(coroutine))
    else:
        await coroutine


async def _tell_and_go_on(node: TaskNode) -> None:
    telling: TaskNode | None = node
    cancelled: asyncio.CancelledError | None = None
    while telling is not None:
        try:
            if telling._flow_failed_by_child:
                await tell(telling, "at_exception")
            if telling._flow_end is not None:
                await tell(telling, telling._flow_end)
        except asyncio.CancelledError as error:
            cancelled = error  # that was the callback's end; the tree goes on
        finally:
            telling._flow_ending = TOLD
        telling = advance(telling)
    if cancelled is not None:
        raise cancelled


def _branch(node: TaskNode) -> list[TaskNode]:
    """The node and all its descendants, children before parents."""
    branch = {id(node): node}
    waiting = [node]
    for parent in waiting:  # grows while it is walked
        for child in parent._children:
            if isinstance(child, TaskNode) and id(child) not in branch:
                branch[id(child)] = child
                waiting.append(child)
    return waiting[::-1]


async def close(node: TaskNode) -> None:
    """See `TaskNode.close_task_node`."""
    if has_ended(node):
        return
    here = asyncio.current_task()
    inside = stop(branch := _branch(node), here)
    await _apart(node._commander, _tell_closed(node, branch, node._parent))
    if inside and here is not None:
        here.cancel()
        await asyncio.sleep(0)  # the cancellation arrives here


def stop(branch: list[TaskNode], here: asyncio.Task[Any] | None) -> bool:
    """Mark all as terminated and cancel their work; True if it is the task we are in, which is not."""
    inside = False
    now = time.monotonic()
    for node in branch:
        node._state = "TERMINATED"
        node._flow_alive = False
        node._flow_until = now
        node._flow_closing = True
        node._children.clear()
        task, node._flow_task = node._flow_task, None
        if task is not None and task is here:
            inside = True
        elif task is not None:
            task.cancel()
    for node in branch:
        if node._flow_kind == "handler":
            node._after_work()  # type: ignore[attr-defined]  # who awaits it is told
    return inside


async def _tell_closed(node: TaskNode, branch: list[TaskNode], parent: Any) -> None:
    try:
        for closed in branch:
            await tell(closed, "at_terminate")
        if isinstance(parent, TaskNode):
            if parent._children.pop(id(node), None) is not None:
                await finish(parent)
        elif parent is not None and parent != "Null":
            await parent.del_child(node)
    finally:
        for closed in branch:
            closed._flow_closing = False
        for closed in branch:
            call_watchers(closed)  # last, since one may put the node into the tree again

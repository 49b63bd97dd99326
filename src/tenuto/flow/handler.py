"""Handlers: coroutine functions whose calls are nodes of the tree, and run beside each other."""

from __future__ import annotations

import asyncio
import inspect
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Generator
from functools import update_wrapper
from types import MethodType
from typing import Any, Generic, TypeVar

from tenuto.flow._exceptions import CycleError, HandlerTerminatedError, NotHandlerError
from tenuto.flow.callbacks import Callback, CallbackType
from tenuto.flow.node import CURRENT, NOT_ENDING, advance, close, go_on, has_ended, logger, tell
from tenuto.flow.oath import require_oath
from tenuto.flow.work import WorkNode

R = TypeVar("R")

# What has no commander to hold it; the event loop holds tasks only weakly.
_background: set[asyncio.Task[Any]] = set()
_alone: dict[asyncio.Task[Any], HandlerCoroutine[Any]] = {}


class HandlerCoroutine(WorkNode, Generic[R]):
    """One call of a handler.

    `call_handler` runs it as a child of a node; each call is one run. `await handler` gives the result of
    its own work: of the present run, of the last one, or of one that it starts under the node that awaits.
    Awaiting raises what the handler raised, and HandlerTerminatedError if it was terminated; a cancelled
    `await` terminates the handler.
    """

    __handler__ = True
    reusable: bool = True  # every handler is; kept because programs set it

    _flow_function: HandlerFunction | None = None
    _flow_before: tuple[Any, ...] = ()  # the object or class of a method
    _flow_arguments: tuple[Any, ...] = ()
    _flow_named: dict[str, Any] | None = None
    _flow_tasks: dict[asyncio.Task[Any], HandlerCoroutine[Any]] | None = None  # where its task is kept
    _flow_given: Coroutine[Any, Any, R] | None = None
    _flow_waiting: list[asyncio.Future[R]] | None = None

    @property
    def coro(self) -> Coroutine[Any, Any, R] | None:
        """A new coroutine of this call, or the one that was set; None if there is neither."""
        if self._flow_given is not None:
            given, self._flow_given = self._flow_given, None
            return given
        return self._make()

    @coro.setter
    def coro(self, coro: Coroutine[Any, Any, R] | None) -> None:
        self._flow_given = coro

    def _make(self) -> Coroutine[Any, Any, R] | None:
        if self._flow_function is None:
            return None
        function, named = self._flow_function._function, self._flow_named or {}
        made: Coroutine[Any, Any, R] = function(*self._flow_before, self, *self._flow_arguments, **named)
        return made

    def _tell_end(self) -> CallbackType:
        return "at_handler_end"

    def _kind(self) -> str:
        return "handler"

    def _label(self) -> str:
        if self._flow_function is None:
            return "handler"
        name: str = self._flow_function._function.__qualname__
        return name.rpartition("<locals>.")[2]

    def _resolve_waiting(self) -> None:
        waiting, self._flow_waiting = self._flow_waiting, None
        for future in waiting or ():
            if future.done():
                continue
            if self._state == "TERMINATED":
                future.set_exception(HandlerTerminatedError(f"{self!r} was terminated"))
            elif self.exception is not None:
                future.set_exception(self.exception)
            else:
                future.set_result(self.result)

    async def wrap_coroutine(self) -> R:
        """The same as awaiting the handler."""
        return await self

    def __await__(self) -> Generator[Any, None, R]:
        return self._wait().__await__()

    async def _wait(self) -> R:
        if CURRENT.get() is self:
            raise CycleError(f"{self!r} awaits itself")
        if not self._flow_alive and not has_ended(self):
            self._start_under_current()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[R] = loop.create_future()
        if self._flow_waiting is None:
            self._flow_waiting = []
        self._flow_waiting.append(future)
        if self._flow_task is None or self._state == "TERMINATED":
            self._resolve_waiting()  # its own work is over already
        try:
            return await future
        except asyncio.CancelledError:
            if self._flow_alive:
                detach(close(self))
            raise

    def _start_under_current(self) -> None:
        """Run as a child of the node whose work awaits us; alone, if there is none in this loop."""
        parent = CURRENT.get()
        commander = None if parent is None else parent._commander
        if (
            parent is not None
            and commander is not None
            and commander._event_loop is asyncio.get_running_loop()
            and commander._thread == threading.get_ident()
        ):
            if commander._call_handler(handler=self, parent=parent) is None:
                raise HandlerTerminatedError(f"{self!r} was awaited by a node that is terminated")
            return
        if self._parent is None:
            self._parent = "Null"
        begin(self)
        start_task(self, asyncio.get_running_loop(), _alone)


def detach(coroutine: Coroutine[Any, Any, Any]) -> None:
    task = asyncio.ensure_future(coroutine)
    _background.add(task)
    task.add_done_callback(_background.discard)


def start_task(
    handler: HandlerCoroutine[Any],
    loop: asyncio.AbstractEventLoop,
    tasks: dict[asyncio.Task[Any], HandlerCoroutine[Any]],
) -> None:
    """Give a handler its asyncio task, which is kept in `tasks` while it runs.

    The coroutine is driven to its first line inside of `try` here, so that a task which is cancelled
    before its first step still ends its node.
    """
    coroutine = run_handler(handler, tasks)
    coroutine.send(None)
    task = loop.create_task(coroutine)
    handler._flow_task = task
    tasks[task] = handler


class _Barrier:
    """Waiting for nothing but the next step."""

    def __await__(self) -> Generator[None, None, None]:
        yield


BARRIER = _Barrier()


def begin(node: WorkNode, run: int = 1) -> None:
    """Make a node ready for a run, the first or another one."""
    node._state = "PENDING"
    node._flow_alive = True
    node._children[id(node)] = node
    again = node._flow_run != 0
    node._flow_run = run
    if not again:
        return
    node._flow_ending = NOT_ENDING
    node._flow_failed_by_child = False
    node._flow_since = node._flow_until = None
    node.exception = node.result = None


async def run_handler(
    handler: HandlerCoroutine[Any], tasks: dict[asyncio.Task[Any], HandlerCoroutine[Any]]
) -> Any:
    """The asyncio task of a handler: its own work, then its end."""
    run = handler._flow_run
    cancelled = failed = False
    result: Any = None
    task: asyncio.Task[Any] | None = None
    try:
        try:
            await BARRIER
            task = handler._flow_task
            CURRENT.set(handler)
            if handler._flow_alive:
                handler._state = "ACTIVE"
            handler._flow_since = time.monotonic()
            if handler._callback is not None:
                await tell(handler, "at_handler_start")
            coroutine = handler.coro if handler._flow_given is not None else handler._make()
            if coroutine is None:
                raise NotHandlerError(f"{handler!r} has no coroutine to run")  # noqa: TRY301 - fails the node
            result = await coroutine
        except asyncio.CancelledError:
            cancelled = True
        except (KeyboardInterrupt, SystemExit, GeneratorExit):
            handler._state = "EXCEPTION"
            raise
        except BaseException as error:  # noqa: BLE001 - a failure belongs to its node
            failed = True
            cancelled = await tell_failure(handler, run, error)
        if not handler._flow_alive or handler._flow_run != run:
            return None  # closed meanwhile: whatever it did after that is nobody's
        handler._flow_task = None
        if cancelled:
            await close(handler)
            return None
        if not failed:
            handler.result = result
        if handler._flow_waiting is not None:
            handler._resolve_waiting()
        handler._children.pop(id(handler), None)
        telling = advance(handler)
        if telling is not None:
            await go_on(telling)
        return result
    finally:
        if task is None:  # closed before its first step
            task = _this_task()
        if task is not None:
            tasks.pop(task, None)
        commander = handler._commander
        if commander is not None and not commander._children:
            commander._check_idle()  # it may be the last one, under a node outside of the tree


def _this_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None  # the loop is gone, and its tasks with it


async def tell_failure(node: WorkNode, run: int, error: BaseException) -> bool:
    """The node's own work raised. True if it was cancelled while its callbacks ran."""
    if not node._flow_alive or node._flow_run != run:
        return False  # it is closed: nobody asks any more
    node._state = "EXCEPTION"
    node.exception = error
    commander = node._commander
    log = logger if commander is None else commander.logger
    log.error("%r failed: %r", node, error, exc_info=error)
    try:
        await tell(node, "at_exception")
    except asyncio.CancelledError:
        return True
    return False


class HandlerFunction:
    """What `@handler` makes of a coroutine function: calling it makes a node and runs nothing.

    As a method it is bound like any function, in nested and local classes too; the node is passed as the
    first argument, behind `self` or `cls` if there is one.
    """

    def __init__(self, function: Callable[..., Coroutine[Any, Any, Any]]) -> None:
        update_wrapper(self, function)
        self._function = function
        self._in_class = "." in function.__qualname__
        self._is_method = False

    def __set_name__(self, owner: type, name: str) -> None:
        self._in_class = self._is_method = True

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self if instance is None else MethodType(self._call_bound, instance)

    def __call__(self, *arguments: Any, **named: Any) -> HandlerCoroutine[Any]:
        if self._in_class and arguments and (self._is_method or self._is_classmethod_of(arguments[0])):
            return self._call_bound(*arguments, **named)
        return self._node((), arguments, named)

    def _call_bound(self, first: Any, /, *arguments: Any, **named: Any) -> HandlerCoroutine[Any]:
        return self._node((first,), arguments, named)

    def _is_classmethod_of(self, first: object) -> bool:
        """Whether `first` is the class that a classmethod put before the arguments."""
        if not isinstance(first, type):
            return False
        name = self._function.__name__
        found = (vars(ancestor).get(name) for ancestor in first.__mro__)
        return any(isinstance(one, classmethod) and one.__func__ is self for one in found)

    def _node(
        self, before: tuple[Any, ...], arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> HandlerCoroutine[Any]:
        node: HandlerCoroutine[Any] = HandlerCoroutine()
        node._flow_function = self
        if before:
            node._flow_before = before
        if arguments:
            node._flow_arguments = arguments
        if named:
            node._flow_named = named
        # Wrong arguments are a TypeError here, where the call is, and not later.
        self._function(*before, node, *arguments, **named).close()
        for value in (*arguments, *named.values()):
            if isinstance(value, Callback):
                node._callback = value if node._callback is None else node._callback.update(value)
                value._task_node = node
        return node

    def __repr__(self) -> str:
        return f"<handler {self._function.__qualname__}>"


def handler(
    password: str,
) -> Callable[[Callable[..., Coroutine[Any, Any, R]]], Callable[..., HandlerCoroutine[R]]]:
    """Make a coroutine function a handler. AssertionError if the password is not `PASS_WORD`.

    The function gets the node of the call as its first argument, a method as its second. Callbacks among
    the arguments are added to the node. TypeError if it is not a coroutine function.
    """
    require_oath(password)

    def decorate(function: Callable[..., Coroutine[Any, Any, R]]) -> Callable[..., HandlerCoroutine[R]]:
        if not inspect.iscoroutinefunction(function):
            raise TypeError(f"a handler has to be a coroutine function, and {function!r} is not")
        return HandlerFunction(function)

    return decorate


def _is_first_param_bound(function: Any) -> bool:
    """Whether a function is a method, so that its first parameter is its object or class."""
    if inspect.ismethod(function):
        return True
    path = function.__qualname__.split(".")
    if len(path) < 2 or path[-2] == "<locals>":
        return False
    owner: Any = sys.modules.get(function.__module__)
    for name in path[:-1]:
        owner = getattr(owner, name, None)
    return not isinstance(inspect.getattr_static(owner, path[-1], None), staticmethod)

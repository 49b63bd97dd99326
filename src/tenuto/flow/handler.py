"""Handlers: coroutine functions whose calls are nodes of the tree, and run beside each other."""

from __future__ import annotations

import asyncio
import inspect
import sys
import threading
from collections.abc import Callable, Coroutine, Generator
from functools import update_wrapper
from types import MethodType
from typing import Any, Generic, TypeVar

from tenuto.flow._exceptions import CycleError, HandlerTerminatedError, NotHandlerError
from tenuto.flow.callbacks import Callback, CallbackType
from tenuto.flow.node import CURRENT, TaskNode, close, has_ended
from tenuto.flow.work import WorkNode, begin, require_oath, start_task

R = TypeVar("R")

# What has no commander to hold it; the event loop holds tasks only weakly.
_background: set[asyncio.Task[Any]] = set()
_alone: dict[asyncio.Task[Any], WorkNode] = {}


class HandlerCoroutine(WorkNode, Generic[R]):
    """One call of a handler.

    `call_handler` runs it as a child of a node; each call is one run. `await handler` gives the result of
    its own work: of the present run, of the last one, or of one that it starts under the node that awaits.
    Awaiting raises what the handler raised, and HandlerTerminatedError if it was terminated; a cancelled
    `await` terminates the handler. CycleError if handlers await each other in a circle.
    """

    __handler__ = True
    reusable: bool = True  # every handler is; kept because programs set it

    _flow_kind = "handler"
    _flow_start = "at_handler_start"
    _flow_end: CallbackType = "at_handler_end"
    _flow_function: HandlerFunction | None = None
    _flow_before: tuple[Any, ...] = ()  # the object or class of a method
    _flow_arguments: tuple[Any, ...] = ()
    _flow_named: dict[str, Any] | None = None
    _flow_given: Coroutine[Any, Any, R] | None = None
    _flow_waiting: dict[asyncio.Future[R], TaskNode | None] | None = None  # who awaits it

    @property
    def coro(self) -> Coroutine[Any, Any, R] | None:
        """A new coroutine of this call, or the one that was set; None if there is neither."""
        return self._own_work() if self._flow_given or self._flow_function else None

    @coro.setter
    def coro(self, coro: Coroutine[Any, Any, R] | None) -> None:
        self._flow_given = coro

    def _own_work(self) -> Coroutine[Any, Any, R]:
        if self._flow_given is not None:
            given, self._flow_given = self._flow_given, None
            return given
        if self._flow_function is None:
            raise NotHandlerError(f"{self!r} has no coroutine to run")
        function, named = self._flow_function._function, self._flow_named or {}
        made: Coroutine[Any, Any, R] = function(*self._flow_before, self, *self._flow_arguments, **named)
        return made

    def _label(self) -> str:
        if self._flow_function is None:
            return "handler"
        name: str = self._flow_function._function.__qualname__
        return name.rpartition("<locals>.")[2]

    def _after_work(self) -> None:
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
        awaiting = CURRENT.get()
        self._refuse_circle(awaiting)
        if not self._flow_alive and not has_ended(self):
            self._start_under(awaiting)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[R] = loop.create_future()
        if self._flow_waiting is None:
            self._flow_waiting = {}
        self._flow_waiting[future] = awaiting
        if self._flow_task is None or self._state == "TERMINATED":
            self._after_work()  # its own work is over already
        try:
            return await future
        except asyncio.CancelledError:
            if self._flow_alive:
                closing = asyncio.ensure_future(close(self))
                _background.add(closing)
                closing.add_done_callback(_background.discard)
            raise
        finally:
            if self._flow_waiting is not None:
                self._flow_waiting.pop(future, None)

    def _refuse_circle(self, awaiting: TaskNode | None) -> None:
        """CycleError if this handler waits already, itself or through others, for the one that awaits it."""
        seen = [awaiting]
        for node in seen:  # grows while it is walked
            if node is self:
                raise CycleError(f"{self!r} would wait for itself")
            if isinstance(node, HandlerCoroutine) and node._flow_waiting:
                seen.extend(one for one in node._flow_waiting.values() if one not in seen)

    def _start_under(self, parent: TaskNode | None) -> None:
        """Run as a child of the node whose work awaits us; alone, if there is none in this loop."""
        commander = None if parent is None else parent._commander
        if (
            commander is not None
            and commander._event_loop is asyncio.get_running_loop()
            and commander._thread == threading.get_ident()
        ):
            if commander._call_handler(handler=self, parent=parent) is None:
                raise HandlerTerminatedError(f"{self!r} was awaited by a node that is terminated")
            return
        if self._parent is None:
            self._parent = "Null"
        begin(self, self._flow_run + 1)
        start_task(self, asyncio.get_running_loop(), _alone)


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
        code = function.__code__
        # How many plain arguments, with the node, are right for sure.
        self._right = (
            range(0)
            if code.co_kwonlyargcount
            else range(code.co_argcount - len(function.__defaults__ or ()), code.co_argcount + 1)
        )

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
        node: HandlerCoroutine[Any] = HandlerCoroutine.__new__(HandlerCoroutine)
        node._flow_function = self
        if before:
            node._flow_before = before
        if arguments:
            node._flow_arguments = arguments
        if named:
            node._flow_named = named
        if named or len(before) + 1 + len(arguments) not in self._right:
            # Wrong arguments are a TypeError here, where the call is, and not later.
            self._function(*before, node, *arguments, **named).close()
        if arguments or named:
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

"""Callbacks: what a program wants to be told about a node, and when.

A callback entry is a dict: `function` (plain or async), optionally `params` (`args`, `kwargs`) and
`inject_task_node`. Whatever a callback does, it cannot stop the tree: a failure is reported, and the next
entry runs.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict, get_args

if TYPE_CHECKING:
    from tenuto.flow.node import TaskNode

CallbackType = Literal[
    "at_job_start",
    "at_handler_start",
    "at_exception",
    "at_terminate",
    "at_handler_end",
    "at_job_end",
    "at_commander_end",
]
CALLBACK_TYPES: Final = get_args(CallbackType)


class Params(TypedDict, total=False):
    """The arguments that a callback function is called with."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class RequiredCallbackDict(TypedDict):
    function: Callable[..., Any]


class CallbackDict(RequiredCallbackDict, total=False):
    """One callback entry; only `function` is required."""

    params: Params
    inject_task_node: bool


class Callback:
    """The callback entries of a node, by the moment at which they run.

    | name | moment |
    | --- | --- |
    | `at_job_start` | before a Job's own work |
    | `at_handler_start` | before a handler's own work |
    | `at_exception` | its own work raised, or a child did and the node asked to fail with it |
    | `at_terminate` | it was terminated, closed or cancelled; no `..._end` follows |
    | `at_handler_end` | a handler's own work and all its children have ended |
    | `at_job_end` | the same of a Job |
    | `at_commander_end` | the commander ends, after all nodes |

    `task_node` is what an entry with `inject_task_node` gets at the end of the commander; elsewhere it gets
    the node at hand. With `task_node_auto_lock_num` it can be set that many times (the constructor counts)
    and is locked afterwards.
    """

    at_job_start: list[CallbackDict]
    at_handler_start: list[CallbackDict]
    at_exception: list[CallbackDict]
    at_terminate: list[CallbackDict]
    at_handler_end: list[CallbackDict]
    at_job_end: list[CallbackDict]
    at_commander_end: list[CallbackDict]

    def __init__(
        self,
        *in_order: list[CallbackDict] | None,
        task_node: TaskNode | None = None,
        task_node_auto_lock_num: int | None = None,
        **by_name: list[CallbackDict] | None,
    ) -> None:
        """Lists of entries by their name, or in the order of the table. TypeError on another name."""
        if task_node_auto_lock_num is not None and not isinstance(task_node_auto_lock_num, int):
            raise TypeError(f"task_node_auto_lock_num is a number or None, not {task_node_auto_lock_num!r}")
        free = CALLBACK_TYPES[len(in_order) :]
        if len(in_order) > len(CALLBACK_TYPES) or not by_name.keys() <= set(free):
            raise TypeError(f"a name twice or unknown: {', '.join(by_name)}; free are {', '.join(free)}")
        given = dict(zip(CALLBACK_TYPES, in_order, strict=False)) | by_name
        for name in CALLBACK_TYPES:
            setattr(self, name, given.get(name) or [])
        self._settings_left = task_node_auto_lock_num
        self._locked = False
        self._node: TaskNode | None = None
        if task_node is not None:
            self._task_node = task_node

    @property
    def task_node(self) -> TaskNode | None:
        return self._node

    def task_node_lock(self) -> None:
        """Keep the present `task_node` whatever node the callback is given to."""
        self._locked = True

    def task_node_unlock(self) -> None:
        self._locked = False

    @property
    def _task_node(self) -> TaskNode | None:
        return self._node

    @_task_node.setter
    def _task_node(self, node: TaskNode | None) -> None:
        if self._settings_left is not None:
            if self._settings_left > 0:
                self._settings_left -= 1
            else:
                self._locked = True
        if not self._locked:
            self._node = node

    def update(self, callbacks: Callback | list[Callback | None] | None) -> Callback:
        """Append the entries of others to these. Returns itself."""
        others = callbacks if isinstance(callbacks, list) else [callbacks]
        for name in CALLBACK_TYPES:
            for other in others:
                getattr(self, name).extend([] if other is None else list(getattr(other, name)))
        return self

    @classmethod
    def merge(cls, callbacks: list[Callback | None]) -> Callback:
        """A new callback with the entries of all of them."""
        return cls().update(callbacks)


def entries_of(callback: Any, which: str) -> list[CallbackDict]:
    """The entries for one moment. ValueError if there is no moment of that name."""
    if which not in CALLBACK_TYPES:
        raise ValueError(f"no callback is called {which!r}; there are {', '.join(CALLBACK_TYPES)}")
    entries: list[CallbackDict] = getattr(callback, which)
    return entries


def call_entry(entry: CallbackDict, **injected: Any) -> Any:
    """Call the function of an entry; returns what it returns, which may have to be awaited."""
    params = entry.get("params") or {}
    return entry["function"](*(params.get("args") or ()), **(params.get("kwargs") or {}), **injected)


def current_task() -> asyncio.Task[Any] | None:
    """None outside of a loop, too: there, coroutines that were left behind are thrown away."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


async def run_entries(
    entries: list[CallbackDict], node: TaskNode | None, report: Callable[[BaseException], None]
) -> None:
    """Run each entry in turn. What one raises goes to `report`; only an interrupt ends the round.

    A cancellation ends the entry that it meets, and is raised when the others have run.
    """
    task = current_task()
    cancelled: asyncio.CancelledError | None = None
    for entry in list(entries):
        try:
            injected = {"task_node": node} if entry.get("inject_task_node", False) else {}
            outcome = call_entry(entry, **injected)
            if inspect.isawaitable(outcome):
                await outcome
        except asyncio.CancelledError as error:
            if task is not None and task.cancelling():
                cancelled = error
            report(RuntimeError(f"the callback was cancelled: {error!r}"))
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            if isinstance(error, GeneratorExit) and current_task() is not task:
                raise  # this coroutine is being thrown away
            report(error)
    if cancelled is not None:
        raise cancelled

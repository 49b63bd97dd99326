"""Running a tool's function: what it is told about its call, and the threads that synchronous ones get.

At most `TOOL_THREADS` synchronous calls run at a time in this process, each in a daemon thread of its own:
one that hangs keeps its place until it returns, and never keeps the process from ending.
"""

import asyncio
import contextlib
import contextvars
import math
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tenuto.errors import NotDone
from tenuto.events import clean
from tenuto.limits import MAX_PROGRESS_CHARACTERS, PROGRESS_SECONDS, TOOL_THREADS
from tenuto.messages import ToolProgress


def _unheard(_message: str, _fraction: float | None) -> None:
    """Progress that nobody watches."""


@dataclass(frozen=True, eq=False)
class ToolContext:
    """What a tool can know about its call: a parameter of this type is filled in and hidden from the model.

    `idempotency_key` is the same for every attempt of one call and for no other call; send it along with
    each effect. After `deadline_ms` (UTC, ms) nobody waits for the result any more; `now_ms` is when the
    attempt began. `emit_progress` has to be safe to call from any thread.
    """

    thread_id: str = ""
    call_id: str = ""
    attempt: int = 1
    idempotency_key: str = ""
    deadline_ms: int = 0
    now_ms: int = 0
    emit_progress: Callable[[str, float | None], None] = _unheard
    stop: threading.Event = field(default_factory=threading.Event)

    @property
    def cancelled(self) -> bool:
        """True once nobody wants the result: a synchronous tool looks here between its pieces of work."""
        return self.stop.is_set()

    def progress(self, message: str, fraction: float | None = None) -> None:
        """Show how far the call is (`fraction` of 1) to who watches live. Never logged, never raises, never
        waits; of what is said more often than every PROGRESS_SECONDS the last is shown.
        """
        try:
            if fraction is not None:
                fraction = min(max(float(fraction), 0.0), 1.0) if math.isfinite(fraction) else None
            self.emit_progress(clean(str(message)[:MAX_PROGRESS_CHARACTERS]), fraction)
        except Exception:  # noqa: BLE001, S110 - a watcher's trouble is not the tool's
            pass


@dataclass(eq=False)
class Progress:
    """A call's progress on its way to `emit`, on the loop that this was made on. It is said on any thread and
    as often as the tool likes. Once the call is not `wanted`, nothing more is shown.
    """

    call_id: str
    emit: Callable[[ToolProgress], None]
    wanted: Callable[[], bool]
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _last: tuple[str, float | None] | None = None
    _on_its_way: bool = False

    def __call__(self, message: str, fraction: float | None) -> None:
        with self._lock:
            self._last = (message, fraction)
            if self._on_its_way:
                return
            self._on_its_way = True
        self._loop.call_soon_threadsafe(self._show)

    def _show(self) -> None:
        with self._lock:
            last, self._last = self._last, None
            self._on_its_way = last is not None
        if last is not None and self.wanted():
            self.emit(ToolProgress(self.call_id, *last))
            self._loop.call_later(PROGRESS_SECONDS, self._show)


class _Places:
    """A semaphore across event loops and threads: a place is given back by the thread that had it."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.taken = 0
        self._lock = threading.Lock()
        self._waiting: deque[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = deque()

    async def take(self) -> None:
        """Wait for a place, first come first served. Holds none when this raises."""
        loop = asyncio.get_running_loop()
        with self._lock:
            if self.taken < self.size:
                self.taken += 1
                return
            entry = (loop, loop.create_future())
            self._waiting.append(entry)
        try:
            await entry[1]
        except BaseException:
            with self._lock:
                given = entry not in self._waiting
                if not given:
                    self._waiting.remove(entry)
            if given:  # a place arrived together with the cancellation: the next one gets it
                self.give_back()
            raise

    def give_back(self) -> None:
        """Hand the place to who waits longest, on whichever loop. Safe in any thread."""
        with self._lock:
            while self._waiting:
                loop, future = self._waiting.popleft()
                try:
                    loop.call_soon_threadsafe(_set, future, None)
                except RuntimeError:  # that loop was closed, nobody waits there any more
                    continue
                return
            self.taken -= 1


_places = _Places(TOOL_THREADS)


def running_tool_threads() -> int:
    """How many synchronous tool calls are running in this process, hung ones among them."""
    return _places.taken


async def in_thread(work: Callable[[], Any], wait_seconds: float | None) -> Any:
    """Run `work` in a thread of its own, with the caller's context variables; returns or raises what it does.

    Raises `NotDone` when no place became free within `wait_seconds` (None: no limit) or no thread could be
    started. Cancelling leaves the thread running: only the function itself can stop.
    """
    try:
        async with asyncio.timeout(wait_seconds):
            await _places.take()
    except TimeoutError as error:
        raise NotDone(
            f"all {_places.size} tool threads were busy until the deadline; it was not run"
        ) from error
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()
    context = contextvars.copy_context()

    def thread() -> None:
        value, failure = None, None
        try:
            value = context.run(work)
        except BaseException as error:  # noqa: BLE001 - raised again where it is awaited
            failure = error
        _places.give_back()
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile: nobody waits for this
            loop.call_soon_threadsafe(_set, outcome, (value, failure))

    try:
        threading.Thread(target=thread, name="tenuto-tool", daemon=True).start()
    except RuntimeError as error:
        _places.give_back()
        raise NotDone(f"no thread could be started ({error}); it was not run") from error
    value, failure = await outcome
    if failure is not None:
        raise failure
    return value


def _set(future: asyncio.Future[Any], value: Any) -> None:
    if not future.done():
        future.set_result(value)

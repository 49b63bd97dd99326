"""Virtual time, and whose turn it is.

Each simulated process has an event loop of its own, in which callbacks keep the order that asyncio promises;
between the loops the seed chooses, callback by callback. Time passes only when no loop has anything to do.
"""

import asyncio
import heapq
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any

# Seconds that something outside may take.
DELAYS = (0.0, 0.0, 0.02, 0.3, 1.0, 3.0)


class Loop(asyncio.BaseEventLoop):
    """One process's event loop. A dead one never runs again: not even the `finally` of what it was at.

    Tasks, timeouts and futures are asyncio's own; there is no I/O, and the schedule says when it is time.
    """

    _ready: deque[asyncio.Handle]
    _scheduled: list[asyncio.TimerHandle]

    def __init__(self, schedule: "Schedule", owner: Any, failed: Callable[[dict[str, Any]], None]) -> None:
        super().__init__()
        self.schedule = schedule
        self.owner = owner
        self.dead = False
        self.tasks: list[asyncio.Task[Any]] = []
        self._failed = failed
        self._frozen_until = 0.0
        self._freezing = 0.0

    def freeze(self, seconds: float) -> None:
        """Stop for so long, as soon as nothing is left to do at this very moment."""
        self._freezing = seconds

    @property
    def can_step(self) -> bool:
        return bool(self._ready) and not self.dead and self._frozen_until <= self.schedule.time

    def next_time(self) -> float | None:
        """When this loop next has something to do; None for never."""
        while self._scheduled and self._scheduled[0].cancelled():
            heapq.heappop(self._scheduled)
        if not (self._ready or self._scheduled):
            return None
        return max(self._frozen_until, 0.0 if self._ready else self._scheduled[0].when())

    def wake_timers(self) -> None:
        """Make ready what is due."""
        now = self.schedule.time
        while self._frozen_until <= now and self._scheduled and self._scheduled[0].when() <= now:
            self._ready.append(heapq.heappop(self._scheduled))

    def step(self) -> None:
        """Run one callback."""
        handle = self._ready.popleft()
        if not handle.cancelled():
            asyncio._set_running_loop(self)
            try:
                handle._run()
            finally:
                asyncio._set_running_loop(None)
        if self._freezing and not self._ready:
            self._frozen_until, self._freezing = self.schedule.time + self._freezing, 0.0

    def time(self) -> float:
        return self.schedule.time

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self._failed(context)

    def create_task(self, *work: Any, **options: Any) -> asyncio.Task[Any]:
        self.tasks.append(task := super().create_task(*work, **options))
        return task

    def _write_to_self(self) -> None:
        """Nothing sleeps that would have to be woken."""


class Schedule:
    """All loops of one world, and the time that they share."""

    def __init__(self, random: Random) -> None:
        self.time = 0.0
        self.loops: list[Loop] = []
        self._random = random

    def run(self, done: Callable[[], bool], until: float) -> None:
        """Until `done`, until nothing is left to do, or until the time is up."""
        while not done():
            ready = [loop for loop in self.loops if loop.can_step]
            if ready:
                place = int(self._random.random() * len(ready)) if len(ready) > 1 else 0
                ready[place].step()
                continue
            alive = [loop for loop in self.loops if not loop.dead]
            times = [time for loop in alive if (time := loop.next_time()) is not None]
            if not times or min(times) > until:
                return
            self.time = max(self.time, min(times))
            for loop in alive:
                loop.wake_timers()

    def drain(self) -> None:
        """Bring every task to its end, the dead ones' too, so that none is pending when it is dropped."""
        for loop in self.loops:
            loop.dead, loop._frozen_until = False, 0.0
        for _ in range(50):
            pending = [task for loop in self.loops for task in loop.tasks if not task.done()]
            if not pending:
                break
            for task in pending:
                task.cancel()
            self.run(lambda: False, self.time + 1.0)
        for loop in self.loops:
            loop.close()

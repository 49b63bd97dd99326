"""Time, injected: nothing else in the package asks the machine what time it is.

Wall times are whole milliseconds since 1970 (UTC); durations are measured with `monotonic`, in seconds.
"""

import time
from typing import Protocol


class Clock(Protocol):
    """What the store and the runtime ask for the time; the simulation puts its own in place."""

    def now_ms(self) -> int:
        """Wall time in milliseconds since the epoch. May jump, in either direction."""
        ...

    def monotonic(self) -> float:
        """Seconds on a clock that never goes back; comparable only within the process."""
        ...


class SystemClock:
    """The machine's own clocks."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()


class FakeClock:
    """A clock that moves only when told to. For tests; public as `tenuto.testing.FakeClock`."""

    def __init__(self, at_ms: int = 1_700_000_000_000) -> None:
        self.at_ms = at_ms
        self.elapsed_seconds = 0.0

    def now_ms(self) -> int:
        return self.at_ms

    def monotonic(self) -> float:
        return self.elapsed_seconds

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass on both clocks."""
        self.at_ms += round(seconds * 1000)
        self.elapsed_seconds += seconds

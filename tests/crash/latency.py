"""How soon a worker asks its model, after somebody in another process has appended something."""

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.crash.fleet import Fleet
from tests.crash.stand import until
from tests.crash.workload import thread_id

from tenuto import Runtime, Settings

IDLE_SECONDS = 0.05  # between two appends


@dataclass
class Latencies:
    """Seconds from the call that appends to the arrival of the model's next request, at another process each.

    `woken`: a message to a thread at rest, the worker idle. `approved`: an approval in a thread of so many
    `steps`; the call, in the worker itself, is run in between.
    """

    steps: int
    woken: list[float] = field(default_factory=list)
    approved: list[float] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"from a message to the model's request, worker idle: {_told(self.woken)}; "
            f"from an approval, after {self.steps} steps: {_told(self.approved)}"
        )


def _told(seconds: Sequence[float]) -> str:
    ordered = [f"{each * 1000:.1f}" for each in sorted(seconds)]
    median, high = ordered[len(ordered) // 2], ordered[min(len(ordered) * 99 // 100, len(ordered) - 1)]
    return f"p50 {median} ms, p99 {high} ms, at most {ordered[-1]} ms ({len(ordered)} times)"


async def measure(fleet: Fleet, times: int, steps: int) -> Latencies:
    """The append is made here, by a runtime that runs nothing; the worker and the provider are processes."""
    found = Latencies(steps)
    thread = await fleet.start("fleet", "fleet", 1_000_000, "look")
    long = await fleet.start("fleet", "fleet", 1_000_001, f"look*{steps}+stamp*{times}")
    assert (await fleet.rested(thread))["status"] == "completed"
    async with Runtime(database=fleet.log.url, settings=Settings(worker=False)) as runtime:
        for number in range(times):
            await _idle(fleet)
            begun = time.monotonic()
            await runtime.send(thread, f"ping {number}")
            found.woken.append(await _arrival(fleet, 1, f"ping {number}") - begun)
        for number in range(times):
            (interrupt,) = await until(lambda: runtime.interrupts(thread_id=long, pending=True))
            await _idle(fleet)
            begun = time.monotonic()
            await runtime.resolve(interrupt.id, "approve", by="measure")
            said = f"fleet look*{steps}+stamp*{times}"
            found.approved.append(await _arrival(fleet, steps + number + 1, said) - begun)
    assert (await fleet.rested(thread_id("fleet", 1_000_001)))["status"] == "completed"
    return found


async def _idle(fleet: Fleet) -> None:
    """Until nobody holds anything, and a moment longer."""
    await until(lambda: _nobody(fleet))
    await asyncio.sleep(IDLE_SECONDS)


async def _nobody(fleet: Fleet) -> bool:
    return not await fleet.holders()


async def _arrival(fleet: Fleet, told: int, said: str) -> float:
    """When the model was asked with so many results and these words; the last time, as by the same clock."""

    async def look() -> float:
        lines = (fleet.place / "arrivals").read_text().splitlines()
        for line in reversed(lines):
            at, results, words = json.loads(line)
            if (results, words) == (told, said):
                return float(at)
        return 0.0

    return await until(look)

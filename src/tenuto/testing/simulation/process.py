"""One simulated process: the real `Runtime`, and gates between it and all that is outside of it."""

import asyncio
import dataclasses
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, cast

from tenuto.agent import Agent
from tenuto.errors import StoreError
from tenuto.rows import Change, Claim, Claimed
from tenuto.runtime import Runtime, Settings
from tenuto.store.base import Store
from tenuto.testing.simulation.schedule import DELAYS, Loop

if TYPE_CHECKING:
    from tenuto.testing.simulation.world import World

LEASE_SECONDS = 5.0
WRITES = frozenset({"create", "append", "resolve", "claim", "take", "renew", "release", "put_blobs"})
MOST_GATES = 30_000  # a seed passes some hundreds


class InjectedError(StoreError):
    """The simulation made the database refuse."""


class Process:
    """A clock, a loop and a runtime; dies and freezes as the seed says. It is its own runtime's `Clock`."""

    def __init__(self, world: "World", name: str, agents: list[Agent], model: Any) -> None:
        self.world = world
        self.name = name
        self.agents = agents
        self.skew_ms = round(world.random.uniform(-world.faults.skew_ms, world.faults.skew_ms))
        self.loop = Loop(world.schedule, self, world.task_failed)
        self.callbacks: list[Callable[[list[Change]], None]] = []
        self.leases: dict[str, float] = {}
        self.epochs: dict[str, int] = {}
        self.leaving = asyncio.Event()
        # Some have no place for a second thread; some only drive, as a command line does.
        settings = Settings(
            worker=world.calm or world.random.random() < 0.85,
            concurrency=world.random.choice((1, 2, 100)),
            lease_seconds=LEASE_SECONDS,
            grace_seconds=1.0,
        )
        self.runtime = Runtime(
            agents, cast(Store, GatedStore(self)), model=model, clock=self, settings=settings
        )
        # A runtime's own name for itself is random.
        self.runtime.owner = name
        self.runtime.worker._around = dataclasses.replace(self.runtime.worker._around, owner=name)
        self.loop.create_task(self._live())

    def now_ms(self) -> int:
        now_ms = self.world.wall_ms() + self.skew_ms
        self.world.latest_ms = max(self.world.latest_ms, now_ms)
        return now_ms

    def monotonic(self) -> float:
        return self.world.schedule.time

    async def _live(self) -> None:
        try:
            async with self.runtime:
                await self.leaving.wait()
        except StoreError as error:
            self.world.note(self.name, "did not start", type(error).__name__)
        self.loop.dead = True

    def crash(self) -> None:
        """kill -9: no more of its code runs."""
        self.loop.dead = True
        self.world.figures.crashes += 1
        self.world.note(self.name, "killed")

    async def gate(self, what: str, weight: float = 1.0) -> None:
        """A moment at which anything may happen to this process."""
        world = self.world
        world.gates += 1
        world.auditor.check(
            world.gates < MOST_GATES, "nothing is stuck", f"{self.name} goes round in circles"
        )
        if world.over or world.auditor.broken:
            raise asyncio.CancelledError
        match world.draw(weight):
            case "crash":
                world.note(self.name, what, "...")
                self.crash()
                await self.loop.create_future()
            case "freeze":
                seconds = world.random.choice((2.0, 6.0, 15.0))
                world.note(self.name, what, f"frozen for {seconds} s")
                world.figures.zombies += seconds > LEASE_SECONDS
                self.loop.freeze(seconds)
                await asyncio.sleep(0.001)
            case "delay":
                await asyncio.sleep(world.random.choice(DELAYS))
            case _:
                pass
        if world.over:
            raise asyncio.CancelledError

    async def ask_store(self, verb: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """One verb of the store, with all that can go wrong before, in and after its commit."""
        world, asked_at = self.world, self.world.schedule.time
        writes = verb in WRITES
        await self.gate(f"before {verb}", 1.0 if writes else 0.2)
        fault = world.draw_store(writes)
        if fault in ("locked", "full", "not committed"):
            world.note(self.name, verb, fault)
            raise InjectedError(f"the database is {fault}", unknown=fault == "not committed")
        work = getattr(world.store, verb)
        outcome, refusal = None, None
        world.acting, world.acting_epoch, world.acting_heard = self, kwargs.get("epoch"), not fault
        try:
            outcome = await work(*args, **kwargs)
            if fault == "twice" and verb in ("create", "append", "resolve"):
                again = await work(*args, **kwargs)
                world.auditor.check(again == outcome, "1 appends", f"the retry of {verb} said {again}")
        except Exception as error:  # noqa: BLE001 - handed on below, or hidden by an unknown outcome
            refusal = error
        finally:
            world.acting = world.outside
        if writes:
            world.note(self.name, verb, *self._told(verb, args, kwargs), refusal or outcome, fault)
            if refusal is None:
                world.auditor.acted(self, verb, args, outcome)
        if fault == "unacknowledged":
            raise InjectedError("the connection broke", unknown=True)
        await self.gate(f"after {verb}", 3.0 if writes else 0.2)
        if refusal is not None:
            raise refusal
        self._hold(verb, asked_at, args, outcome)
        return outcome

    def _told(self, verb: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[object]:
        """What of a verb's arguments does not depend on the machine."""
        kept = {
            name: kwargs[name] for name in ("epoch", "head_seq", "seen_seq", "wake_at_ms") if name in kwargs
        }
        return [*(args if verb not in ("put_blobs", "claim") else ()), kept or ""]

    def _hold(self, verb: str, asked_at: float, args: tuple[Any, ...], outcome: Any) -> None:
        """Until when this process may believe that it has a thread."""
        match outcome:
            case Claimed(claims):
                held: list[str] = [claim.thread_id for claim in claims]
                self.epochs.update((claim.thread_id, claim.epoch) for claim in claims)
            case Claim():
                held = [outcome.thread_id]
                self.epochs[outcome.thread_id] = outcome.epoch
            case dict() if verb == "renew":
                held = list(outcome)
                for claim in args[1]:
                    # The news of an earlier hold says nothing of the one that came after it.
                    if claim.thread_id not in outcome and self.epochs[claim.thread_id] == claim.epoch:
                        self.leases.pop(claim.thread_id, None)
            case _:
                return
        for thread_id in held:
            self.leases[thread_id] = max(self.leases.get(thread_id, 0.0), asked_at + LEASE_SECONDS)

    def deliver(self, changes: list[Change]) -> None:
        for callback in list(self.callbacks):
            callback(changes)


class GatedStore:
    """A `Store`: this process's way to the one database, through its gates."""

    host = ""
    publishes = False

    def __init__(self, process: Process) -> None:
        self._process = process

    def __getattr__(self, verb: str) -> Any:
        async def gated(*args: Any, **kwargs: Any) -> Any:
            return await self._process.ask_store(verb, args, kwargs)

        return gated

    async def open(self) -> None:
        await self._process.gate("open")

    async def close(self) -> None:
        await self._process.gate("close")

    def now_ms(self) -> int:
        return self._process.now_ms()

    def on_change(self, callback: Callable[[list[Change]], None], watched: object) -> Callable[[], None]:
        self._process.callbacks.append(callback)
        return lambda: self._process.callbacks.remove(callback)


def at_once(work: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine that waits for nothing, as all of an inline store do."""
    try:
        work.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("it waited")

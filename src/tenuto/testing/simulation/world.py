"""One seed, from the first process to the last check."""

import asyncio
import hashlib
import logging
import uuid
from dataclasses import dataclass, fields
from random import Random
from typing import Any

from tenuto.chain import verify_chain
from tenuto.events import Entry, Event, encode
from tenuto.rows import Change, ThreadRow
from tenuto.store.sqlite import SQLiteStore
from tenuto.testing.simulation.auditor import Auditor
from tenuto.testing.simulation.outside import AGENTS, Ledger, Provider
from tenuto.testing.simulation.people import People
from tenuto.testing.simulation.process import InjectedError, Process, at_once
from tenuto.testing.simulation.schedule import Loop, Schedule

START_MS = 1_700_000_000_000
CALM_SECONDS = 900.0
TRACE_LINES = 60


@dataclass
class Figures:
    """What happened, in numbers; of one seed or of many."""

    seeds: int = 0
    threads: int = 0
    events: int = 0
    crashes: int = 0
    zombies: int = 0
    jumps: int = 0
    refusals: int = 0
    decisions: int = 0
    conflicts: int = 0
    effects: int = 0
    doubles: int = 0
    losses: int = 0

    def add(self, other: "Figures") -> None:
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))


class Faults:
    """How often what goes wrong in this seed. Each seed has its own mix, and a third of them no kills."""

    def __init__(self, random: Random) -> None:
        self.delays = random.choice((0.05, 0.2, 0.5))
        self.crashes = random.choice((0.0, 0.006, 0.02))
        self.freezes = random.choice((0.0, 0.004, 0.01))
        self.store = random.choice((0.0, 0.02, 0.08))
        self.tools = random.choice((0.1, 0.5))
        self.model_errors = random.choice((0.0, 0.04))
        self.skew_ms = random.choice((0, 0, 300))
        self.jumps = random.choice((0.0, 0.5))
        self.lies = random.choice((0.0, 0.0, 0.3))

    def stop(self) -> None:
        for name in ("delays", "crashes", "freezes", "store", "tools", "model_errors", "jumps", "lies"):
            setattr(self, name, 0.0)


class Outside:
    """Where the database is made and people live: nothing happens to it."""

    name = "outside"

    def __init__(self, world: "World") -> None:
        self.now_ms = world.wall_ms
        self.loop = Loop(world.schedule, self, world.task_failed)
        self.monotonic = self.loop.time


class World:
    """Everything that one seed needs. `run` may be called once."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = Random(f"tenuto {seed}")  # noqa: S311 - repeatable, which is the point
        self.faults = Faults(self.random)
        self.figures = Figures(seeds=1)
        self.trace: list[tuple[object, ...]] = []
        self.schedule = Schedule(self.random)
        self.jumped_ms = 0
        self.latest_ms = 0
        self.gates = 0
        self.calm = self.over = False
        self.outside = Outside(self)
        self.acting: Outside | Process = self.outside
        self.acting_epoch: int | None = None
        self.acting_heard = True
        self.auditor = Auditor(self)
        self.ledger = Ledger()
        self.store = SQLiteStore(":memory:", inline=True, clock=self, random_bytes=self.random.randbytes)
        self.schedule.loops.append(self.outside.loop)
        self.processes: list[Process] = []
        self.on_message = self.random.choice(("queue", "withdraw"))
        self.version = 0
        self.people = People(self)

    # -- the store's clock ---------------------------------------------------------------------------

    def wall_ms(self) -> int:
        return START_MS + round(self.schedule.time * 1000) + self.jumped_ms

    def now_ms(self) -> int:
        return self.acting.now_ms()

    def monotonic(self) -> float:
        return self.schedule.time

    # -- the seed ------------------------------------------------------------------------------------

    def draw(self, weight: float) -> str:
        """What happens at a gate."""
        chance, faults = self.random.random(), self.faults
        for fault, share in (("crash", faults.crashes), ("freeze", faults.freezes)):
            chance -= share * weight
            if chance < 0:
                return fault
        return "delay" if chance < faults.delays else ""

    def draw_store(self, writes: bool) -> str:
        """What the database does about a verb."""
        if self.random.random() >= self.faults.store:
            return ""
        self.figures.refusals += 1
        return self.random.choice(
            ("locked", "full", "not committed", "unacknowledged", "unacknowledged", "twice")
            if writes
            else ("locked",)
        )

    def draw_outside(self, *faults: str) -> str:
        """What a tool does that is asked for something; "" for what it should."""
        return self.random.choice(faults) if self.random.random() < self.faults.tools else ""

    def note(self, *facts: object) -> None:
        self.trace.append((f"{self.schedule.time:9.3f}", *facts))

    def thread_id(self, number: int) -> str:
        return str(uuid.UUID(int=self.random.getrandbits(64) << 64 | number))

    # -- what happens --------------------------------------------------------------------------------

    def start_process(self) -> Process:
        name = f"w{len(self.processes) + 1}"
        agent = AGENTS[self.version, self.on_message]
        process = Process(self, name, [agent], Provider())
        self.note(name, "starts", f"version {self.version}")
        self.processes.append(process)
        self.schedule.loops.append(process.loop)
        return process

    def changed(self, changes: list[Change]) -> None:
        """Something was committed: audit it, tell who did it now and the other processes a little later."""
        for change in changes:
            seen = self.auditor.threads.get(change.thread_id)
            after = len(seen.entries) if seen else 0
            self.auditor.grown(change.thread_id, self.read(change.thread_id, after), self.acting_epoch)
        foreign = [Change(change.thread_id, change.head_seq, True) for change in changes]
        for process in self.processes:
            if process.loop.dead:
                continue
            if process is self.acting and self.acting_heard:
                process.deliver(changes)
            else:
                process.loop.call_later(self.random.random() * 0.05, process.deliver, foreign)

    def bury(self, process: Process) -> None:
        """Somebody found the dead one's lock free: its leases end at once."""
        self.note(process.name, "buried")
        self.acting_epoch = None
        at_once(self.store._write(lambda transaction: transaction.remove_worker(process.name)))

    def read(self, thread_id: Any, after: int = 0) -> list[Entry]:
        entries: list[Entry] = at_once(self.store.read(thread_id, after))
        return entries

    def look(self, thread_id: Any) -> ThreadRow:
        row: ThreadRow = at_once(self.store.thread(thread_id))
        return row

    def task_failed(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not self.over and not isinstance(error, InjectedError | asyncio.CancelledError):
            self.auditor.check(False, "nothing fails by itself", f"{context.get('message')}: {error!r}")

    # -- from beginning to end -----------------------------------------------------------------------

    def run(self) -> None:
        """Raises `BrokenPromise`, as `simulate` does; then `lines` has the whole trace."""
        handler = _Listener(self)
        logger = logging.getLogger("tenuto")
        before = logger.level, logger.propagate
        logger.propagate = False
        logger.addHandler(handler)
        try:
            self.outside.loop.create_task(self._live())
            self.schedule.run(lambda: self.over or self.auditor.broken is not None, CALM_SECONDS * 2)
            self.auditor.check(self.over, "nothing is stuck", "nobody has anything left to do")
            if self.auditor.broken is None:
                self._last_look()
        finally:
            self.over = True
            self.schedule.drain()
            at_once(self.store.close())
            logger.removeHandler(handler)
            logger.level, logger.propagate = before
        if self.auditor.broken is not None:
            steps = "\n".join(self.lines()[-TRACE_LINES:])
            self.auditor.broken.add_note(f"seed {self.seed}; the last steps:\n{steps}")
            raise self.auditor.broken

    async def _live(self) -> None:
        await self.store.open()
        self.store.on_change(self.changed)
        await self.people.stir()
        self.faults.stop()
        self.calm = True
        self.note("calm")
        ended = await self.people.settle(CALM_SECONDS)
        self.auditor.check(
            ended, "nothing is stuck", f"after {CALM_SECONDS:g} s of calm: {self.people.left()}"
        )
        self.over = True

    def _last_look(self) -> None:
        for thread_id, seen in self.auditor.threads.items():
            entries = self.read(thread_id)
            self.auditor.check(entries == seen.entries, "1 log", "the log is not what was committed")
            report = verify_chain(thread_id, at_once(self.store.stored(thread_id)))  # type: ignore[arg-type]  # a ThreadId
            self.auditor.check(report.ok, "1 log", f"the chain breaks: {report}")
            self.auditor.final(thread_id)
        self.figures.threads = len(self.auditor.threads)

    def digest(self) -> str:
        """A hash of the whole trace: the same for the same seed, always."""
        return hashlib.sha256("\n".join(self.lines()).encode()).hexdigest()

    def lines(self) -> list[str]:
        """The trace, a step a line."""
        return ["  ".join(map(shown, line)) for line in self.trace]


class _Listener(logging.Handler):
    """Hears of errors that the runtime caught: those that nobody injected are faults of its own."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.ERROR)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        self._world.task_failed({"message": record.getMessage(), "exception": error})


def shown(fact: object) -> str:
    """Events as their JSON, all else as it is."""
    if isinstance(fact, tuple) and not hasattr(fact, "_fields"):
        return " ".join(map(shown, fact))
    return encode(fact).decode() if isinstance(fact, Event) else str(fact)


def simulate(seed: int) -> World:
    """Run one seed. Raises `BrokenPromise`, with the seed and the last steps in its notes."""
    world = World(seed)
    world.run()
    return world

"""A fleet under fire: one server, some workers, a PostgreSQL, and what goes wrong with each of them.

The server answers over HTTP and runs nothing. Workers are killed with SIGKILL and started again, the database
is restarted as after a crash, connections are cut; nobody else does anything but approve what is asked.
"""

import asyncio
import contextlib
import random
import re
import signal
import subprocess
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from examples.processes import ProcessFailed
from tests.crash.databases import LEASE_SECONDS, PostgresLog
from tests.crash.stand import Figures, Stand, standing
from tests.crash.workload import place_of

from tenuto.testing.postgres import PostgresServer

AT_A_TIME = 24  # requests of ours
STUCK_SECONDS = 120  # far longer than a lease
LOOK_SECONDS = 0.1
# Half of what is connected at this moment, but for who asks.
CUT = """
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
WHERE pid <> pg_backend_pid() AND datname = current_database() AND backend_type = 'client backend'
      AND random() < 0.5
"""
HELD = "SELECT id, epoch FROM threads WHERE lease_owner = '{owner}'"
VERIFIED, UNVERIFIED = "look+pay_verified", "look+pay"
RESTING = "('completed', 'awaiting_review', 'awaiting_answer', 'failed', 'halted')"


@dataclass(frozen=True)
class Fire:
    """`threads` on `workers`, which call these `tools` in turn; what strikes how often. 0 is never."""

    threads: int
    tools: tuple[str, ...] = (VERIFIED,)
    workers: int = 3
    kill_seconds: float = 4.0
    cut_seconds: float = 1.0
    kills: int = 1_000
    restart: bool = True
    lease_seconds: float = LEASE_SECONDS
    seed: int = 1


class Fleet(Stand):
    """A stand whose runtime only serves, and workers beside it. Use `manned`."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.workers: list[subprocess.Popen[bytes]] = []
        self._room = asyncio.Semaphore(AT_A_TIME)
        self._left: dict[
            tuple[str, int], float
        ] = {}  # thread and epoch of a killed worker's lease: since when

    async def man(self, workers: int) -> None:
        """Start the server and the workers."""
        await self.serve("--no-worker")
        self.workers = [await self._worker(number) for number in range(workers)]

    async def _worker(
        self, number: int, agents: str = "tests.crash.served:agents"
    ) -> subprocess.Popen[bytes]:
        while True:
            # One that finds no database ends and says so; whoever looks after workers starts it again.
            with contextlib.suppress(ProcessFailed):
                started = await self._start(f"worker{number}", "tenuto", "worker", agents, "--port", "0")
                return started[0]

    async def hire(self, agents: str = "tests.crash.served:agents") -> subprocess.Popen[bytes]:
        """One more worker."""
        self.workers.append(await self._worker(len(self.workers), agents))
        return self.workers[-1]

    async def dismiss(self) -> None:
        """kill -9 the last one hired, whatever it has."""
        self._processes.kill(self.workers.pop())

    async def asking(self, number: int) -> bool:
        """Do so many interrupts wait for a person?"""
        return len(await self.pending()) == number

    async def kill_worker(self, number: int) -> None:
        """kill -9, and a new one in its place. What it held is looked for again by `watch_takeovers`."""
        owner, killed_at = self.owner(number), time.monotonic()
        self._processes.kill(self.workers[number])
        self.figures.kills += 1
        for held in await self.log.query(HELD.format(owner=owner)):
            self._left[held] = killed_at
        self.workers[number] = await self._worker(number)

    def owner(self, number: int) -> str:
        """What this worker calls itself."""
        return re.findall(r"worker (\S+) runs", (self.place / f"worker{number}.log").read_text())[-1]

    async def holders(self) -> dict[str, str]:
        """Which worker has which thread."""
        rows = await self.log.query("SELECT id, lease_owner FROM threads WHERE lease_owner IS NOT NULL")
        return dict(rows)

    async def at_the_host(self, thread: str) -> list[str]:
        """The keys of this thread's lines in the ledger."""
        return [line["key"] for line in self.ledger() if line["key"].startswith(thread)]

    async def said(self, number: int, words: str) -> bool:
        """Has this worker logged that?"""
        return words in (self.place / f"worker{number}.log").read_text()

    # -- what happens at the same time ---------------------------------------------------------------------

    async def ask(self, method: str, path: str, body: Any = None) -> Any:
        async with self._room:
            return await super().ask(method, path, body)

    async def approver(self) -> None:
        """Approve whatever is asked, and settle nothing, until `at_work` is over."""
        async with asyncio.TaskGroup() as group:
            while self.at_work:
                answer = await self.ask("GET", "/v1/interrupts?kind=approval&limit=500")
                for interrupt in answer.json()["interrupts"]:
                    if interrupt["id"] not in self._seen:
                        self._seen.add(interrupt["id"])
                        group.create_task(self.resolve(interrupt, "approve"))
                await asyncio.sleep(LOOK_SECONDS)

    async def kills(self, fire: Fire, chance: random.Random) -> None:
        while self.at_work and self.figures.kills < fire.kills:
            await self._pause(fire.kill_seconds * chance.uniform(0.5, 1.5))
            if self.at_work:
                await self.kill_worker(chance.randrange(len(self.workers)))

    async def cuts(self, seconds: float) -> None:
        while self.at_work and seconds:
            await self._pause(seconds)
            for (number,) in await self.log.query(CUT):
                self.figures.cuts += number

    async def watch_takeovers(self) -> None:
        """Take the time from each kill to the moment when another worker has the thread."""
        while self.at_work or self._left:
            named = ", ".join(f"'{thread}'" for thread, _ in self._left)
            asked = f"SELECT id, epoch, status FROM threads WHERE id IN ({named})"
            rows = await self.log.query(asked) if named else []
            now = time.monotonic()
            for thread, epoch, status in rows:
                for held in [held for held in self._left if held[0] == thread]:
                    if held[1] < epoch:
                        self.figures.continued_seconds.append(now - self._left.pop(held))
                    elif status != "running":
                        # The last commit of the killed worker, under way when it was looked for.
                        del self._left[held]
            await asyncio.sleep(LOOK_SECONDS / 2)

    async def rest(self, threads: int, during: float = 1.0) -> int:
        """Wait until so many threads have ended or wait for a review, at least this share of them."""
        most, since = 0, time.monotonic()
        while True:
            for (resting,) in await self.log.query(f"SELECT count(*) FROM threads WHERE status IN {RESTING}"):
                if resting >= threads * during:
                    return int(resting)
                if resting > most:
                    most, since = resting, time.monotonic()
            if time.monotonic() - since > STUCK_SECONDS:
                stuck = await self.log.query(f"SELECT * FROM threads WHERE status NOT IN {RESTING} LIMIT 5")
                raise AssertionError(f"{most} of {threads} rest, and no more come; others are {stuck}")
            await asyncio.sleep(LOOK_SECONDS)

    async def _pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while self.at_work and time.monotonic() < until:  # noqa: ASYNC110 - what is waited for is a time
            await asyncio.sleep(LOOK_SECONDS)

    def freeze(self, number: int) -> None:
        self.workers[number].send_signal(signal.SIGSTOP)

    def thaw(self, number: int) -> None:
        self.workers[number].send_signal(signal.SIGCONT)


@contextlib.asynccontextmanager
async def manned(place: Path, database: str, workers: int, lease_seconds: float) -> AsyncIterator[Fleet]:
    """A fleet at work on the empty PostgreSQL of this URL."""
    async with standing(place, PostgresLog(database, lease_seconds), Fleet) as fleet:
        await fleet.man(workers)
        yield fleet


async def under_fire(place: Path, fire: Fire) -> Figures:
    """All of it, held against the ledger in the end."""
    chance = random.Random(fire.seed)
    with PostgresServer(fsync="on") as server:
        async with manned(place, server.url, fire.workers, fire.lease_seconds) as fleet:
            begun, figures = time.monotonic(), fleet.figures
            async with asyncio.TaskGroup() as group:
                for work in (
                    fleet.approver(),
                    fleet.kills(fire, chance),
                    fleet.cuts(fire.cut_seconds),
                    fleet.watch_takeovers(),
                    *(
                        fleet.start("fleet", "fleet", number, fire.tools[number % len(fire.tools)])
                        for number in range(fire.threads)
                    ),
                ):
                    group.create_task(work)
                await fleet.rest(fire.threads, 0.3)
                if fire.restart:
                    await asyncio.to_thread(server.stop, "QUIT")
                    await asyncio.to_thread(server.start)
                    figures.restarts += 1
                await fleet.rest(fire.threads)
                fleet.at_work = False
            figures.seconds = time.monotonic() - begun
            await fleet.audit()
            await _compare(fleet, fire)
            return figures


async def _compare(fleet: Fleet, fire: Fire) -> None:
    """Every thread has ended with its effect, or waits for a person because nobody can know of it."""
    figures = fleet.figures
    rows = dict(await fleet.log.query("SELECT id, status FROM threads"))
    waiting = {thread for thread, status in rows.items() if status == "awaiting_review"}
    figures.reviews = len(waiting)
    for thread in sorted(waiting):
        if fire.tools[place_of(thread)[1] % len(fire.tools)] == VERIFIED:
            figures.wrong.append(f"{thread}: a person was asked what became of a call that can be verified")
    figures.wrong += [
        f"{thread} is {status}"
        for thread, status in rows.items()
        if status not in ("completed", "awaiting_review")
    ]
    happened = {line["key"].partition(":")[0] for line in fleet.ledger() if line["tool"] != "look"}
    lost = sorted(rows.keys() - waiting - happened)
    figures.losses += len(lost)
    figures.wrong += [f"{thread} has ended, and nothing happened" for thread in lost]

"""The stand: provider, tool host and runtime as processes, a person who decides over HTTP, and the audit.

The runtime is killed with SIGKILL and started again; the other two live through it, so that what they have
seen can be held against the log.
"""

import asyncio
import contextlib
import json
import os
import random
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

import httpx2
from examples.processes import Processes
from tests.crash.databases import Log
from tests.crash.workload import thread_id

from tenuto import Runtime, Settings
from tenuto.events import CallFinished, InterruptResolved, ModelReplied, ThreadStarted

T = TypeVar("T")
S = TypeVar("S", bound="Stand")
ROOT = Path(__file__).resolve().parents[2]
POLL_SECONDS = 0.02
EVENTS_PER_TASK = 16
# A request of a killed process may still be on its way to the tool host; then the ledger says too little.
IN_FLIGHT_SECONDS = 0.5
TOKEN = "the-approver"
_KEPT = ("PATH", "HOME", "TENUTO_SHARED", "TENUTO_BFCL")
_PROGRESS = """
SELECT (SELECT count(*) FROM threads WHERE status = 'completed'),
       (SELECT count(*) FROM threads WHERE status IN ('failed', 'halted', 'cancelled', 'awaiting_answer')),
       (SELECT count(*) FROM events WHERE type IN ('model_replied', 'call_started', 'call_finished',
                                                   'interrupt_raised'))
"""


@dataclass
class Figures:
    """What a run came to. `continued_seconds`: from a kill to the next event of a worker."""

    tasks: int = 0
    kills: int = 0
    restarts: int = 0
    cuts: int = 0
    decisions: int = 0
    reviews: int = 0
    effects: int = 0
    doubles: int = 0
    losses: int = 0
    wrong: list[str] = field(default_factory=list)
    continued_seconds: list[float] = field(default_factory=list)
    seconds: float = 0.0

    def __add__(self, other: "Figures") -> "Figures":
        names = [each.name for each in fields(self)]
        return Figures(*(getattr(self, name) + getattr(other, name) for name in names))

    def __str__(self) -> str:
        words = [f"{self.tasks} tasks in {self.seconds:.1f} s", f"{self.kills} kills and restarts"]
        if self.restarts:
            words.append(f"{self.restarts} of PostgreSQL")
        if self.cuts:
            words.append(f"{self.cuts} connections cut")
        return (
            f"{', '.join(words)}, {self.decisions} decisions ({self.reviews} reviews), "
            f"{self.effects} effects, {self.doubles} doubles, {self.losses} losses, {len(self.wrong)} wrong"
        ) + self._continued()

    def _continued(self) -> str:
        if not self.continued_seconds:
            return ""
        ordered = sorted(self.continued_seconds)
        most = f"{ordered[-1]:.2f} s ({len(ordered)} times)"
        return f"; from kill to going on p50 {ordered[len(ordered) // 2]:.2f} s, at most {most}"


async def until(look: Callable[[], Awaitable[T]]) -> T:
    """What `look` finds, once it finds something."""
    while not (found := await look()):  # noqa: ASYNC110 - other processes have no event for us
        await asyncio.sleep(POLL_SECONDS)
    return found


class Stand:
    """Use `standing`. `acknowledged`: what the runtime confirmed over HTTP, by interrupt and by thread."""

    def __init__(self, place: Path, log: Log, processes: Processes, client: httpx2.AsyncClient) -> None:
        self.place = place
        self.log = log
        self.provider_url = self.host_url = self.url = ""
        self.process: subprocess.Popen[bytes] | None = None
        self.started: set[str] = set()
        self.acknowledged: dict[str, str] = {}
        self.figures = Figures()
        self.at_work = True
        self._processes = processes
        self._client = client
        self._up = asyncio.Event()
        self._seen: set[str] = set()
        self._killed_at: float | None = None
        self._events = 0

    # -- processes ---------------------------------------------------------------------------------------

    async def begin(self) -> None:
        """Start provider and tool host."""
        (_, self.provider_url), (_, self.host_url) = await asyncio.gather(
            self._start("provider", "tenuto.testing.provider", "tests.crash.played:note"),
            self._start("host", "tests.crash.toolhost", str(self.place / "ledger")),
        )
        self._processes.environment |= {"PROVIDER_URL": self.provider_url, "TOOL_HOST": self.host_url}

    async def serve(self, *options: str) -> None:
        """Start the runtime."""
        command = ("tenuto", "serve", "tests.crash.served:agents", "--port", "0", *options)
        self.process, self.url = await self._start("runtime", *command)
        self._up.set()

    async def _start(self, *words: str) -> tuple[subprocess.Popen[bytes], str]:
        return await asyncio.to_thread(self._processes.start, *words)

    def kill(self) -> None:
        """kill -9 the runtime, whatever it is doing."""
        assert self.process is not None
        self._up.clear()
        self._processes.kill(self.process)
        self.figures.kills += 1
        self._killed_at = self._killed_at or time.monotonic()

    def order(self, point: str) -> None:
        """Let the runtime kill itself at the named point: "before EVENT" or "after EVENT"."""
        part = self.place / "order.part"
        part.write_text(point)
        part.replace(self.place / "order")

    async def died(self) -> None:
        """Wait until it has done so."""
        assert self.process is not None
        assert await asyncio.to_thread(self.process.wait, 20) == -9
        self._up.clear()
        self.figures.kills += 1

    # -- the outside -------------------------------------------------------------------------------------

    async def ask(self, method: str, path: str, body: Any = None) -> httpx2.Response:
        """A request to the runtime; made again while it is down, as a client of any server would."""
        while True:
            await self._up.wait()
            with contextlib.suppress(httpx2.TransportError):
                answer = await self._client.request(method, self.url + path, json=body)
                if answer.status_code != 503:  # the store is away
                    return answer
            await asyncio.sleep(POLL_SECONDS)

    async def ask_host(self, method: str, path: str) -> Any:
        return (await self._client.request(method, self.host_url + path)).json()

    async def provider_saw(self) -> list[dict[str, Any]]:
        """The requests that the provider was sent, oldest first."""
        found: list[dict[str, Any]] = (await self._client.get(f"{self.provider_url}/requests")).json()
        return found

    async def start(self, agent: str, workload: str, index: int, name: str = "", text: str = "") -> str:
        """Start a thread on a task; its id."""
        thread = thread_id(workload, index)
        message = f"{workload} {name or index}\n{text}"
        body = {"agent": agent, "message": message, "thread_id": thread}
        answer = await self.ask("POST", "/v1/threads", body)
        assert answer.status_code == 201, answer.text
        self.started.add(thread)
        return thread

    async def pending(self) -> list[dict[str, Any]]:
        """The inbox."""
        found: list[dict[str, Any]] = (await self.ask("GET", "/v1/interrupts?limit=500")).json()["interrupts"]
        return found

    async def resolve(self, interrupt: dict[str, Any], outcome: str, **more: str) -> None:
        """Decide, until it is confirmed."""
        body = {"outcome": outcome, "digest": interrupt["digest"]} | more
        answer = await self.ask("POST", f"/v1/interrupts/{interrupt['id']}/resolve", body)
        said = {"approve": "approved", "reject": "rejected", "drop": "dropped"}.get(outcome, outcome)
        # 409: an earlier attempt was recorded, and the kill took its confirmation.
        assert answer.status_code == 200 or answer.json().get("outcome") == said, answer.text
        self.acknowledged[interrupt["id"]] = said
        self.figures.decisions += 1

    async def person(self) -> None:
        """Decide whatever comes in until `at_work` is over: approve calls, settle reviews by the ledger."""
        async with asyncio.TaskGroup() as group:
            while self.at_work:
                for interrupt in await self.pending():
                    if interrupt["id"] not in self._seen:
                        self._seen.add(interrupt["id"])
                        group.create_task(self._decide(interrupt))
                await asyncio.sleep(POLL_SECONDS)

    async def _decide(self, interrupt: dict[str, Any]) -> None:
        if interrupt["kind"] == "approval":
            return await self.resolve(interrupt, "approve")
        assert interrupt["kind"] == "review"
        self.figures.reviews += 1
        await asyncio.sleep(IN_FLIGHT_SECONDS)
        lines = await self.ask_host("GET", f"/ledger?key={interrupt['thread_id']}:{interrupt['call_id']}")
        if lines:
            return await self.resolve(interrupt, "happened", answer=lines[0]["result"])
        return await self.resolve(interrupt, "did_not_happen")

    async def rested(self, thread: str) -> dict[str, Any]:
        """The thread's state, once it has completed or waits for a review."""

        async def look() -> dict[str, Any]:
            state: dict[str, Any] = (await self.ask("GET", f"/v1/threads/{thread}")).json()
            return state if state.get("status") in ("completed", "awaiting_review") else {}

        return await until(look)

    # -- how far it is -----------------------------------------------------------------------------------

    async def completed(self) -> int:
        """How many threads have completed; takes the time from a kill to the next event on the way."""
        for done, stuck, events in await self.log.query(_PROGRESS):
            assert not stuck, await self.log.query(
                "SELECT id, status FROM threads WHERE status <> 'completed'"
            )
            if self._killed_at is not None and events > self._events and self._up.is_set():
                self.figures.continued_seconds.append(time.monotonic() - self._killed_at)
                self._killed_at = None
            self._events = events
            return int(done)
        return 0

    async def complete(self, tasks: int, kills: int, chance: random.Random) -> None:
        """Until so many threads have completed, with up to so many kills.

        Each comes after a random number of the workers' events, down to none, so that they are spread over
        the work, however quick the machine is.
        """
        begun, most = time.monotonic(), EVENTS_PER_TASK * tasks // max(kills, 1)
        kill_at = chance.randint(0, most)
        while await self.completed() < tasks:
            if self.figures.kills < kills and self._events >= kill_at:
                self.kill()
                await self.completed()
                await self.serve()
                kill_at = self._events + chance.randint(0, most)
            await asyncio.sleep(POLL_SECONDS)
        self.figures.seconds = time.monotonic() - begun

    # -- the audit ---------------------------------------------------------------------------------------

    def ledger(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.place / "ledger").read_text().splitlines()]

    def verify(self) -> None:
        """`tenuto verify --all` finds every thread as it was written."""
        command = [sys.executable, "-m", "tenuto", "verify", "--all"]
        environment = self._processes.environment
        run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        number = len(self.started)
        assert run.stdout == f"{number} of {number} threads are as they were written\n", (
            run.stdout + run.stderr
        )
        assert run.returncode == 0

    async def audit(self) -> Figures:
        """Hold the log against the ledger and against all that was confirmed. The runtime is dead."""
        figures, lines = self.figures, defaultdict(list)
        for line in self.ledger():
            lines[line["key"]].append(line)
        confirmed, begun = set(), set()
        once: set[str] = set()
        async with Runtime(database=self.log.url, settings=Settings(worker=False)) as runtime:
            for (thread,) in await self.log.query("SELECT id FROM threads"):
                for event in (entry.event for entry in await runtime.store.read(thread)):
                    match event:
                        case ThreadStarted():
                            begun.add(thread)
                        case ModelReplied(calls=calls):
                            once |= {f"{thread}:{each.id}" for each in calls if each.effect == "once"}
                        case InterruptResolved(id=interrupt, outcome=outcome):
                            confirmed.add((interrupt, outcome))
                        case CallFinished(call_id=call_id, ok=True) if not lines[f"{thread}:{call_id}"]:
                            figures.losses += 1
                            figures.wrong.append(f"{thread}:{call_id} is settled and did not happen")
        for key in once:
            figures.effects += bool(lines[key])
            figures.doubles += max(len(lines[key]) - 1, 0)
        figures.tasks = len(begun)
        figures.losses += len(self.started - begun) + len(self.acknowledged.items() - confirmed)
        self.verify()
        return figures


@contextlib.asynccontextmanager
async def standing(place: Path, log: Log, made: type[S]) -> AsyncIterator[S]:
    """Provider and tool host running, the runtime to be served on this log's database, which is empty.
    Whatever happens, all of them end.
    """
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    paths = f"{ROOT}{os.pathsep}{ROOT / 'src'}"
    fixed = {"PYTHONPATH": paths, "APPROVER_SECRET": TOKEN, "PROVIDER_MODEL": "played"}
    fixed |= {"KILL_ORDER": str(place / "order"), "ARRIVALS": str(place / "arrivals")}
    fixed["TENUTO_DATABASE"] = log.url
    if log.takeover_seconds:
        fixed["LEASE_SECONDS"] = str(log.takeover_seconds)
    headers = {"Authorization": f"Bearer {TOKEN}"}
    with Processes(place, kept | fixed) as processes:
        async with httpx2.AsyncClient(timeout=30, trust_env=False, headers=headers) as client:
            stand = made(place, log, processes, client)
            try:
                await stand.begin()
                yield stand
            finally:
                await log.close()

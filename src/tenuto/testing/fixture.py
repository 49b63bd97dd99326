"""The pytest fixture `crash`: kill an agent at a named point inside a test, restart it, and count.

    from tenuto.testing import call, crash  # or, in conftest.py: pytest_plugins = ["tenuto.testing.fixture"]

    async def test_a_refund_survives(crash):
        replies = [call("refund_order", order_id="17"), "done"]
        run = await crash(agent, replies, kill="after call_started")
        assert run.bodies == {"refund_order": 0} and run.state.status == "awaiting_review"
        await run.decide("did_not_happen")
        assert run.bodies == {"refund_order": 1} and run.state.status == "completed"

The points are those of `tenuto.testing.watched`. Everything is in the test's own process, on a file in its
`tmp_path`: what is killed is a runtime, which neither writes nor starts a tool from there on. A tool's
body that runs at that moment runs on, and nothing of Python is torn down; `tenuto crashtest` does that.
"""

import asyncio
import contextlib
import itertools
import logging
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack

import pytest

from tenuto.agent import Agent
from tenuto.approvals import Decision
from tenuto.errors import StoreError
from tenuto.runtime import Runtime, Settings
from tenuto.testing.watched import Ledger, Script, Watch, Watched
from tenuto.thread import ThreadState

REST_SECONDS = 20.0

Decisions = str | Mapping[str, Any] | Sequence[Any] | None


class More(TypedDict, total=False):
    """What is said; how reviews are settled ("leave": by the test); functions in place of tools, by name."""

    message: str
    reviews: Literal["truth", "leave", "happened", "did_not_happen", "drop"]
    fakes: Mapping[str, Any]


class _Killable(Watch):
    """Stops by never going on, until the one that was killed is buried."""

    def __init__(self, ledger: Ledger, point: str) -> None:
        super().__init__(ledger, point, self._die)
        self.died, self.buried = asyncio.Event(), asyncio.Event()

    async def _die(self) -> None:
        self.died.set()
        await self.hold()

    async def hold(self) -> None:
        if self.died.is_set():
            await self.buried.wait()
            raise StoreError("this runtime was killed")


class CrashRun:
    """A thread at rest; between two calls no runtime is up. `bodies`: how often each tool's body began."""

    def __init__(self, agent: Agent, script: Script, place: Path, fakes: Mapping[str, Any]) -> None:
        self.state = ThreadState()
        self._agent = agent
        self._script = script
        self._ledger = Ledger(place / "ledger.jsonl")
        self._fakes = fakes
        self._thread_id = str(uuid.uuid4())
        self._lives = itertools.count()

    @property
    def bodies(self) -> dict[str, int]:
        tools = [line["tool"] for line in self._ledger.lines("start")]
        return {tool.name: tools.count(tool.name) for tool in self._agent.tools}

    async def decide(self, verb: str, *, kill: str = "", **decision: Unpack[Decision]) -> None:
        """Decide what waits longest, as `Runtime.resolve` does, and go on; dying at `kill` on the way."""
        assert self.state.interrupts, f"nothing waits for a person: the thread is {self.state.status}"
        waiting = self.state.interrupts[0].id

        async def work(watched: Watched, runtime: Runtime) -> None:
            await runtime.resolve(waiting, verb, by="test", **decision)
            await watched.play([runtime], REST_SECONDS)

        await self._live(work, kill)

    async def play(self, kill: str = "") -> None:
        """Start the thread, or go on with it, until it rests; with a restart at the point `kill`."""
        await self._live(lambda watched, runtime: watched.play([runtime], REST_SECONDS), kill)

    async def _live(self, work: Callable[[Watched, Runtime], Awaitable[Any]], kill: str) -> None:
        watch = _Killable(self._ledger, kill)
        options: Any = {"thread_id": self._thread_id, "fakes": self._fakes, "lives": next(self._lives)}
        watched = Watched(self._agent, self._script, watch, **options)
        runtime = Runtime([watched.agent], watched.store, settings=Settings(grace_seconds=0))
        with _quiet(watch):
            async with runtime:
                working = asyncio.ensure_future(work(watched, runtime))
                dying = asyncio.ensure_future(watch.died.wait())
                await asyncio.wait({working, dying}, return_when=asyncio.FIRST_COMPLETED)
                (dying if working.done() else working).cancel()
                await asyncio.wait({working, dying})
                if not watch.died.is_set():
                    working.result()
                    self.state = await runtime.state(self._thread_id)
                watch.buried.set()
        if watch.died.is_set():
            await self.play()
        elif kill:
            seen = [label for line in self._ledger.lines("append") for label in line["labels"]]
            raise AssertionError(f"the run never came to {kill!r}; its events were: {', '.join(seen)}")


@contextlib.contextmanager
def _quiet(watch: _Killable) -> Iterator[None]:
    """What a runtime that was killed would have to say is no news."""

    def is_alive(_record: logging.LogRecord) -> bool:
        return not watch.died.is_set()

    logger = logging.getLogger("tenuto.worker")
    logger.addFilter(is_alive)
    try:
        yield
    finally:
        logger.removeFilter(is_alive)


class Crash:
    """What the fixture `crash` is: called, it runs an agent, and gives the run once the thread rests."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._runs = itertools.count()

    async def __call__(
        self,
        agent: Agent,
        replies: Sequence[Any],
        kill: str = "",
        decide: Decisions = "approve",
        **more: Unpack[More],
    ) -> CrashRun:
        """`replies` as a `ScriptedModel` takes them. `decide`: for all tools (None: nothing is decided), by
        tool or in order. `kill`: where the runtime dies, to be restarted at once.
        """
        if isinstance(decide, str | None):
            decide = {tool.name: decide or "leave" for tool in agent.tools if not tool.asks}
        script = Script(replies, more.get("message", "Go."), decide, more.get("reviews", "leave"))
        place = self._place / f"crash-{next(self._runs)}"
        place.mkdir()
        run = CrashRun(agent, script, place, more.get("fakes", {}))
        await run.play(kill)
        return run


@pytest.fixture
def crash(tmp_path: Path) -> Crash:
    """Run an agent with scripted replies and kill it at a named point: see `tenuto.testing.fixture`."""
    return Crash(tmp_path)

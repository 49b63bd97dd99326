"""What the tests of the loop share: tools that count, and workers that die."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

from tests.loop.audit import audit, early_starts

from tenuto import Agent, Runtime, Settings, ThreadState, tool
from tenuto.events import CallFinished, Event
from tenuto.messages import Request, ToolMessage
from tenuto.models.scripted import ScriptedModel

PATIENCE = 10.0


class Ledger(Counter[str]):
    """How often each tool's body ran, and a gate that a body can be held at."""

    def __init__(self) -> None:
        super().__init__()
        self.entered = asyncio.Event()
        self.go = asyncio.Event()

    def enter(self, name: str) -> None:
        self[name] += 1
        self.entered.set()

    async def reached(self, total: int) -> None:
        """Until so many bodies have begun."""
        while self.total() < total:
            self.entered.clear()
            await self.entered.wait()


def counting(ledger: Ledger, name: str, effect: Any, **options: Any) -> Any:
    """A tool that counts and answers with its name and argument."""

    async def function(n: int = 0) -> str:
        ledger.enter(name)
        return f"{name} {n}"

    return tool(effect=effect, name=name, **options)(function)


def held(ledger: Ledger, name: str, effect: Any, **options: Any) -> Any:
    """A tool that counts and then waits for the ledger's `go`."""

    async def function(n: int = 0) -> str:
        ledger.enter(name)
        await ledger.go.wait()
        return f"{name} {n}"

    return tool(effect=effect, name=name, **options)(function)


@asynccontextmanager
async def at_work(
    tools: Iterable[Any],
    answers: Any,
    *,
    database: str = "sqlite://:memory:",
    lease: float = 15.0,
    **agent: Any,
) -> AsyncIterator[Runtime]:
    """A runtime with one agent, `ops`. On the way out every log is audited and every chain verified."""
    model = answers if isinstance(answers, ScriptedModel) else ScriptedModel(answers)
    settings = Settings(lease_seconds=lease, grace_seconds=0.5)
    ops = Agent("ops", instructions="Be exact.", tools=tuple(tools), **agent)
    async with Runtime([ops], database=database, model=model, settings=settings) as runtime:
        runtime.model = model  # type: ignore[attr-defined]  # for the tests to look at
        yield runtime
        for row in await runtime.threads():
            await check(runtime, row.id)


async def check(runtime: Runtime, thread_id: str) -> None:
    entries = await runtime.events(thread_id)
    audit(entries)
    assert not early_starts(entries)
    assert (await runtime.verify(thread_id)).ok


async def rest(runtime: Runtime, thread_id: str) -> ThreadState:
    """The state once the thread rests."""
    async with asyncio.timeout(PATIENCE):
        return await runtime.wait(thread_id)


async def until(runtime: Runtime, thread_id: str, status: str) -> ThreadState:
    """The state once it has this status, however often the thread rests before."""
    async with asyncio.timeout(PATIENCE):
        async for _ in runtime.follow(thread_id):
            state = await runtime.state(thread_id)
            if state.status == status:
                return state
    raise AssertionError("a follower of everything never ends")


async def decide(runtime: Runtime, state: ThreadState, verb: str, place: int = 0, **more: Any) -> ThreadState:
    """Decide the pending interrupt at `place`, and wait."""
    await runtime.resolve(state.interrupts[place].id, verb, by="ana", **more)
    return await rest(runtime, state.id)


def die(runtime: Runtime) -> None:
    """The worker stops dead: nothing more is recorded, nothing is handed over, its leases stay."""
    worker = runtime.worker
    worker._stopping = True
    for task in worker._tasks:
        task.cancel()
    for holder in list(worker._holders.values()):
        holder.lose()


def results(request: Request) -> list[str]:
    """What the model reads of its calls."""
    return [message.text for message in request.messages if isinstance(message, ToolMessage)]


async def of_type(runtime: Runtime, thread_id: str, kind: type[Event]) -> list[Any]:
    return [entry.event for entry in await runtime.events(thread_id) if isinstance(entry.event, kind)]


async def finished(runtime: Runtime, thread_id: str) -> list[CallFinished]:
    return await of_type(runtime, thread_id, CallFinished)

"""What the simulation found, each as a test of its own."""

import asyncio

from tenuto import Agent, Runtime, Settings, tool
from tenuto.clock import FakeClock
from tenuto.models.scripted import ScriptedModel, call
from tenuto.store.sqlite import SQLiteStore


async def test_a_worker_that_claims_its_own_lapsed_thread_lets_go_of_it_first() -> None:
    """The wall clock jumps past the lease while a call runs, and the same worker is the next to claim."""
    entered: asyncio.Queue[None] = asyncio.Queue()
    go = asyncio.Event()

    @tool(effect="read")
    async def look() -> str:
        entered.put_nowait(None)
        await go.wait()
        return "seen"

    clock = FakeClock()
    agent = Agent("ops", tools=[look])
    model = ScriptedModel([call("look"), "done"])
    store = SQLiteStore(":memory:", clock=clock)
    settings = Settings(grace_seconds=0.1)
    async with Runtime([agent], store, model=model, settings=settings) as runtime, asyncio.timeout(10):
        thread = await runtime.start("ops", "look")
        await entered.get()
        first = runtime.worker._holders[thread]
        # Recorded, so that the second holder runs it again; then the lease is over by the store's clock.
        while (await runtime.store.thread(thread)).head_seq < 3:
            await asyncio.sleep(0)
        clock.at_ms += 60_000
        runtime.worker._wake.set()
        await entered.get()
        assert first.lost
        assert first.task is not None
        await asyncio.wait([first.task])
        # The first one's end has not taken the second one out of the worker's sight.
        assert runtime.worker._holders[thread] is not first
        go.set()
        assert (await runtime.wait(thread)).answer == "done"

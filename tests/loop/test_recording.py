"""A call that ends while the result of another is on its way to the log."""

import asyncio
from typing import Any

import pytest
from tests.loop.world import PATIENCE, Ledger, at_work, held, rest, results

from tenuto import Runtime, tool
from tenuto.events import CallFinished
from tenuto.models.scripted import call


@pytest.mark.parametrize("effect", ["read", "idempotent", "once"])
async def test_it_is_not_in_doubt_and_not_run_again(effect: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger()

    @tool(effect=effect)
    async def quick(n: int) -> str:
        ledger.enter("quick")
        await asyncio.sleep(0.05)  # a read begins beside the commit of its reply, and is to end after that
        return f"quick {n}"

    tools = [quick, held(ledger, "slow", effect)]
    async with at_work(tools, [[call("quick", n=1), call("slow", n=2)], "done"]) as runtime:
        _end_the_slow_one_meanwhile(runtime, ledger, monkeypatch)
        state = await rest(runtime, await runtime.start("ops", "go"))
        assert (state.status, state.answer) == ("completed", "done")
        assert results(runtime.model.requests[1]) == ["quick 1", "slow 2"]  # type: ignore[attr-defined]  # by at_work
        assert ledger == {"quick": 1, "slow": 1}
        assert not await runtime.interrupts(pending=None)


def _end_the_slow_one_meanwhile(runtime: Runtime, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    append = runtime.store.append

    async def slowly(thread_id: Any, events: Any, **options: Any) -> Any:
        done = await append(thread_id, events, **options)
        if any(isinstance(event, CallFinished) for event in events):
            async with asyncio.timeout(PATIENCE):
                await ledger.reached(2)
                ledger.go.set()
                await asyncio.gather(*runtime.worker._holders[thread_id].running.values())
        return done

    monkeypatch.setattr(runtime.store, "append", slowly)

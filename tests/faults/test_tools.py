"""Tools that hang: what the log says of them, what goes on meanwhile, and that the process can end."""

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.loop.world import at_work, finished, rest, results, until

from tenuto import tool
from tenuto.models.scripted import call
from tenuto.tools import running, running_tool_threads


@pytest.fixture
def let_go() -> Iterator[threading.Event]:
    """Ends what hangs, at the latest with the test."""
    event = threading.Event()
    yield event
    event.set()
    ends_at = time.monotonic() + 10
    while running_tool_threads() and time.monotonic() < ends_at:
        time.sleep(0.01)
    assert running_tool_threads() == 0


async def test_a_hung_sync_call_is_counted_and_in_doubt_and_its_late_result_is_not_recorded(
    let_go: threading.Event,
) -> None:
    @tool(effect="once", timeout=0.1)
    def pay() -> str:
        let_go.wait(30)
        return "paid"

    async with at_work([pay], [call("pay"), "done"]) as runtime:
        thread = await runtime.start("ops", "go")
        state = await rest(runtime, thread)
        assert state.status == "awaiting_review"
        assert "it did not end within 0.1 s" in state.interrupts[0].prompt
        assert running_tool_threads() == 1
        let_go.set()
        while running_tool_threads():  # noqa: ASYNC110 - a thread ends when it ends
            await asyncio.sleep(0.01)
        assert not await finished(runtime, thread)
        await runtime.resolve(state.interrupts[0].id, "happened", by="ana", answer="paid at 12:02")
        assert (await rest(runtime, thread)).answer == "done"
        assert [result.text for result in await finished(runtime, thread)] == ["paid at 12:02"]


async def test_when_all_tool_threads_hang_the_next_call_fails_plainly_and_async_ones_go_on(
    let_go: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "_places", running._Places(2))
    paid: list[int] = []

    @tool(effect="read", timeout=0.2)
    def hang(n: int) -> None:
        let_go.wait(30)

    @tool(effect="once", timeout=0.2)
    def pay(n: int) -> None:
        paid.append(n)

    @tool(effect="once", timeout=5)
    async def send(n: int) -> str:
        return f"sent {n}"

    answers = [[call("hang", n=1), call("hang", n=2)], [call("pay", n=3), call("send", n=4)], "done"]
    async with at_work([hang, pay, send], answers) as runtime:
        thread = await runtime.start("ops", "go")
        assert (await rest(runtime, thread)).answer == "done"
        assert running_tool_threads() == 2
        told = results(runtime.model.requests[2])  # type: ignore[attr-defined]  # by at_work
        assert told[:2] == ["Error: it did not end within 0.2 s"] * 2
        assert "all 2 tool threads were busy until the deadline; it was not run" in told[2]
        assert told[3] == "sent 4"
        assert not paid
        assert not await runtime.interrupts(pending=None)  # nothing happened for certain: nobody is asked


@pytest.mark.parametrize("effect", ["read", "once"])
async def test_an_async_call_that_will_not_stop_is_given_up_on(effect: Any) -> None:
    go = asyncio.Event()

    @tool(effect=effect, timeout=0.1)
    async def stubborn() -> str:
        while not go.is_set():
            try:
                await go.wait()
            except asyncio.CancelledError:
                continue
        return "at last"

    async with at_work([stubborn], [call("stubborn"), "done"]) as runtime:
        thread = await runtime.start("ops", "go")
        state = await until(runtime, thread, "awaiting_review" if effect == "once" else "completed")
        if effect == "once":
            assert "it did not end within 0.1 s" in state.interrupts[0].prompt
            assert not await finished(runtime, thread)
        else:
            assert results(runtime.model.requests[1]) == ["Error: it did not end within 0.1 s"]  # type: ignore[attr-defined]  # by at_work
        go.set()


PROGRAM = """
import asyncio, threading
from tenuto import Agent, Runtime, tool
from tenuto.models.scripted import ScriptedModel, call
from tenuto.tools import running_tool_threads

@tool(effect="once", timeout=0.1)
def hang() -> None:
    threading.Event().wait()

async def main():
    agent = Agent("ops", tools=[hang], model=ScriptedModel([call("hang"), "done"]))
    async with Runtime([agent], "sqlite://:memory:") as runtime:
        state = await runtime.wait(await runtime.start("ops", "go"))
        print(state.status, running_tool_threads())

asyncio.run(main())
"""


def test_a_hung_call_does_not_keep_a_runtime_from_ending() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "awaiting_review 1\n", "")

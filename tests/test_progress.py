"""What a call and its holder say of themselves live: bounded, and never after they are done."""

import asyncio
import threading
from typing import Any

from tenuto import Agent, Runtime, ToolContext, tool
from tenuto.events import CallFinished, Entry, ModelReplied
from tenuto.limits import PROGRESS_SECONDS
from tenuto.messages import StatusLine, TextDelta, ToolProgress
from tenuto.models.scripted import ScriptedModel, call
from tenuto.tools import Happened, Progress


async def test_what_is_said_too_often_is_shown_now_and_then_and_the_last_is_shown() -> None:
    shown: list[Any] = []
    last = asyncio.Event()

    def emit(item: Any) -> None:
        shown.append(item)
        if isinstance(item, ToolProgress) and item.message == "19999":
            last.set()

    progress = Progress("s0001c000", emit, lambda: True)
    begun = asyncio.get_running_loop().time()

    def talk() -> None:
        for number in range(10_000):
            progress(f"{number}", None)

    await asyncio.gather(*(asyncio.to_thread(talk) for _ in range(3)))
    progress("19999", 1.0)
    await last.wait()
    rounds = (asyncio.get_running_loop().time() - begun) / PROGRESS_SECONDS
    assert shown[-1] == ToolProgress("s0001c000", "19999", 1.0)
    assert 2 <= len(shown) <= 2 + rounds
    # After a pause the next one is shown at once.
    await asyncio.sleep(2 * PROGRESS_SECONDS)
    count = len(shown)
    progress("more", None)
    await asyncio.sleep(0)
    assert shown[count:] == [ToolProgress("s0001c000", "more", None)]


async def test_who_is_no_longer_wanted_is_not_heard() -> None:
    shown: list[Any] = []
    wanted = [True, False]
    progress = Progress("s0001c000", shown.append, lambda: wanted.pop(0))
    for message in ("one", "two", "three"):
        progress(message, None)
        await asyncio.sleep(1.5 * PROGRESS_SECONDS)
    assert [item.message for item in shown] == ["one"]
    assert wanted == []


async def test_a_turn_is_told_while_it_happens() -> None:
    heard = threading.Event()

    @tool(effect="read")
    def dig(context: ToolContext) -> str:
        """Dig."""
        for metre in range(1_000):
            context.progress(f"{metre} m", metre / 1_000)
        assert heard.wait(20)
        context.progress("found", 1.0)
        return "gold"

    model = ScriptedModel([call("dig"), "Gold."])
    told: list[Any] = []
    async with Runtime([Agent("ops", tools=[dig])], "sqlite://:memory:", model=model) as runtime:
        thread_id = await runtime.start("ops", "go")
        async for item in runtime.follow(thread_id, 2, rest=True):
            told.append(item)
            if isinstance(item, ToolProgress) and item.message == "999 m":
                heard.set()
    kinds = [type(item.event if isinstance(item, Entry) else item) for item in told]
    progress = [item for item in told if isinstance(item, ToolProgress)]
    assert [item.message for item in progress if item.message == "999 m"] == ["999 m"]
    assert 0 < len(progress) < 100
    assert kinds.index(ToolProgress) < kinds.index(CallFinished)
    assert CallFinished not in kinds[: kinds.index(ToolProgress)]
    assert ToolProgress not in kinds[kinds.index(CallFinished) :]
    lines = [item.text for item in told if isinstance(item, StatusLine)]
    assert lines[-2:] == ["running dig", "asking scripted"]
    assert (
        kinds.index(ModelReplied)
        < kinds.index(CallFinished)
        < kinds.index(TextDelta, kinds.index(CallFinished))
    )


async def test_that_a_call_in_doubt_is_looked_into_is_told() -> None:
    def verify(arguments: Any, key: str) -> Any:
        return Happened("paid")

    @tool(effect="once", timeout=0.2, verify=verify)
    async def pay() -> str:
        raise RuntimeError("the line broke off")

    model = ScriptedModel([call("pay"), "Paid."])
    async with Runtime([Agent("ops", tools=[pay])], "sqlite://:memory:", model=model) as runtime:
        thread_id = await runtime.start("ops", "go")
        told = [item async for item in runtime.follow(thread_id, 2, rest=True)]
    assert StatusLine("asking what became of pay") in told
    results = [
        item.event for item in told if isinstance(item, Entry) and isinstance(item.event, CallFinished)
    ]
    assert [result.text for result in results] == ["paid"]

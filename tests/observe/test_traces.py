"""Spans of real runs, as the SDK's in-memory exporter has them: turns, and what leads from one to another."""

import asyncio
import itertools
from pathlib import Path
from typing import Any

from opentelemetry.trace import SpanKind, StatusCode
from tests.loop.world import die
from tests.observe.traced import WORDS, Place, Spans, links, look, pay

from tenuto import Happened, NotDone, tool
from tenuto.errors import ModelError
from tenuto.events import Entry, ModelReplied
from tenuto.messages import AttemptFailed, Reply, Request, Usage
from tenuto.models.scripted import call
from tenuto.observe.traces import traceparent
from tenuto.runtime import Settings


async def test_a_turn_is_one_trace_and_goes_on_after_a_restart_in_a_linked_one(
    tmp_path: Path, spans: Spans
) -> None:
    place = Place(tmp_path, spans, [look, pay])
    used = Usage(input=100, output=10, cached=60, reasoning=4)
    asks = Reply(calls=(call("pay", n=2),), usage=used, model="scripted-2026", finish="tool_calls")
    async with place.runtime([[call("look", n=1), call("look", n=2)], asks]) as runtime:
        thread = await runtime.start("ops", "go")
        state = await runtime.wait(thread)
        worker = runtime.owner
    first = spans.one("invoke_agent")
    assert first.parent is None
    assert first.kind is SpanKind.INTERNAL
    assert first.name == "invoke_agent ops"
    assert dict(first.attributes or {}) == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "ops",
        "gen_ai.conversation.id": thread,
        "gen_ai.request.model": "scripted",
        "gen_ai.provider.name": "openai",
        "gen_ai.usage.input_tokens": 100,
        "gen_ai.usage.output_tokens": 10,
        "tenuto.worker": worker,
        "tenuto.outcome": "awaiting_approval",
    }
    assert links(first) == []
    assert spans.children(first) == [
        "chat scripted",
        "execute_tool look",
        "execute_tool look",
        "chat scripted",
    ]
    assert {span.context.trace_id for span in spans.all()} == {first.context.trace_id}
    chat = spans.all("chat")[1]
    assert chat.kind is SpanKind.CLIENT
    assert dict(chat.attributes or {}) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.agent.name": "ops",
        "gen_ai.conversation.id": thread,
        "gen_ai.request.model": "scripted",
        "gen_ai.provider.name": "openai",
        "gen_ai.response.model": "scripted-2026",
        "gen_ai.response.finish_reasons": ("tool_calls",),
        "gen_ai.usage.input_tokens": 100,
        "gen_ai.usage.output_tokens": 10,
        "gen_ai.usage.cache_read.input_tokens": 60,
        "gen_ai.usage.reasoning.output_tokens": 4,
    }

    spans.clear()
    async with place.runtime(["done"]) as runtime:
        await runtime.resolve(state.interrupts[0].id, "approve", by="ana")
        assert (await runtime.wait(thread)).answer == "done"
        assert (await runtime.verify(thread)).ok
    second = spans.one("invoke_agent")
    assert second.context.trace_id != first.context.trace_id
    assert links(second) == [("resumes", traceparent(first.context))]
    assert spans.children(second) == ["execute_tool pay", "chat scripted"]
    assert dict(second.attributes or {})["tenuto.outcome"] == "completed"
    assert dict(spans.one("execute_tool").attributes or {}) == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.agent.name": "ops",
        "gen_ai.conversation.id": thread,
        "gen_ai.tool.name": "pay",
        "gen_ai.tool.call.id": "s0002c000",
        "gen_ai.tool.type": "function",
        "tenuto.call.effect": "once",
        "tenuto.call.attempt": 1,
        "tenuto.call.decision": "approved",
    }


async def test_a_turn_that_pauses_twice_is_linked_to_its_last_pause(tmp_path: Path, spans: Spans) -> None:
    place = Place(tmp_path, spans, [pay])
    async with place.runtime([[call("pay", n=1), call("pay", n=2)], call("pay", n=3), "done"]) as runtime:
        thread = await runtime.start("ops", "go")
        for _ in range(3):
            state = await runtime.wait(thread)
            await runtime.resolve(state.interrupts[0].id, "approve", by="ana")
        assert (await runtime.wait(thread)).answer == "done"
    turns = spans.all("invoke_agent")
    # Paid one, the other still pending: that trace is the one that paused, not the one that asked for both.
    for before, after in itertools.pairwise(turns):
        assert links(after) == [("resumes", traceparent(before.context))]
    assert [spans.children(turn) for turn in turns] == [
        ["chat scripted"],
        ["execute_tool pay"],
        ["execute_tool pay", "chat scripted"],
        ["execute_tool pay", "chat scripted"],
    ]


async def test_what_a_tool_records_is_below_its_span(tmp_path: Path, spans: Spans) -> None:
    @tool(effect="read")
    async def here(n: int) -> str:
        with spans.tracer.start_as_current_span("inside here"):
            return await asyncio.to_thread(str, n)

    @tool(effect="read")
    def elsewhere(n: int) -> str:
        with spans.tracer.start_as_current_span("inside elsewhere"):
            return str(n)

    place = Place(tmp_path, spans, [here, elsewhere])
    with spans.tracer.start_as_current_span("the program's own"):
        # The worker's tasks are made in here; what they do is no part of this.
        async with place.runtime([[call("here", n=1), call("elsewhere", n=1)], "done"]) as runtime:
            await runtime.wait(await runtime.start("ops", "go"))
    for name in ("here", "elsewhere"):
        assert spans.children(spans.one(f"execute_tool {name}")) == [f"inside {name}"]
    assert spans.one("invoke_agent").parent is None


async def test_a_turn_points_back_at_what_began_it_and_each_turn_is_its_own(
    tmp_path: Path, spans: Spans
) -> None:
    place = Place(tmp_path, spans, [])
    async with place.runtime(["one", "two", "three"]) as runtime:
        with spans.tracer.start_as_current_span("asks first"):
            thread = await runtime.start("ops", "go")
        await runtime.wait(thread)
        with spans.tracer.start_as_current_span("asks again"):
            await runtime.send(thread, "more")
        await runtime.wait(thread)
        await runtime.send(thread, "and more")
        await runtime.wait(thread)
    first, second, third = spans.all("invoke_agent")
    assert links(first) == [("caused_by", traceparent(spans.one("asks first").context))]
    assert links(second) == [("caused_by", traceparent(spans.one("asks again").context))]
    assert links(third) == []
    assert len({turn.context.trace_id for turn in (first, second, third)}) == 3


async def test_a_message_that_comes_during_the_answer_begins_another_trace(
    tmp_path: Path, spans: Spans
) -> None:
    place, said = Place(tmp_path, spans, []), []

    async def script(request: Request) -> str:
        said.append(len(request.messages))
        if len(said) == 1:
            with spans.tracer.start_as_current_span("interrupts"):
                await runtime.send(thread, "one more thing")
        return f"answer {len(said)}"

    async with place.runtime(script) as runtime:
        thread = await runtime.start("ops", "go")
        state = await runtime.wait(thread)
        assert (state.answer, state.step) == ("answer 2", 2)
    first, second = spans.all("invoke_agent")
    assert (spans.children(first), spans.children(second)) == (["interrupts", "chat scripted"][1:],) * 2
    assert links(second) == [("caused_by", traceparent(spans.one("interrupts").context))]


async def test_a_call_in_doubt_and_the_review_that_settles_it(tmp_path: Path, spans: Spans) -> None:
    @tool(effect="once")
    async def vanish(n: int) -> str:
        raise RuntimeError(WORDS)

    @tool(effect="once")
    async def refuse(n: int) -> str:
        raise NotDone(WORDS)

    place = Place(tmp_path, spans, [vanish, refuse])
    async with place.runtime([[call("vanish", n=1), call("refuse", n=1)], "done"]) as runtime:
        thread = await runtime.start("ops", "go")
        state = await runtime.wait(thread)
        assert state.status == "awaiting_review"
        await runtime.resolve(state.interrupts[0].id, "happened", by="ana", answer="it did")
        await runtime.wait(thread)
    doubtful, certain = spans.one("execute_tool vanish"), spans.one("execute_tool refuse")
    for span, error in ((doubtful, "RuntimeError"), (certain, "NotDone")):
        assert span.status.status_code is StatusCode.ERROR
        assert dict(span.attributes or {})["error.type"] == error
    assert dict(doubtful.attributes or {})["tenuto.call.in_doubt"] is True
    assert "tenuto.call.in_doubt" not in (certain.attributes or {})
    first, second = spans.all("invoke_agent")
    assert dict(first.attributes or {})["tenuto.outcome"] == "awaiting_review"
    assert links(second) == [("resumes", traceparent(first.context))]


async def test_what_verify_records_is_below_the_turn_that_asked_it(tmp_path: Path, spans: Spans) -> None:
    async def look_for_it(arguments: dict[str, Any], key: str) -> Happened:
        with spans.tracer.start_as_current_span("looks for it"):
            return Happened("it did")

    @tool(effect="once", timeout=0.2, verify=look_for_it)
    async def vanish(n: int) -> str:
        await asyncio.sleep(60)
        return "never"

    place = Place(tmp_path, spans, [vanish])
    async with place.runtime([call("vanish", n=1), "done"]) as runtime:
        thread = await runtime.start("ops", "go")
        assert (await runtime.wait(thread)).answer == "done"
    verify = spans.one("verify vanish")
    assert spans.children(verify) == ["looks for it"]
    assert dict(verify.attributes or {})["tenuto.verdict"] == "Happened"
    turn = next(span for span in spans.all("invoke_agent") if "verify vanish" in spans.children(span))
    assert turn.context.trace_id == verify.context.trace_id


async def test_a_model_that_stays_down_fails_the_turn_which_goes_on_in_a_linked_one(
    tmp_path: Path, spans: Spans
) -> None:
    class Down:
        name = "down"
        asked = 0

        async def reply(self, request: Request, emit: Any = None) -> Reply:
            self.asked += 1
            if self.asked > 1:
                return Reply(text="back")
            emit(AttemptFailed(WORDS, 1.5))
            raise ModelError(WORDS, status=503)

    place = Place(tmp_path, spans, [])
    async with place.runtime(Down()) as runtime:
        thread = await runtime.start("ops", "go")
        assert (await runtime.wait(thread)).status == "failed"
        await runtime.extend(thread, steps=1)
        assert (await runtime.wait(thread)).answer == "back"
    broken, well = spans.all("chat down")
    assert (broken.status.status_code, dict(broken.attributes or {})["error.type"]) == (
        StatusCode.ERROR,
        "503",
    )
    (event,) = broken.events
    assert (event.name, dict(event.attributes or {})) == ("attempt_failed", {"tenuto.wait_seconds": 1.5})
    assert well.status.status_code is StatusCode.UNSET
    first, second = spans.all("invoke_agent")
    assert first.status.status_code is StatusCode.ERROR
    assert dict(first.attributes or {})["tenuto.outcome"] == "failed"
    assert links(second) == [("resumes", traceparent(first.context))]


async def test_a_turn_whose_worker_died_is_pointed_back_at(tmp_path: Path, spans: Spans) -> None:
    entered = asyncio.Event()

    @tool(effect="read")
    async def hang(n: int) -> str:
        if not entered.is_set():
            entered.set()
            await asyncio.sleep(60)
        return "back"

    place = Place(tmp_path, spans, [hang])
    async with place.runtime([call("hang", n=1)], settings=Settings(grace_seconds=0.1)) as runtime:
        thread = await runtime.start("ops", "go")
        await entered.wait()
        # The trace is found through the reply.
        async for item in runtime.follow(thread):
            if isinstance(item, Entry) and isinstance(item.event, ModelReplied):
                break
        die(runtime)
        await asyncio.sleep(0.05)
    async with place.runtime(["done"]) as runtime:
        assert (await runtime.wait(thread)).answer == "done"
    first, second = spans.all("invoke_agent")
    assert first.status.status_code is StatusCode.ERROR
    assert dict(first.attributes or {})["tenuto.outcome"] == "broken_off"
    assert links(second) == [("resumes", traceparent(first.context))]

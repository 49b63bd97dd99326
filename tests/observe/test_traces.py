"""Spans of real runs, as the SDK's in-memory exporter has them, held against the semantic conventions."""

import asyncio
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode
from tests.loop.world import die

from tenuto import Agent, NotDone, Runtime, ToolContext, tool
from tenuto.errors import ModelError
from tenuto.events import Entry, ModelReplied
from tenuto.messages import AttemptFailed, Reply, Request, Usage
from tenuto.models.openai import OpenAIModel
from tenuto.models.scripted import ScriptedModel, call
from tenuto.observe import Observe
from tenuto.observe.traces import parsed, traceparent
from tenuto.runtime import Settings
from tenuto.server import Access, create_app

WORDS = "the moon is made of cheese"


class Spans(InMemorySpanExporter):
    """What one provider has exported; `provider` is not the global one."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.provider = TracerProvider(**options)
        self.provider.add_span_processor(SimpleSpanProcessor(self))
        self.tracer = self.provider.get_tracer("the.program")

    def all(self, name: str = "") -> list[ReadableSpan]:
        return [span for span in self.get_finished_spans() if span.name.startswith(name)]

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.all(name)
        return span

    def children(self, parent: ReadableSpan) -> list[str]:
        return [
            span.name for span in self.all() if span.parent and span.parent.span_id == parent.context.span_id
        ]


def links(span: ReadableSpan) -> list[tuple[str, str]]:
    """Why, and to which span."""
    return [
        (str(dict(link.attributes or {})["tenuto.link"]), traceparent(link.context)) for link in span.links
    ]


@pytest.fixture
def spans() -> Iterator[Spans]:
    made = Spans()
    yield made
    made.provider.shutdown()


class Place:
    """Runtimes on one database, each as if it were a process of its own."""

    def __init__(self, path: Path, spans: Spans, tools: list[Any], **agent: Any) -> None:
        self.database = f"sqlite:///{path}/t.db"
        self.spans = spans
        self.agent = Agent("ops", WORDS, tools, **agent)
        self.observing: dict[str, Any] = {}

    def runtime(self, answers: Any, **options: Any) -> Runtime:
        model = answers if hasattr(answers, "reply") else ScriptedModel(answers)
        observe = Observe(traces=self.spans.provider, **self.observing)
        return Runtime([self.agent], self.database, model=model, observe=observe, **options)


@tool(effect="read")
async def look(n: int) -> str:
    return f"seen {n}"


@tool(effect="once", approval=True)
async def pay(n: int) -> str:
    return f"paid {n}"


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


async def test_threads_side_by_side_keep_their_spans_apart(tmp_path: Path, spans: Spans) -> None:
    async def script(request: Request) -> Any:
        await asyncio.sleep(0.01)
        return "done" if len(request.messages) > 3 else [call("look", n=n) for n in range(3)]

    place = Place(tmp_path, spans, [look])
    async with place.runtime(script) as runtime:
        threads = [await runtime.start("ops", f"go {n}") for n in range(10)]
        for thread in threads:
            await runtime.wait(thread)
    turns = spans.all("invoke_agent")
    assert {dict(turn.attributes or {})["gen_ai.conversation.id"] for turn in turns} == set(threads)
    for turn in turns:
        inside = [span for span in spans.all() if span.context.trace_id == turn.context.trace_id]
        assert {dict(span.attributes or {})["gen_ai.conversation.id"] for span in inside} == {
            dict(turn.attributes or {})["gen_ai.conversation.id"]
        }
        assert len(inside) == 1 + 2 + 3


async def test_nothing_that_was_said_is_recorded_unless_it_is_asked_for(tmp_path: Path, spans: Spans) -> None:
    @tool(effect="once")
    async def fail(text: str) -> str:
        raise RuntimeError(text)

    @tool(effect="read")
    async def echo(text: str, context: ToolContext) -> str:
        context.progress(text)
        return text

    def answers() -> list[Any]:
        called = [call("echo", text=WORDS), call("fail", text=WORDS)]
        return [called, ModelError(WORDS), Reply(text=WORDS, reasoning=WORDS)]

    async def run(place: Place) -> str:
        async with place.runtime(answers()) as runtime:
            thread = await runtime.start("ops", WORDS)
            state = await runtime.wait(thread)
            await runtime.resolve(state.interrupts[0].id, "drop", by="ana", comment=WORDS)
            await runtime.wait(thread)
            await runtime.send(thread, WORDS)
            assert (await runtime.wait(thread)).answer == WORDS
        return "".join(span.to_json() for span in spans.all())

    place = Place(tmp_path, spans, [echo, fail])
    assert WORDS not in await run(place)
    spans.clear()
    place.observing = {"content": True}
    assert WORDS in await run(place)
    first = dict(spans.all("chat")[0].attributes or {})
    assert json.loads(str(first["gen_ai.system_instructions"])) == [{"type": "text", "content": WORDS}]
    assert json.loads(str(first["gen_ai.input.messages"])) == [
        {"role": "user", "parts": [{"type": "text", "content": WORDS}]}
    ]
    (said,) = json.loads(str(first["gen_ai.output.messages"]))
    assert (said["role"], said["finish_reason"]) == ("assistant", "tool_calls")
    assert said["parts"][0]["arguments"] == json.dumps({"text": WORDS}, separators=(",", ":"))
    last = json.loads(str(dict(spans.all("chat")[-1].attributes or {})["gen_ai.input.messages"]))
    assert [message["role"] for message in last] == ["user", "assistant", "tool", "tool", "user"]
    assert last[2]["parts"] == [{"type": "tool_call_response", "id": "s0001c000", "response": WORDS}]
    echoed = dict(spans.one("execute_tool echo").attributes or {})
    assert echoed["gen_ai.tool.call.result"] == WORDS


async def test_what_is_recorded_has_a_bound(tmp_path: Path, spans: Spans) -> None:
    place = Place(tmp_path, spans, [look])
    place.observing = {"content": True}
    steps = [*[call("look", n=n) for n in range(40)], "x" * 100_000]
    place.agent = Agent("ops", "x" * 100_000, [look], max_steps=0)
    async with place.runtime(steps) as runtime:
        await runtime.wait(await runtime.start("ops", "x" * 100_000))
    for chat in spans.all("chat"):
        attributes = dict(chat.attributes or {})
        messages = json.loads(str(attributes["gen_ai.input.messages"]))
        assert len(messages) <= 50
        for part in [part for message in messages for part in message["parts"]]:
            assert len(part.get("content", "")) <= 4_096
        assert len(str(attributes["gen_ai.system_instructions"])) < 4_200
    assert len(str(dict(spans.all("chat")[-1].attributes or {})["gen_ai.output.messages"])) < 4_300


async def test_without_a_provider_there_is_no_span_and_no_trace_in_the_log(tmp_path: Path) -> None:
    agent = Agent("ops", tools=[look])
    model = ScriptedModel([call("look", n=1), "done"])
    observe = Observe(traces=True)
    async with Runtime([agent], f"sqlite:///{tmp_path}/t.db", model=model, observe=observe) as runtime:
        thread = await runtime.start("ops", "go")
        await runtime.wait(thread)
        assert [entry.event.trace for entry in await runtime.events(thread)] == [""] * 6


async def test_a_trace_that_is_not_sampled_is_pointed_back_at_as_such(tmp_path: Path) -> None:
    spans = Spans(sampler=ALWAYS_OFF)
    place = Place(tmp_path, spans, [pay])
    async with place.runtime([call("pay", n=1)]) as runtime:
        thread = await runtime.start("ops", "go")
        await runtime.wait(thread)
        marked = [entry.event.trace for entry in await runtime.events(thread) if entry.event.trace]
    assert len(set(marked)) == 1
    assert int(marked[0][-2:], 16) & 1 == 0
    assert spans.all() == []


async def test_the_traceparent_of_a_request_is_honoured(tmp_path: Path, spans: Spans) -> None:
    place = Place(tmp_path, spans, [pay])
    callers = [f"00-{digit * 32}-{digit * 16}-01" for digit in "abc"]
    async with place.runtime([call("pay", n=1), "done", "done"]) as runtime:
        app = create_app(runtime, Access("s3cret"), agent="ops")
        transport = httpx2.ASGITransport(app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:

            async def post(path: str, body: dict[str, Any], *given: str) -> dict[str, Any]:
                headers = [("Authorization", "Bearer s3cret"), ("Prefer", "wait=20")]
                headers += [("traceparent", one) for one in given]
                response = await client.post(path, json=body, headers=headers)
                assert response.status_code < 300, response.text
                found: dict[str, Any] = response.json()
                return found

            new = await post("/v1/threads", {"message": "go"}, callers[0])
            path = f"/v1/interrupts/{new['interrupts'][0]['id']}/resolve"
            await post(path, {"outcome": "approve"}, callers[1])
            await post("/api/agent/tasks", {"task": "go"}, callers[2])
    first, second, third = spans.all("invoke_agent")
    assert links(first) == [("caused_by", callers[0])]
    assert links(second) == [("resumes", traceparent(first.context)), ("caused_by", callers[1])]
    assert links(third) == [("caused_by", callers[2])]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "00",
        f"00-{'0' * 32}-{'a' * 16}-01",
        f"00-{'a' * 32}-{'0' * 16}-01",
        f"00-{'A' * 32}-{'a' * 16}-01",
        f"00-{'a' * 32}-{'a' * 16}-01\n",
        f"ff-{'a' * 32}-{'a' * 16}-01",
    ],
)
def test_what_is_no_traceparent_is_left_out(text: str) -> None:
    assert parsed(text) is None


def test_a_traceparent_is_read_as_it_was_written() -> None:
    text = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"  # the example of the W3C recommendation
    found = parsed(text)
    assert found is not None
    assert found.trace_id == 0x4BF92F3577B34DA6A3CE929D0E0E4736
    assert (found.is_remote, found.trace_flags.sampled) == (True, True)
    assert traceparent(found) == text
    assert traceparent(trace.INVALID_SPAN_CONTEXT) == ""


@pytest.mark.parametrize(
    ("url", "provider", "address", "port"),
    [
        ("https://api.openai.com/v1", "openai", "api.openai.com", 443),
        ("https://x.openai.azure.com/openai/v1", "azure.ai.openai", "x.openai.azure.com", 443),
        ("https://api.mistral.ai/v1", "mistral_ai", "api.mistral.ai", 443),
        ("https://api.x.ai/v1", "x_ai", "api.x.ai", 443),
        ("https://notx.ai/v1", "openai", "notx.ai", 443),
        ("http://127.0.0.1:8080/v1?key=s3cret", "openai", "127.0.0.1", 8080),
        ("http://localhost/v1", "openai", "localhost", 80),
    ],
)
def test_the_provider_is_told_by_its_endpoint(url: str, provider: str, address: str, port: int) -> None:
    from tenuto.observe.traces import _about_model

    assert _about_model(OpenAIModel("m", url=url)) == {
        "gen_ai.request.model": "m",
        "gen_ai.provider.name": provider,
        "server.address": address,
        "server.port": port,
    }

"""What spans hold, what they do not, and how a traceparent is read."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx2
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import SpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from tests.observe.traced import WORDS, Place, Spans, links, look, pay

from tenuto import Agent, Runtime, ToolContext, tool
from tenuto.errors import ModelError
from tenuto.messages import Reply, Request
from tenuto.models.openai import OpenAIModel
from tenuto.models.scripted import ScriptedModel, call
from tenuto.observe import Observe
from tenuto.observe.traces import parsed, traceparent
from tenuto.server import Access, create_app


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


class Fails(SpanProcessor):
    """A program's own processor at its worst."""

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        if "start" in self.where:
            raise RuntimeError("on_start")

    def on_end(self, span: Any) -> None:
        raise RuntimeError("on_end")

    def __init__(self, where: str) -> None:
        self.where = where


@pytest.mark.parametrize("where", ["start and end", "end"])
async def test_a_processor_that_fails_fails_no_thread(
    tmp_path: Path, spans: Spans, caplog: pytest.LogCaptureFixture, where: str
) -> None:
    spans.provider.add_span_processor(Fails(where))
    place = Place(tmp_path, spans, [look, pay])
    async with place.runtime([call("look", n=1), call("pay", n=1), "done"]) as runtime:
        thread = await runtime.start("ops", "go")
        state = await runtime.wait(thread)
        await runtime.resolve(state.interrupts[0].id, "approve", by="ana")
        assert (await runtime.wait(thread)).answer == "done"
    assert "a span could not be" in caplog.text


async def test_what_cannot_be_counted_fails_no_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: Any) -> None:
        raise RuntimeError("no memory")

    monkeypatch.setattr("tenuto.observe.journal.recorded", fails)
    agent, model = Agent("ops", tools=[look]), ScriptedModel([call("look", n=1), "done"])
    async with Runtime([agent], f"sqlite:///{tmp_path}/t.db", model=model, observe=Observe()) as runtime:
        assert (await runtime.wait(await runtime.start("ops", "go"))).answer == "done"
    assert caplog.text.count("what was appended could not be counted") == 3


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

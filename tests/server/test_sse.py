"""Server-sent events over real HTTP: each event once and in order, wherever a connection breaks."""

import asyncio
import json

import pytest
from tests.server.conftest import APPROVER, SUBMITTER
from tests.server.test_v1 import is_problem, started

from tenuto import limits
from tenuto.messages import (
    AttemptFailed,
    CallDelta,
    ReasoningDelta,
    Reply,
    StatusLine,
    TextDelta,
    ToolProgress,
)
from tenuto.server import Access
from tenuto.testing import call

SSE = {"Accept": "text/event-stream"}


class Talker:
    """A model that says many small things: `steps` calls and an answer, each piece by piece."""

    name = "talker"

    def __init__(self, steps=5, deltas=60, text="word {}, line\n\u2028", pause=0.0):
        self.steps = steps
        self.pieces = [text.format(number) for number in range(deltas)]
        self.pause = pause
        self.gate = asyncio.Event()
        self.gate.set()

    def said(self, step):
        return f"{step}: " + "".join(self.pieces)

    async def reply(self, request, emit=None):
        await self.gate.wait()
        step = sum(message.__struct_config__.tag == "assistant" for message in request.messages)
        for piece in (f"{step}: ", *self.pieces):
            if emit is not None:
                emit(TextDelta(piece))
            await asyncio.sleep(self.pause)
        if step < self.steps:
            return Reply(text=self.said(step), calls=(call("get_order", order_id=str(step)),))
        return Reply(text=self.said(step))


class Parser:
    """The event stream interpretation of WHATWG HTML, section 9.2.6, for what is dispatched and its ids."""

    def __init__(self):
        self.rest = b""
        self.fields = {}
        self.last_id = None
        self.pending_id = None
        self.retries = []
        self.comments = 0

    def feed(self, data):
        *lines, self.rest = (self.rest + data).split(b"\n")
        for line in lines:
            assert b"\r" not in line
            if line:
                self._field(line.decode())
                continue
            self.last_id = self.pending_id
            fields, self.fields = self.fields, {}
            if "data" in fields:
                yield fields.get("event", "message"), fields.get("id"), json.loads(fields["data"])

    def _field(self, line):
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not name:
            self.comments += 1
        elif name == "retry":
            self.retries.append(int(value))
        else:
            assert name in ("id", "event", "data")
            assert name not in self.fields
            self.fields[name] = value
            if name == "id":
                self.pending_id = value


async def follow(place, thread_id, query="until=rest", **headers):
    """All that a client is told until the stream ends."""
    path = f"/v1/threads/{thread_id}/events?{query}"
    parser = Parser()
    async with place.client.stream("GET", path, headers=SSE | headers) as response:
        assert response.status_code == 200
        return [event async for data in response.aiter_bytes() for event in parser.feed(data)]


def logged(told):
    """The events of the log, with what holds for each checked."""
    events = [(kind, mark, data) for kind, mark, data in told if mark is not None]
    for kind, mark, data in events:
        assert (str(data["seq"]), data["type"]) == (mark, kind)
    return [data for _, _, data in events]


async def pages(place, thread_id):
    return (await place.client.get(f"/v1/threads/{thread_id}/events")).json()["events"]


async def until(condition):
    for _ in range(2000):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it did not come to be")


def nobody_follows(place):
    return not place.runtime.hub._followed and not place.runtime.hub._rests


# -- what is told ------------------------------------------------------------------------------------


async def test_the_past_is_told_the_boundary_announced_and_the_end(place):
    state = await started(place, "refund")
    path = f"/v1/threads/{state['id']}/events?until=rest"
    response = await place.client.get(path, headers=SSE)
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["cache-control"] == "no-store"
    assert response.headers["x-accel-buffering"] == "no"
    parser = Parser()
    told = list(parser.feed(response.content))
    assert parser.retries == [limits.STREAM_RETRY_MS]
    assert logged(told) == await pages(place, state["id"])
    assert [event["type"] for event in logged(told)][-1] == "interrupt_raised"
    assert told[-2:] == [
        ("replayed", None, {"seq": state["head_seq"]}),
        ("rested", None, {"seq": state["head_seq"]}),
    ]
    await until(lambda: nobody_follows(place))


async def test_what_happens_is_told_as_it_happens(place):
    state = (await place.client.post("/v1/threads", json={"message": "slow"})).json()
    path = f"/v1/threads/{state['id']}/events"
    parser, told = Parser(), []
    async with place.client.stream("GET", path, headers=SSE) as response:
        stream = response.aiter_bytes()

        async def hear(kind):
            while kind not in [event[0] for event in told]:
                told.extend(parser.feed(await anext(stream)))

        await hear("replayed")
        place.shop.gate.set()
        await hear("thread_completed")
        # It goes on: the same connection hears of the next turn.
        del told[:]
        await place.runtime.send(state["id"], "again")
        await hear("thread_completed")
        assert told[0][0] == "message_received"
        assert ("text_delta", None, {"type": "text_delta", "text": "You said: again"}) in told
    await until(lambda: nobody_follows(place))


async def test_deltas_are_superseded_by_their_event(serving):
    talker = Talker(steps=2, deltas=20)
    talker.gate.clear()
    async with serving(model=talker) as place:
        thread_id = (await place.client.post("/v1/threads", json={"message": "go"})).json()["id"]
        listening = asyncio.create_task(follow(place, thread_id))
        await until(lambda: place.runtime.hub.followers)
        talker.gate.set()
        told = await listening
        assert logged(told) == await pages(place, thread_id)
    shown, replies = "", []
    for kind, _, data in told:
        if kind == "text_delta":
            shown += data["text"]
        elif kind == "model_replied":
            assert shown == data["text"]
            replies.append(shown)
            shown = ""
    assert replies == [talker.said(step) for step in range(3)]
    assert shown == ""


async def test_every_kind_of_delta_is_told_without_an_id(place):
    state = await started(place, "hello")
    live = [
        TextDelta("one\r\ntwo\u2028"),
        ReasoningDelta("because"),
        CallDelta(0, "get_order", '{"order'),
        AttemptFailed("cut", 0.5),
        ToolProgress("s0001c000", "half", 0.5),
        StatusLine("asking scripted"),
        TextDelta("half a \ud83d character"),
    ]
    parser, told = Parser(), []
    path = f"/v1/threads/{state['id']}/events?stream=true&after={state['head_seq']}"
    async with place.client.stream("GET", path) as response:
        stream = response.aiter_bytes()
        while len(told) < 8:
            told += parser.feed(await anext(stream))
            while live and told:
                place.runtime.hub.watch(state["id"])(live.pop(0))
    assert told == [
        ("replayed", None, {"seq": state["head_seq"]}),
        ("text_delta", None, {"type": "text_delta", "text": "one\r\ntwo\u2028"}),
        ("reasoning_delta", None, {"type": "reasoning_delta", "text": "because"}),
        ("call_delta", None, {"type": "call_delta", "index": 0, "name": "get_order", "arguments": '{"order'}),
        ("attempt_failed", None, {"type": "attempt_failed", "error": "cut", "wait_seconds": 0.5}),
        (
            "tool_progress",
            None,
            {"type": "tool_progress", "call_id": "s0001c000", "message": "half", "fraction": 0.5},
        ),
        ("status_line", None, {"type": "status_line", "text": "asking scripted"}),
        ("text_delta", None, {"type": "text_delta", "text": "half a \ufffd character"}),
    ]
    assert parser.last_id is None


async def test_keep_alive_comments_say_that_the_connection_lives(place, monkeypatch):
    monkeypatch.setattr(limits, "KEEP_ALIVE_SECONDS", 0.05)
    state = await started(place, "hello")
    parser = Parser()
    async with place.client.stream("GET", f"/v1/threads/{state['id']}/events", headers=SSE) as response:
        async for data in response.aiter_bytes():
            list(parser.feed(data))
            if parser.comments == 3:
                break
    assert parser.last_id == str(state["head_seq"])


# -- where it begins ---------------------------------------------------------------------------------


async def test_it_goes_on_where_another_connection_ended(place):
    state = await started(place, "for ever")
    whole = await pages(place, state["id"])
    for query, headers in (
        ("until=rest&after=5", {}),
        ("until=rest", {"Last-Event-ID": "5"}),
        # A browser comes back with the address that it began with.
        ("until=rest&after=2", {"Last-Event-ID": "5"}),
        ("until=rest&after=5", {"Last-Event-ID": ""}),
    ):
        told = await follow(place, state["id"], query, **headers)
        assert logged(told) == whole[5:]


async def test_who_comes_back_to_a_thread_that_rests_need_not_come_again(place):
    state = await started(place, "refund")
    path = f"/v1/threads/{state['id']}/events?until=rest"
    last = {"Last-Event-ID": str(state["head_seq"])}
    response = await place.client.get(path, headers=SSE | last)
    assert (response.status_code, response.content) == (204, b"")
    # By `after` it is asked for the first time: an answer with nothing in it.
    assert logged(await follow(place, state["id"], f"until=rest&after={state['head_seq']}")) == []
    # What was decided since is told.
    await place.resolve(state["interrupts"][0]["id"], "approve")
    told = await follow(place, state["id"], **last)
    assert [event["type"] for event in logged(told)][-1] == "thread_completed"


@pytest.mark.parametrize("mark", ["x", "-1", "1.5", "+1", "1 2", "\u00b2", "9" * 30, "99"])
async def test_an_id_that_no_event_has_is_400(place, mark):
    state = await started(place, "hello")
    path = f"/v1/threads/{state['id']}/events"
    headers = SSE | {"Last-Event-ID": mark.encode("latin-1")}
    is_problem(await place.client.get(path, headers=headers), 400)
    # A page has its own cursor.
    response = await place.client.get(path, headers={"Last-Event-ID": mark.encode("latin-1")})
    assert response.status_code == 200
    assert nobody_follows(place)


async def test_what_is_asked_for_is_what_comes(place):
    state = await started(place, "hello")
    for accept, query, kind in (
        (None, "", "application/json"),
        ("*/*", "", "application/json"),
        ("application/json", "", "application/json"),
        ("text/event-stream;q=0, */*", "", "application/json"),
        ("text/event-stream", "&stream=false", "application/json"),
        ("text/event-stream", "", "text/event-stream; charset=utf-8"),
        ("application/json, Text/Event-Stream;q=0.5", "", "text/event-stream; charset=utf-8"),
        ("application/json", "&stream=true", "text/event-stream; charset=utf-8"),
    ):
        path = f"/v1/threads/{state['id']}/events?until=rest{query}"
        response = await place.client.get(path, headers={"Accept": accept} if accept else {})
        assert response.headers["content-type"] == kind
    path = f"/v1/threads/{state['id']}/events"
    is_problem(await place.client.get(f"{path}?stream=true&after=99"), 400)
    is_problem(await place.client.get(f"{path}?stream=true", headers={"Last-Event-ID": "99"}), 400)
    assert (await place.client.get(f"{path}?after=99")).json() == {"events": [], "next": None}
    told = (await place.client.get("/openapi.json")).json()["paths"]["/v1/threads/{thread_id}/events"]["get"]
    assert "a page is empty, and a stream is 400" in " ".join(told["description"].split())
    is_problem(await place.client.get(f"{path}?stream=true&until=dawn"), 422)
    is_problem(await place.client.get(f"{path}?stream=perhaps"), 422)


async def test_reading_needs_the_right_to_read(serving):
    async with serving(Access("s3cret-of-ana", "token-of-bob")) as place:
        thread_id = await place.runtime.start("ops", "hello")
        await place.runtime.wait(thread_id, 10)
        path = f"/v1/threads/{thread_id}/events?until=rest"
        is_problem(await place.client.get(path, headers=SSE), 401)
        for token in (APPROVER, SUBMITTER):
            assert (await place.client.get(path, headers=SSE | token)).status_code == 200

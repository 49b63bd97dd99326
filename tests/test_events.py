"""Events: their stored form, to the byte, and back."""

import json
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenuto import events
from tenuto.errors import Undecodable
from tenuto.events import (
    EXTERNAL,
    TERMINAL,
    TYPES,
    AgentChanged,
    AnyEvent,
    Call,
    CallFinished,
    CallId,
    CallStarted,
    CancelRequested,
    ContextCompacted,
    Event,
    HistoryRepaired,
    InterruptId,
    InterruptRaised,
    InterruptResolved,
    Limits,
    LimitsExtended,
    MessageReceived,
    ModelFailed,
    ModelReplied,
    Origin,
    Policy,
    ThreadCancelled,
    ThreadCompleted,
    ThreadFailed,
    ThreadHalted,
    ThreadId,
    ThreadStarted,
    decode,
    encode,
)
from tenuto.messages import Usage

CALL = Call(CallId("abc123def"), "get_order", '{"order_id":17}', "call_1", '{"order_id":"17"}', "once", True)

# Every type, with as much in it as it can carry.
FULL: list[AnyEvent] = [
    ThreadStarted("ops", "f", Limits(6), Policy("withdraw"), {"a": [1, None]}, Origin(ThreadId("p")), "ana"),
    MessageReceived("Refund order 17.", "ana", "http"),
    AgentChanged("g", Limits(6, 100, 0.5, 60.0), Policy(consecutive_errors=1), (CALL,)),
    LimitsExtended(Limits(steps=2), "ana"),
    CancelRequested("ana", "mistake"),
    ThreadCompleted("done"),
    ThreadFailed("provider down"),
    ThreadHalted("steps"),
    ThreadCancelled("ana", "mistake"),
    ModelReplied(1, 2, "text", "thought", (CALL,), Usage(10, 5, 2, 1, 0.25), "m", "tool_calls", 90),
    ModelFailed(1, "HTTP 500", 4),
    HistoryRepaired(("dropped an empty message",)),
    CallStarted(CallId("abc123def"), 2, "key", 1_700_000_000_000, 1_700_000_000_001, "worker"),
    CallFinished(CallId("abc123def"), False, "no such order", 12, "person", True),
    InterruptRaised(InterruptId("i"), "approval", CallId("c"), "n", "{}", "p", "d", ("approve",), 9),
    InterruptResolved(InterruptId("i"), "edited", "ana", "less", '{"amount":1}', "d", "a", "cli"),
    ContextCompacted("summary", 40, "size", 9000, 800, "model"),
]


def test_the_list_is_whole() -> None:
    assert {type(event) for event in FULL} == set(get_args(AnyEvent)) == set(TYPES.values())
    assert set(TERMINAL) < set(TYPES.values())
    assert set(EXTERNAL) < set(TYPES.values())


@pytest.mark.parametrize("event", FULL, ids=lambda event: type(event).__name__)
def test_every_event_comes_back(event: AnyEvent) -> None:
    body = encode(event)
    assert decode(body) == event
    assert type(decode(body)) is type(event)
    stored = json.loads(body)
    assert TYPES[stored["type"]] is type(event)
    assert encode(decode(body)) == body


def test_the_stored_form_to_the_byte() -> None:
    """These bytes are in databases out there: they may not change without a new version."""
    assert encode(MessageReceived("é\0\n")) == '{"type":"message_received","text":"é\\u0000\\n"}'.encode()
    assert encode(ThreadCompleted()) == b'{"type":"thread_completed"}'
    assert encode(ThreadStarted("ops", "f")) == b'{"type":"thread_started","agent":"ops","fingerprint":"f"}'
    assert encode(ModelReplied(1, 2, calls=(Call(CallId("c"), "n", "{}"),), usage=Usage(10, 5))) == (
        b'{"type":"model_replied","step":1,"seen_seq":2,'
        b'"calls":[{"id":"c","name":"n","raw":"{}"}],"usage":{"input":10,"output":5}}'
    )
    assert encode(InterruptResolved(InterruptId("i"), "rejected", "ana")) == (
        b'{"type":"interrupt_resolved","id":"i","outcome":"rejected","by":"ana"}'
    )


texts = st.text(st.characters(exclude_categories=["Cs"]))
metadata = st.dictionaries(
    texts, st.recursive(st.none() | st.booleans() | st.integers(-(2**53), 2**53) | texts, st.lists)
)


@given(texts, texts, metadata)
def test_any_text_comes_back(text: str, by: str, data: dict[str, Any]) -> None:
    for event in (MessageReceived(text, by), ThreadStarted(text, by, metadata=data)):
        body = encode(event)
        assert decode(body) == event
        assert b"\0" not in body


def test_what_utf8_cannot_carry_is_refused() -> None:
    for text in ("\ud800", "a\udfff", "\udc80b"):
        with pytest.raises(ValueError, match="surrogate"):
            encode(MessageReceived(text))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b'{"type":"message_received"}',
        b'{"type":"message_received","text":1}',
        b'{"type":"unheard_of","text":"x"}',
        b'{"type":"event"}',
        b'{"text":"x"}',
        b'{"type":"thread_halted","limit":"boredom"}',
        b'{"type":"message_received","text":"x"',
        b'{"type":"message_received","text":"\xff"}',
    ],
)
def test_what_is_no_event_is_undecodable(body: bytes) -> None:
    with pytest.raises(Undecodable):
        decode(body)


@pytest.mark.parametrize("version", [-1, 0, events.VERSION + 1])
def test_a_version_that_is_not_known_is_undecodable(version: int) -> None:
    with pytest.raises(Undecodable, match=f"version {version}"):
        decode(b'{"type":"thread_completed"}', version)


def test_fields_of_a_later_minor_version_are_passed_over() -> None:
    assert decode(b'{"type":"thread_completed","answer":"a","mood":"good"}') == ThreadCompleted("a")


@pytest.fixture
def third_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the schema had moved on twice: `answer` was once `result`, and before that `output`."""

    def renamed(old: str, new: str) -> Any:
        return lambda raw: {new if name == old else name: value for name, value in raw.items()}

    monkeypatch.setattr(events, "VERSION", 3)
    monkeypatch.setitem(events.UPCASTERS, 1, renamed("output", "result"))
    monkeypatch.setitem(events.UPCASTERS, 2, renamed("result", "answer"))


@pytest.mark.usefixtures("third_version")
def test_old_versions_decode_through_each_upcaster() -> None:
    for version, name in ((1, "output"), (2, "result"), (3, "answer")):
        body = msgspec.json.encode({"type": "thread_completed", name: "yes"})
        assert decode(body, version) == ThreadCompleted("yes")
    with pytest.raises(Undecodable):
        decode(b'{"type":"thread_halted","limit":"boredom"}', 1)
    with pytest.raises(Undecodable):
        decode(b"not JSON", 1)


@pytest.mark.usefixtures("third_version")
def test_a_missing_upcaster_is_undecodable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(events.UPCASTERS, 2)
    with pytest.raises(Undecodable):
        decode(b'{"type":"thread_completed"}', 1)


def test_events_are_values() -> None:
    event: Event = MessageReceived("a")
    assert event == MessageReceived("a")
    with pytest.raises(AttributeError):
        event.text = "b"


def test_the_exact_arguments_of_a_call() -> None:
    assert CALL.exact == '{"order_id":"17"}'
    assert Call(CallId("c"), "n", '{"a":1}').exact == '{"a":1}'
    assert Call(CallId("c"), "n").exact == "{}"
    assert Call(CallId("c"), "n", "").exact == "{}"

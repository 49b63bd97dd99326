"""What the model reads, and the linter for lists that somebody else made."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.test_thread import folded

from tenuto.context import Rendering, lint, messages_of
from tenuto.context.render import LOST
from tenuto.events import (
    Call,
    CallFinished,
    CallId,
    ContextCompacted,
    Entry,
    InterruptId,
    InterruptRaised,
    InterruptResolved,
    MessageReceived,
    ModelReplied,
    ThreadStarted,
)
from tenuto.messages import AssistantMessage, Message, SystemMessage, ToolCall, ToolMessage, UserMessage
from tenuto.thread import Said, apply, fold

A, B = (Call(CallId(name), "look", '{"n":1}', arguments='{"n":1,"m":2}') for name in ("a", "b"))


def call(name: str) -> ToolCall:
    return ToolCall(name, "look", "{}")


def said(*names: str) -> AssistantMessage:
    return AssistantMessage("", tuple(call(name) for name in names))


def result(name: str, text: str = "r") -> ToolMessage:
    return ToolMessage(name, text)


def test_a_history_is_rendered_in_order_with_what_is_queued_at_the_end() -> None:
    state = folded(
        ThreadStarted("ops", "f"),
        MessageReceived("go"),
        ModelReplied(1, 2, "well", "hm", calls=(A, B)),
        MessageReceived("hurry"),
        CallFinished(B.id, text="two"),
        CallFinished(A.id, text="one"),
    )
    assert Rendering().update(state, "Be exact.") == [
        SystemMessage("Be exact."),
        UserMessage("go"),
        AssistantMessage(
            "well", (ToolCall("a", "look", '{"n":1}'), ToolCall("b", "look", '{"n":1}')), reasoning="hm"
        ),
        ToolMessage("a", "one"),
        ToolMessage("b", "two"),
        UserMessage("hurry"),
    ]
    assert Rendering().update(state, "")[0] == UserMessage("go")


@pytest.mark.parametrize(
    ("raw", "error", "shown"),
    [
        ('{"n":1}', "", '{"n":1}'),
        (' {"n": 1}', "", ' {"n": 1}'),
        (None, "", "{}"),
        ("", "", "{}"),
        ("{", "not JSON", "{}"),
        ("[1]", "not an object", "{}"),
        ('{"n":"x"}', "n is no number", '{"n":"x"}'),
        ("[" * 100_000, "too deep", "{}"),
    ],
)
def test_arguments_are_shown_as_an_object_whatever_the_model_wrote(
    raw: str | None, error: str, shown: str
) -> None:
    one = Call(CallId("a"), "look", raw, error=error)
    state = folded(ThreadStarted("ops", "f"), MessageReceived("go"), ModelReplied(1, 2, calls=(one,)))
    (message, _) = messages_of(state.history[-1])
    assert isinstance(message, AssistantMessage)
    assert message.calls[0].arguments == shown


def test_what_was_double_encoded_is_shown_as_what_ran() -> None:
    one = Call(CallId("a"), "look", '"{\\"n\\":1}"', arguments='{"n":1}')
    state = folded(ThreadStarted("ops", "f"), MessageReceived("go"), ModelReplied(1, 2, calls=(one,)))
    (message, _) = messages_of(state.history[-1])
    assert isinstance(message, AssistantMessage)
    assert message.calls[0].arguments == '{"n":1}'


@pytest.mark.parametrize(("edited", "note"), [('{"n":9}', True), ('{"n":1,"m":2}', False)])
def test_the_model_is_told_of_edited_arguments(edited: str, note: bool) -> None:
    raised = InterruptRaised(InterruptId("i"), "approval", A.id)
    state = folded(
        ThreadStarted("ops", "f"),
        MessageReceived("go"),
        ModelReplied(1, 2, calls=(A,)),
        raised,
        InterruptResolved(raised.id, "edited", arguments=edited),
        CallFinished(A.id, text="done"),
    )
    told = messages_of(state.history[-1])[1]
    told_of = '(A person changed the arguments to {"n":9})\ndone'
    assert told == ToolMessage("a", told_of if note else "done")


def test_going_on_renders_what_a_fresh_start_renders_and_keeps_what_was_sent() -> None:
    rendering, entries = Rendering(), []
    events: list[Any] = [ThreadStarted("ops", "f"), MessageReceived("go")]
    for step in range(1, 6):
        one = Call(CallId(f"c{step}"), "look", "{}")
        seen = len(events)
        events += [ModelReplied(step, seen, calls=(one,)), CallFinished(one.id, text=str(step))]
        events += [MessageReceived(f"m{step}")] * (step % 2)
    state, before = fold([]), []
    for seq, event in enumerate(events, 1):
        entries.append(Entry(seq, seq, event))
        apply(state, entries[-1])
        if not state.open:
            messages = list(rendering.update(state, "Be exact."))
            assert messages == Rendering().update(fold(entries), "Be exact.")
            assert messages[: len(before)] == before or seq < 3
            before = [m for m in messages if m not in [UserMessage(s.text) for s in state.queued]]
    changed = rendering.update(state, "Be kind.")
    assert changed[0] == SystemMessage("Be kind.")
    assert changed[1:] == messages[1:]


def test_a_compaction_starts_the_list_again() -> None:
    rendering = Rendering()
    events: list[Any] = [ThreadStarted("ops", "f"), MessageReceived("go"), ModelReplied(1, 2, "one")]
    state = folded(*events)
    rendering.update(state, "")
    apply(state, Entry(4, 4, ContextCompacted("so far", upto_seq=3)))
    apply(state, Entry(5, 5, MessageReceived("on")))
    assert rendering.update(state, "") == [UserMessage("so far"), UserMessage("on")]
    assert messages_of(Said(1, "x", "me")) == [UserMessage("x")]


U = UserMessage("u")


@pytest.mark.parametrize(
    ("messages", "mended", "repairs"),
    [
        ([], [], 0),
        ([U, said("a", "b"), result("a"), result("b"), U], None, 0),
        ([U, result("x"), U], [U, U], 1),
        ([said("a")], [said("a"), result("a", LOST)], 1),
        ([said("a", "b"), result("b")], [said("a", "b"), result("a", LOST), result("b")], 1),
        ([said("a", "b"), result("b"), result("a")], [said("a", "b"), result("a"), result("b")], 1),
        ([said("a"), U, result("a")], [said("a"), result("a"), U], 1),
        ([said("a"), result("a"), result("a", "2")], [said("a"), result("a")], 1),
        ([said("a"), result("b"), result("a")], [said("a"), result("a")], 1),
        ([said("a"), said("b"), result("a"), result("b")],
         [said("a"), result("a", LOST), said("b"), result("b")], 2),
    ],
)  # fmt: skip
def test_the_linter_mends_and_says_what(
    messages: list[Message], mended: list[Message] | None, repairs: int
) -> None:
    got, told = lint(messages)
    assert got == (messages if mended is None else mended)
    assert len(told) == repairs


_names = st.sampled_from("abc")
_messages = st.lists(
    st.just(U)
    | st.lists(_names, max_size=3, unique=True).map(lambda names: said(*names))
    | st.builds(result, _names),
    max_size=12,
)


@given(_messages)
def test_whatever_it_is_given_the_linter_makes_it_well_formed_and_is_content_with_it(
    messages: list[Message],
) -> None:
    mended, repairs = lint(list(messages))
    waiting: list[str] = []
    for message in mended:
        if isinstance(message, ToolMessage):
            assert waiting.pop(0) == message.call_id
            continue
        assert not waiting
        if isinstance(message, AssistantMessage):
            waiting = [one.id for one in message.calls]
    assert not waiting
    assert bool(repairs) is (mended != messages)
    assert lint(mended) == (mended, ())
    assert [m for m in mended if isinstance(m, AssistantMessage)] == [
        m for m in messages if isinstance(m, AssistantMessage)
    ]

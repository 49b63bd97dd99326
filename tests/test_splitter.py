"""The splitter against `json.loads`: whatever the arguments, their order and the way they are cut."""

import json
import time
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenuto.splitter import (
    CallFinished,
    Splitter,
    UserText,
)

# --- strategies -----------------------------------------------------------------------------------------

KEYS = st.one_of(
    st.text(max_size=6), st.sampled_from(["to_use", "to_userr", "a", 'q"uote', "back\\", "to user"])
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=12)
    | st.sampled_from(
        ['{"to_user": "no"}', "\\", '\\"', "}", "]", ",", '":', "\u2028", "\x00", "😀", "你好\n"]
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS | st.just("to_user"), inner, max_size=3),
    max_leaves=8,
)
SPOKEN = st.text(max_size=40) | st.sampled_from(
    ["", "\\", 'say "hi"\\', "\n\t\b\f\r/", "😀" * 3, "你好", '", "x": "', "\ufffd", "\x00\x1f"]
)
SEPARATORS = st.sampled_from([(",", ":"), (", ", ": "), (" ,\n\t", " :\r\n ")])


@st.composite
def objects(draw: st.DrawFn) -> tuple[dict[str, Any], str]:
    """An arguments object, with or without a text for the user, and one way to write it."""
    members = list(
        draw(st.dictionaries(KEYS.filter(lambda key: key != "to_user"), VALUES, max_size=4)).items()
    )
    if draw(st.booleans()):
        members.insert(draw(st.integers(0, len(members))), ("to_user", draw(SPOKEN)))
    value = dict(members)
    separators = draw(SEPARATORS)
    text = json.dumps(value, separators=separators, ensure_ascii=draw(st.booleans()))
    space = draw(st.sampled_from(["", " ", "\n\t"]))
    text = f"{space}{{{space}{text[1:-1]}{space}}}{space}"
    if draw(st.booleans()):
        text = text.replace('"to_user"', '"t\\u006f_\\u0075ser"')
    return value, text


@st.composite
def cuts(draw: st.DrawFn, text: str) -> list[str]:
    how = draw(st.integers(0, 2))
    if how == 0:
        return list(text)
    if how == 1:
        return [text]
    places = sorted(draw(st.lists(st.integers(0, len(text)), max_size=12)))
    return [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]


# --- reading the pieces ---------------------------------------------------------------------------------


def said(pieces: Iterable[object]) -> str:
    return "".join(piece.text for piece in pieces if isinstance(piece, UserText))


def finished(pieces: Iterable[object]) -> list[CallFinished]:
    return [piece for piece in pieces if isinstance(piece, CallFinished)]


def split(fragments: Iterable[str], **options: Any) -> list[object]:
    splitter = Splitter(**options)
    pieces: list[object] = list(splitter.feed_call(0, "call_1", "look"))
    for fragment in fragments:
        pieces.extend(splitter.feed_call(0, None, None, fragment))
    pieces.extend(splitter.close())
    return pieces


# --- any object, any cut --------------------------------------------------------------------------------


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_any_object_cut_anyhow_gives_its_text_and_the_rest(data: st.DataObject) -> None:
    value, text = data.draw(objects())
    pieces = split(data.draw(cuts(text)))
    loaded = json.loads(text)
    assert loaded == value
    assert said(pieces) == loaded.pop("to_user", "")
    (call,) = finished(pieces)
    assert call.problem is None
    assert json.loads(call.arguments) == loaded
    assert list(json.loads(call.arguments)) == list(loaded), "the order of the keys stays"


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_calls_that_are_interleaved_do_not_mix(data: st.DataObject) -> None:
    written = data.draw(st.lists(objects(), min_size=2, max_size=4))
    queues = [data.draw(cuts(text)) for _, text in written]
    splitter = Splitter()
    pieces: list[object] = []
    while any(queues):
        index = data.draw(st.sampled_from([number for number, queue in enumerate(queues) if queue]))
        pieces.extend(splitter.feed_call(index, f"call_{index}", "look", queues[index].pop(0)))
    pieces.extend(splitter.close())
    calls = {call.call: call for call in finished(pieces)}
    assert len(finished(pieces)) == len(calls) == len(written)
    texts = []
    for index, (value, _) in enumerate(written):
        rest = {key: inner for key, inner in value.items() if key != "to_user"}
        assert calls[index].problem is None
        assert json.loads(calls[index].arguments) == rest
        texts.append(value.get("to_user", ""))
    spoken = [text for text in texts if text]
    assert sorted(said(pieces)) == sorted("\n".join(spoken)), "every text, and one newline between two"
    assert all(text in said(pieces) for text in spoken), "each text in one piece"


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_a_broken_text_is_handed_on_exactly_as_it_came(data: st.DataObject) -> None:
    _, text = data.draw(objects())
    at = data.draw(st.integers(0, len(text)))
    junk = data.draw(st.sampled_from(["", "}", "{", '"', "\\", ",", "x", "\\u12", "\n"]))
    broken = text[:at] + junk + text[at + data.draw(st.integers(0, 2)) :]
    (call,) = finished(split(data.draw(cuts(broken))))
    try:
        loaded = json.loads(broken)
    except ValueError:
        assert call.problem is not None
        assert call.arguments == broken
    else:
        if isinstance(loaded, dict):
            loaded.pop("to_user", None)
        assert call.problem is None
        assert json.loads(call.arguments) == loaded


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_any_escapes_decode_as_json_does(data: st.DataObject) -> None:
    """Surrogates too: pairs join, one without its partner becomes U+FFFD."""
    unit = st.sampled_from(
        [
            "\\ud83d",
            "\\ude00",
            "\\uD83D",
            "\\uDE00",
            "\\u4f60",
            "\\n",
            '\\"',
            "\\\\",
            "\\/",
            "a",
            "好",
            "u",
            "d",
        ]
    )
    body = "".join(data.draw(st.lists(unit, max_size=12)))
    text = f'{{"to_user":"{body}","k":1}}'
    decoded = json.loads(text)["to_user"]
    expected = "".join("\ufffd" if "\ud800" <= character <= "\udfff" else character for character in decoded)
    pieces = split(data.draw(cuts(text)))
    assert said(pieces) == expected
    said(pieces).encode("utf-8")
    assert json.loads(finished(pieces)[0].arguments) == {"k": 1}


# --- single cases ---------------------------------------------------------------------------------------


def test_the_text_comes_out_before_the_arguments_are_complete() -> None:
    splitter = Splitter()
    assert splitter.feed_call(0, "c", "look", '{"to_user": "Let me ') == [
        UserText("Let me ", 0),
    ]
    assert splitter.feed_call(0, None, None, 'see", "city') == [UserText("see", 0)]
    assert splitter.feed_call(0, None, None, '": "Par') == []
    assert splitter.feed_call(0, None, None, 'is"}') == []
    assert splitter.close() == [CallFinished(0, "c", "look", '{ "city": "Paris"}', None)]
    assert splitter.close() == []


@pytest.mark.parametrize(
    ("text", "speech", "rest"),
    [
        ('{"to_user":"x"}', "x", "{}"),
        ('{"to_user":""}', "", "{}"),
        ('{"to_user":null,"a":1}', "", '{"a":1}'),
        ('{"a":1,"to_user":null}', "", '{"a":1}'),
        ('{"to_user":5,"a":1}', "5", '{"a":1}'),
        ('{"a":1,"to_user":{"b":["}",2]},"c":3}', '{"b":["}",2]}', '{"a":1,"c":3}'),
        ('{"to_user":[1,2]}', "[1,2]", "{}"),
        ('{"a":{"to_user":"inner"}}', "", '{"a":{"to_user":"inner"}}'),
        ('{"a":"\\"to_user\\": \\"no\\""}', "", '{"a":"\\"to_user\\": \\"no\\""}'),
        ('{"to_user":"a","b":1,"to_user":"c"}', "ac", '{"b":1}'),
        (
            '{"n":1e400,"m":12345678901234567890123,"to_user":"x"}',
            "x",
            '{"n":1e400,"m":12345678901234567890123}',
        ),
        ('{"lone":"\\ud800","to_user":"x"}', "x", '{"lone":"\\ud800"}'),
        ("{}", "", "{}"),
        ("[1]", "", "[1]"),
        ('"to_user"', "", '"to_user"'),
        ("null", "", "null"),
    ],
)
def test_forms_of_arguments(text: str, speech: str, rest: str) -> None:
    for fragments in ([text], list(text)):
        pieces = split(fragments)
        assert said(pieces) == speech
        assert finished(pieces) == [CallFinished(0, "call_1", "look", rest, None)]


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1',
        '{"to_user": "half',
        '{"to_user": "half\\',
        '{"to_user": "half\\u4f',
        '{"to_user": "\\x", "a": 1}',
        '{"a": 1} trailing',
        '{"a": 1}{"b": 2}',
        '{"a": 1,}',
        "{'a': 1}",
        '{"a": NaN}',
        '{"a": Infinity}',
        '{"a" 1}',
        '{"to_user": "line\nbreak"}',
        '{"a": [1}',
        "nonsense",
        "[" * 100_000,
    ],
)
def test_what_is_not_json_is_passed_on_raw_with_its_problem(text: str) -> None:
    for fragments in ([text], list(text)):
        (call,) = finished(split(fragments))
        assert call.arguments == text
        assert call.problem


def test_no_arguments_at_all_are_a_problem_of_their_own() -> None:
    assert finished(split([])) == [CallFinished(0, "call_1", "look", "", "no arguments arrived")]


def test_another_name_for_the_text_or_none() -> None:
    text = '{"say":"hi","to_user":"kept"}'
    assert said(split([text], to_user="say")) == "hi"
    assert finished(split([text], to_user="say"))[0].arguments == '{"to_user":"kept"}'
    assert said(split([text], to_user=None)) == ""
    assert finished(split([text], to_user=None))[0].arguments == text


def test_text_behind_a_finished_call_is_reported_not_lost() -> None:
    splitter = Splitter()
    splitter.feed_call(0, "a", "one", '{"x":1}')
    assert finished(splitter.feed_call(1, "b", "two", "{}")) == [CallFinished(0, "a", "one", '{"x":1}', None)]
    splitter.feed_call(0, None, None, " \n")
    splitter.feed_call(0, None, None, "more")
    calls = {call.call: call for call in finished(splitter.close())}
    assert calls[1].problem is None
    assert calls[0].arguments == '{"x":1} \nmore'
    assert calls[0].problem


def test_calls_without_an_index_or_with_one_for_all_are_told_apart_by_id() -> None:
    for index in (None, 0):
        splitter = Splitter()
        pieces: list[object] = []
        for name, argument in (("one", "1"), ("two", "2")):
            pieces += splitter.feed_call(index, f"id_{name}", name, '{"x":')
            pieces += splitter.feed_call(index, f"id_{name}", name, argument)
            pieces += splitter.feed_call(index, None, None, "}")
        pieces += splitter.close()
        assert [(call.call, call.id, call.name, call.arguments) for call in finished(pieces)] == [
            (0, "id_one", "one", '{"x":1}'),
            (1, "id_two", "two", '{"x":2}'),
        ]


def test_an_id_made_up_for_every_fragment_does_not_split_a_call() -> None:
    splitter = Splitter()
    splitter.feed_call(0, "random-1", "one", "")
    splitter.feed_call(0, "random-2", None, '{"x":')
    splitter.feed_call(0, "random-3", None, "1}")
    assert splitter.close() == [CallFinished(0, "random-1", "one", '{"x":1}', None)]


def test_a_late_name_and_id_are_on_the_finished_call() -> None:
    splitter = Splitter()
    assert splitter.feed_call(3, None, None, "{}") == []
    splitter.feed_call(3, "late", "name", None)
    assert splitter.settle() == [CallFinished(3, "late", "name", "{}", None)]


def test_the_work_is_linear_in_the_length() -> None:
    """Four times the text takes about four times as long, not sixteen; measured in processor time."""

    def seconds(length: int) -> float:
        text = json.dumps({"to_user": "word \n" * (length // 12), "body": "say \\ \u4f60 " * (length // 12)})
        fragments = [text[at : at + 5] for at in range(0, len(text), 5)]
        best = 1e9
        for _ in range(3):
            begin = time.process_time()
            split(fragments)
            best = min(best, time.process_time() - begin)
        return best

    assert seconds(400_000) < 9 * seconds(100_000)

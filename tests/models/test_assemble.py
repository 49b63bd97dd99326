"""Quirks that no recording shows: each chunk written by hand after the provider that sends it."""

import json
from typing import Any

import msgspec
import pytest
from tests.models.reading import assemble, read_reply

from tenuto.errors import ModelError
from tenuto.limits import MAX_CALLS_PER_REPLY, MAX_REPLY_BYTES
from tenuto.messages import CallRequest, Reply, Usage
from tenuto.models.assemble import Assembly, read_usage
from tenuto.models.reader import ReplyReader
from tenuto.models.wire import decode_chunk

Delta = dict[str, Any]


def streamed(*deltas: Delta, finish: str | None = "stop") -> Reply:
    chunks = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    return assemble(decode_chunk(json.dumps(chunk).encode()) for chunk in chunks)


def fragment(arguments: Any = None, name: Any = None, **rest: Any) -> Delta:
    return {"tool_calls": [{"function": {"name": name, "arguments": arguments}} | rest]}


@pytest.mark.parametrize(
    ("deltas", "calls"),
    [
        pytest.param(
            [fragment('{"a":', "f", id="k"), fragment("1}", "f", id="k")],
            [("f", '{"a":1}', "k")],
            id="no index, id and name repeated",
        ),
        pytest.param(
            [fragment("{}", "f", index=0, id="k"), fragment("", "f", index=0, id="k")],
            [("f", "{}", "k")],
            id="repeated once more after the end",
        ),
        pytest.param(
            [fragment("{}", "f", index=0, id="k"), fragment("{}", "g", index=0, id="l")],
            [("f", "{}", "k"), ("g", "{}", "l")],
            id="index 0 for every call",
        ),
        pytest.param(
            [fragment("{}", "f", index=0, id=""), fragment("{}", "f", index=0, id="")],
            [("f", "{}", ""), ("f", "{}", "")],
            id="index 0 and no id for every call",
        ),
        pytest.param(
            [fragment("{", "f", index=0, id="a1"), fragment("}", None, index=0, id="a2")],
            [("f", "{}", "a1")],
            id="a new id with each fragment",
        ),
        pytest.param(
            [
                fragment("{", "f", index=0, id="k"),
                fragment("[", "g", index=1, id="l"),
                fragment("}", index=0),
            ],
            [("f", "{}", "k"), ("g", "[", "l")],
            id="fragments interleaved",
        ),
        pytest.param(
            [fragment({"a": [1, "é"]}, "f", id="k")], [("f", '{"a":[1,"é"]}', "k")], id="arguments an object"
        ),
        pytest.param(
            [fragment(None, "f"), fragment(None, "g")], [("f", None, ""), ("g", None, "")], id="bare"
        ),
        pytest.param([{"tool_calls": [{}]}, fragment("{}", "f")], [("f", "{}", "")], id="an empty one"),
        pytest.param(
            [{"function_call": {"name": "f", "arguments": "{"}}, {"function_call": {"arguments": "}"}}],
            [("f", "{}", "")],
            id="the old function_call",
        ),
        pytest.param(
            [fragment("{}", None, id="k")], [("", "{}", "k")], id="no name: kept, for the tool layer"
        ),
    ],
)
def test_calls(deltas: list[Delta], calls: list[tuple[str, str | None, str]]) -> None:
    assert streamed(*deltas).calls == tuple(CallRequest(*call) for call in calls)


def test_calls_of_a_whole_message_are_never_merged() -> None:
    same = {"id": "", "function": {"name": "f", "arguments": ""}}
    body = json.dumps({"choices": [{"message": {"tool_calls": [same, same]}}]}).encode()
    assert read_reply(body).calls == (CallRequest("f", "", ""), CallRequest("f", "", ""))


def test_extra_content_of_a_call_is_kept_with_it() -> None:
    extra = {"google": {"thought_signature": "c2ln"}}
    reply = streamed(fragment("{}", "f", index=0, id="k", extra_content=extra))
    assert reply.calls[0].extra == {"extra_content": extra}


def test_reasoning_that_comes_in_two_fields_is_taken_once() -> None:
    detail = {"type": "reasoning.text", "index": 0, "text": "hm"}
    reply = streamed(
        {"reasoning": "hm", "reasoning_content": "hm", "reasoning_details": [detail]}, {"content": "a"}
    )
    assert (reply.text, reply.reasoning, reply.extra) == ("a", "hm", None)


def test_fragments_of_reasoning_details_are_joined_to_be_sent_back() -> None:
    def part(**fields: Any) -> Delta:
        return {"reasoning_details": [{"type": "reasoning.text", "index": 0} | fields]}

    sealed = {"type": "reasoning.encrypted", "index": 1, "data": "eHg="}
    pieces = [part(text="I "), part(text="see", signature=None), part(signature="c2ln")]
    reply = streamed(*pieces, {"reasoning_details": [sealed]}, fragment("{}", "f"))
    joined = {"type": "reasoning.text", "index": 0, "text": "I see", "signature": "c2ln"}
    assert reply.reasoning == "I see"
    assert reply.extra == {"reasoning_details": [joined, sealed]}


@pytest.mark.parametrize("field", ["reasoning_details", "content", "reasoning", "refusal", "extra_content"])
@pytest.mark.parametrize("value", [5, True, {"a": 1}, [None, 3, {"type": 1}], "", [], 1.5])
def test_a_field_of_an_odd_type_breaks_nothing(field: str, value: Any) -> None:
    assert streamed({field: value}, {"content": "a"}).text == "a"


def test_a_refusal_is_the_text() -> None:
    reply = streamed({"refusal": "I can"}, {"refusal": "not."})
    assert (reply.text, reply.extra) == ("I cannot.", {"refusal": True})


def test_a_character_cut_in_two_is_whole_again() -> None:
    """Each half comes as an escape of its own, which is no valid text yet; what is shown can be encoded."""
    halves = [
        rb'{"choices":[{"delta":{"content":"a\ud83d"}}]}',
        rb'{"choices":[{"delta":{"content":"\ude00b"}}]}',
    ]
    shown: list[Any] = []
    reader = ReplyReader(shown.append)
    reader.feed(b"".join(b"data: " + half + b"\n\n" for half in halves) + b"data: [DONE]\n\n")
    assert reader.finish().text == "a😀b"
    assert msgspec.json.encode(shown)
    assert streamed({"content": "lone \ud83d"}).text == "lone \ufffd"


@pytest.mark.parametrize("content", [None, "", [], [{"type": "thinking", "thinking": "hm"}]])
@pytest.mark.parametrize("finish", ["stop", "length", None])
def test_a_reply_that_says_nothing_is_an_error(content: Any, finish: str | None) -> None:
    with pytest.raises(ModelError, match="neither text nor calls") as caught:
        streamed({"content": content, "reasoning": "so"}, finish=finish)
    assert caught.value.retryable


def test_a_reply_without_an_end_is_an_error() -> None:
    assembly = Assembly()
    assembly.add(decode_chunk(b'{"choices":[{"delta":{"content":"a"}}]}'))
    with pytest.raises(ModelError, match="cut before its end") as caught:
        assembly.reply(done=False)
    assert caught.value.retryable
    assert assembly.reply(done=True).text == "a"


def test_length_with_cut_arguments_says_so() -> None:
    reply = streamed(fragment('{"a": "b', "f", index=0), finish="length")
    assert (reply.finish, reply.calls[0].arguments) == ("length", '{"a": "b')


def test_of_several_alternatives_the_first_is_the_reply() -> None:
    chunks = [b'{"choices":[{"index":%d,"delta":{"content":"%d"}}]}' % (n, n) for n in (0, 1, 0, 1)]
    assert assemble(decode_chunk(chunk) for chunk in chunks).text == "00"


@pytest.mark.parametrize(
    ("said", "usage"),
    [
        ({}, Usage()),
        ({"prompt_tokens": 5, "completion_tokens": 2.0, "cost": 0.25}, Usage(input=5, output=2, cost=0.25)),
        ({"prompt_tokens": None, "completion_tokens": -1, "cost": "0.1"}, Usage()),
        ({"prompt_tokens": True, "completion_tokens": 10**30, "cost": float("nan")}, Usage()),
        ({"cost": float("inf")}, Usage()),
        ({"prompt_tokens": 9, "prompt_cache_hit_tokens": 4}, Usage(input=9, cached=4)),
        ({"prompt_tokens": 9, "cached_tokens": 3}, Usage(input=9, cached=3)),
        ({"prompt_tokens_details": {"cached_tokens": 2}}, Usage(cached=2)),
        (
            {"completion_tokens_details": {"reasoning_tokens": 7}, "prompt_tokens_details": 3},
            Usage(reasoning=7),
        ),
    ],
)
def test_usage(said: dict[str, Any], usage: Usage) -> None:
    assert read_usage(said) == usage


def test_usage_in_x_groq_alone_counts() -> None:
    chunks = [
        b'{"choices":[{"delta":{"content":"a"}}]}',
        b'{"choices":[],"x_groq":{"usage":{"prompt_tokens":3,"completion_tokens":1}}}',
        b'{"choices":[],"usage":null}',
    ]
    assert assemble(decode_chunk(chunk) for chunk in chunks).usage == Usage(input=3, output=1)


def test_too_many_calls() -> None:
    many = [{"index": n, "function": {"name": "f", "arguments": "{}"}} for n in range(MAX_CALLS_PER_REPLY)]
    assert len(streamed({"tool_calls": many}).calls) == MAX_CALLS_PER_REPLY
    with pytest.raises(ModelError, match="more than 128 calls") as caught:
        streamed({"tool_calls": many}, fragment("{}", "g"))
    assert not caught.value.retryable


@pytest.mark.parametrize(
    "event",
    [
        {"content": "é" * 500_000},
        {"reasoning": "é" * 500_000},
        fragment("é" * 500_000, index=0, name="f"),
        {"content": [{"type": "image", "data": "é" * 500_000}]},
    ],
)
def test_an_endless_reply_stops_at_the_limit(event: Delta) -> None:
    chunk = decode_chunk(json.dumps({"choices": [{"delta": event}]}, ensure_ascii=False).encode())
    assembly = Assembly()
    taken = 0
    with pytest.raises(ModelError, match="more than 8388608 bytes") as caught:  # noqa: PT012 - counts on the way
        for _ in range(100):
            assembly.add(chunk)
            taken += 1
    assert taken == MAX_REPLY_BYTES // 1_000_000
    assert not caught.value.retryable

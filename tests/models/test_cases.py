"""The collected cases of odd answers: what each expects, in the words of its file."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.models.reading import read_reply

from tenuto.errors import ModelError
from tenuto.messages import CallRequest, Reply, Usage
from tenuto.models.reader import ReplyReader

Case = Callable[[str], dict[str, Any]]


@pytest.fixture
def case(shared: Path) -> Case:
    def read(name: str) -> dict[str, Any]:
        case = json.loads((shared / "cases" / f"{name}.json").read_text(encoding="utf-8"))
        value: dict[str, Any] = case["input"]
        return value

    return read


def failed(body: bytes) -> ModelError:
    with pytest.raises(ModelError) as caught:
        read_reply(body)
    return caught.value


def test_argument_shapes_stay_what_the_provider_said(case: Case) -> None:
    """Whole, streamed at once, and streamed by the character: always the same raw text."""
    for arguments in case("03-tool-args-shapes")["arguments"]:
        call = {"index": 0, "id": "c", "type": "function", "function": {"name": "t", "arguments": arguments}}
        choice = {"index": 0, "message": {"tool_calls": [call]}, "finish_reason": "tool_calls"}
        whole = read_reply(json.dumps({"choices": [choice]}).encode())
        first = {"index": 0, "id": "c", "function": {"name": "t"}}
        pieces = [{"index": 0, "function": {"arguments": piece}} for piece in arguments or ""]
        assert whole.calls == streamed(call).calls == (CallRequest("t", arguments, "c"),)
        assert streamed(first, *pieces).calls == (CallRequest("t", arguments or None, "c"),)


def streamed(*calls: dict[str, Any]) -> Reply:
    events = [{"choices": [{"index": 0, "delta": {"tool_calls": [call]}}]} for call in calls]
    body = "".join(f"data: {json.dumps(event)}\n\n" for event in events)
    return read_reply(f"{body}data: [DONE]\n\n".encode())


def test_content_as_parts(case: Case) -> None:
    document = case("06-content-array-of-parts")["json"]
    expected = Reply(
        text="Hello you", reasoning="hm", usage=Usage(input=3, output=4), model="m", finish="stop"
    )
    assert read_reply(json.dumps(document).encode()) == expected
    unknown = {"type": "audio", "data": [1, None]}
    document["choices"][0]["message"]["content"].append(unknown)
    reply = read_reply(json.dumps(document).encode())
    assert (reply.text, reply.extra) == ("Hello you", {"parts": [unknown]})


def test_framing_zoo(case: Case) -> None:
    body = case("09-sse-framing-zoo")["body"].encode()
    for size in (len(body), 1, 2, 3, 7):
        reader = ReplyReader()
        for start in range(0, len(body), size):
            reader.feed(body[start : start + size])
        reply = reader.finish()
        assert (reply.text, reply.finish, reply.model) == ("A\u2028BA\u2028B", "stop", "m")


def test_errors_with_status_200(case: Case) -> None:
    bodies = case("12-error-body-with-200")["bodies"]
    errors = [failed((body if isinstance(body, str) else json.dumps(body)).encode()) for body in bodies]
    assert [(error.status, error.retryable) for error in errors] == [
        (502, True),
        (None, False),
        (None, True),
        (None, True),
        (429, True),
        (None, True),
        (None, True),
    ]
    words = ["upstream", "Insufficient balance", "null", "[]", "x", "<html>login</html>", "empty body"]
    assert all(word in str(error) for word, error in zip(words, errors, strict=True))


def test_errors_inside_a_stream(case: Case) -> None:
    boom, tool_use = [failed(body.encode()) for body in case("12-error-body-with-200")["sse"]]
    assert (boom.status, boom.retryable, str(boom)) == (502, True, "502: boom")
    assert tool_use.retryable
    assert "Tool call validation failed" in str(tool_use)


def test_ids_repeated_or_missing(case: Case) -> None:
    body = case("14-stream-id-repeated-or-missing")["body"].encode()
    reply = read_reply(body)
    assert reply.calls == (CallRequest("f", '{"a":1}', "k"), CallRequest("g", "{}", "z"))
    assert reply.finish == "tool_calls"

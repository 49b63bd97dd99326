"""Whole answers of every kind, by their first byte and not by what they are called."""

import json
import time

import pytest
from tests.models.reading import read_reply

from tenuto.errors import ModelError
from tenuto.models.reader import ReplyReader

DOCUMENT = json.dumps({"choices": [{"message": {"content": "hé"}, "finish_reason": "stop"}]}).encode()
CHUNK = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'


def failed(body: bytes) -> ModelError:
    with pytest.raises(ModelError) as caught:
        read_reply(body)
    return caught.value


@pytest.mark.parametrize("before", [b"", b"\xef\xbb\xbf", b"\r\n \n", b"\n" * 100_000])
def test_a_document_instead_of_a_stream(before: bytes) -> None:
    """Blank lines come first where an endpoint keeps the connection alive while it thinks."""
    body = before + DOCUMENT
    assert read_reply(body).text == "hé"
    reader = ReplyReader()
    for start in range(0, len(body), 1 if len(body) < 1000 else 4000):
        reader.feed(body[start : start + (1 if len(body) < 1000 else 4000)])
    assert reader.finish().text == "hé"


@pytest.mark.parametrize("before", [b"", b"\xef\xbb\xbf", b"\n\n", b": wait\n\n" * 10_000])
def test_a_stream_after_what_keeps_it_alive(before: bytes) -> None:
    assert read_reply(before + CHUNK + b"data: [DONE]\n\n").text == "a"


def test_the_end_without_a_line_end() -> None:
    assert read_reply(CHUNK + b"data: [DONE]").text == "a"


def test_what_comes_after_the_end_is_not_read() -> None:
    assert read_reply(CHUNK + b"data: [DONE]\n\n" + CHUNK + b"data: nonsense\n\n").text == "a"


@pytest.mark.parametrize(
    ("body", "retryable", "words"),
    [
        (b"", True, "empty body"),
        (b"\n\n", True, "empty body"),
        (b": wait\n\n", True, ": wait"),
        (b"upstream connect error", True, "no answer: upstream connect error"),
        (b"<!doctype html><title>Log in</title>", True, "<title>Log in</title>"),
        (b'{"detail": "Not authenticated"}', True, "Not authenticated"),
        (DOCUMENT[:-5], True, "no answer: {"),
        (b"[" * 100_000, True, "no answer"),
        (b"data: {nonsense}\n\n" + CHUNK, True, "cannot be read: {nonsense}"),
        (b'data: {"choices": 7}\n\n' + CHUNK, True, "cannot be read"),
        (b"data: " + b"[" * 100_000 + b"\n\n" + CHUNK, True, "cannot be read"),
        (b"event: error\ndata: overloaded\n\n", True, "overloaded"),
        (b'event: error\ndata: {"message": "bad key", "type": "authentication_error"}\n\n', False, "bad key"),
        (b'[{"error": {"code": 503, "message": "busy", "status": "UNAVAILABLE"}}]', True, "503: busy"),
    ],
)
def test_what_is_no_answer(body: bytes, retryable: bool, words: str) -> None:
    error = failed(body)
    assert words in str(error)
    assert error.retryable is retryable


def feed_all(pieces: list[bytes]) -> None:
    reader = ReplyReader()
    for piece in pieces:
        reader.feed(piece)


def test_a_document_without_an_end() -> None:
    with pytest.raises(ModelError, match="document of more than 8388608 bytes"):
        feed_all([b'{"a": "', *[b"x" * 100_000] * 100])


def test_a_stream_without_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenuto.models.reader.MAX_STREAM_BYTES", 1_000)
    with pytest.raises(ModelError, match="stream of more than 1000 bytes"):
        feed_all([b": still here\n\n"] * 1_000)


def test_a_delta_costs_little() -> None:
    """From bytes to what is shown: 25 microseconds of processor time at most; a tenth of it is usual."""
    head = {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "model": "m",
        "usage": None,
        "logprobs": None,
    }
    events = [head | {"choices": [{"index": 0, "delta": {"content": f" {n}"}}]} for n in range(2_000)]
    chunks = [f"data: {json.dumps(event)}\n\n".encode() for event in events] + [b"data: [DONE]\n\n"]
    seconds = []
    for _ in range(3):
        shown: list[object] = []
        started = time.process_time()
        reader = ReplyReader(shown.append)
        for chunk in chunks:
            reader.feed(chunk)
        reader.finish()
        seconds.append(time.process_time() - started)
        assert len(shown) == 2_000
    assert min(seconds) / 2_000 < 25e-6

"""Framing against the WHATWG text: lines end at CR, LF and CRLF only, and chunks may be cut anywhere."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenuto.errors import ModelError
from tenuto.limits import MAX_SSE_LINE_BYTES
from tenuto.models.sse import EventStream, Frame


def frames(*chunks: bytes) -> list[Frame]:
    stream = EventStream()
    found = [frame for chunk in chunks for frame in stream.feed(chunk)]
    return found + stream.close()


def by_the_book(body: bytes) -> list[Frame]:
    """The whole stream at once, as the standard words it, but for the event that is open at the end."""
    found: list[Frame] = []
    event = b""
    data: list[bytes] = []
    for line in [*re.split(rb"\r\n|\r|\n", body.removeprefix(b"\xef\xbb\xbf")), b""]:
        if not line:
            if data:
                found.append((event, b"\n".join(data)))
            event, data = b"", []
            continue
        name, _, value = line.partition(b":")
        value = value[1:] if value[:1] == b" " else value
        if name == b"data":
            data.append(value)
        if name == b"event":
            event = value
    return found


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"data: a\n\n", [(b"", b"a")]),
        (b"data:a\r\n\r\ndata:  b\r\rdata:c\n\n", [(b"", b"a"), (b"", b" b"), (b"", b"c")]),
        (b"data: a\ndata: b\n\n", [(b"", b"a\nb")]),
        (b": comment\n\nid: 7\nretry: 10\n\n", []),
        (b"event: error\ndata: x\n\ndata: y\n\n", [(b"error", b"x"), (b"", b"y")]),
        (b"event: lost\n\ndata: y\n\n", [(b"", b"y")]),
        (b"data\n\n", [(b"", b"")]),
        (b"\xef\xbb\xbfdata: a\n\n", [(b"", b"a")]),
        ("data: A\u2028B\u0085\u000bC\n\n".encode(), [(b"", "A\u2028B\u0085\u000bC".encode())]),
        (b"data: [DONE]", [(b"", b"[DONE]")]),
        (b"database: no\ndata : no\n\n", []),
    ],
)
def test_frames_of_one_body(body: bytes, expected: list[Frame]) -> None:
    assert frames(body) == expected
    assert frames(*(body[i : i + 1] for i in range(len(body)))) == expected


def test_a_frame_is_there_with_its_last_byte() -> None:
    """Also behind a lone CR: waiting for a possible LF would hold it back until the next event."""
    stream = EventStream()
    assert stream.feed(b"data: a\r") == []
    assert stream.feed(b"\r") == [(b"", b"a")]
    assert stream.feed(b"\ndata: b\r\n\r") == [(b"", b"b")]
    assert stream.feed(b"\ndata: c\n") == []
    assert stream.feed(b"\n") == [(b"", b"c")]


LINES = st.sampled_from(
    [b"data: x", b"data:", b"data", "data: é\u2028".encode(), b": c", b"event: error", b"id: 1", b"", b""]
)
ENDS = st.sampled_from([b"\n", b"\r", b"\r\n"])


@given(st.lists(st.tuples(LINES, ENDS)), st.booleans(), st.lists(st.integers(1, 200)))
def test_any_chunking_gives_the_frames_of_the_standard(
    lines: list[tuple[bytes, bytes]], mark: bool, cuts: list[int]
) -> None:
    body = (b"\xef\xbb\xbf" if mark else b"") + b"".join(line + end for line, end in lines)
    places = sorted({cut for cut in cuts if cut < len(body)})
    chunks = [body[a:b] for a, b in zip([0, *places], [*places, len(body)], strict=True)]
    assert frames(*chunks) == by_the_book(body)


def test_an_endless_line_is_an_error_in_bounded_memory() -> None:
    with pytest.raises(ModelError, match="more than 4194304 bytes") as caught:
        frames(*[b"x" * 65_536] * (MAX_SSE_LINE_BYTES // 65_536 + 1))
    assert not caught.value.retryable


def test_an_endless_event_is_an_error() -> None:
    with pytest.raises(ModelError, match="more than 4194304 bytes"):
        frames(*[b"data: " + b"x" * 65_536 + b"\n"] * (MAX_SSE_LINE_BYTES // 65_536 + 1))

"""Event-stream framing (WHATWG HTML, section 9.2.6), incremental over bytes, nothing else.

Written here because none of the kept decoders does all of it: httpx-sse and the one inside the openai
SDK know no byte order mark, set no bound on a line or an event, decode to str what the JSON decoder wants
as bytes, and report events that carry no data. The bytes of a line are never looked at twice, however
they are cut into chunks.
"""

from tenuto.errors import ModelError
from tenuto.limits import MAX_SSE_LINE_BYTES

Frame = tuple[bytes, bytes]
"""The event's type, empty for the usual `message`, and its data."""

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class EventStream:
    """Cuts bytes into frames. A line or an event of more than `most_bytes` raises `ModelError`."""

    def __init__(self, most_bytes: int = MAX_SSE_LINE_BYTES) -> None:
        self._most_bytes = most_bytes
        self._event = b""
        self._data: list[bytes] = []
        self._data_bytes = 0
        self._line: list[bytes] = []
        self._line_bytes = 0
        self._after_return = False
        self._first_line = True

    def feed(self, chunk: bytes) -> list[Frame]:
        """The frames that `chunk` completes; it may end anywhere, also inside a character."""
        if self._after_return and chunk:
            # The line ended with the CR of the chunk before; this LF is its other half.
            self._after_return = False
            if chunk[0] == 10:
                chunk = chunk[1:]
        if not chunk:
            return []
        lines = chunk.splitlines()  # of bytes: at LF, CR and CRLF only
        rest = b""
        if chunk[-1] == 13:
            self._after_return = True
        elif chunk[-1] != 10:
            rest = lines.pop()
        frames: list[Frame] = []
        for line in lines:
            if self._line:
                self._line.append(line)
                line = b"".join(self._line)  # noqa: PLW2901 - the line is whole only now
                self._line.clear()
                self._line_bytes = 0
            self._take(line, frames)
        if rest:
            self._line.append(rest)
            self._line_bytes += len(rest)
            self._check(self._line_bytes)
        return frames

    def close(self) -> list[Frame]:
        """What is left at the end of the stream.

        The standard drops an event without a blank line after it; here it is kept, because endpoints
        leave the last line end out after `[DONE]`. One that was cut does not decode, and shows itself so.
        """
        frames: list[Frame] = []
        if self._line:
            self._take(b"".join(self._line), frames)
            self._line.clear()
        self._take(b"", frames)
        return frames

    def _take(self, line: bytes, frames: list[Frame]) -> None:
        if self._first_line:
            self._first_line = False
            line = line.removeprefix(_BYTE_ORDER_MARK)
        if not line:
            if self._data:
                frames.append((self._event, b"\n".join(self._data)))
                self._data.clear()
                self._data_bytes = 0
            self._event = b""
            return
        field, _, value = line.partition(b":")
        if field == b"data":
            self._data.append(value.removeprefix(b" "))
            self._data_bytes += len(value) + 1
            self._check(self._data_bytes)
        elif field == b"event":
            self._event = value.removeprefix(b" ")

    def _check(self, size: int) -> None:
        if size > self._most_bytes:
            raise ModelError(f"the provider sent one line or event of more than {self._most_bytes} bytes")

"""The bytes of one HTTP answer become a reply: framing, decoding and assembly in one pure object.

Whether the answer is an event stream or one JSON document is read off its first byte, not off its content
type: endpoints answer a request for a stream with a document, and name either one as the other.
"""

from collections.abc import Callable

from tenuto.errors import ModelError
from tenuto.limits import MAX_PROVIDER_ERROR_BYTES, MAX_REPLY_BYTES, MAX_STREAM_BYTES
from tenuto.messages import Delta, Reply
from tenuto.models.assemble import Assembly
from tenuto.models.failure import body_failure
from tenuto.models.sse import EventStream, Frame
from tenuto.models.wire import decode_chunk

_BLANK = b" \t\r\n"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class ReplyReader:
    """Takes the bytes as they come, however they are cut. `emit` is shown the text while it arrives."""

    def __init__(self, emit: Callable[[Delta], None] | None = None) -> None:
        self.done = False
        self._emit = emit
        self._assembly = Assembly()
        self._stream = EventStream()
        self._document: bytearray | None = None
        self._head = bytearray()
        self._is_stream = False
        self._bytes = 0
        self._frames = 0

    @property
    def complete(self) -> bool:
        """The reply is all there, whatever may still be read or break."""
        return self.done or bool(self._assembly.finish)

    def feed(self, chunk: bytes) -> None:
        """Raises `ModelError` for an error inside the answer and beyond the limits."""
        self._bytes += len(chunk)
        if self._document is not None:
            self._document += chunk
            if self._bytes > MAX_REPLY_BYTES:
                raise ModelError(f"the provider sent a document of more than {MAX_REPLY_BYTES} bytes")
            return
        if self._bytes > MAX_STREAM_BYTES:
            raise ModelError(f"the provider sent a stream of more than {MAX_STREAM_BYTES} bytes")
        if not self._frames and len(self._head) < MAX_PROVIDER_ERROR_BYTES:
            # Kept until the first frame: if none comes, this is what the provider said.
            self._head += chunk
            if not self._is_stream and self._look():
                return
        for frame in self._stream.feed(chunk):
            self._take(frame)

    def _look(self) -> bool:
        """Whether the answer is a document; undecided while only blanks came, which keep a line alive."""
        start = bytes(self._head).removeprefix(_BYTE_ORDER_MARK).lstrip(_BLANK)
        if start[:1] in (b"{", b"[", b"<"):
            self._document, self._head = self._head, bytearray()
            return True
        if not start:
            self._head.clear()
        self._is_stream = bool(start) and not _BYTE_ORDER_MARK.startswith(start)
        return False

    def finish(self) -> Reply:
        """The reply, when the answer has ended. Raises `ModelError` if there is none."""
        if self._document is not None:
            return self._read_document(bytes(self._document).removeprefix(_BYTE_ORDER_MARK))
        for frame in self._stream.close():
            self._take(frame, last=True)
        if not self._frames:
            raise body_failure(bytes(self._head))
        return self._assembly.reply(self.done)

    def _take(self, frame: Frame, last: bool = False) -> None:
        event, data = frame
        self._frames += 1
        if self.done or not data or data.isspace():
            return
        if data.startswith(b"[DONE]"):
            self.done = True
            return
        if event == b"error":
            raise body_failure(data, said_error=True)
        try:
            chunk = decode_chunk(data)
        except ValueError as error:
            if last:
                return  # the stream was cut inside this chunk, and says so as a whole
            words = f"the provider sent a chunk that cannot be read: {data.decode('utf-8', 'replace')}"
            raise ModelError(words, retryable=True) from error
        for delta in self._assembly.add(chunk):
            if self._emit is not None:
                self._emit(delta)

    def _read_document(self, body: bytes) -> Reply:
        try:
            chunk = decode_chunk(body)
        except ValueError as error:
            raise body_failure(body) from error
        if not chunk.choices and not chunk.error:
            raise body_failure(body)
        for delta in self._assembly.add(chunk):
            if self._emit is not None:
                self._emit(delta)
        return self._assembly.reply(done=True)

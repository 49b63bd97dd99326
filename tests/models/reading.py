"""A reply out of what is there whole, where the tests do not care how it arrives."""

from collections.abc import Iterable

from tenuto.messages import Reply
from tenuto.models.assemble import Assembly
from tenuto.models.reader import ReplyReader
from tenuto.models.wire import Chunk


def read_reply(body: bytes) -> Reply:
    """The reply of a whole body, stream or document. Raises `ModelError`."""
    reader = ReplyReader()
    reader.feed(body)
    return reader.finish()


def assemble(chunks: Iterable[Chunk], done: bool = True) -> Reply:
    """The reply of all chunks. `done`: the stream said that it is complete."""
    assembly = Assembly()
    for chunk in chunks:
        assembly.add(chunk)
    return assembly.reply(done)

"""`tenuto export`: a thread's events as they are stored, one JSON object a line, as the server exports them.

A line has `seq`, `v`, `at`, `type`, `hash`, `body_hash`, `salt` and `body`, hashes and salt in hexadecimal.
With the thread's id that is all it takes to check the chain (`tenuto.events.chain_hash`) without a database.
"""

import contextlib
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

import msgspec

from tenuto.cli.find import AnyRuntime, find_thread, opened
from tenuto.cli.target import Target
from tenuto.cli.terminal import progress
from tenuto.client.bodies import StoredBody
from tenuto.errors import Conflict
from tenuto.rows import StoredEvent


async def export(target: Target, thread: str, file: Path | None, force: bool) -> None:
    """Write to `file`, whole or not at all, or to standard output.

    Raises `Conflict` for a file that is there, unless `force`.
    """
    _check_free(file, force)
    async with opened(target) as runtime:
        row = await find_thread(runtime, thread)
        if file is None:
            async for line in _lines(runtime, row.id):
                sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()
            return
        with whole_file(file, force) as out, progress() as tell:
            count = 0
            async for line in _lines(runtime, row.id):
                out.write(line)
                count += 1
                tell(f"event {count} of {row.head_seq}")


def _check_free(file: Path | None, force: bool) -> None:
    if file is not None and file.exists() and not force:
        raise Conflict(f"{file} is there already; --force writes over it")


@contextlib.contextmanager
def whole_file(file: Path, force: bool) -> Iterator[IO[bytes]]:
    """A file that has its name only once all of it is on the disk."""
    handle, name = tempfile.mkstemp(prefix=f".{file.name}-", dir=file.parent)
    part = Path(name)
    try:
        with os.fdopen(handle, "wb") as out:
            yield out
            out.flush()
            os.fsync(out.fileno())
        _check_free(file, force)
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)


async def _lines(runtime: AnyRuntime, thread_id: str) -> AsyncIterator[bytes]:
    after = 0
    while page := await runtime.stored(thread_id, after):
        for event in page:
            yield line_of(event)
        after = page[-1].seq


def line_of(event: StoredEvent) -> bytes:
    """With the line feed at its end."""
    at = datetime.fromtimestamp(event.at_ms / 1000, UTC).isoformat(timespec="milliseconds")
    line = StoredBody(
        seq=event.seq,
        v=event.version,
        at=at.replace("+00:00", "Z"),
        type=event.type,
        hash=event.hash.hex(),
        body_hash=event.body_hash.hex(),
        salt=None if event.salt is None else event.salt.hex(),
        body=msgspec.Raw(b"null" if event.body is None else event.body),
    )
    return msgspec.json.encode(line) + b"\n"

"""JSON lines for programs: what `tenuto chat --jsonl` reads, and what it and `tenuto follow --jsonl` write.

A line of input is a message as it is, or a JSON object, which begins with a brace:

    {"message": "Refund order 17"}
    {"resolve": "INTERRUPT", "verb": "approve", "digest": "…", "comment": "…"}   also "arguments", "answer"
    {"extend": {"steps": 5, "tokens": 0, "cost": 0, "seconds": 0}}
    {"cancel": "why"}

A line of output is one JSON object, by `type`: `thread` (which thread this is), an event of the log (`seq`,
`at_ms`, `type`, `event`, as `tenuto show --json` has it), a delta (`text_delta`, `reasoning_delta`,
`call_delta`, `attempt_failed`, `reply_so_far`, `tool_progress`, `status_line`), `replayed` (the past is
told), `rested` (the turn's end, and where the thread stands), `error` (line number `line` of the input could
not be carried out; 0 is the message of the command line).
"""

import asyncio
import contextlib
import json
import os
import select
import sys
import threading
from collections.abc import AsyncGenerator
from typing import Any, Final

import msgspec

from tenuto import limits
from tenuto.errors import InvalidInput
from tenuto.events import Entry
from tenuto.messages import Live
from tenuto.stream import Replayed
from tenuto.thread import ThreadState

MAX_LINES_AHEAD: Final = 64
_CHUNK_BYTES: Final = 65_536


class MessageLine(msgspec.Struct, forbid_unknown_fields=True):
    message: str


class DecisionLine(msgspec.Struct, forbid_unknown_fields=True):
    """`digest` is that of the call that was seen; another one is refused."""

    resolve: str
    verb: str
    digest: str | None = None
    comment: str = ""
    arguments: msgspec.Raw = msgspec.Raw()
    answer: str = ""


class Amounts(msgspec.Struct, forbid_unknown_fields=True):
    """What the turn gets more; nothing at all lets a failed thread go on as it is."""

    steps: int = 0
    tokens: int = 0
    cost: float = 0.0
    seconds: float = 0.0


class ExtensionLine(msgspec.Struct, forbid_unknown_fields=True):
    extend: Amounts


class CancelLine(msgspec.Struct, forbid_unknown_fields=True):
    cancel: str


Line = MessageLine | DecisionLine | ExtensionLine | CancelLine
FORMS: Final[dict[str, type[Line]]] = {
    "message": MessageLine,
    "resolve": DecisionLine,
    "extend": ExtensionLine,
    "cancel": CancelLine,
}


def parse(data: bytes) -> Line:
    """A line of input. Raises `InvalidInput` with what is wrong."""
    if len(data) > limits.MAX_BODY_BYTES:
        raise InvalidInput(f"a line has at most {limits.MAX_BODY_BYTES} bytes")
    try:
        text = data.decode()
        if not text.lstrip().startswith("{"):
            return MessageLine(text.strip())
        keys = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
        forms = [form for key, form in FORMS.items() if key in keys]
        if len(forms) != 1:
            raise InvalidInput(f"a JSON object has one of {', '.join(FORMS)}")
        return msgspec.json.decode(data, type=forms[0])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInput(f"the line cannot be read: {error}") from error


async def read_lines() -> AsyncGenerator[tuple[int, Line | InvalidInput], None]:
    """The lines of standard input as they come, numbered from 1, without the blank ones; of one that cannot
    be read, why not. At most MAX_LINES_AHEAD are read ahead.
    """
    loop, room = asyncio.get_running_loop(), threading.Semaphore(MAX_LINES_AHEAD)
    queue: asyncio.Queue[bytes | None] = asyncio.Queue()

    def read() -> None:
        # A thread of our own, past Python's buffers: the end of the process need not wait for the next line.
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody wants more
            for data in _raw_lines(sys.stdin.fileno()):
                room.acquire()
                loop.call_soon_threadsafe(queue.put_nowait, data)
            loop.call_soon_threadsafe(queue.put_nowait, None)

    threading.Thread(target=read, name="tenuto-stdin", daemon=True).start()
    number = 0
    while (data := await queue.get()) is not None:
        room.release()
        number += 1
        if not data.strip():
            continue
        try:
            yield number, parse(data)
        except InvalidInput as error:
            yield number, error


def _raw_lines(file: int) -> Any:
    """Lines of a file descriptor; what is too long for one is cut to just that, and goes on at the next."""
    rest, most = b"", limits.MAX_BODY_BYTES + 1
    while data := os.read(file, _CHUNK_BYTES):
        *whole, last = data.split(b"\n")
        for part in whole:
            yield (rest + part)[:most]
            rest = b""
        rest = (rest + last)[:most]
    if rest:
        yield rest


class LineWriter:
    """Writes objects to standard output, each on a line of its own and at once.

    In ASCII alone, so that they can carry anything anywhere. A slow reader makes `write` wait, not the loop:
    a thread that runs here keeps its lease. Raises `BrokenPipeError` when nobody reads any more.
    """

    def __init__(self) -> None:
        sys.stdout.flush()
        self._file = sys.stdout.fileno()
        self._line = asyncio.Lock()  # several tasks write

    async def write(self, value: dict[str, Any]) -> None:
        """One object."""
        data = memoryview((json.dumps(msgspec.to_builtins(value)) + "\n").encode())
        async with self._line:
            while data:
                await self._writable()
                # As much as a pipe that can be written to takes without waiting (POSIX, pipe capacity).
                data = data[os.write(self._file, data[: select.PIPE_BUF]) :]

    async def item(self, item: Entry | Replayed | Live) -> None:
        """An event, a delta, or the boundary between the past and now."""
        await self.write(plain(item) if isinstance(item, Entry) else msgspec.to_builtins(item))

    async def _writable(self) -> None:
        loop = asyncio.get_running_loop()
        while not select.select([], [self._file], [], 0)[1]:
            ready = asyncio.Event()
            loop.add_writer(self._file, ready.set)
            try:
                await ready.wait()
            finally:
                loop.remove_writer(self._file)


def plain(entry: Entry) -> dict[str, Any]:
    """An event as programs get it."""
    event = msgspec.to_builtins(entry.event)
    return {"seq": entry.seq, "at_ms": entry.at_ms, "type": event.pop("type")} | {"event": event}


def summary(state: ThreadState) -> dict[str, Any]:
    """Where a thread stands, as programs get it."""
    return {
        "thread": state.id,
        "agent": state.agent,
        "status": state.status,
        "answer": state.answer,
        "error": state.error,
        "limit": state.limit,
        "steps": state.step,
        "head_seq": state.head_seq,
        "interrupts": state.interrupts,
    }

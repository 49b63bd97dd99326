"""Servers for clients: the one of the server's tests, and one that misbehaves as it is told."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field

import pytest
from tests.server.conftest import serving

from tenuto import Client

__all__ = ["serving"]  # a fixture

TOKEN = "s3cret-of-ana"


@dataclass
class Asked:
    """A request as it came in."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


Answer = Callable[[Asked, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Rogue:
    """A server on a real socket that answers each request as the next of `answers`, the last for ever."""

    answers: list[Answer]
    asked: list[Asked] = field(default_factory=list)
    url: str = ""
    serving: set[asyncio.Task[None]] = field(default_factory=set)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.serving.add(task)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                method, path, _ = head[0].split(" ")
                headers = {
                    name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:-2])
                }
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                self.asked.append(Asked(method, path, headers, body))
                await self.answers[min(len(self.asked), len(self.answers)) - 1](self.asked[-1], writer)
                if writer.is_closing():
                    break
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def says(status: int, body: bytes = b"", **headers: str) -> Answer:
    """A whole answer."""
    lines = [f"HTTP/1.1 {status} Said", f"content-length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]

    async def answer(_: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write("\r\n".join([*lines, "", ""]).encode() + body)
        await writer.drain()

    return answer


async def hangs_up(_: Asked, writer: asyncio.StreamWriter) -> None:
    """No answer at all."""
    writer.close()


def streams(*chunks: bytes, and_then: Answer = hangs_up) -> Answer:
    """An event stream with these bytes, which then breaks off."""

    async def answer(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
        for chunk in chunks:
            writer.write(chunk)
            await writer.drain()
        await and_then(asked, writer)

    return answer


Starting = Callable[..., AbstractAsyncContextManager[tuple[Rogue, Client]]]


@pytest.fixture
def rogue() -> Starting:
    @contextlib.asynccontextmanager
    async def start(*answers: Answer, token: str = "") -> AsyncIterator[tuple[Rogue, Client]]:
        server = Rogue(list(answers))
        listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
        server.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        try:
            async with Client(server.url, token=token) as client:
                yield server, client
        finally:
            listener.close()
            await asyncio.gather(*server.serving)

    return start


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pauses that a test would feel."""
    monkeypatch.setattr("tenuto.limits.CLIENT_RETRY_FIRST_SECONDS", 0.01)
    monkeypatch.setattr("tenuto.limits.CLIENT_RETRY_LONGEST_SECONDS", 0.02)

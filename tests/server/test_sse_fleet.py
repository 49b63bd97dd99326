"""Streams across processes: one worker, two servers, PostgreSQL; clients that move from server to server."""

import asyncio
import contextlib
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
from tests.server.test_sse import SSE, Parser

from tenuto.testing import call
from tenuto.testing.provider import Answer, ScriptedProvider

SAID = "".join(f"word {number}, é\n\u2028\U0001f642" for number in range(120))
ROOT = Path(__file__).resolve().parents[2]


LONG = "0123456789" * 30_000


async def script(request: dict) -> Answer:
    last = request["messages"][-1]
    if "tell" in str(last["content"]):
        return Answer(text=LONG, piece_characters=3_000, pause_seconds=0.012)
    if last["role"] == "user" and last["content"] == "work":
        return Answer(calls=[call("work")])
    return Answer(text=SAID, piece_characters=7, pause_seconds=0.015)


@contextlib.asynccontextmanager
async def process(environment: dict[str, str], *arguments: str) -> AsyncIterator[str]:
    """`tenuto` with these arguments; the line that it begins with."""
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tenuto", *arguments),
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert child.stdout is not None
    try:
        yield (await child.stdout.readline()).decode().strip()
    finally:
        child.terminate()
        await child.wait()


class Client:
    """What a browser shows of one thread, through whichever server."""

    def __init__(self) -> None:
        self.last_id = ""
        self.text = ""
        self.answers: list[str] = []
        self.types: list[str] = []
        self.grew = 0

    async def read(self, url: str, thread: str, until) -> None:
        """From where it was, until the condition holds."""
        headers = SSE | ({"Last-Event-ID": self.last_id} if self.last_id else {})
        parser = Parser()
        async with (
            httpx2.AsyncClient(base_url=url, timeout=40) as client,
            client.stream("GET", f"/v1/threads/{thread}/events", headers=headers) as stream,
        ):
            assert stream.status_code == 200
            async for part in stream.aiter_bytes():
                for name, id_, data in parser.feed(part):
                    self.take(name, data, id_)
                    if until(self):
                        return
        raise AssertionError("the stream ended")

    def take(self, name: str, data: dict, id_: str | None) -> None:
        self.types.append(name)
        match name:
            case "text_delta":
                self.text += data["text"]
                self.grew += 1
            case "reply_so_far":
                self.text = data["text"]
                self.grew += 1
            case "replayed":
                self.text = ""
        if id_ is not None:
            self.last_id, self.text = id_, ""
        if name == "model_replied":
            self.answers.append(data.get("text", ""))
        # Never a hole, never a part of something else.
        assert (LONG if self.text.startswith("0123") else SAID).startswith(self.text)


@contextlib.asynccontextmanager
async def two_servers_and_a_worker(
    database: str,
) -> AsyncIterator[tuple[contextlib.AsyncExitStack, str, str]]:
    """Each a process; what the tests add to their stack is ended before them."""
    async with ScriptedProvider(script) as provider, contextlib.AsyncExitStack() as fleet:
        environment = {
            "PATH": os.environ["PATH"],
            "TENUTO_DATABASE": database,
            "PROVIDER_URL": provider.url,
            "PROVIDER_MODEL": "scripted",
            "TENUTO_LOG_LEVEL": "warning",
        }
        agent = "tests.server.working:agent"
        serve = ("serve", agent, "--no-worker", "--port", "0")
        lines = [await fleet.enter_async_context(process(environment, *serve)) for _ in range(2)]
        first, second = (line.rpartition(" ")[2] for line in lines)
        await fleet.enter_async_context(process(environment, "worker", agent))
        yield fleet, first, second


async def test_clients_move_between_servers_while_a_worker_elsewhere_runs_the_thread(
    postgres_url: str,
) -> None:
    async with two_servers_and_a_worker(postgres_url) as (_, first, second):
        async with httpx2.AsyncClient(base_url=first, timeout=40) as client:
            thread = (await client.post("/v1/threads", json={"message": "work"})).json()["id"]
        moving, staying = Client(), Client()
        follows = asyncio.create_task(
            staying.read(second, thread, lambda shown: "thread_completed" in shown.types)
        )
        await moving.read(first, thread, lambda shown: "tool_progress" in shown.types)
        await moving.read(first, thread, lambda shown: len(shown.text) > 100)
        before = moving.grew
        # Another server, in the middle of the reply: it is told whole, and goes on.
        await moving.read(second, thread, lambda shown: shown.grew >= before + 3 and len(shown.text) > 400)
        await moving.read(first, thread, lambda shown: "thread_completed" in shown.types)
        await follows
        for client in (moving, staying):
            assert client.answers == ["", SAID]
            assert client.grew > 5
            place = client.types.index("model_replied", client.types.index("call_finished"))
            assert {"text_delta", "reply_so_far"} & set(client.types[:place])
            assert not {"text_delta", "reply_so_far"} & set(client.types[place:])
        assert {"tool_progress", "status_line"} <= set(staying.types)
        durable = [
            name for name in moving.types if name in ("model_replied", "call_finished", "thread_completed")
        ]
        assert durable == ["model_replied", "call_finished", "model_replied", "thread_completed"]


def stuck(url: str, thread: str) -> socket.socket:
    """A client that asks for the events of a thread, and reads none of them."""
    host, _, port = url.removeprefix("http://").partition(":")
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect((host, int(port)))
    client.sendall(f"GET /v1/threads/{thread}/events?stream=true HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    return client


async def test_clients_that_read_nothing_slow_no_worker_of_the_fleet(postgres_url: str) -> None:
    """The same turn, followed by nobody, and by many who are stuck and one at another server who reads."""
    async with two_servers_and_a_worker(postgres_url) as (fleet, first, second):
        client = await fleet.enter_async_context(httpx2.AsyncClient(base_url=first, timeout=40))

        async def turn(thread: str, count: int) -> float:
            """How long it takes, as the log has it."""
            begun = time.monotonic()
            if count > 1:
                sent = await client.post(f"/v1/threads/{thread}/messages", json={"text": "tell"})
                assert sent.is_success, sent.text
            while True:
                at = (await client.get(f"/v1/threads/{thread}")).json()
                if (at["status"], at["head_seq"]) == ("completed", 1 + 3 * count):
                    return time.monotonic() - begun
                await asyncio.sleep(0.05)

        thread = (await client.post("/v1/threads", json={"message": "tell"})).json()["id"]
        await turn(thread, 1)
        alone = [await turn(thread, 2), await turn(thread, 3)]
        crowd = [stuck(first, thread) for _ in range(40)]
        for one in crowd:
            fleet.callback(one.close)
        reads = Client()
        reading = asyncio.create_task(
            reads.read(second, thread, lambda shown: shown.types.count("thread_completed") == 5)
        )
        await asyncio.sleep(0.5)
        beside = [await turn(thread, 4), await turn(thread, 5)]
        metrics = (await client.get("/metrics")).text
        followed = re.findall(r"^tenuto_stream_subscribers (\S+)", metrics, re.MULTILINE)
        await reading
    assert float(followed[0]) == len(crowd), "they hang on: what was measured is what they do to others"
    assert reads.answers == [LONG] * 5
    assert min(beside) < 4 * min(alone), (alone, beside)  # one that waited for them would never end

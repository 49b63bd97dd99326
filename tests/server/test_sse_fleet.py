"""Streams across processes: one worker, two servers, PostgreSQL; clients that move from server to server."""

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
from tests.server.test_sse import SSE, Parser

from tenuto.testing import call
from tenuto.testing.provider import Answer, ScriptedProvider

SAID = "".join(f"word {number}, é\n\u2028\U0001f642" for number in range(120))
ROOT = Path(__file__).resolve().parents[2]


async def script(request: dict) -> Answer:
    last = request["messages"][-1]
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
        assert SAID.startswith(self.text)


async def test_clients_move_between_servers_while_a_worker_elsewhere_runs_the_thread(
    postgres_url: str,
) -> None:
    async with ScriptedProvider(script) as provider, contextlib.AsyncExitStack() as fleet:
        environment = {
            "PATH": os.environ["PATH"],
            "TENUTO_DATABASE": postgres_url,
            "PROVIDER_URL": provider.url,
            "PROVIDER_MODEL": "scripted",
            "TENUTO_LOG_LEVEL": "warning",
        }
        agent = "tests.server.working:agent"
        serve = ("serve", agent, "--no-worker", "--port", "0")
        lines = [await fleet.enter_async_context(process(environment, *serve)) for _ in range(2)]
        first, second = (line.rpartition(" ")[2] for line in lines)
        await fleet.enter_async_context(process(environment, "worker", agent))
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

"""The npm package `eventsource`, a server under load, and between them a proxy that cuts at random bytes."""

import asyncio
import contextlib
import json
import random
import shutil
import subprocess
from pathlib import Path

import httpx2
import pytest
from tests.server.talking import ask, rested, said, talking

from tenuto.events import TYPES
from tenuto.server import Access

NODE = Path(__file__).parents[1] / "node"
TOKEN = "token-of-bob"
KINDS = ("text_delta", "reply_so_far", "replayed", *TYPES)
STEPS, DELTAS = 5, 40
OFFLINE = ("ENOTFOUND", "EAI_AGAIN", "ECONNREFUSED", "ECONNRESET", "ETIMEDOUT", "ENETUNREACH")


@pytest.fixture(scope="module")
def node() -> str:
    """The path of Node, with the packages of tests/node installed beside them, once."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("the npm client of event streams needs node and npm")
    lock = (NODE / "package-lock.json").read_text()
    stamp = NODE / "node_modules" / ".lock"
    if not stamp.exists() or stamp.read_text() != lock:
        command = (
            npm,
            "ci",
            "--ignore-scripts",
            "--no-audit",
            "--no-fund",
            "--omit-lockfile-registry-resolved",
        )
        done = subprocess.run(command, cwd=NODE, capture_output=True, text=True, timeout=50, check=False)
        if done.returncode and any(code in done.stderr for code in OFFLINE):
            pytest.skip("npm cannot reach its registry to install the client of event streams")
        assert done.returncode == 0, done.stderr
        stamp.write_text(lock)
    return node


class CuttingProxy:
    """Carries connections to `url`, and resets or ends each after a random number of bytes of its answer."""

    def __init__(self, url, seed):
        self._to = httpx2.URL(url)
        self._rng = random.Random(seed)
        self.cuts = 0

    @contextlib.asynccontextmanager
    async def running(self):
        tasks = set()

        async def carried(reader, writer):
            tasks.add(asyncio.current_task())
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await self._carry(reader, writer)

        server = await asyncio.start_server(carried, "127.0.0.1", 0)
        async with server:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _carry(self, reader, writer):
        left = int(self._rng.expovariate(1 / self._rng.choice([400, 2_000, 8_000])))
        there, back = await asyncio.open_connection(self._to.host, self._to.port)
        sending = asyncio.create_task(self._send(reader, back))
        try:
            while left > 0 and (data := await there.read(16_384)):
                writer.write(data[:left])
                left -= len(data)
                await writer.drain()
            if left <= 0:
                self.cuts += 1
                if self._rng.random() < 0.5:
                    writer.transport.abort()
        finally:
            sending.cancel()
            back.transport.abort()
            writer.close()

    async def _send(self, reader, back):
        with contextlib.suppress(OSError):
            while data := await reader.read(16_384):
                back.write(data)


async def follow(node, url, token, threads):
    """What each client was told, until all are closed."""
    command = (node, str(NODE / "eventsource.mjs"), url, token, ",".join(KINDS), *threads)
    child = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        out, errors = await asyncio.wait_for(child.communicate(), 50)
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    assert (child.returncode, errors.decode()) == (0, "")
    told = [[] for _ in threads]
    for line in out.splitlines():
        client, kind, mark, data = json.loads(line)
        told[client].append((kind, mark, data))
    return told


async def test_each_event_once_and_the_final_text_right_though_connections_are_cut(node, tmp_path):
    async with talking(tmp_path, SUBMIT_TOKEN=TOKEN, STREAM_RETRY_MS="20") as (client, _):
        proxy = CuttingProxy(client.base_url, 17)
        noise = [await ask(client, "3 20 1 500") for _ in range(20)]
        threads = [await ask(client, f"{STEPS} {DELTAS} 3 500") for _ in range(6)]
        async with proxy.running() as url:
            told = await follow(node, url, TOKEN, threads * 3)
        for thread_id in noise:
            await rested(client, thread_id)
        whole = {
            thread_id: (await client.get(f"/v1/threads/{thread_id}/events")).json()["events"]
            for thread_id in threads
        }
    for number, lines in enumerate(told):
        events = [(int(mark), json.loads(data)) for kind, mark, data in lines if kind in TYPES]
        assert [seq for seq, _ in events] == [event["seq"] for _, event in events]
        assert [event for _, event in events] == whole[threads[number % len(threads)]], f"client {number}"
        assert [seq for seq, _ in events] == list(range(1, 2 + 2 * STEPS + 2 + 1))
        shown, final = "", []
        for kind, _, data in lines:
            if kind == "text_delta":
                shown += json.loads(data)["text"]
            elif kind == "reply_so_far":
                shown = json.loads(data)["text"]
            elif kind == "replayed":
                shown = ""
            elif kind == "model_replied":
                # What is shown while it arrives is the beginning; the event has it all.
                final.append(json.loads(data)["text"])
                assert final[-1].startswith(shown)
                shown = ""
        assert final == [said(step, DELTAS) for step in range(STEPS + 1)]
        assert shown == ""
        assert lines[-1][0] == "closed"
        assert lines[-1][2] in ("200", "204")
    connections = sum(kind == "open" for lines in told for kind, _, _ in lines)
    assert connections > 2 * len(told)
    assert proxy.cuts > len(told)
    assert {"text_delta", "reply_so_far"} <= {kind for lines in told for kind, _, _ in lines}


async def test_without_the_token_it_is_refused_and_does_not_come_again(node, serving):
    async with serving(Access("s3cret-of-ana", TOKEN)) as place:
        thread_id = await place.runtime.start("ops", "hello")
        (lines,) = await follow(node, place.url, "", [thread_id])
    assert lines == [("closed", "", "401")]

"""A server process whose agent talks as it is asked to, for tests of many clients at once."""

import asyncio
import contextlib
import os
import subprocess
import sys

import httpx2

SERVER = """
import asyncio, os
from tenuto import Agent, Runtime, limits, tool
from tenuto.messages import AssistantMessage, CallRequest, Reply, TextDelta, UserMessage
from tenuto.server import serve

for name in os.environ:
    if hasattr(limits, name):
        setattr(limits, name, type(getattr(limits, name))(os.environ[name]))

@tool(effect="read")
async def fill(size: int) -> str:
    return "x" * size

class Talker:
    name = "talker"

    async def reply(self, request, emit=None):
        place = max(i for i, said in enumerate(request.messages) if isinstance(said, UserMessage))
        steps, deltas, pause_ms, size = map(int, request.messages[place].text.split())
        step = sum(isinstance(said, AssistantMessage) for said in request.messages[place:])
        pieces = [f"{step}: ", *(f"word {number}, line\\n\\u2028\\U0001f642" for number in range(deltas))]
        for piece in pieces:
            if emit is not None:
                emit(TextDelta(piece))
            await asyncio.sleep(pause_ms / 1000)
        if step < steps:
            return Reply(text="".join(pieces), calls=(CallRequest("fill", '{"size":%d}' % size),))
        return Reply(text="".join(pieces))

agent = Agent("talker", tools=[fill], model=Talker(), max_steps=0)
serve(
    Runtime([agent], "sqlite:///tenuto.db"), host="127.0.0.1", port=0,
    ready=lambda url: print(url, flush=True),
)
"""


def said(step, deltas):
    """The text of a reply."""
    return f"{step}: " + "".join(f"word {number}, line\n\u2028\U0001f642" for number in range(deltas))


@contextlib.asynccontextmanager
async def talking(folder, **environment):
    """Yields a client and the server's process; `environment` may set limits by their names."""
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        SERVER,
        cwd=folder,
        env={"PATH": os.environ["PATH"]} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert child.stdout is not None
    assert child.stderr is not None
    errors = asyncio.create_task(child.stderr.read())
    try:
        url = (await child.stdout.readline()).decode().strip()
        assert url, (await errors).decode()
        limits = httpx2.Limits(max_connections=20)
        token = (
            {"Authorization": f"Bearer {environment['SUBMIT_TOKEN']}"}
            if "SUBMIT_TOKEN" in environment
            else {}
        )
        async with httpx2.AsyncClient(base_url=url, timeout=50, limits=limits, headers=token) as client:
            yield client, child
        child.terminate()
        assert await asyncio.wait_for(child.wait(), 20) == 0
        assert (await errors).decode() == ""
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
        await errors


async def ask(client, text, thread_id=None):
    """The id of a thread told to talk. `text`: steps, deltas, milliseconds between them, a result's size."""
    if thread_id is None:
        answer = await client.post("/v1/threads", json={"message": text})
    else:
        answer = await client.post(f"/v1/threads/{thread_id}/messages", json={"text": text})
    assert answer.status_code in (200, 201), answer.text
    return answer.json()["id"]


async def rested(client, thread_id):
    while (await client.get(f"/v1/threads/{thread_id}")).json()["status"] == "running":  # noqa: ASYNC110 - over HTTP
        await asyncio.sleep(0.05)

"""A thread that kills whoever advances it: real processes, kill -9, on both databases."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tenuto import Runtime
from tenuto.events import CallStarted, InterruptRaised
from tenuto.rows import InterruptRow

DEATHS = 3  # for these workers; the product waits for more
WORKER = """
import asyncio, os, signal, sys
from pathlib import Path
from tenuto import Agent, Runtime, Settings, limits, tool
from tenuto.messages import ToolMessage
from tenuto.models.scripted import ScriptedModel, call

@tool(effect="idempotent", timeout=0.2)
def explode() -> str:
    "Takes its process with it, until it is mended."
    if not Path(sys.argv[2], "mended").exists():
        os.kill(os.getpid(), signal.SIGKILL)
    return "mended"

async def script(request):
    last = request.messages[-1]
    if last.text.startswith("hello"):
        await asyncio.sleep(0.5)
    if isinstance(last, ToolMessage):
        return f"done: {last.text}"
    return call("explode") if last.text == "explode" else f"said {last.text}"

async def main():
    limits.POISON_DEATHS, limits.SUSPECT_DEATHS = int(sys.argv[3]), 1
    ops = Agent("ops", tools=[explode], model=ScriptedModel(script))
    settings = Settings(lease_seconds=0.6)
    async with Runtime([ops], sys.argv[1], settings=settings):
        print("works", flush=True)
        await asyncio.to_thread(sys.stdin.read)

asyncio.run(main())
"""


@pytest.fixture(params=["sqlite", "postgres"])
async def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/tenuto.db"
    url: str = request.getfixturevalue("postgres_url")
    return url


@pytest.fixture
async def looking(database: str) -> AsyncIterator[Runtime]:
    """No worker of its own: it starts threads and decides."""
    from tenuto import Agent, Settings

    async with Runtime([Agent("ops")], database, settings=Settings(worker=False)) as runtime:
        yield runtime


async def test_a_thread_that_kills_its_workers_asks_a_person(
    looking: Runtime, database: str, tmp_path: Path
) -> None:
    deadly = await looking.start("ops", "explode")
    others: list[str] = []
    for number in range(DEATHS):
        # The model takes longer than the deadly call: who is taken along with it dies with it.
        others.append(await looking.start("ops", f"hello {number}"))
        worker = await _worker(database, tmp_path)
        assert await worker.wait() == -signal.SIGKILL
    worker = await _worker(database, tmp_path)
    question = await _asked(looking)
    assert question.thread_id == deadly
    assert (question.kind, question.call_id) == ("question", "")
    assert question.prompt.startswith(f"{DEATHS} workers in a row died")
    assert "explode" in question.prompt
    for number, thread in enumerate(others):
        assert (await looking.wait(thread, 20)).answer == f"said hello {number}"
    # A message is no answer: nothing is run.
    await looking.send(deadly, "well?")
    await looking.wait(deadly, 20)
    assert worker.returncode is None
    (tmp_path / "mended").touch()
    await looking.resolve(question.id, "answer", by="ana", answer="it is mended")
    state = await looking.wait(deadly, 20)
    assert state.answer == "said it is mended"
    events = [entry.event for entry in await looking.events(deadly)]
    assert sum(isinstance(event, CallStarted) for event in events) == DEATHS + 1
    assert sum(isinstance(event, InterruptRaised) for event in events) == 1
    assert worker.stdin is not None
    worker.stdin.close()
    assert await worker.wait() == 0


async def _worker(database: str, place: Path) -> asyncio.subprocess.Process:
    worker = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        WORKER,
        database,
        str(place),
        str(DEATHS),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=dict(os.environ),
    )
    assert worker.stdout is not None
    await worker.stdout.readline()
    return worker


async def _asked(runtime: Runtime) -> InterruptRow:
    async with asyncio.timeout(20):
        while not (rows := await runtime.interrupts()):  # noqa: ASYNC110 - it comes from another process
            await asyncio.sleep(0.05)
    return rows[0]

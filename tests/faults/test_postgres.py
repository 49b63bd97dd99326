"""Agents at work while PostgreSQL crashes, comes back and cuts connections: nothing lost, nothing doubled."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tenuto import Agent, ConfigurationError, Runtime, tool
from tenuto.messages import Reply, Request
from tenuto.models.scripted import ScriptedModel, call
from tenuto.runtime import Settings
from tenuto.testing.postgres import PostgresServer, execute
from tenuto.tools import DidNotHappen, Happened, ToolContext

STEPS = 6
effects: Counter[str] = Counter()


def was_charged(arguments: dict[str, Any], key: str) -> Happened | DidNotHappen:
    return Happened("charged") if effects[key] else DidNotHappen()


@tool(effect="once", verify=was_charged, timeout=1.0)
async def charge(context: ToolContext, step: int) -> str:
    """Charge a card."""
    await asyncio.sleep(0.3)
    effects[context.idempotency_key] += 1
    return "charged"


def reply(request: Request) -> Reply:
    step = len(request.messages) // 2
    if step <= STEPS:
        return Reply(calls=(call("charge", step=step),), model="scripted", finish="tool_calls")
    return Reply(text="done", model="scripted", finish="stop")


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    try:
        server = PostgresServer()
    except ConfigurationError as error:
        pytest.skip(str(error))
    with server:
        yield server


async def disturb(server: PostgresServer) -> int:
    """A crash, a quick stop, and connections cut, with a while between; how much was done by the last."""
    done = 0
    for how in ("QUIT", "cut", "INT", "cut"):
        await asyncio.sleep(0.4)
        done = sum(effects.values())
        if how == "cut":
            ended = (
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'client backend'"
            )
            with contextlib.suppress(Exception):  # it cuts its own connection, too
                await asyncio.to_thread(execute, server.url, ended)
        else:
            await asyncio.to_thread(server.stop, how)
            await asyncio.to_thread(server.start)
    return done


async def test_everything_is_done_once_while_the_server_comes_and_goes(server: PostgresServer) -> None:
    effects.clear()
    agent = Agent("shop", "Charge.", [charge], model=ScriptedModel(reply, record=False), max_steps=0)
    settings = Settings(lease_seconds=2.0)
    async with (
        Runtime([agent], database=server.url, settings=settings) as first,
        Runtime([agent], database=server.url, settings=settings),
    ):
        threads = [await first.start("shop", "go") for _ in range(20)]
        disturbing = asyncio.create_task(disturb(server))
        states = []
        async with asyncio.timeout(50):
            for thread_id in threads:
                while not states or states[-1].id != thread_id:
                    try:
                        states.append(await first.wait(thread_id))
                    except Exception:  # noqa: BLE001 - the server is away just now
                        await asyncio.sleep(0.1)
            assert await disturbing < len(threads) * STEPS, "all was over before the last disturbance"
        assert {(state.status, state.answer) for state in states} == {("completed", "done")}
        for thread_id in threads:
            report = await first.verify(thread_id)
            assert report.ok, report
    assert Counter(effects.values()) == {1: len(threads) * STEPS}

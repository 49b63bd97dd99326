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


# -- away for longer than a lease ------------------------------------------------------------------------


def paying(paid: list[str], seconds: float) -> Agent:
    """Pays once, of which nobody else can tell afterwards; whatever is in doubt waits for a person."""

    @tool(effect="once", timeout=60.0)
    async def pay() -> str:
        """Pay."""
        await asyncio.sleep(seconds)
        paid.append("paid")
        return "paid"

    def says(request: Request) -> Any:
        return call("pay") if len(request.messages) == 2 else "done"

    return Agent("ops", "Pay.", [pay], model=ScriptedModel(says, record=False))


async def gone_on(agents: tuple[Agent, Agent], server: PostgresServer, away: Any) -> Any:
    """The thread after `away` came over a worker in the middle of its call; a second worker looks on."""
    how = Settings(lease_seconds=1.5)
    async with Runtime([agents[0]], server.url, settings=how) as first:
        thread_id = await first.start("ops", "go")
        while not any(holder.running for holder in first.worker._holders.values()):  # noqa: ASYNC110 - a call
            await asyncio.sleep(0.01)
        async with Runtime([agents[1]], server.url, settings=how) as second:
            await away()
            async with asyncio.timeout(30):
                return await second.wait(thread_id)


async def test_a_call_that_ended_while_the_server_was_away_is_recorded_by_who_ran_it(
    server: PostgresServer,
) -> None:
    """Longer than a lease, and than anybody waits who can try again: nobody is asked what became of it."""

    async def away() -> None:
        await asyncio.to_thread(server.stop, "QUIT")
        await asyncio.sleep(4)
        await asyncio.to_thread(server.start)

    paid: list[str] = []
    state = await gone_on((paying(paid, 0.5), paying(paid, 0.5)), server, away)
    assert (state.status, state.answer, paid) == ("completed", "done", ["paid"])


async def test_a_call_is_recorded_although_all_connections_of_the_server_are_in_use() -> None:
    try:
        server = PostgresServer(max_connections="20", superuser_reserved_connections="0")
    except ConfigurationError as error:
        pytest.skip(str(error))
    with server:

        async def away() -> None:
            """Others take every connection there is, as ours are cut."""
            import asyncpg

            others: list[Any] = []

            async def crowd() -> None:
                while True:
                    try:
                        others.append(await asyncpg.connect(server.url))
                    except asyncpg.PostgresError:
                        await asyncio.sleep(0.01)

            crowding = asyncio.create_task(crowd())
            await asyncio.sleep(0.3)
            cut = (
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() AND pid <> ALL ($1::int[])"
            )
            await others[0].fetch(cut, [other.get_server_pid() for other in others])
            await asyncio.sleep(4)
            crowding.cancel()
            for other in others:
                other.terminate()

        paid: list[str] = []
        state = await gone_on((paying(paid, 0.6), paying(paid, 0.6)), server, away)
        assert (state.status, state.answer, paid) == ("completed", "done", ["paid"])

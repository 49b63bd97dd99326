"""PostgreSQL among several processes: lost connections, restarts, workers, news, claims."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import asyncpg
import pytest

from tenuto import limits
from tenuto.chain import verify_chain
from tenuto.errors import AlreadyDecided, ConfigurationError, Conflict, StoreError
from tenuto.events import (
    ThreadId,
)
from tenuto.loop.holder import again
from tenuto.rows import Change
from tenuto.store.postgres import PostgresStore
from tenuto.testing.postgres import PostgresServer, execute
from tenuto.testing.store_contract.cases import LEASE, MESSAGE, approved, held, refused, started, waiting

LEASE_MS = round(limits.LEASE_SECONDS * 1000)
WAITING_BATCHES = "FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%tenuto_batch%'"


@pytest.fixture
async def store(postgres_url: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(postgres_url)
    await store.open()
    yield store
    await store.close()


@pytest.fixture
def server(postgres_server: str) -> Iterator[PostgresServer]:
    """One that may be stopped; where the tests use another's, there may be none."""
    try:
        server = PostgresServer()
    except ConfigurationError as error:
        pytest.skip(str(error))
    with server:
        yield server


async def until(condition: Callable[[], bool], seconds: float = 10) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - what is waited for is in another process
            await asyncio.sleep(0.02)


# -- connections that are lost ------------------------------------------------------------------------


async def kill_connections(store: PostgresStore, url: str) -> None:
    execute(
        url,
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() "
        "AND datname = current_database() AND backend_type = 'client backend'",
    )


async def test_a_commit_whose_answer_is_lost_is_found_by_its_id(
    store: PostgresStore, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection is cut off when the server has committed and before the answer is read."""
    thread_id = await started(store)
    fetch = asyncpg.pool.PoolConnectionProxy.fetch
    cut = []

    async def fetch_and_lose(self: Any, query: str, *parameters: Any, **how: Any) -> Any:
        rows = await fetch(self, query, *parameters, **how)
        if "tenuto_batch" in query and not cut:
            cut.append(query)
            await kill_connections(store, postgres_url)
            await fetch(self, "SELECT 1")
        return rows

    monkeypatch.setattr(asyncpg.pool.PoolConnectionProxy, "fetch", fetch_and_lose)
    error = await refused(StoreError, store.append(thread_id, [MESSAGE], append_id="a"))
    assert error.facts["unknown"]
    assert "try it again with the same append id" in str(error)
    first = await again(lambda: store.append(thread_id, [MESSAGE], append_id="a"))
    assert (first.first_seq, first.head_seq) == (3, 3)
    assert len(await store.read(thread_id)) == 3


async def test_a_connection_that_is_cut_during_a_write_leaves_the_outcome_unknown(
    store: PostgresStore, postgres_url: str
) -> None:
    """The write waits for the thread's lock when its connection ends; the same id then writes it, once."""
    thread_id = await started(store)
    blocker = await asyncpg.connect(postgres_url)
    transaction = blocker.transaction()
    await transaction.start()
    await blocker.execute("SELECT 1 FROM threads FOR UPDATE")
    attempts = 0

    async def append() -> Any:
        nonlocal attempts
        attempts += 1
        return await store.append(thread_id, [MESSAGE], append_id="a")

    appending = asyncio.create_task(again(append))
    waits = (
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%tenuto_batch%'"
    )
    await until(lambda: execute(postgres_url, waits) != [(0,)])
    await blocker.execute(f"SELECT pg_terminate_backend(pid) {WAITING_BATCHES}")
    await transaction.rollback()
    await blocker.close()
    assert (await appending).head_seq == 3
    assert attempts == 2
    assert len(await store.read(thread_id)) == 3


async def test_connections_that_were_cut_while_idle_are_noticed_by_nobody(
    store: PostgresStore, postgres_url: str
) -> None:
    thread_id = await started(store)
    await store.register("worker-1", ["ops"])
    claim = await held(store, thread_id, "worker-1")
    for number in range(3):
        await asyncio.gather(*(store.thread(thread_id) for _ in range(limits.POOL_CONNECTIONS)))
        await kill_connections(store, postgres_url)
        reads = [store.read(thread_id) for _ in range(5)]
        await asyncio.gather(*reads, store.renew("worker-1", [claim], **LEASE))
        await asyncio.gather(*(store.thread(thread_id) for _ in range(limits.POOL_CONNECTIONS)))
        await kill_connections(store, postgres_url)
        await asyncio.sleep(0.1)  # until the driver has been told: then nothing is sent
        await store.append(thread_id, [MESSAGE], append_id=f"a{number}")
    assert len(await store.read(thread_id)) == 5


async def test_a_write_is_tried_again_while_the_server_starts(server: PostgresServer) -> None:
    store = PostgresStore(server.url)
    await store.open()
    thread_id = await started(store)
    await asyncio.to_thread(server.stop, "QUIT")
    appending = asyncio.create_task(again(lambda: store.append(thread_id, [MESSAGE], append_id="a")))
    await asyncio.sleep(0.2)
    await asyncio.to_thread(server.start)
    assert (await appending).head_seq == 3
    await store.close()


async def test_the_store_goes_on_when_the_server_was_restarted(server: PostgresServer) -> None:
    store, other = PostgresStore(server.url), PostgresStore(server.url)
    await store.open()
    await other.open()
    heard: list[Change] = []
    other.on_change(heard.extend, lambda: [ThreadId("thread-1")])
    thread_id = await started(store)
    await store.register("worker-1", ["ops"])
    await asyncio.to_thread(server.stop, "QUIT")
    for attempt in (
        store.append(thread_id, [MESSAGE], append_id="a"),
        store.thread(thread_id),
        store.claim("worker-1", ["ops"], limit=1, **LEASE),
        other.threads(),
    ):
        await refused(StoreError, attempt)
    await asyncio.to_thread(server.start)
    assert (await store.append(thread_id, [MESSAGE], append_id="a")).head_seq == 3
    assert [row.owner for row in await other.workers()] == ["worker-1"]
    assert len((await other.claim("worker-2", ["ops"], limit=1, **LEASE)).claims) == 1
    await until(lambda: bool(heard) and heard[-1].head_seq >= 3)
    await store.close()
    await other.close()


async def test_closing_does_not_wait_for_a_server_that_is_away(server: PostgresServer) -> None:
    store = PostgresStore(server.url)
    await store.open()
    await store.register("worker-1", ["ops"])
    await asyncio.to_thread(server.stop)
    async with asyncio.timeout(5):
        await store.close()


# -- workers and news ---------------------------------------------------------------------------------


async def test_a_silent_worker_is_dead_when_its_lease_would_be(
    store: PostgresStore, postgres_url: str
) -> None:
    other = PostgresStore(postgres_url)
    await other.open()
    await other.register("worker-2", ["ops"])
    await refused(Conflict, store.register("worker-2", ["ops"]))
    (row,) = await store.workers()
    assert (row.owner, row.pid, row.agents) == ("worker-2", os.getpid(), ("ops",))
    assert row.host
    assert execute(postgres_url, "SELECT alive_until - started_at FROM workers") == [(LEASE_MS,)]
    # As if it had been silent for that long.
    other._owners.clear()
    execute(postgres_url, f"UPDATE workers SET alive_until = alive_until - {LEASE_MS}")
    assert await store.workers() == []
    await store.register("worker-2", ["more"])
    assert [row.agents for row in await other.workers()] == [("more",)]
    await other.close()


async def test_a_store_says_again_and_again_that_its_workers_live(
    store: PostgresStore, postgres_url: str
) -> None:
    await store.register("worker-1", ["ops"])
    execute(postgres_url, f"UPDATE workers SET alive_until = alive_until - {LEASE_MS - 1000}")
    await store._look()
    ((left,),) = execute(postgres_url, "SELECT alive_until - tenuto_now() FROM workers")
    assert left > LEASE_MS / 2


async def test_closing_gives_back_what_the_worker_held(store: PostgresStore, postgres_url: str) -> None:
    other = PostgresStore(postgres_url)
    await other.open()
    await other.register("worker-2", ["ops"])
    thread_id = await started(store)
    await held(other, thread_id, "worker-2")
    heard: list[Change] = []
    store.on_change(heard.extend)
    await asyncio.sleep(0.3)  # until it listens
    heard.clear()
    await other.close()
    assert await store.workers() == []
    assert (await held(store, thread_id)).epoch == 2
    await until(lambda: Change(thread_id, 2, True) in heard)


async def test_what_nobody_was_told_is_found_by_looking(postgres_url: str) -> None:
    """LISTEN is off, as behind a pooler: the threads that somebody watches are looked at."""
    store, deaf = PostgresStore(postgres_url), PostgresStore(f"{postgres_url}&listen=off")
    await store.open()
    await deaf.open()
    heard: list[Change] = []
    thread_id = await started(store)
    deaf.on_change(heard.extend, lambda: [thread_id])
    await deaf._look()
    assert heard == [Change(thread_id, 2, True)]
    await deaf._look()
    assert len(heard) == 1
    await store.append(thread_id, [MESSAGE], append_id="a")
    await until(lambda: len(heard) >= 2)
    assert heard[1:] == [Change(thread_id, 3, True)]
    await store.close()
    await deaf.close()


async def test_a_thousand_changes_at_once_are_told(store: PostgresStore, postgres_url: str) -> None:
    other = PostgresStore(postgres_url)
    await other.open()
    heard: set[ThreadId] = set()
    other.on_change(lambda changes: heard.update(change.thread_id for change in changes))
    await asyncio.sleep(0.3)
    names = [f"{n:036d}" for n in range(1000)] + ["é" * limits.MAX_ID_CHARACTERS]
    await asyncio.gather(*(started(store, name) for name in names))
    await until(lambda: len(heard) >= len(names))
    assert heard == {ThreadId(name) for name in names}
    await other.close()


# -- leases -------------------------------------------------------------------------------------------


async def test_a_locked_thread_holds_no_claim_up(store: PostgresStore, postgres_url: str) -> None:
    for name in ("t1", "t2", "t3"):
        await started(store, name)
    blocker = await asyncpg.connect(postgres_url)
    async with blocker.transaction():
        await blocker.execute("SELECT 1 FROM threads WHERE id = 't1' FOR UPDATE")
        async with asyncio.timeout(5):
            claimed = await store.claim("worker-1", ["ops"], limit=5, **LEASE)
        assert [claim.thread_id for claim in claimed.claims] == ["t2", "t3"]
        assert claimed.next_ready_ms is not None  # the other is there, and is asked for again at once
    await blocker.close()
    rest = await store.claim("worker-1", ["ops"], limit=5, **LEASE)
    assert [claim.thread_id for claim in rest.claims] == ["t1"]


async def test_batches_that_cross_do_not_wait_for_each_other_in_a_circle(
    store: PostgresStore, postgres_url: str
) -> None:
    other = PostgresStore(postgres_url)
    await other.open()
    names = [await started(store, f"t{n}") for n in range(20)]

    async def appends(one: PostgresStore, order: list[ThreadId], mark: str) -> None:
        for round_ in range(10):
            await asyncio.gather(
                *(one.append(name, [MESSAGE], append_id=f"{mark} {round_}") for name in order)
            )

    await asyncio.gather(appends(store, names, "a"), appends(other, names[::-1], "b"))
    for name in names:
        report = verify_chain(name, await store.stored(name))
        assert (report.ok, report.checked) == (True, 22)
    await other.close()


# -- real processes -----------------------------------------------------------------------------------

RACER = """
import asyncio, sys
from tenuto.errors import AlreadyDecided
from tenuto.events import InterruptId, InterruptResolved
from tenuto.store import open_store

async def main(url, name):
    store = open_store(url)
    await store.open()
    print("ready", flush=True)
    sys.stdin.readline()
    won = 0
    for n in range(20):
        try:
            await store.resolve(InterruptResolved(InterruptId(f"i{n}"), "approved", by=name), append_id=name)
            won += 1
        except AlreadyDecided as error:
            assert error.by != name
    taken = []
    while True:
        claimed = await store.claim(name, ["ops"], limit=3, lease_seconds=60)
        taken += [claim.thread_id for claim in claimed.claims]
        if not claimed.claims and (claimed.next_ready_ms or 1 << 60) > store.now_ms():
            break
    print(won, *taken, flush=True)
    sys.stdin.readline()
    await store.close()

asyncio.run(main(*sys.argv[1:]))
"""


async def test_two_processes_never_decide_or_claim_the_same(store: PostgresStore, postgres_url: str) -> None:
    names = [await started(store, f"t{n}") for n in range(60)]
    for number, name in enumerate(names[:20]):
        await waiting(store, name, f"i{number}")
    racers = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-c", RACER, postgres_url, who, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for who in ("ana", "bo")
    ]
    streams = [(racer.stdin, racer.stdout) for racer in racers if racer.stdin and racer.stdout]
    for _, out in streams:
        assert await out.readline() == b"ready\n"
    for into, _ in streams:
        into.write(b"go\n")
    told = [(await out.readline()).decode().split() for _, out in streams]
    for into, _ in streams:
        into.write(b"end\n")
    assert [await racer.wait() for racer in racers] == [0, 0]
    assert sum(int(line[0]) for line in told) == 20
    taken = [name for line in told for name in line[1:]]
    assert len(taken) == len(set(taken)) == 60
    with pytest.raises(AlreadyDecided):
        await store.resolve(approved("i1"), append_id="too late")


async def test_a_new_connection_looks_up_no_types(postgres_url: str) -> None:
    store = PostgresStore(f"{postgres_url}&pool=1")
    await store.open()
    await started(store, "t1")
    prepared = await store._run("SELECT statement FROM pg_prepared_statements")
    assert any("tenuto_batch" in statement for (statement,) in prepared)
    assert not [statement for (statement,) in prepared if "typeinfo" in statement]
    await store.close()


async def test_who_does_one_thing_after_another_has_one_connection_and_that_which_listens(
    postgres_url: str,
) -> None:
    store = PostgresStore(postgres_url)
    store.on_change(lambda _changes: None)
    await store.open()
    # Its own look is over as well, and the next one a second away.
    await until(lambda: store._listener is not None and store._pool.get_idle_size() == store._pool.get_size())
    thread_id = await started(store, "t1")
    for number in range(5):
        await store.append(thread_id, [MESSAGE], append_id=f"a{number}")
        await store.thread(thread_id)
    assert store._pool.get_size() == 1
    await store.close()

"""Query plans on PostgreSQL with 100,000 waiting threads: what is hot uses indexes, and reads little."""

import asyncio
import json
import os
import secrets
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import asyncpg
import pytest

from tenuto.events import InterruptId, InterruptResolved, MessageReceived, ThreadId, ThreadStarted
from tenuto.store.postgres import SQL, PostgresStore
from tenuto.testing.postgres import execute
from tenuto.testing.store_contract.cases import LEASE, started, waiting

CROWD = """
INSERT INTO threads (id, agent, status, ready_at, head_seq, created_at, updated_at, metadata)
SELECT 'crowd-' || n, 'ops', 'sleeping', CASE WHEN n % 2 = 1 THEN (1::bigint << 50) + n END, 3, n, n, '{}'
FROM generate_series(2, 100000) AS n;
INSERT INTO events (thread, seq, version, type, at, append_id, hash, body)
SELECT t.num, e.seq, 1, e.type, 0, CASE e.seq WHEN 1 THEN sha256(t.id::bytea) END, '', e.body
FROM threads AS t, events AS e
WHERE t.id LIKE 'crowd-%' AND e.thread = (SELECT num FROM threads WHERE id = 'thread-1')
      AND (e.seq = 1 OR e.seq = 3 AND t.num % 100 = 0);
INSERT INTO interrupts (id, thread, kind, digest, raised_seq, raised_at, expires_at)
SELECT id, num, 'approval', '', 3, num, 0 FROM threads WHERE id LIKE 'crowd-%' AND num % 100 = 0;
INSERT INTO interrupts (id, thread, kind, digest, raised_seq, raised_at, expires_at, outcome)
SELECT 'decided-' || id, num, 'approval', '', 3, num, 0, 'approved' FROM threads WHERE num % 2 = 1;
INSERT INTO labels (label, created_at, id, thread) SELECT 'all', created_at, id, num FROM threads;
INSERT INTO records (kind, key, body) SELECT 'token', id, '' FROM threads;
"""
LATEST = 1 << 60
READS: dict[str, tuple[Any, ...]] = {
    "interrupt": ("i",),
    "interrupts_pending": (None, None, 10),
    "interrupts_pending_of_kind": (None, None, 10, "review"),
    "interrupts_any": (None, None, 10, None, None),
    "interrupts_of_thread": (None, None, 10, None, None, "crowd-9"),
    "record": ("token", "crowd-9", 0),
    "records": ("token", "crowd-9", 0, 10),
    "events": ("crowd-9", 0, 10),
    "stored": ("crowd-9", 0, 10),
    "thread": ("crowd-9",),
    "threads": (LATEST, "", None, 10),
    "threads_by_status": (LATEST, "", "ops", 10, "completed"),
    "threads_by_label": (LATEST, "", None, 10, None, "all", '["all"]'),
    "workers": (0,),
    "interrupt_heads": (None, None, 10, None, None, None),
    "doubtful": (1 << 40, None, 10),
    "waiting": (1 << 40,),
}
MOST_PAGES = 200  # of 8 kB; the crowd's tables have some 10,000
PENDING_PAGES = 1200  # a look at each interrupt that is pending, to count them


@pytest.fixture(scope="module")
def crowd(postgres_server: str) -> Iterator[str]:
    """The URL of a schema with 100,000 threads: all wait, one in a hundred with a pending interrupt."""
    schema = f"crowd_{os.getpid()}_{secrets.token_hex(4)}"
    execute(postgres_server, f"CREATE SCHEMA {schema}")
    url = f"{postgres_server}{'&' if '?' in postgres_server else '?'}search_path={schema}"
    with ThreadPoolExecutor(1) as thread:  # there may be a loop here already
        thread.submit(asyncio.run, begin(url)).result()
    execute(url, CROWD)
    yield url
    execute(postgres_server, f"DROP SCHEMA {schema} CASCADE")


async def begin(url: str) -> None:
    store = PostgresStore(url)
    await store.open()
    await waiting(store, await started(store), "i")
    await store.close()


@pytest.fixture
async def store(crowd: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(crowd)
    await store.open()
    yield store
    await store.close()


@pytest.fixture
async def connection(crowd: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(crowd)
    yield connection
    await connection.close()


def scanned(plan: Any) -> list[str]:
    """The tables that a plan reads from end to end."""
    found = [str(plan["Relation Name"])] if plan.get("Node Type") == "Seq Scan" else []
    return found + [table for part in plan.get("Plans", []) for table in scanned(part)]


@pytest.mark.parametrize("analyzed", [False, True])
async def test_no_read_goes_through_a_table(connection: Any, analyzed: bool) -> None:
    if analyzed:
        await connection.execute("ANALYZE threads, events, interrupts, labels, records")
    for name, parameters in READS.items():
        query = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {getattr(SQL, name)}"
        ((text,),) = await connection.fetch(query, *parameters)
        plan = json.loads(text)[0]["Plan"]
        pages = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
        most = MOST_PAGES
        if name == "waiting":
            if not analyzed:
                continue  # how few threads are held, nobody knows before the first ANALYZE
            most += PENDING_PAGES
        assert set(scanned(plan)) <= {"workers"}, (name, text)
        assert pages < most, f"{name} reads {pages} pages"


TABLES = "('threads'::regclass, 'events'::regclass, 'interrupts'::regclass, 'labels'::regclass)"


async def rows_scanned(connection: Any) -> int:
    """In reading tables from end to end, within this transaction."""
    await connection.execute("SELECT pg_stat_clear_snapshot()")
    query = f"SELECT sum(seq_tup_read)::int FROM pg_stat_xact_user_tables WHERE relid IN {TABLES}"
    return int(await connection.fetchval(query))


async def test_no_verb_goes_through_a_table(store: PostgresStore, connection: Any) -> None:
    """Inside the functions no plan can be seen; the server counts what each transaction scans."""
    thread_id = await started(store, "new")
    heard: list[tuple[str, int]] = []
    lock = asyncio.Lock()

    async def counted(query: str, *parameters: object, **how: Any) -> Any:
        async with lock, connection.transaction():
            before = await rows_scanned(connection)
            rows = await connection.fetch(query, *parameters)
            heard.append((query, await rows_scanned(connection) - before))
        return rows

    plain, store._run = store._run, counted  # type: ignore[method-assign]  # what all statements go through
    claimed = await store.claim("worker-1", ["ops", "other"], limit=10, **LEASE)
    (claim,) = [claim for claim in claimed.claims if claim.thread_id == thread_id]
    assert await store.renew("worker-1", [claim], **LEASE) == {thread_id: 2}
    await store.append(thread_id, [MessageReceived("hello")], append_id="a")
    assert await store.release(claim, seen_seq=3, wake_at_ms=None, status="sleeping")
    await store.resolve(InterruptResolved(InterruptId("i"), "approved"), append_id="b")
    assert await store.take("worker-1", ThreadId("crowd-9"), **LEASE) is None
    await store.create(ThreadId("newer"), [ThreadStarted("ops", "f")], append_id="c")
    nothing = await store.claim("worker-2", ["none"], limit=10, **LEASE)
    assert nothing.next_ready_ms is None
    await store._look()
    await store.prune(ended_before_ms=LATEST)
    store._run = plain  # type: ignore[method-assign]  # closing it may need another connection
    assert len(heard) > 8
    assert [one for one in heard if one[1] > 1000] == []

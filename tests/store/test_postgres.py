"""What is PostgreSQL's own: URLs, schema, clock, errors, and the history that people read in it."""

import asyncio
import os
import re
import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tenuto import limits
from tenuto.chain import verify_chain
from tenuto.errors import ConfigurationError, InvalidInput, NewerSchema, StoreError
from tenuto.events import (
    InterruptId,
    InterruptRaised,
    MessageReceived,
    ModelReplied,
    ThreadCompleted,
    ThreadId,
    ThreadStarted,
)
from tenuto.rows import Change
from tenuto.store import open_store
from tenuto.store.postgres import PostgresStore
from tenuto.store.postgres_schema import MIGRATIONS
from tenuto.testing.postgres import execute
from tenuto.testing.store_contract.cases import LEASE, MESSAGE, approved, held, refused, started, waiting


@pytest.fixture
async def store(postgres_url: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(postgres_url)
    await store.open()
    yield store
    await store.close()


# -- the URL ------------------------------------------------------------------------------------------


def test_a_url_says_what_is_wrong_with_it() -> None:
    for wrong in ("pool=0", "pool=many", "prepared=maybe", "listen=no"):
        with pytest.raises(ConfigurationError, match=r"db\.example/tenuto: pool is a number"):
            open_store(f"postgresql://ana:secret@db.example/tenuto?{wrong}")


async def test_no_error_tells_the_password() -> None:
    store = open_store("postgresql://ana:secret@127.0.0.1:1/tenuto")
    error = await refused(StoreError, store.open())
    assert "127.0.0.1:1/tenuto" in str(error)
    assert "secret" not in str(error)
    assert not error.facts["unknown"]


async def test_a_wrong_parameter_is_a_clear_error(postgres_url: str) -> None:
    error = await refused(ConfigurationError, open_store(f"{postgres_url}&sslmode=perhaps").open())
    assert "sslmode" in str(error)


@pytest.mark.parametrize("port", ["many", "99999"])
async def test_a_wrong_port_is_a_clear_error(port: str) -> None:
    store = open_store(f"postgresql://ana:secret@127.0.0.1:{port}/tenuto")
    assert f"127.0.0.1:{port}/tenuto: " in str(await refused(ConfigurationError, store.open()))


async def test_a_file_or_a_socket_that_is_missing_is_said_to_be(tmp_path: Path) -> None:
    away = tmp_path / "away"
    for query in (f"sslmode=verify-full&sslrootcert={away}", f"host={away}"):
        error = await refused(StoreError, open_store(f"postgresql:///tenuto?{query}").open())
        assert "the URL names a file or a socket that is not here" in str(error)


# -- the schema ---------------------------------------------------------------------------------------


async def test_a_schema_may_have_any_name(postgres_url: str) -> None:
    execute(postgres_url, 'CREATE SCHEMA "My Log"')
    store = open_store(re.sub("search_path=[^&]*", "search_path=%22My%20Log%22", postgres_url))
    await store.open()
    assert await store.schema() == (len(MIGRATIONS), len(MIGRATIONS))
    assert len(await store.read(await started(store))) == 2
    await store.close()
    execute(postgres_url, 'DROP SCHEMA "My Log" CASCADE')


async def test_stores_that_open_at_once_make_the_schema_once(postgres_url: str) -> None:
    stores = [PostgresStore(postgres_url) for _ in range(4)]
    assert await stores[0].schema() == (0, len(MIGRATIONS))
    await asyncio.gather(*(store.open() for store in stores))
    assert await stores[0].schema() == (len(MIGRATIONS), len(MIGRATIONS))
    versions = execute(postgres_url, "SELECT version FROM tenuto_schema ORDER BY version")
    assert versions == [(number + 1,) for number in range(len(MIGRATIONS))]
    for store in stores:
        await store.close()


async def test_a_newer_schema_is_refused_and_left_alone(postgres_url: str) -> None:
    store = PostgresStore(postgres_url)
    await store.open()
    await store.close()
    execute(postgres_url, f"INSERT INTO tenuto_schema VALUES ({len(MIGRATIONS) + 1})")
    for attempt in (store.open(), store.schema()):
        error = await refused(NewerSchema, attempt)
        assert "Upgrade Tenuto" in str(error)
        assert error.facts == {"version": len(MIGRATIONS) + 1, "supported": len(MIGRATIONS)}


async def test_a_migration_that_fails_leaves_nothing_behind(postgres_url: str) -> None:
    execute(postgres_url, "CREATE TABLE records (of_another_program int)")
    store = PostgresStore(postgres_url)
    assert 'relation "records" already exists' in str(await refused(StoreError, store.open()))
    assert execute(postgres_url, "SELECT to_regclass('threads')") == [(None,)]
    assert await store.schema() == (0, len(MIGRATIONS))


async def test_a_closed_store_says_so(store: PostgresStore) -> None:
    await store.close()
    for attempt in (store.threads(), store.append(ThreadId("t"), [MESSAGE], append_id="a")):
        assert "not open" in str(await refused(StoreError, attempt))
    await store.open()
    assert await store.threads() == []


async def test_two_logs_in_one_database_hear_nothing_of_each_other(
    store: PostgresStore, postgres_server: str
) -> None:
    schema = f"other_{os.getpid()}_{secrets.token_hex(4)}"
    execute(postgres_server, f"CREATE SCHEMA {schema}")
    other = PostgresStore(f"{postgres_server}{'&' if '?' in postgres_server else '?'}search_path={schema}")
    heard: list[Change] = []
    await other.open()
    other.on_change(heard.extend)
    await started(store)
    assert await other.threads() == []
    await asyncio.sleep(0.2)
    assert heard == []
    await other.close()
    execute(postgres_server, f"DROP SCHEMA {schema} CASCADE")


# -- the clock ----------------------------------------------------------------------------------------


async def test_the_clock_is_the_databases(store: PostgresStore) -> None:
    """An hour ahead of the machine, by the overridable function: everything follows."""
    now = "SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint + 3600000"
    await store._run(f"CREATE OR REPLACE FUNCTION tenuto_now() RETURNS bigint LANGUAGE sql AS $$ {now} $$")
    await store._look()
    ((before,),) = await store._run(now)
    appended = await store.create(ThreadId("t"), [ThreadStarted("ops", "f")], append_id="a")
    ((after,),) = await store._run(now)
    assert before <= appended.at_ms <= after
    assert abs(store.now_ms() - after) < 1000


# -- errors -------------------------------------------------------------------------------------------


async def test_one_op_that_the_database_refuses_does_not_fail_its_neighbours(store: PostgresStore) -> None:
    """Two threads raise interrupts of one id: a unique index refuses the second, after its append began."""
    claims = [await held(store, await started(store, name)) for name in ("t1", "t2", "t3")]
    outcomes = await asyncio.gather(
        *(
            store.append(
                claim.thread_id,
                [InterruptRaised(InterruptId("same" if place < 2 else "other"), "approval")],
                append_id="ask",
                epoch=claim.epoch,
            )
            for place, claim in enumerate(claims)
        ),
        return_exceptions=True,
    )
    failed = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
    assert [type(error) for error in failed] == [StoreError]
    assert "duplicate key" in str(failed[0])
    assert sorted(row.id for row in await store.interrupts()) == ["other", "same"]
    for name in ("t1", "t2", "t3"):
        assert verify_chain(ThreadId(name), await store.stored(ThreadId(name))).ok


async def test_ids_with_nul_are_refused_or_not_found(store: PostgresStore) -> None:
    for attempt in (
        store.append(ThreadId("a\0b"), [MESSAGE], append_id="a"),
        store.take("w", ThreadId("a\0b"), **LEASE),
    ):
        await refused(InvalidInput, attempt)
    assert await store.threads(agent="a\0b") == []
    assert await store.records("a\0b") == {}


async def test_an_exhausted_pool_waits_and_then_says_so(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = PostgresStore(f"{postgres_url}&pool=1")
    await store.open()
    async with store._pool.acquire():
        waits = asyncio.create_task(store.threads())
        await asyncio.sleep(0.1)
        assert not waits.done()
    assert await waits == []
    monkeypatch.setattr(limits, "POOL_WAIT_SECONDS", 0.1)
    async with store._pool.acquire():
        assert "no connection within 0.1 s" in str(await refused(StoreError, store.threads()))
    await store.close()


async def test_too_many_waiting_writes_are_refused(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    thread_id = await started(store)
    monkeypatch.setattr(limits, "MAX_WAITING_APPENDS", 5)
    appends = (store.append(thread_id, [MESSAGE], append_id=str(n)) for n in range(8))
    outcomes = await asyncio.gather(*appends, return_exceptions=True)
    refusals = [str(outcome) for outcome in outcomes if isinstance(outcome, StoreError)]
    assert len(refusals) == 3
    assert all("too many waiting writes" in refusal for refusal in refusals)
    assert len(await store.read(thread_id)) == 7


# -- the history in plain SQL -------------------------------------------------------------------------


async def test_the_history_is_the_same_as_in_sqlite(store: PostgresStore, postgres_url: str) -> None:
    await store.create(ThreadId("task"), [ThreadStarted("ops", "f"), MessageReceived("a\0b")], append_id="a")
    claim = await held(store, ThreadId("task"))
    asked = InterruptRaised(InterruptId("i"), "approval", prompt="NUL \0 and \\u0000 and \\\0")
    for number, events in enumerate(
        ([ModelReplied(1, 2)], [ModelReplied(2, 3), asked], [approved("i")], [ModelReplied(3, 6)])
    ):
        await store.append(ThreadId("task"), events, append_id=str(number), epoch=claim.epoch)
    end = [ThreadCompleted("done")]
    await store.append(ThreadId("task"), end, append_id="end", epoch=claim.epoch)
    query = "SELECT rowid, event, steps FROM task_events WHERE task_id = 'task' ORDER BY rowid"
    assert execute(postgres_url, query) == [
        (1, "started", 0),
        (5, "awaiting_approval", 2),
        (6, "approved", 2),
        (8, "completed", 3),
    ]
    ((at,),) = execute(postgres_url, "SELECT at FROM task_events WHERE rowid = 1")
    assert len(at) == len("2023-11-14T22:13:20.000Z")
    assert at.endswith("Z")


async def test_both_databases_make_the_same_hashes(store: PostgresStore) -> None:
    from tenuto.clock import FakeClock
    from tenuto.store.sqlite import SQLiteStore

    salts = bytes(range(32))
    lite = SQLiteStore(":memory:", inline=True, clock=FakeClock(), random_bytes=lambda n: salts[:n])
    await lite.open()
    store._random_bytes = lambda n: salts[:n]
    execute_now = "CREATE OR REPLACE FUNCTION tenuto_now() RETURNS bigint LANGUAGE sql AS $$ SELECT {} $$"
    await store._run(execute_now.format(f"{FakeClock().at_ms}::bigint"))
    for one in (store, lite):
        await one.create(ThreadId("é🎼"), [ThreadStarted("ops", "f"), MessageReceived("a\0é")], append_id="a")
    assert await store.stored(ThreadId("é🎼")) == await lite.stored(ThreadId("é🎼"))
    assert (await store.thread(ThreadId("é🎼"))) == (await lite.thread(ThreadId("é🎼")))
    await lite.close()


# -- what was changed by hand ---------------------------------------------------------------------------


async def test_one_damaged_event_hides_nothing_else(store: PostgresStore, postgres_url: str) -> None:
    for name in ("t1", "t2", "t3", "t4"):
        await waiting(store, await started(store, name), f"i {name}")
    execute(postgres_url, "UPDATE events SET body = '{}' WHERE thread = 2 AND type = 'interrupt_raised'")
    execute(postgres_url, r"UPDATE events SET body = '\xff' WHERE thread = 3 AND type = 'interrupt_raised'")
    execute(postgres_url, "DELETE FROM events WHERE thread = 4 AND type = 'interrupt_raised'")
    rows = await store.interrupts()
    assert [row.id for row in rows] == ["i t1", "i t2", "i t3", "i t4"]
    assert [bool(row.fault) for row in rows] == [False, True, True, True]
    assert "event 3 of thread t2: stored event cannot be read" in rows[1].prompt
    told = execute(postgres_url, "SELECT task_id FROM task_events WHERE event = 'awaiting_approval'")
    assert told == [("t1",)]
    assert await store.strays() == []
    execute(postgres_url, "UPDATE events SET seq = -seq WHERE thread = 1 AND seq = 2")
    (stray,) = await store.strays(ThreadId("t1"))
    assert "thread t1 has 1 events out of their place, the first of them event -2" in stray
    execute(postgres_url, "DELETE FROM threads WHERE num = 1")
    assert len(await store.strays()) == 2


async def test_what_cannot_be_asked_just_now_is_not_taken_for_damaged(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await waiting(store, await started(store), "i1")
    fetch = store._fetch

    async def fetch_heads_alone(query: str, *parameters: object) -> Any:
        if query == "interrupt_heads":
            return await fetch(query, *parameters)
        raise StoreError("too many connections", away=True)

    monkeypatch.setattr(store, "_fetch", fetch_heads_alone)
    assert "too many connections" in str(await refused(StoreError, store.interrupts()))

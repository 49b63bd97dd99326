"""PostgreSQL that is there and does not do it: it only reads, is full or locked, or cannot be listened to."""

import asyncio
import contextlib
from typing import Any

import asyncpg
import pytest
from tests.store.test_postgres_fleet import LEASE_MS, kill_connections, server, until

from tenuto import limits
from tenuto.errors import ConfigurationError, StoreError
from tenuto.loop.holder import again
from tenuto.rows import Change
from tenuto.store.postgres import PostgresStore
from tenuto.testing.postgres import PostgresServer, execute
from tenuto.testing.store_contract.cases import MESSAGE, refused, started

__all__ = ["server"]


async def test_a_server_that_takes_no_writes_is_left_for_the_one_that_does(server: PostgresServer) -> None:
    """As at a failover: who was cut off comes back to the old primary, which only reads by now."""
    store, writes = PostgresStore(server.url), f"{server.url}&default_transaction_read_only=off"
    await store.open()
    thread_id = await started(store)
    execute(writes, "ALTER DATABASE postgres SET default_transaction_read_only = on")
    await kill_connections(store, writes)
    error = await refused(StoreError, store.append(thread_id, [MESSAGE], append_id="a"))
    assert "read-only transaction" in str(error)
    assert error.facts["passing"]
    execute(writes, "ALTER DATABASE postgres RESET default_transaction_read_only")
    assert (await store.append(thread_id, [MESSAGE], append_id="a")).head_seq == 3
    await store.close()


@pytest.mark.parametrize("setting", ["lock_timeout", "statement_timeout"])
async def test_a_write_that_others_are_in_the_way_of_is_tried_again(postgres_url: str, setting: str) -> None:
    store = PostgresStore(f"{postgres_url}&{setting}=100")
    await store.open()
    thread_id = await started(store)
    blocker = await asyncpg.connect(postgres_url)
    transaction = blocker.transaction()
    await transaction.start()
    await blocker.execute("SELECT 1 FROM threads FOR UPDATE")
    error = await refused(StoreError, store.append(thread_id, [MESSAGE], append_id="a"))
    assert setting.replace("_", " ") in str(error)
    appending = asyncio.create_task(again(lambda: store.append(thread_id, [MESSAGE], append_id="a")))
    await asyncio.sleep(0.3)
    await transaction.rollback()
    assert (await appending).head_seq == 3
    await blocker.close()
    await store.close()


async def test_who_gets_no_more_connections_goes_on_with_those_it_has(
    postgres_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        server = PostgresServer(max_connections="20", superuser_reserved_connections="0")
    except ConfigurationError as error:
        pytest.skip(str(error))
    others: list[Any] = []
    with server:
        store = PostgresStore(server.url)
        await store.open()
        thread_id = await started(store)
        for _ in range(5):  # some that were closed a moment ago still count
            with contextlib.suppress(asyncpg.TooManyConnectionsError):
                while True:
                    others.append(await asyncpg.connect(server.url))
            await asyncio.sleep(0.1)
        await asyncio.gather(*(store.thread(thread_id) for _ in range(30)))
        await asyncio.gather(*(store.append(thread_id, [MESSAGE], append_id=f"{n}") for n in range(30)))
        monkeypatch.setattr(limits, "POOL_WAIT_SECONDS", 0.3)
        late = PostgresStore(server.url)
        assert "too many clients" in str(await refused(StoreError, late.open()))
        for other in others:
            other.terminate()
        await store.close()


@pytest.mark.parametrize("port", ["1", "many"])
async def test_where_listening_fails_it_is_said_and_a_store_looks_all_the_same(
    postgres_url: str, caplog: pytest.LogCaptureFixture, port: str
) -> None:
    store = PostgresStore(f"{postgres_url}&listen=postgresql%3A%2F%2F127.0.0.1%3A{port}%2Ftenuto")
    await store.open()
    heard: list[Change] = []
    thread_id = await started(store)
    store.on_change(heard.extend, lambda: [thread_id])
    await store.register("worker-1", ["ops"])
    execute(postgres_url, f"UPDATE workers SET alive_until = alive_until - {LEASE_MS - 3000}")
    left = "SELECT alive_until - tenuto_now() > 5000 FROM workers"
    await until(lambda: execute(postgres_url, left) == [(True,)])
    other = PostgresStore(postgres_url)
    await other.open()
    await other.append(thread_id, [MESSAGE], append_id="a")
    await until(lambda: Change(thread_id, 3, True) in heard)
    assert "what other processes say is not heard: " in caplog.text
    await store.close()
    await other.close()


async def test_what_is_wrong_for_a_moment_ends_neither_looking_nor_telling(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As while a certificate is replaced."""
    store, asked = PostgresStore(postgres_url), list[Any]()
    await store.open()
    await store.register("worker-1", ["ops"])

    def refuse(*given: Any, **_: Any) -> None:
        asked.append(given)
        raise asyncpg.ClientConfigurationError("there is no root certificate")

    monkeypatch.setattr(limits, "POLL_SECONDS", 0.02)
    with monkeypatch.context() as patched:
        patched.setattr(asyncpg.Pool, "acquire", refuse)
        store.publish("a")
        await until(lambda: len(asked) >= 3)
    await until(lambda: store._telling is None)
    execute(postgres_url, f"UPDATE workers SET alive_until = alive_until - {LEASE_MS - 3000}")
    left = "SELECT alive_until - tenuto_now() > 5000 FROM workers"
    await until(lambda: execute(postgres_url, left) == [(True,)])
    await store.close()

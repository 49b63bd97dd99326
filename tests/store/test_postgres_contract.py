"""The PostgreSQL store under the contract of all stores, with the tests' clock in place of the server's."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from tenuto.clock import FakeClock
from tenuto.store import Store
from tenuto.store.postgres import PostgresStore
from tenuto.testing.postgres import execute
from tenuto.testing.store_contract import StoreContract

# The overridable function: the schema's own clock, told before each statement what the test's says.
OWN_CLOCK = """
CREATE TABLE own_clock (at bigint);
INSERT INTO own_clock VALUES (0);
CREATE OR REPLACE FUNCTION tenuto_now() RETURNS bigint LANGUAGE sql VOLATILE AS $$ SELECT at FROM own_clock $$
"""


class DatabaseClock(FakeClock):
    """Tells the database what it says, once for all stores that share it."""

    def __init__(self) -> None:
        super().__init__()
        self.told_ms = 0
        self.telling = asyncio.Lock()


class ClockedStore(PostgresStore):
    """Asks for nothing before the database knows the test's time."""

    fake: DatabaseClock

    def now_ms(self) -> int:
        return self.fake.now_ms()

    async def _run(self, query: str, *parameters: object, **how: Any) -> Sequence[Sequence[Any]]:
        async with self.fake.telling:
            if self.fake.told_ms != self.fake.at_ms:
                self.fake.told_ms = self.fake.at_ms
                await super()._run("UPDATE own_clock SET at = $1", self.fake.at_ms)
        return await super()._run(query, *parameters, **how)


async def opened(url: str, clock: DatabaseClock) -> Store:
    store = ClockedStore(url)
    store.fake = clock
    await store.open()
    return store


@pytest.fixture
def clock() -> DatabaseClock:
    return DatabaseClock()


class TestPostgres(StoreContract):
    @pytest.fixture
    async def store(self, postgres_url: str, clock: DatabaseClock) -> AsyncIterator[Store]:
        plain = PostgresStore(postgres_url)
        await plain.open()
        await plain.close()
        execute(postgres_url, OWN_CLOCK)
        store = await opened(postgres_url, clock)
        yield store
        await store.close()

    @pytest.fixture
    async def second(self, postgres_url: str, clock: DatabaseClock, store: Store) -> AsyncIterator[Store]:
        second = await opened(postgres_url, clock)
        yield second
        await second.close()

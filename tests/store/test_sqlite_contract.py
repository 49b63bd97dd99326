"""The SQLite store under the contract of all stores: on a file, inline on a file, and in memory."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tenuto.clock import FakeClock
from tenuto.store import Store
from tenuto.store.sqlite import SQLiteStore
from tenuto.testing.store_contract import StoreContract


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


class TestFile(StoreContract):
    @pytest.fixture
    async def store(self, tmp_path: Path, clock: FakeClock) -> AsyncIterator[Store]:
        store = SQLiteStore(str(tmp_path / "tenuto.db"), clock=clock)
        await store.open()
        yield store
        await store.close()

    @pytest.fixture
    async def second(self, tmp_path: Path, clock: FakeClock, store: Store) -> AsyncIterator[Store]:
        second = SQLiteStore(str(tmp_path / "tenuto.db"), clock=clock)
        await second.open()
        yield second
        await second.close()


class TestInlineFile(StoreContract):
    @pytest.fixture
    async def store(self, tmp_path: Path, clock: FakeClock) -> AsyncIterator[Store]:
        store = SQLiteStore(str(tmp_path / "tenuto.db"), inline=True, clock=clock)
        await store.open()
        yield store
        await store.close()

    @pytest.fixture
    def second(self) -> Store:
        return pytest.skip("an inline store has no timers that would tell it of others")


class TestMemory(StoreContract):
    @pytest.fixture(params=[False, True], ids=["grouped", "inline"])
    async def store(self, request: pytest.FixtureRequest, clock: FakeClock) -> AsyncIterator[Store]:
        store = SQLiteStore(":memory:", inline=request.param, clock=clock)
        await store.open()
        yield store
        await store.close()

    @pytest.fixture
    def second(self) -> Store:
        return pytest.skip("a database in memory belongs to one store")

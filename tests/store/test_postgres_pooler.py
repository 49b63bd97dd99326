"""Behind PgBouncer in transaction mode: each transaction may be on another connection of the server's."""

import asyncio
import itertools
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import pytest
from tests.store.test_postgres_contract import OWN_CLOCK, DatabaseClock, opened

from tenuto import Agent, Runtime, tool
from tenuto.models.scripted import ScriptedModel, call
from tenuto.store import Store
from tenuto.store.postgres import PostgresStore
from tenuto.testing.postgres import execute
from tenuto.testing.store_contract import StoreContract

# Two connections for all: whoever kept something in a session would soon meet another's.
CONFIGURATION = """
[databases]
* = host={host} user=postgres pool_size=2
[pgbouncer]
listen_addr =
unix_socket_dir = {folder}
listen_port = 5432
auth_type = any
pool_mode = transaction
max_client_conn = 200
server_idle_timeout = 1
logfile = {folder}/log
pidfile = {folder}/pid
"""
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def bouncer(postgres_server: str) -> Iterator[str]:
    """The folder of its socket."""
    program = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin:/opt/homebrew/bin")
    if program is None:
        pytest.skip("pgbouncer is not installed (Debian: apt-get install pgbouncer)")
    host = parse_qs(urlsplit(postgres_server).query).get("host", [""])[0]
    if not host.startswith("/"):
        pytest.skip("the server is another machine's")
    folder = Path(tempfile.mkdtemp(prefix="tenuto-pb-", dir="/tmp"))
    (folder / "ini").write_text(CONFIGURATION.format(host=host, folder=folder))
    owner = Path(host).stat()
    os.chown(folder, owner.st_uid, owner.st_gid)
    how: dict[str, Any] = {"user": owner.st_uid, "group": owner.st_gid} if os.geteuid() == 0 else {}
    (folder / "ini").chmod(0o644)
    with subprocess.Popen([program, "-q", str(folder / "ini")], cwd=folder, **how) as process:
        until = time.monotonic() + 20
        while not (folder / ".s.PGSQL.5432").exists():
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.02)
        yield str(folder)
        process.terminate()
    shutil.rmtree(folder)


@pytest.fixture
def urls(bouncer: str, postgres_server: str) -> tuple[str, str]:
    """A database of its own, since a pooler passes no `search_path` on: through the pooler, and directly."""
    name = f"pooled_{next(_numbers)}"
    execute(postgres_server, f"CREATE DATABASE {name}")
    direct = postgres_server.replace("/postgres?", f"/{name}?")
    return f"postgresql://postgres@/{name}?host={quote(bouncer, safe='')}&prepared=off", direct


class TestPooled(StoreContract):
    @pytest.fixture
    def clock(self) -> DatabaseClock:
        return DatabaseClock()

    @pytest.fixture
    async def store(self, urls: tuple[str, str], clock: DatabaseClock) -> AsyncIterator[Store]:
        plain = PostgresStore(urls[0])
        await plain.open()
        await plain.close()
        execute(urls[1], OWN_CLOCK)
        store = await opened(f"{urls[0]}&listen={quote(urls[1], safe='')}", clock)
        yield store
        await store.close()

    @pytest.fixture
    async def second(self, urls: tuple[str, str], clock: DatabaseClock, store: Store) -> AsyncIterator[Store]:
        second = await opened(f"{urls[0]}&listen={quote(urls[1], safe='')}", clock)
        yield second
        await second.close()


@tool(effect="once", approval=True)
def refund(order_id: str) -> str:
    """Refund an order."""
    return f"refunded {order_id}"


async def test_without_listen_a_decision_reaches_the_worker_of_another_process(
    urls: tuple[str, str],
) -> None:
    """Neither store can be told anything: the worker looks by itself."""
    url = f"{urls[0]}&listen=off"
    agent = Agent("ops", "Refund.", [refund], model=ScriptedModel([call("refund", order_id="17"), "done"]))
    async with Runtime([agent], database=url) as working, Runtime(database=url) as deciding:
        thread_id = await working.start("ops", "Refund 17.")
        await working.wait(thread_id)
        (asked,) = await deciding.interrupts()
        await deciding.resolve(asked.id, "approve", by="ana")
        async with asyncio.timeout(20):
            state = await deciding.wait(thread_id)
    assert (state.status, state.answer) == ("completed", "done")

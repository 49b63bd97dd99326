"""Several workers on one PostgreSQL, as processes: under fire, as zombies, and of two versions.

Small versions of what `./dev crash --fleet` does at length.
"""

import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.crash.databases import empty
from tests.crash.fleet import UNVERIFIED, VERIFIED, Fire, Fleet, manned, under_fire
from tests.crash.stand import until
from tests.crash.waiting import cost, wait_beside
from tests.crash.workload import thread_id

from tenuto.testing.postgres import execute, find_programs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
ALL_EVENTS = "SELECT thread, seq, type FROM events ORDER BY thread, seq"
ALL_LEASES = "SELECT num, epoch, lease_owner FROM threads ORDER BY num"


@pytest.fixture
async def fleet(tmp_path: Path, postgres_server: str) -> AsyncIterator[Fleet]:
    """A server and one worker."""
    with empty("postgres", tmp_path, postgres_server) as database:
        async with manned(tmp_path, database, workers=1, lease_seconds=2.0) as fleet:
            yield fleet


async def test_workers_a_database_and_connections_that_die_lose_and_double_nothing(tmp_path: Path) -> None:
    if find_programs() is None:
        pytest.skip("there is no PostgreSQL here that may be restarted")
    fire = Fire(40, tools=(VERIFIED, UNVERIFIED), kills=2, kill_seconds=2, lease_seconds=4.0)
    figures = await under_fire(tmp_path, fire)
    assert (figures.doubles, figures.losses, figures.wrong) == (0, 0, []), figures
    assert (figures.tasks, figures.decisions, figures.restarts) == (40, 40, 1)
    assert figures.kills
    assert figures.cuts


async def test_a_zombie_records_nothing_and_doubles_nothing(fleet: Fleet) -> None:
    """Frozen in the middle of two calls until its leases are over and another has gone on; then woken."""
    tools = ("pay_verified", "pay")
    for tool in tools:
        await fleet.ask_host("POST", f"/hold?tool={tool}")
    threads = [await fleet.start("desk", "desk", number, tool) for number, tool in enumerate(tools)]
    await until(lambda: fleet.asking(2))
    for approval in await fleet.pending():
        await fleet.resolve(approval, "approve")
    for thread in threads:
        await until(lambda thread=thread: fleet.at_the_host(thread))
    frozen = await fleet.holders()
    fleet.freeze(0)
    await fleet.hire()
    states = [(await fleet.rested(thread))["status"] for thread in threads]
    assert states == ["completed", "awaiting_review"]
    written, leases = [await fleet.log.query(sql) for sql in (ALL_EVENTS, ALL_LEASES)]
    assert not await fleet.said(0, "lease")

    await fleet.ask_host("POST", "/release")
    fleet.thaw(0)
    await until(lambda: fleet.said(0, "lease"))
    assert [await fleet.log.query(sql) for sql in (ALL_EVENTS, ALL_LEASES)] == [written, leases]
    assert all(frozen[thread] == fleet.owner(0) for thread in threads)
    assert [len(await fleet.at_the_host(thread)) for thread in threads] == [1, 1]

    # From then on it is as good a worker as any other.
    await fleet.dismiss()
    await fleet.start("desk", "desk", 2, "look")
    assert (await fleet.rested(thread_id("desk", 2)))["answer"] == "told: look 17: done"
    figures = await fleet.audit()
    assert (figures.doubles, figures.losses, figures.wrong) == (0, 0, [])


async def test_what_a_newer_worker_wrote_is_left_to_a_newer_worker(fleet: Fleet) -> None:
    fleet.freeze(0)
    thread = await fleet.start("desk", "desk", 1, "look")
    execute(fleet.log.url, "UPDATE events SET version = 2 WHERE type = 'message_received'")
    fleet.thaw(0)
    await until(lambda: fleet.said(0, "left to a newer worker: event 2"))
    assert await until(lambda: fleet.log.query("SELECT id FROM threads WHERE lease_owner IS NULL"))
    await fleet.start("desk", "desk", 2, "look")
    assert (await fleet.rested(thread_id("desk", 2)))["status"] == "completed", "it goes on with others"

    await fleet.hire("tests.crash.newer:agents")

    async def done() -> bool:
        # As if the time had come when it is to be tried again; whichever of the two is first.
        execute(fleet.log.url, "UPDATE threads SET ready_at = 0 WHERE status = 'running' AND lease_until = 0")
        return (thread, "completed") in await fleet.log.query("SELECT id, status FROM threads")

    await until(done)
    versions = await fleet.log.query(
        "SELECT e.version FROM events AS e JOIN threads AS t ON t.num = e.thread "
        f"WHERE t.id = '{thread}' ORDER BY seq"
    )
    assert {version for (version,) in versions[2:]} == {2}, "the newer one has run it"


@pytest.mark.parametrize("command", [("worker",), ("serve", "--port", "0")])
def test_a_newer_schema_is_refused_in_one_line(
    postgres_url: str, command: tuple[str, ...], tmp_path: Path
) -> None:
    upgrade = [sys.executable, "-m", "tenuto", "db", "upgrade", "--database", postgres_url]
    subprocess.run(upgrade, check=True, capture_output=True)
    execute(postgres_url, "INSERT INTO tenuto_schema VALUES (99)")
    words = [*command, "tests.cli.desk:agent", "--database", postgres_url, "--log-level", "warning"]
    done = subprocess.run(
        [sys.executable, "-m", "tenuto", *words], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert "has schema 99, written by a later version of Tenuto" in line


async def test_a_fresh_thread_costs_no_more_beside_many_that_wait(fleet: Fleet) -> None:
    """Counts and not times: rows and pages that the database looks at, and the memory of the processes."""
    await fleet.start("fleet", "fleet", 1, "pay")
    await until(fleet.pending)
    alone = await cost(fleet, first=10, threads=5)
    await wait_beside(fleet, 5_000)
    crowded = await cost(fleet, first=20, threads=5)
    # A deeper index, a page more at each look; and what an idle fleet does takes its time.
    assert crowded.rows < 3 * alone.rows + 100, (alone, crowded)
    assert crowded.pages < 4 * alone.pages + 200, (alone, crowded)
    for before, after in zip(alone.memory_bytes, crowded.memory_bytes, strict=True):
        assert after <= before * 1.1

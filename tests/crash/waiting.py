"""What a fresh thread costs beside many that wait for a person: counts of the database, memory of a worker.

The threads that wait are copies of one that does, row by row, as quick as SQL makes them.
"""

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
from tests.crash.fleet import Fleet
from tests.crash.stand import until

from tenuto.testing.postgres import execute

# Rows looked at, and pages of tables and indexes, in memory or not: of what grows with the threads that wait.
COUNTS = """
SELECT sum(s.seq_tup_read + coalesce(s.idx_tup_fetch, 0))::bigint,
       sum(io.heap_blks_hit + io.heap_blks_read + coalesce(io.idx_blks_hit + io.idx_blks_read, 0))::bigint
FROM pg_stat_user_tables AS s JOIN pg_statio_user_tables AS io USING (relid)
WHERE s.schemaname = current_schema() AND s.relname IN ('threads', 'events', 'interrupts', 'labels')
"""
STILL_SECONDS = 1.5  # a backend tells its counts at most once a second
COPIES = (
    "ALTER TABLE threads SET (autovacuum_enabled = false)",
    "ALTER TABLE events SET (autovacuum_enabled = false)",
    "ALTER TABLE interrupts SET (autovacuum_enabled = false)",
    """
    CREATE TEMP TABLE made AS
    SELECT nextval(pg_get_serial_sequence('threads', 'num')) AS num, t.num AS old, 'waiting-' || n AS id
    FROM threads AS t, generate_series(1, {threads}) AS n WHERE t.status = 'awaiting_approval'
    """,
    """
    INSERT INTO threads OVERRIDING SYSTEM VALUE
    SELECT (jsonb_populate_record(t, jsonb_build_object('num', m.num, 'id', m.id))).*
    FROM made AS m JOIN threads AS t ON t.num = m.old
    """,
    """
    INSERT INTO events
    SELECT (jsonb_populate_record(e, jsonb_build_object('thread', m.num))).*
    FROM made AS m JOIN events AS e ON e.thread = m.old
    """,
    """
    INSERT INTO interrupts
    OVERRIDING SYSTEM VALUE
    SELECT (jsonb_populate_record(i, jsonb_build_object(
        'num', nextval(pg_get_serial_sequence('interrupts', 'num')), 'thread', m.num, 'id', m.id))).*
    FROM made AS m JOIN interrupts AS i ON i.thread = m.old
    """,
)


@dataclass
class Cost:
    """Of some fresh threads, from their start to their end: rows and pages that the database looked at, in
    all; seconds each; and the memory of the worker and of the server then.
    """

    rows: int
    pages: int
    seconds: list[float]
    memory_bytes: list[int]

    def __str__(self) -> str:
        seconds = sorted(self.seconds)
        memory = " and ".join(f"{used / 1e6:.0f}" for used in self.memory_bytes)
        return (
            f"{self.rows / len(seconds):.0f} rows and {self.pages / len(seconds):.0f} pages looked at, "
            f"{seconds[len(seconds) // 2] * 1000:.0f} ms (median); worker and server have {memory} MB"
        )


async def wait_beside(fleet: Fleet, threads: int) -> None:
    """Make so many copies of the thread that waits; there has to be one."""
    connection = await asyncpg.connect(fleet.log.url)
    try:
        for statement in COPIES:
            await connection.execute(statement.format(threads=threads))
    finally:
        await connection.close()


async def cost(fleet: Fleet, first: int, threads: int) -> Cost:
    """What these fresh threads cost, one after the other, with a worker and a server that began just now."""
    await fleet.kill_worker(0)
    fleet.kill()
    await fleet.serve("--no-worker")
    await asyncio.to_thread(
        execute, fleet.log.url, "VACUUM ANALYZE"
    )  # the planner knows how large the tables are
    await _fresh(fleet, first)  # what happens once in a process is not of a thread
    before = await _still(fleet)
    seconds = [await _fresh(fleet, number) for number in range(first + 1, first + 1 + threads)]
    rows, pages = (after - earlier for after, earlier in zip(await _still(fleet), before, strict=True))
    assert fleet.process is not None
    memory = [_memory(process.pid) for process in (fleet.workers[0], fleet.process)]
    return Cost(rows, pages, seconds, memory)


async def _fresh(fleet: Fleet, number: int) -> float:
    begun = time.monotonic()
    thread = await fleet.start("fleet", "fleet", number, "look")
    assert (await fleet.rested(thread))["status"] == "completed"
    return time.monotonic() - begun


async def _still(fleet: Fleet) -> Any:
    """The counts, when they have come to rest but for what an idle fleet does."""
    await asyncio.sleep(STILL_SECONDS)
    (counts,) = await until(lambda: fleet.log.query(COUNTS))
    return counts


def _memory(pid: int) -> int:
    """Resident bytes; 0 where the system does not say."""
    path = Path(f"/proc/{pid}/status")
    lines = path.read_text().splitlines() if path.exists() else []
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS")), 0)

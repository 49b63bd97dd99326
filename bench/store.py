"""What the store costs, beside raw SQLite doing the least that could be called durable.

    python bench/store.py

A step is one model reply (about 150 bytes) and one call result (about 600), in two appends.
"""

import asyncio
import os
import sqlite3
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tenuto.events import Call, CallFinished, CallId, Event, ModelReplied, ThreadId, ThreadStarted, encode
from tenuto.store.sqlite import SQLiteStore


class Figures(NamedTuple):
    """Per step, where a step is two commits unless they were grouped."""

    cpu_ms: float
    wall_ms: float
    steps_per_second: float
    bytes_per_step: float
    commits_per_step: float

    def line(self, name: str) -> str:
        return (
            f"{name:<34} {self.cpu_ms:7.3f} ms CPU {self.wall_ms:7.3f} ms wall"
            f" {self.steps_per_second:8.0f} steps/s {self.bytes_per_step:6.0f} bytes"
            f" {self.commits_per_step:5.2f} commits"
        )


def step_events(step: int) -> tuple[Event, Event]:
    call_id = CallId(f"c{step:08d}")
    reply = ModelReplied(step, 2 * step, calls=(Call(call_id, "get_order", '{"order_id":"17"}'),), model="m")
    return reply, CallFinished(call_id, text="x" * 550, duration_ms=12)


class Measurement:
    def __init__(self, database: Path) -> None:
        self._database = database
        self._bytes = _size(database)
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def figures(self, steps: int, commits: int) -> Figures:
        wall, cpu = time.perf_counter() - self._wall, time.process_time() - self._cpu
        return Figures(
            cpu * 1000 / steps,
            wall * 1000 / steps,
            steps / wall,
            (_size(self._database) - self._bytes) / steps,
            commits / steps,
        )


def _size(database: Path) -> int:
    """Bytes of the file with everything of its log in it."""
    with sqlite3.connect(database) as connection:
        connection.execute("PRAGMA wal_checkpoint(FULL)")
    connection.close()
    return database.stat().st_size


def raw_floor(directory: Path, steps: int, commits_per_step: int = 2) -> Figures:
    """One table, one thread, no hash, no projection: each event or each step is one commit."""
    path = directory / "floor.db"
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("CREATE TABLE events (thread TEXT, seq INTEGER, body TEXT, PRIMARY KEY (thread, seq))")
    thread_id = str(uuid.uuid4())
    measurement = Measurement(path)
    for step in range(1, steps + 1):
        for place, event in enumerate(step_events(step)):
            if place == 0 or commits_per_step == 2:
                connection.execute("BEGIN IMMEDIATE")
            row = (thread_id, 2 * step + place, encode(event).decode())
            connection.execute("INSERT INTO events VALUES (?, ?, ?)", row)
            if place == 1 or commits_per_step == 2:
                connection.execute("COMMIT")
    figures = measurement.figures(steps, commits_per_step * steps)
    connection.close()
    return figures


async def append_steps(store: SQLiteStore, steps: int) -> None:
    thread_id = ThreadId(str(uuid.uuid4()))
    await store.create(thread_id, [ThreadStarted("ops", "f" * 16)], append_id=uuid.uuid4().hex)
    claim = await store.take("bench", thread_id, lease_seconds=600)
    assert claim is not None
    for step in range(1, steps + 1):
        for event in step_events(step):
            await store.append(thread_id, [event], append_id=uuid.uuid4().hex, epoch=claim.epoch)


async def store_figures(
    directory: Path, threads: int, steps: int, make: Callable[[str], SQLiteStore] = SQLiteStore
) -> Figures:
    """`threads` tasks append `steps` steps each, side by side."""
    path = directory / f"store-{threads}-{steps}.db"
    store = make(str(path))
    await store.open()
    commits = 0
    end_transaction = store._commits._end_transaction

    def counted() -> None:
        nonlocal commits
        commits += 1
        end_transaction()

    store._commits._end_transaction = counted
    measurement = Measurement(path)
    await asyncio.gather(*(append_steps(store, steps) for _ in range(threads)))
    figures = measurement.figures(threads * steps, commits)
    await store.close()
    return figures


def main() -> None:
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIRECTORY")) as name:
        directory = Path(name)
        print(raw_floor(directory, 1000).line("raw SQLite, one commit per event"))
        for threads, steps in ((1, 10), (1, 1000), (50, 100)):
            figures = asyncio.run(store_figures(directory, threads, steps))
            print(figures.line(f"store, {threads} thread(s) x {steps} steps"))


if __name__ == "__main__":
    main()

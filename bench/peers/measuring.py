"""What every adapter shares: the script of the model, the driver of the workloads, the meter.

Standard library only, since it runs inside each peer's own environment. An adapter is a subclass of `Peer`
that uses its library in the library's own recommended way; `main` drives it through one workload in this
process and prints one line of JSON:

    steps        `turns` threads of n tool steps, one after another
    crowd        `threads` threads of n steps, `concurrency` at a time
    pause        `threads` threads of n steps that then wait for a person; the process is left
    resume       a new process: open the database, approve them all, see them end
    long-pause   one thread of n steps that then waits; the process is left
    long-resume  a new process, warmed up with another thread: approve, up to the next question to the model
"""

import argparse
import asyncio
import hashlib
import json
import os
import resource
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

PAUSING = ("pause", "resume", "long-pause", "long-resume")
RESULT_BYTES = 500


def tool_result(i: int) -> str:
    """500 bytes of text that is the same each time and compresses badly."""
    return RESULTS[i % len(RESULTS)]


def _noise(i: int) -> str:
    rows = (hashlib.sha256(f"{i}:{row}".encode()).hexdigest() for row in range(RESULT_BYTES // 64 + 1))
    return "".join(rows)[:RESULT_BYTES]


RESULTS = [_noise(i) for i in range(512)]


class Script:
    """What the model says: `n` times `lookup`, then `danger` where a person is to be asked, then the end."""

    def __init__(self, n: int, guarded: bool) -> None:
        self.n = n
        self.guarded = guarded
        self.calls = 0
        self.first_at: float | None = None
        self.first_cpu = 0.0

    def __call__(self, results: int) -> tuple[str, dict[str, int], str] | None:
        """The call (name, arguments, id) after `results` tool results, or None for the final answer."""
        self.calls += 1
        if self.first_at is None:
            self.first_at, self.first_cpu = time.perf_counter(), time.process_time()
        if results < self.n:
            return "lookup", {"i": results}, f"call_{results}"
        if self.guarded and results == self.n:
            return "danger", {"i": results}, f"call_{results}"
        return None


class Peer:
    """One library under measurement. `options` are the command line's; `counts` says what ran how often.

    A key names a thread: the adapter finds by it, in another process, what it paused in this one.
    """

    needs_kill = False
    """Leave without closing: the library would otherwise wait for what is paused."""

    def __init__(self, options: argparse.Namespace, script: Script, counts: Counter[str]) -> None:
        self.options = options
        self.script = script
        self.counts = counts
        self.path: str = options.database

    def prepare(self) -> None:
        """What a program does when it is loaded: define tools and agents, import what is imported lazily."""

    async def open(self) -> None:
        """Make or open the database and be ready to run threads."""

    async def run(self, key: str) -> None:
        """One thread from its first message to its end; raises if it does not end well."""
        raise NotImplementedError

    async def pause(self, key: str) -> None:
        """One thread from its first message until it waits for a person."""
        raise NotImplementedError

    async def resume(self, key: str) -> None:
        """Approve the paused thread and run it to its end."""
        raise NotImplementedError

    async def recovered(self, key: str) -> None:
        """Until the library has brought the paused thread back, where it does that when it starts."""

    async def close(self) -> None:
        """Close the database."""


def main(make: type[Peer]) -> None:
    """The workload that the command line names, with this peer."""
    options = _options()
    script = Script(options.n, options.workload in PAUSING)
    counts: Counter[str] = Counter()
    result = asyncio.run(_measure(make(options, script, counts)))
    result |= {"counts": dict(counts), "model_calls": script.calls}
    print("RESULT " + json.dumps(result), flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="one workload with one peer, in this process")
    parser.add_argument("workload", choices=("steps", "crowd", *PAUSING))
    parser.add_argument("--database", required=True)
    parser.add_argument("--mode", default="")
    parser.add_argument("--n", type=int, default=10)
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--concurrency", type=int, default=50)
    return parser.parse_args()


async def _measure(peer: Peer) -> dict[str, Any]:
    workload = peer.options.workload
    peer.prepare()
    if workload in ("steps", "crowd"):
        return await _run(peer, crowd=workload == "crowd")
    keys = ["t0"] if workload.startswith("long") else [f"t{i}" for i in range(peer.options.threads)]
    if workload.endswith("pause"):
        return await _pause(peer, keys)
    return await _resume(peer, keys, long=workload == "long-resume")


async def _run(peer: Peer, crowd: bool) -> dict[str, Any]:
    options = peer.options
    await peer.open()
    await _warm_up(peer)
    before = _database_bytes(peer.path)
    meter = Meter()
    if crowd:
        await fan([f"t{i}" for i in range(options.threads)], options.concurrency, peer.run)
    else:
        for turn in range(options.turns):
            await peer.run(f"t{turn}")
    result = meter.stop()
    steps = options.n * (options.threads if crowd else options.turns)
    assert peer.counts["lookup"] == steps, (peer.counts, steps)
    await peer.close()
    return result | {"steps": steps, "bytes": _database_bytes(peer.path) - before}


async def _pause(peer: Peer, keys: list[str]) -> dict[str, Any]:
    await peer.open()
    meter = Meter()
    await fan(keys, peer.options.concurrency, peer.pause)
    result = meter.stop() | {"threads": len(keys), "steps": len(keys) * peer.options.n}
    assert peer.counts["danger"] == 0, peer.counts
    await _leave(peer, result)
    return result


async def _resume(peer: Peer, keys: list[str], long: bool) -> dict[str, Any]:
    meter = Meter()
    await peer.open()
    if long:
        await peer.recovered(keys[0])
        recovered = time.perf_counter() - meter.wall
        await _warm_up(peer)
        meter = Meter()
    await fan(keys, peer.options.concurrency, peer.resume)
    result = meter.stop() | {"threads": len(keys)}
    assert peer.counts["danger"] == len(keys), (peer.counts, len(keys))
    if long:
        assert peer.script.first_at is not None
        result |= {
            "resume_ms": (peer.script.first_at - meter.wall) * 1000,
            "resume_cpu_ms": (peer.script.first_cpu - meter.cpu) * 1000,
            "open_ms": recovered * 1000,
        }
    await _leave(peer, result)
    return result


async def _leave(peer: Peer, result: dict[str, Any]) -> None:
    """Close, or go at once as a process does that is killed."""
    if not peer.needs_kill:
        await peer.close()
        return
    await asyncio.sleep(1)  # what it writes in the background reaches the disk
    result |= {"counts": dict(peer.counts), "model_calls": peer.script.calls}
    print("RESULT " + json.dumps(result), flush=True)
    sys.stdout.flush()
    os._exit(0)


async def _warm_up(peer: Peer) -> None:
    """One thread of one step that nobody is asked about; it leaves no trace in the counts."""
    script, n, guarded = peer.script, peer.script.n, peer.script.guarded
    script.n, script.guarded = 1, False
    await peer.run("warm")
    script.n, script.guarded = n, guarded
    script.calls, script.first_at = 0, None
    peer.counts.clear()


async def fan(keys: list[str], concurrency: int, work: Callable[[str], Awaitable[None]]) -> None:
    """`work` for each key, so many at a time. Raises what the first failing one raises."""
    places = asyncio.Semaphore(concurrency)

    async def one(key: str) -> None:
        async with places:
            await work(key)

    await asyncio.gather(*(one(key) for key in keys))


class Meter:
    """Wall and processor seconds (of all threads of this process) since it was made."""

    def __init__(self) -> None:
        self.cpu = time.process_time()
        self.wall = time.perf_counter()

    def stop(self) -> dict[str, Any]:
        wall, cpu = time.perf_counter() - self.wall, time.process_time() - self.cpu
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        return {"wall_s": wall, "cpu_s": cpu, "peak_rss_mb": peak}


def _database_bytes(path: str) -> int:
    """Bytes of the file, with what is in its log taken in. A server is asked by who started this process."""
    if not Path(path).exists():
        return 0
    connection = sqlite3.connect(path, timeout=30)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    connection.close()
    return Path(path).stat().st_size

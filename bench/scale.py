"""What one PostgreSQL carries: measured on a server of its own on this disk, with fsync, and then calculated.

    python bench/scale.py [--quick] [--threads-per-day N] [--steps N] [--cores N] [--peak N]

Measured: the CPU of the server's and of the workers' processes per step, what the tables grow by, and what a
live delta costs to carry. CPU depends less on what else the machine does than a rate would. The calculation
divides cores by it, at half load: the rest is for peaks, vacuum, backup and people who look. A step is one
model reply of one call, and its result of 490 bytes, as in bench/run.py. Linux: CPU is read in /proc.
"""

import argparse
import asyncio
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from bench.postgres import counted
from bench.step import agent_of

TICKS = os.sysconf("SC_CLK_TCK")
TERABYTE = 1e12
DAY_SECONDS = 86_400
LISTENERS = 4
SAID_BYTES = 1_000
WORKER = """
import asyncio, sys
sys.path.insert(0, {root!r})
from bench.step import agent_of
from tenuto import Runtime
async def main():
    async with Runtime([agent_of(int(sys.argv[2]), "read")], database=sys.argv[1]):
        print("works", flush=True)
        await asyncio.to_thread(sys.stdin.read)
asyncio.run(main())
"""


@dataclass(frozen=True)
class Measured:
    """Per step and per thread. `parked_bytes`: of a thread that waits for a person after its first reply."""

    server_ms: float
    worker_ms: float
    step_bytes: float
    step_wal: float
    thread_bytes: float
    parked_bytes: float
    said_ms: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of the threads")
    parser.add_argument("--threads-per-day", type=int, default=100_000, help="(default 100,000)")
    parser.add_argument("--steps", type=int, default=10, help="of a thread, on average (default 10)")
    parser.add_argument("--cores", type=int, default=8, help="of the database server (default 8)")
    parser.add_argument(
        "--peak", type=float, default=10, help="the busiest second, in average ones (default 10)"
    )
    options = parser.parse_args()
    from tenuto.testing.postgres import PostgresServer

    with PostgresServer(fsync="on", max_wal_size="4GB") as server:
        measured = asyncio.run(measure(server, 100 if options.quick else 1_000, options.steps))
    report(measured, options)


async def measure(server: Any, threads: int, steps: int) -> Measured:
    # Once without the clock: code is compiled, pages are made.
    await run(server, threads // 10, steps)
    before, server_cpu = await counted(server.url), cpu_of_server(server)
    worker_ms = await run(server, threads, steps)
    after, server_cpu = await counted(server.url), cpu_of_server(server) - server_cpu
    short = await counted(server.url)
    await run(server, threads, 1)
    one = await counted(server.url)
    long_bytes, one_bytes = ((b["kept"] - a["kept"]) / threads for a, b in ((before, after), (short, one)))
    step_bytes = (long_bytes - one_bytes) / (steps - 1) if steps > 1 else one_bytes
    return Measured(
        server_ms=server_cpu / (threads * steps),
        worker_ms=worker_ms / (threads * steps),
        step_bytes=step_bytes,
        step_wal=(after["wal"] - before["wal"]) / (threads * steps),
        thread_bytes=one_bytes - step_bytes,
        parked_bytes=await parked(server.url, threads),
        said_ms=await said(server, threads * 5),
    )


async def run(server: Any, threads: int, steps: int) -> float:
    """All of them on two worker processes, started by a third; the CPU ms of the workers."""
    from tenuto import Runtime, Settings

    root = str(Path(__file__).parents[1])
    command = [sys.executable, "-c", WORKER.format(root=root), server.url, str(steps)]
    settings = Settings(worker=False)
    async with Runtime([agent_of(steps, "read")], database=server.url, settings=settings) as client:
        ids = await asyncio.gather(*(client.start("bench", "go") for _ in range(threads)))
        workers = [
            await asyncio.create_subprocess_exec(*command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            for _ in range(2)
        ]
        for worker in workers:
            assert worker.stdout is not None
            await worker.stdout.readline()
        for thread in ids:
            assert (await client.wait(thread, 600)).status == "completed"
        spent = sum(cpu_ms(worker.pid) for worker in workers)
        for worker in workers:
            assert worker.stdin is not None
            worker.stdin.close()
            await worker.wait()
    return spent


async def parked(url: str, threads: int) -> float:
    """Bytes of a thread that waits for a person."""
    from tenuto import Agent, Runtime, tool
    from tenuto.models.scripted import ScriptedModel, call

    @tool(effect="once", approval=True)
    async def pay(order: str) -> str:
        """Pay."""
        return order

    agent = Agent(
        "parked", "Pay.", [pay], model=ScriptedModel(lambda _: call("pay", order="17"), record=False)
    )
    before = await counted(url)
    async with Runtime([agent], database=url) as runtime:
        ids = [await runtime.start("parked", "Pay order 17.") for _ in range(threads)]
        for thread in ids:
            assert (await runtime.wait(thread, 600)).status == "awaiting_approval"
    return ((await counted(url))["kept"] - before["kept"]) / threads


async def said(server: Any, count: int) -> float:
    """Server CPU ms of one publication, heard by each of `LISTENERS` other processes' connections."""
    from tenuto.store import open_store

    stores: list[Any] = [open_store(server.url) for _ in range(1 + LISTENERS)]
    heard = 0

    def hear(_text: str) -> None:
        nonlocal heard
        heard += 1

    for store in stores:
        await store.open()
        store.on_change(lambda _changes: None)
    for store in stores[1:]:
        store.on_published(hear)
    await asyncio.sleep(1)
    before = cpu_of_server(server)
    for number in range(count):
        stores[0].publish(f"{number:08d}".ljust(SAID_BYTES, "x"))
        if number % 100 == 0:
            await asyncio.sleep(0.02)
    ends_at = time.monotonic() + 60
    while heard < count * LISTENERS:
        assert time.monotonic() < ends_at, (heard, count)
        await asyncio.sleep(0.05)
    spent = cpu_of_server(server) - before
    for store in stores:
        await store.close()
    return spent / count


def cpu_of_server(server: Any) -> float:
    """CPU ms of all its processes, also of those that have ended."""
    first = int((server.folder / "data" / "postmaster.pid").read_text().split()[0])
    children = Path(f"/proc/{first}/task/{first}/children").read_text().split()
    return cpu_ms(first, ended=True) + sum(cpu_ms(int(child)) for child in children)


def cpu_ms(pid: int, *, ended: bool = False) -> float:
    """User and system time; with `ended` also of its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ticks = sum(map(int, fields[11 : 15 if ended else 13]))
    return ticks * 1000 / TICKS


def report(measured: Measured, options: argparse.Namespace) -> None:
    steps, cores = options.steps, options.cores
    per_second = options.threads_per_day * steps / DAY_SECONDS
    most = cores * 500 / measured.server_ms
    thread_bytes = measured.thread_bytes + steps * measured.step_bytes
    a_day = options.threads_per_day * thread_bytes
    peak, year = per_second * options.peak, a_day * 365
    live, waiting = cores * 500 / measured.said_ms / 10, TERABYTE / measured.parked_bytes
    terabyte = f"{TERABYTE / a_day:8,.0f} days, or {waiting / 1e6:,.0f} million threads that wait"
    days = f"{options.threads_per_day:,} threads a day of {steps} steps"
    measured_lines = {
        "server CPU per step": f"{measured.server_ms:8.2f} ms",
        "worker CPU per step": f"{measured.worker_ms:8.2f} ms",
        "tables and indexes per step": f"{measured.step_bytes:8,.0f} B",
        "... per thread besides": f"{measured.thread_bytes:8,.0f} B",
        "a thread that waits": f"{measured.parked_bytes:8,.0f} B",
        "WAL per step": f"{measured.step_wal:8,.0f} B",
        "server CPU per publication": f"{measured.said_ms:8.2f} ms, of 1 kB to {LISTENERS} processes",
    }
    calculated = {
        "the database carries": f"{most:8,.0f} steps/s, {most * 2:,.0f} events/s",
        "needed on average, at the peak": f"{per_second:8,.1f} steps/s, {peak:,.0f} steps/s",
        "worker cores at the peak": f"{peak * measured.worker_ms / 1000:8.1f}",
        "replies followed live at once": f"{live:8,.0f}, if it did nothing else",
        "growth": f"{a_day / 1e9:8.2f} GB a day, {year / 1e9:,.0f} GB a year",
        "a terabyte lasts": terabyte,
    }
    for title, lines in (
        ("measured", measured_lines),
        (f"calculated: {cores} cores at half load, {days}", calculated),
    ):
        print(title)
        for name, value in lines.items():
            print(f"  {name:30} {value}")


if __name__ == "__main__":
    main()

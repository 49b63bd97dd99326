"""What a durable step costs on PostgreSQL: a server of its own on this disk, with fsync, as in production.

    python bench/postgres.py [--quick] [--repeat N]

The step is that of bench/run.py: one model reply, one tool result; `once` has a tool with an effect, whose
start is committed before it. Client CPU is that of the process that runs the agent. Commits are the server's
WAL syncs; what it keeps per step is the growth of the tables with their indexes, WAL what it writes for that.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

RESULT = "x" * 490
HERE = Path(__file__)
CASES = [(1, 10, "read"), (1, 100, "read"), (1, 400, "read"), (1, 100, "once"), (500, 10, "read")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one repeat, fewer threads")
    parser.add_argument("--repeat", type=int, default=3, help="runs per figure (default 3)")
    parser.add_argument("--case", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        url, threads, steps, effect = options.case
        print(json.dumps(asyncio.run(measure(url, int(threads), int(steps), effect))))
        return
    report(1 if options.quick else options.repeat, quick=options.quick)


def agent_of(steps: int, effect: Any) -> Any:
    from tenuto import Agent, tool
    from tenuto.messages import CallRequest, Reply

    @tool(effect=effect)
    async def lookup(i: int) -> str:
        """Look something up."""
        return RESULT

    class Model:
        name = "scripted"

        async def reply(self, request, emit=None):
            step = len(request.messages) // 2
            if step <= steps:
                call = CallRequest("lookup", f'{{"i":{step}}}', provider_id=f"call_{step}")
                return Reply(calls=(call,), model="scripted", finish="tool_calls")
            return Reply(text="done", model="scripted", finish="stop")

    return Agent("bench", "Look things up.", [lookup], model=Model(), max_steps=0)


async def measure(url: str, threads: int, steps: int, effect: str) -> dict[str, float]:
    """`threads` threads of `steps` steps, at most 50 at a time, in one runtime with its worker."""
    from tenuto import Runtime

    turn = asyncio.Semaphore(1 if threads == 1 else 50)
    async with Runtime([agent_of(steps, effect)], database=url) as runtime:

        async def one() -> None:
            async with turn:
                state = await runtime.wait(await runtime.start("bench", "go"))
                assert (state.status, state.step) == ("completed", steps + 1), state

        for _ in range(max(1, 100 // steps)):
            await one()
        turns = max(threads, 800 // steps)
        before = await counted(url)
        wall, cpu = time.perf_counter(), time.process_time()
        await asyncio.gather(*(one() for _ in range(turns)))
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        after = await counted(url)
    done = turns * steps
    figures = {name: (after[name] - before[name]) / done for name in after}
    return figures | {"cpu_ms": cpu * 1000 / done, "wall_ms": wall * 1000 / done, "rate": done / wall}


async def counted(url: str) -> dict[str, float]:
    import asyncpg

    connection = await asyncpg.connect(url)
    try:
        (version,) = await connection.fetchrow("SELECT current_setting('server_version_num')::int")
        in_io = "SELECT sum(fsyncs)::int FROM pg_stat_io WHERE object = 'wal'"
        syncs = await connection.fetchval(in_io if version >= 180000 else "SELECT wal_sync FROM pg_stat_wal")
        row = await connection.fetchrow(
            "SELECT (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::float8, "
            "(SELECT sum(pg_total_relation_size(oid))::float8 FROM pg_class "
            " WHERE relkind = 'r' AND relnamespace = current_schema()::regnamespace)"
        )
        return {"syncs": float(syncs), "wal": row[0], "kept": row[1]}
    finally:
        await connection.close()


def report(repeat: int, *, quick: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    from tenuto.errors import ConfigurationError
    from tenuto.testing.postgres import PostgresServer

    console = Console(width=None if sys.stdout.isatty() else 110)
    try:
        server = PostgresServer(fsync="on", max_wal_size="4GB")
    except ConfigurationError as error:
        console.print(f"PostgreSQL: not measured, {error}")
        return
    folder = HERE.parents[1] / ".bench"
    folder.mkdir(exist_ok=True)
    table = Table(title="a durable step on PostgreSQL")
    for column in (
        "threads x steps",
        "effect",
        "client CPU ms",
        "wall ms",
        "steps/s",
        "commits",
        "kept",
        "WAL",
    ):
        table.add_column(column, justify="left" if column in ("threads x steps", "effect") else "right")
    with server:
        for wanted, steps, effect in CASES:
            threads = min(wanted, 100) if quick else wanted
            runs = []
            for _ in range(repeat):
                command = [sys.executable, str(HERE), "--case", server.url, str(threads), str(steps), effect]
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                if done.returncode:
                    raise SystemExit(f"bench: PostgreSQL failed\n{done.stderr}")
                runs.append(json.loads(done.stdout.splitlines()[-1]))
            cpu = [run["cpu_ms"] for run in runs]
            median = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
            table.add_row(
                f"{threads} x {steps}",
                effect,
                f"{median['cpu_ms']:.3f} [{min(cpu):.3f}-{max(cpu):.3f}]",
                f"{median['wall_ms']:.3f}",
                f"{median['rate']:,.0f}",
                f"{median['syncs']:.2f}",
                f"{median['kept']:,.0f}",
                f"{median['wal']:,.0f}",
            )
    console.print(table)
    console.print(f"{repeat} runs each, load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()

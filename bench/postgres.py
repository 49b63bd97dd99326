"""What a durable step costs on PostgreSQL: a server of its own on this disk, with fsync, as in production.

    python bench/postgres.py [--quick] [--repeat N]

The step is that of bench/run.py: one model reply, one tool result; `once` has a tool with an effect, whose
start is committed before it. Client CPU is that of the process that runs the agent. Syncs are those of the
WAL; what it keeps per step is the growth of the tables with their indexes, WAL what it writes for that.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from bench.step import agent_of, measured

HERE = Path(__file__)
CASES = [(1, 10, "read"), (1, 100, "read"), (1, 400, "read"), (1, 100, "once"), (500, 10, "read")]
SETTLE_SECONDS, POLL_SECONDS = 1.5, 0.02


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one repeat, fewer threads")
    parser.add_argument("--repeat", type=int, default=3, help="runs per figure (default 3)")
    parser.add_argument("--case", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        url, threads, steps, effect = options.case
        print(json.dumps(asyncio.run(case(url, int(threads), int(steps), effect))))
        return
    report(1 if options.quick else options.repeat, quick=options.quick)


async def case(url: str, threads: int, steps: int, effect: str) -> dict[str, float]:
    """`threads` threads of `steps` steps, at most 50 at a time, in one runtime with its worker."""
    from tenuto import Runtime

    async with Runtime([agent_of(steps, effect)], database=url) as runtime:
        return await measured(runtime, threads, steps, 800)


def measure(url: str, *arguments: object) -> dict[str, float]:
    """A case in a process of its own; what the server counts for it is taken before and after."""
    before = asyncio.run(counted(url))
    command = [sys.executable, str(HERE), "--case", url, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"bench: PostgreSQL failed\n{done.stderr}")
    figures = json.loads(done.stdout.splitlines()[-1])
    after = asyncio.run(counted(url))
    return figures | {name: (after[name] - before[name]) / figures["all_steps"] for name in after}


async def counted(url: str) -> dict[str, float]:
    """What the server of this database has done so far: its syncs and bytes of WAL; in this database, the
    transactions it committed, and the bytes it keeps in tables with their indexes.

    A session tells its syncs and transactions once a second at most, and the rest when it ends: these two
    are right once the processes that are counted have gone. Those are waited for, but no longer than that.
    """
    import asyncpg

    others = (
        "SELECT count(*) FROM pg_stat_activity "
        "WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> $1"
    )
    connection = await asyncpg.connect(url)
    try:
        for _ in range(round(SETTLE_SECONDS / POLL_SECONDS)):
            if not await connection.fetchval(others, connection.get_server_pid()):
                break
            await asyncio.sleep(POLL_SECONDS)
        (version,) = await connection.fetchrow("SELECT current_setting('server_version_num')::int")
        in_io = "SELECT sum(fsyncs)::int FROM pg_stat_io WHERE object = 'wal'"
        syncs = await connection.fetchval(in_io if version >= 180000 else "SELECT wal_sync FROM pg_stat_wal")
        row = await connection.fetchrow(
            "SELECT (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::float8 AS wal, "
            "(SELECT sum(pg_total_relation_size(oid))::float8 FROM pg_class WHERE relkind = 'r' "
            " AND relnamespace <> ALL (ARRAY['pg_catalog', 'information_schema']::regnamespace[])) AS kept, "
            "(SELECT xact_commit::float8 FROM pg_stat_database WHERE datname = current_database()) AS commits"
        )
        return {"syncs": float(syncs), **{name: value or 0.0 for name, value in row.items()}}
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
    table = Table(title="a durable step on PostgreSQL")
    texts, figures = (
        ("threads x steps", "effect"),
        ("client CPU ms", "wall ms", "steps/s", "syncs", "kept", "WAL"),
    )
    for column in (*texts, *figures):
        table.add_column(column, justify="left" if column in texts else "right")
    with server:
        for wanted, steps, effect in CASES:
            threads = min(wanted, 100) if quick else wanted
            runs = [measure(server.url, threads, steps, effect) for _ in range(repeat)]
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

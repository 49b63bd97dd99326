"""What a durable step costs, beside raw SQLite doing the least that could be called durable.

    ./dev bench [--quick] [--repeat N] [--flow | --streams | --postgres | --fleet]

A step is one model reply (about 100 bytes) and one tool result (about 500 bytes). The model and the tool are
functions in the process, so that what is measured is Tenuto and its database; since such a read ends at once,
reply and result share a commit. Every figure comes from a process of its own; floor and runtime take turns,
and the median of the repeats is printed with the spread. fsyncs are counted by strace where it is installed.
"""

import argparse
import asyncio
import json
import os
import platform
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from bench.step import RESULT, agent_of, measured, now, since

CALL = json.dumps({"role": "assistant", "tool": "lookup", "args": {"i": 1}, "id": "call_1", "pad": "x" * 30})
HERE = Path(__file__)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one repeat, small sizes")
    parser.add_argument("--repeat", type=int, default=5, help="runs per figure (default 5)")
    parser.add_argument(
        "--flow", action="store_true", help="only the task tree and the splitter, beside agere"
    )
    parser.add_argument(
        "--streams", action="store_true", help="only the event streams: 1,000 subscribers of a server"
    )
    parser.add_argument("--postgres", action="store_true", help="only the step on PostgreSQL")
    parser.add_argument(
        "--fleet", action="store_true", help="only workers on PostgreSQL: growth, latencies, recovery"
    )
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--threads", type=int, default=1, help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=int, default=100, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        print(json.dumps(CASES[options.case](options.threads, options.steps)))
        return
    repeat = 1 if options.quick else options.repeat
    for alone in ("streams", "postgres", "fleet"):
        if getattr(options, alone):
            _also(f"{alone}.py", quick=options.quick)
            return
    if not options.flow:
        _report(repeat, quick=options.quick)
        _also("postgres.py", quick=options.quick)
    _also("flow.py", quick=options.quick)


def _also(name: str, *, quick: bool) -> None:
    program = HERE.with_name(name)
    done = subprocess.run([sys.executable, str(program), *(["--quick"] if quick else [])], check=False)
    if done.returncode:
        raise SystemExit(done.returncode)


# -- the cases, each in a process of its own --------------------------------------------------------------


def floor(threads: int, steps: int) -> dict[str, float]:
    """One commit per step, two rows each; nothing else: no hash, no lease, no projection."""
    with tempfile.TemporaryDirectory(dir=_folder()) as folder:
        path = Path(folder) / "floor.db"
        connection = sqlite3.connect(path, isolation_level=None)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("CREATE TABLE ev (thread TEXT, seq INT, body TEXT, PRIMARY KEY (thread, seq))")
        turns = max(threads, 1200 // steps)
        began = now()
        for thread in range(turns):
            for step in range(steps):
                connection.execute("BEGIN IMMEDIATE")
                rows = [(f"t{thread}", 2 * step, CALL), (f"t{thread}", 2 * step + 1, RESULT)]
                connection.executemany("INSERT INTO ev VALUES (?, ?, ?)", rows)
                connection.execute("COMMIT")
        figures = since(began, turns * steps)
        connection.close()
        return {**figures, "bytes": path.stat().st_size / (turns * steps), "all_steps": turns * steps}


def tenuto(threads: int, steps: int) -> dict[str, float]:
    """`threads` threads of `steps` steps, at most 50 at a time, in one runtime with its worker."""
    return asyncio.run(_tenuto(threads, steps))


async def _tenuto(threads: int, steps: int) -> dict[str, float]:
    from tenuto import Runtime

    with tempfile.TemporaryDirectory(dir=_folder()) as folder:
        path = Path(folder) / "tenuto.db"
        async with Runtime([agent_of(steps)], database=f"sqlite:///{path}") as runtime:
            figures = await measured(runtime, threads, steps, 1200)
        connection = sqlite3.connect(path)
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        connection.close()
        # The warm-up is in the file, and among the fsyncs, as well.
        return {**figures, "bytes": path.stat().st_size / figures["all_steps"]}


def importing(threads: int, steps: int) -> dict[str, float]:
    """`import tenuto` in a fresh interpreter, less the interpreter's own start."""

    def wall(code: str) -> float:
        started = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        return (time.perf_counter() - started) * 1000

    wall("import tenuto")
    return {"import_ms": wall("import tenuto") - wall("pass")}


CASES = {"floor": floor, "tenuto": tenuto, "import": importing}


# -- measuring and printing -------------------------------------------------------------------------------


def _folder() -> str:
    """On the disk of this checkout: a temporary folder may be in memory, where fsync costs nothing."""
    folder = HERE.parents[1] / ".bench"
    folder.mkdir(exist_ok=True)
    return str(folder)


def _run(case: str, threads: int, steps: int, *before: str) -> dict[str, float]:
    sizes = ["--threads", str(threads), "--steps", str(steps)]
    command = [*before, sys.executable, str(HERE), "--case", case, *sizes]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"bench: {case} failed\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def _fsyncs(case: str, threads: int, steps: int) -> float | None:
    """fsync and fdatasync calls per step, set-up included; None where strace cannot run."""
    strace = shutil.which("strace")
    if strace is None:
        return None
    with tempfile.NamedTemporaryFile("r") as report:
        try:
            traced = ["-f", "-c", "-e", "trace=fsync,fdatasync", "-o", report.name]
            all_steps = _run(case, threads, steps, strace, *traced)["all_steps"]
        except SystemExit:
            return None
        lines = report.read().splitlines()
    calls = sum(int(line.split()[3]) for line in lines if line.rstrip().endswith("sync"))
    return calls / all_steps


def _report(repeat: int, *, quick: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 110)
    sizes = [(1, 10), (1, 100), (1, 400), (60 if quick else 500, 10)]
    console.print(
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, ", end=""
    )
    console.print(f"SQLite {sqlite3.sqlite_version}, {repeat} runs each, load {os.getloadavg()[0]:.1f}")
    table = Table(title="a durable step")
    for column in ("threads x steps", "", "CPU ms", "wall ms", "steps/s", "bytes", "fsyncs"):
        table.add_column(column, justify="right" if column[:1] in "CwsbfW" else "left")
    medians: dict[tuple[str, int, int], float] = {}
    for threads, steps in sizes:
        runs: dict[str, list[dict[str, float]]] = {"floor": [], "tenuto": []}
        for _ in range(repeat):
            for case, results in runs.items():
                results.append(_run(case, threads, steps))
        for case, results in runs.items():
            fsyncs = _fsyncs(case, threads, steps)
            cpu = [result["cpu_ms"] for result in results]
            medians[case, threads, steps] = statistics.median(cpu)
            table.add_row(
                f"{threads} x {steps}",
                "raw SQLite" if case == "floor" else "Tenuto",
                f"{statistics.median(cpu):.3f} [{min(cpu):.3f}-{max(cpu):.3f}]",
                f"{statistics.median(result['wall_ms'] for result in results):.3f}",
                f"{statistics.median(result['rate'] for result in results):,.0f}",
                f"{statistics.median(result['bytes'] for result in results):,.0f}",
                "" if fsyncs is None else f"{fsyncs:.2f}",
            )
    console.print(table)
    flat = medians["tenuto", 1, 400] / medians["tenuto", 1, 10]
    console.print(f"CPU per step, 400 steps against 10: {flat:.2f} times")
    imports = statistics.median(_run("import", 1, 1)["import_ms"] for _ in range(repeat))
    console.print(f"import tenuto: {imports:.0f} ms beyond the interpreter's own start")


if __name__ == "__main__":
    main()

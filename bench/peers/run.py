"""Tenuto beside the other ways to run an agent durably: the same workloads, each in its own environment.

    ./dev bench-peers                      measure what has not been measured yet, and show it
    ./dev bench-peers --report             the same, and write docs/benchmarks.md and its plot
    ./dev bench-peers --postgres --report  those that can, on PostgreSQL: docs/benchmarks-postgres.md
    ./dev bench-peers --only tenuto,dbos --workload steps,crowd --quick

Results are kept as lines of JSON in .bench/peers/. A run that was broken off is taken up where it was; a run
whose code or pins have changed is made anew. A peer that fails, or that cannot be installed, is a row that
says so. Figures that cost minutes are taken once, all others `--reps` times.
"""

import argparse
import fcntl
import hashlib
import json
import os
import platform
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import environments
from cells import Cell, Runner, cells
from databases import Files, Postgres
from environments import ROOT, CannotMake
from plan import FULL, PEERS, POSTGRES_PEERS, POSTGRES_WORKLOADS, QUICK, WORKLOADS, Peer
from report import summary, write_documents
from tenuto.errors import ConfigurationError

HERE = Path(__file__).resolve().parent
KEPT = ROOT / ".bench" / "peers"
SHARED = ("measuring.py", "stream_clients.py", "stream_server.py", "running.py", "databases.py")


def main() -> int:
    options = _options()
    every = POSTGRES_PEERS if options.postgres else PEERS
    peers = [peer for peer in every if _chosen(peer.label, options.only)]
    if not peers:
        names = ", ".join(peer.label for peer in every)
        print(f"bench-peers: no peer is called {options.only!r}; there are: {names}", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # leave no database behind either way
    options.keep.mkdir(parents=True, exist_ok=True)
    kept = ("postgres-" if options.postgres else "") + ("quick" if options.quick else "results")
    results = Results(options.keep / f"{kept}.jsonl")
    try:
        if not options.report_only:
            with (options.keep / "lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if options.fresh:
                    results.put_aside()
                measure(peers, options, results)
    except BlockingIOError:
        print(f"bench-peers: another run is at work in {options.keep}", file=sys.stderr)
        return 1
    except ConfigurationError as error:  # there is no PostgreSQL
        print(f"bench-peers: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nbench-peers: stopped; the same command goes on from here", file=sys.stderr)
        return 130
    rows = results.current()
    print(summary(rows))
    if options.report or options.report_only:
        folder = options.keep if options.quick else ROOT / "docs"
        plotter = None if options.no_plot or options.postgres else _python("plot")
        for written in write_documents(rows, folder, plotter):
            print(f"bench-peers: wrote {written}", file=sys.stderr)
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="./dev bench-peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", metavar="PEERS", help="parts of names, with commas")
    parser.add_argument(
        "--workload", type=_workloads, help=f"some of {', '.join(WORKLOADS)} (default: those that matter)"
    )
    parser.add_argument("--postgres", action="store_true", help="on a PostgreSQL that is started for it")
    parser.add_argument("--reps", type=int, default=3, help="runs per figure (default 3)")
    parser.add_argument("--quick", action="store_true", help="small sizes, once; kept apart")
    parser.add_argument("--report", action="store_true", help="write docs/benchmarks.md and its plot")
    parser.add_argument("--report-only", action="store_true", help="the same, and measure nothing")
    parser.add_argument("--no-plot", action="store_true", help="a report without its picture")
    parser.add_argument(
        "--keep", type=Path, default=KEPT, metavar="FOLDER", help="for results and databases; on a disk"
    )
    parser.add_argument("--fresh", action="store_true", help="put the kept results aside and begin anew")
    parser.add_argument(
        "--processor", type=int, default=(os.cpu_count() or 1) - 1, help="where the measured process runs"
    )
    return parser.parse_args()


def _workloads(given: str) -> list[str]:
    chosen = given.split(",")
    if unknown := [name for name in chosen if name not in WORKLOADS]:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: there are {', '.join(WORKLOADS)}")
    return chosen


def _chosen(label: str, only: str) -> bool:
    wanted = [part.strip().lower() for part in only.split(",")]
    return any(part in label.lower() for part in wanted)


class Results:
    """Rows in a file, one line each, appended as they are made."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: list[dict[str, Any]] = []
        if path.exists():
            self.rows = [json.loads(line) for line in path.read_text().splitlines()]

    def put_aside(self) -> None:
        """Begin anew; what there was stays beside it, with the time in its name."""
        if self.path.exists():
            self.path.rename(self.path.with_suffix(f".{time.strftime('%Y%m%d-%H%M%S')}.jsonl"))
        self.rows = []

    def add(self, row: dict[str, Any]) -> None:
        row = row | {"at": time.strftime("%Y-%m-%d %H:%M:%S")}
        self.rows.append(row)
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")

    def has(self, cell: Cell, identity: str) -> bool:
        """Whether this cell was measured, by the same code; one that failed is tried again."""
        mine = [row for row in self.rows if _key(row) == cell.key and row["identity"] == identity]
        last_parts = {row["part"]: row for row in mine}
        ends = {"approvals": "resume", "long": "resume"}
        end = last_parts.get(ends.get(cell.workload, cell.workload))
        return end is not None and "error" not in end

    def current(self) -> list[dict[str, Any]]:
        """The rows of the code and pins that each peer was measured with last; the newest of each cell."""
        newest: dict[str, str] = {}
        for row in self.rows:
            if row["workload"] != "machine":
                newest[row["peer"]] = row["identity"]
        kept: dict[Any, dict[str, Any]] = {}
        for row in self.rows:
            if row["workload"] == "machine":
                kept["machine"] = row
            elif row["identity"] == newest[row["peer"]]:
                kept[(*_key(row), row["part"])] = row
        return list(kept.values())


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row.get(name) for name in ("workload", "peer", "rep", "n", "threads", "name"))


def measure(peers: list[Peer], options: argparse.Namespace, results: Results) -> None:
    """Make every run of the plan that is not there yet."""
    sizes = QUICK if options.quick else FULL
    pythons: dict[str, Path] = {}
    for peer in peers:
        if peer.environment not in pythons:
            python = _python(peer.environment)
            if python is not None:
                pythons[peer.environment] = python
    identities = {peer.label: identity_of(peer) for peer in peers}
    workloads = options.workload or (POSTGRES_WORKLOADS if options.postgres else WORKLOADS)
    plan = cells(peers, sizes, workloads, 1 if options.quick else options.reps)
    plan = [cell for cell in plan if cell.peer.environment in pythons]
    todo = [cell for cell in plan if not results.has(cell, identities[cell.peer.label])]
    if len(todo) < len(plan):
        print(f"bench-peers: {len(plan) - len(todo)} of {len(plan)} runs are there already", file=sys.stderr)
    if not todo:
        return
    others = [n for n in range(os.cpu_count() or 1) if n != options.processor] or [options.processor]
    databases = Postgres(others) if options.postgres else Files(options.keep.resolve())
    results.add(machine(options.processor, databases.version))
    runner = Runner(databases, Path(sys.executable), sizes, (options.processor, others[0]))
    started = time.monotonic()
    try:
        for place, cell in enumerate(todo, 1):
            for row in runner.run(cell, pythons[cell.peer.environment]):
                results.add(row | {"identity": identities[cell.peer.label]})
                minutes = (time.monotonic() - started) / 60
                print(f"[{place}/{len(todo)}, {minutes:.1f} min] {cell}: {_brief(row)}", flush=True)
    finally:
        runner.close()


def _python(environment: str) -> Path | None:
    try:
        return environments.python_of(environment)
    except CannotMake as error:
        print(f"bench-peers: skipped: {error}", file=sys.stderr)
        return None


def _brief(row: dict[str, Any]) -> str:
    if "error" in row:
        return f"failed: {row['error']}"
    if "fsyncs_per_step" in row:
        return f"{row['fsyncs_per_step']:.2f} per step"
    each = row.get("steps") or row.get("deltas") or row["threads"]
    said = f"{row['part']} {row['cpu_s'] / each * 1000:.3f} CPU ms each, {row['wall_s']:.2f} s"
    if "resume_ms" in row:
        said += f", {row['resume_ms']:.1f} ms to the next question"
    if "fsyncs" in row:
        said += f", {row['fsyncs'] / each:.2f} fsyncs and {row['bytes'] / each:,.0f} bytes each"
    return f"{said}, fsync {row['probe_us']:.0f} µs"


def identity_of(peer: Peer) -> str:
    """A hash of all that makes the peer's figures: its code or pins, and the bench's own."""
    digest = hashlib.sha256(sys.version.encode())
    files = [HERE / name for name in (*SHARED, peer.script) if name]
    if peer.environment == environments.OWN:
        files += sorted((ROOT / "src" / "tenuto").rglob("*.py")) + sorted((ROOT / "src").rglob("*.sql"))
    else:
        files.append(HERE / "requirements" / f"{peer.environment}.txt")
    for path in files:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def machine(processor: int, database: str) -> dict[str, Any]:
    """Where this was measured."""
    named = Path("/proc/cpuinfo")
    models = (
        [line for line in named.read_text().splitlines() if "model name" in line] if named.exists() else []
    )
    done = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    return {
        "workload": "machine",
        "cpu": models[0].partition(":")[2].strip() if models else platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "database": database,
        "processor": processor,
        "load1": os.getloadavg()[0],
        "commit": done.stdout.strip(),
    }


if __name__ == "__main__":
    raise SystemExit(main())

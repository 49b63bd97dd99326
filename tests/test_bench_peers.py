"""The bench beside the peers: Tenuto's own adapter and the report, at small sizes, without any peer."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tenuto.testing.postgres import find_programs

ROOT = Path(__file__).resolve().parent.parent
BENCH = ROOT / "bench" / "peers"
MODULES = ("aims", "cells", "databases", "environments", "plan", "report", "running", "tables")

needs_postgres = pytest.mark.skipif(find_programs() is None, reason="no PostgreSQL is installed here")


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCH / "run.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, ModuleType]]:
    """The bench's modules, which find each other beside themselves, as a script's do."""
    monkeypatch.syspath_prepend(str(BENCH))
    try:
        yield {name: __import__(name) for name in MODULES}
    finally:
        for name in MODULES:
            sys.modules.pop(name, None)


def test_tenuto_is_measured_and_a_second_run_has_nothing_to_do(tmp_path: Path) -> None:
    wanted = ["--quick", "--only", "tenuto", "--workload", "approvals,long,deltas"]
    first = run(*wanted, "--keep", tmp_path, "--report", "--no-plot")
    assert first.returncode == 0, first.stderr
    kept = [json.loads(line) for line in (tmp_path / "quick.jsonl").read_text().splitlines()]
    rows = [row for row in kept if row.get("peer") == "Tenuto"]
    done = [(row["workload"], row["part"]) for row in rows]
    pauses = [(workload, part) for workload in ("approvals", "long") for part in ("pause", "resume")]
    assert done == [*pauses, ("deltas", "deltas"), ("deltas", "deltas")]
    assert not [row["error"] for row in kept if "error" in row]
    # Warm-up apart, each ran what it had to: counts come from inside the tools and the model.
    approvals, long = rows[:2], rows[2:4]
    assert [row["counts"] for row in approvals] == [{"lookup": 10}, {"danger": 10}]
    assert (long[0]["n"], long[0]["steps"], long[0]["counts"]) == (40, 40, {"lookup": 40})
    assert [row["model_calls"] for row in long] == [41, 1]
    assert 0 < long[1]["resume_ms"] <= long[1]["wall_s"] * 1000
    page = (tmp_path / "benchmarks.md").read_text()
    assert "## A long resume" in page
    assert "| Tenuto | " in page
    assert not list(tmp_path.glob("*.db*")), "databases are left behind"

    second = run(*wanted, "--keep", tmp_path)
    assert "4 of 4 runs are there already" in second.stderr
    assert len((tmp_path / "quick.jsonl").read_text().splitlines()) == len(kept)


@needs_postgres
def test_on_postgres_the_server_counts(tmp_path: Path) -> None:
    wanted = ["--postgres", "--quick", "--only", "tenuto", "--workload", "steps,long", "--keep", tmp_path]
    first = run(*wanted, "--report")
    assert first.returncode == 0, first.stderr
    kept = [json.loads(line) for line in (tmp_path / "postgres-quick.jsonl").read_text().splitlines()]
    assert not [row["error"] for row in kept if "error" in row]
    assert kept[0]["database"].startswith("PostgreSQL 1")
    steps = {(row["peer"], row["n"]): row for row in kept if row["workload"] == "steps"}
    assert len(steps) == 4
    for (peer, n), row in steps.items():
        # One fsync for a step, three where a start has to be known; a thread itself has at most five.
        each = 3 if "effects" in peer else 1
        assert each <= row["fsyncs"] / row["steps"] <= each + 5 / n + 0.1, row
        # A result of 500 bytes, stored once whatever the length of the thread.
        assert 500 < row["bytes"] / row["steps"] < 6_000, row
    longs = [row for row in kept if row["workload"] == "long"]
    assert [(row["part"], row["model_calls"]) for row in longs] == [("pause", 41), ("resume", 1)]
    page = (tmp_path / "benchmarks-postgres.md").read_text()
    assert page.startswith("# Benchmarks on PostgreSQL")
    assert "fsyncs per step: at most 2.0" in page
    assert "Cayu" not in page
    assert "5 of 5 runs are there already" in run(*wanted).stderr


@needs_postgres
@pytest.mark.parametrize(("only", "workload"), [("langgraph", "long"), ("dbos", "long"), ("raw", "crowd")])
def test_on_postgres_the_peers_run(
    bench: dict[str, ModuleType], only: str, workload: str, tmp_path: Path
) -> None:
    peers = [peer for peer in bench["plan"].POSTGRES_PEERS if only in peer.label.lower()]
    if not all(bench["environments"].is_ready(peer.environment) for peer in peers):
        pytest.skip("their environments are made by ./dev bench-peers --postgres --quick")
    done = run("--postgres", "--quick", "--only", only, "--workload", workload, "--keep", tmp_path)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (tmp_path / "postgres-quick.jsonl").read_text().splitlines()][1:]
    assert not [row["error"] for row in rows if "error" in row]
    assert {row["peer"] for row in rows} == {peer.label for peer in peers}
    looked_up = {row["counts"].get("lookup", 0) for row in rows if row["part"] != "resume"}
    assert looked_up == {40 if workload == "long" else 200}


def test_what_is_aimed_at_on_postgres(bench: dict[str, ModuleType]) -> None:
    def counted(peer: str, n: int, cpu_s: float, fsyncs: float) -> dict[str, Any]:
        server = {"database": "PostgreSQL 15", "fsyncs": fsyncs, "transactions": 200, "wal_bytes": 2e5}
        server |= {"bytes": 150_000}
        return row(peer, n=n, cpu_s=cpu_s, **server)

    rows = [counted("Tenuto", 10, 0.08, 130), counted("Tenuto", 400, 0.09, 101)]
    rows += [counted("Tenuto (tool with effects)", 400, 0.2, 341), counted("raw PostgreSQL", 400, 0.01, 100)]
    rows += [counted("DBOS", 10, 0.5, 400), counted("DBOS", 400, 0.45, 200)]
    crowd = {"workload": "crowd", "part": "crowd", "cpu_s": 0.1, "peak_rss_mb": 40}
    rows += [row("Tenuto", **crowd, fsyncs=10), row("DBOS", **crowd | {"wall_s": 10.0}, fsyncs=200)]
    found = {aim.what.split(":")[0]: aim for aim in bench["aims"].aims(rows)}
    assert [(aim.own, aim.ratio, aim.met) for aim in found.values()] == [
        ("0.80 ms", "6.2", True),
        ("0.90 ms", "5.0", False),
        ("1.12 times", "0.8", True),  # 0.9 beside 0.8, and 4.5 beside 5
        ("1.0", "2.0", True),
        ("3.4", "", False),
        ("1,500", "1.0", True),
        ("100.0", "10.0", True),
    ]
    assert found["client CPU per step at N=10"].best == "DBOS, 5.00 ms"
    resume = {"workload": "long", "part": "resume", "resume_ms": 12.0, "database": "PostgreSQL 15"}
    (aim,) = bench["aims"].aims([row("Tenuto", **resume), row("LangGraph", **resume | {"resume_ms": 24.0})])
    assert (aim.own, aim.ratio, aim.met) == ("12.0 ms", "2.0", True)


def test_a_peer_or_a_workload_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    peer = run("--only", "nobody", "--keep", tmp_path / "new")
    assert (peer.returncode, peer.stdout) == (2, "")
    assert "there are: Tenuto, Tenuto (tool with effects), LangGraph, " in peer.stderr
    workload = run("--workload", "steps,step", "--keep", tmp_path / "new")
    assert workload.returncode == 2
    assert "step: there are steps, crowd" in workload.stderr
    assert not (tmp_path / "new").exists()


def row(peer: str, **fields: Any) -> dict[str, Any]:
    common = {"peer": peer, "part": "steps", "workload": "steps", "rep": 0, "n": 10, "threads": 1, "name": ""}
    measured = {"steps": 100, "wall_s": 1.0, "bytes": 100_000, "at": "now", "probe_us": 80.0, "load1": 0.5}
    return common | measured | fields


def test_the_report_has_medians_spreads_ratios_and_what_failed(bench: dict[str, ModuleType]) -> None:
    rows = [row("Tenuto", rep=rep, cpu_s=cpu) for rep, cpu in enumerate((0.05, 0.03, 0.04))]
    rows += [row("LangGraph", cpu_s=0.36), row("raw SQLite", cpu_s=0.01)]
    rows += [row("Noeta", error="out | of order"), row("DBOS", cpu_s=0.5), row("DBOS", rep=1, error="gone")]
    page = bench["report"].page(rows, None, "what it is")
    assert "| Tenuto | 0.40 [0.30–0.50] | 10.00 | 1,000 | – |" in page
    assert "| Noeta | failed: out / of order |  |  |  |" in page
    assert "| DBOS (not every run went well) | 5.00 | 10.00 | 1,000 | – |" in page
    # 0.36 s over 100 steps beside a median of 0.04 s; the floor is nobody's peer.
    assert "at least 7 times less | LangGraph, 3.60 ms | 0.40 ms | 9.0 | met |" in page
    rows = [row("Tenuto", cpu_s=0.1), row("LangGraph", cpu_s=0.36)]
    assert "| LangGraph, 3.60 ms | 1.00 ms | 3.6 | missed |" in bench["report"].page(rows, None, "")


def test_a_busy_machine_is_told_of(bench: dict[str, ModuleType]) -> None:
    machine = {"workload": "machine", "cores": 2, "commit": "c", "cpu": "X", "system": "L", "python": "3"}
    machine |= {"database": "SQLite 3", "processor": 1}
    quiet, busy = [row("Tenuto", cpu_s=0.1, load1=load) for load in (1.2, 4.0)]
    assert "other work" not in bench["report"].page([machine, quiet], None, "")
    assert "(load 4.0 on 2 cores)" in bench["report"].page([machine, busy], None, "")


def test_a_rate_is_threads_per_second_and_more_is_better(bench: dict[str, ModuleType]) -> None:
    crowd = {"workload": "crowd", "part": "crowd", "threads": 500, "cpu_s": 1.0, "peak_rss_mb": 40}
    rows = [row("Tenuto", **crowd | {"wall_s": 0.5}), row("DBOS", **crowd | {"wall_s": 25.0})]
    (aim,) = bench["aims"].aims(rows)
    assert (aim.best, aim.own, aim.ratio, aim.met) == ("DBOS, 20.0", "1,000.0", "50.0", True)
    bars = bench["report"].panels(rows)[0]["bars"]
    assert bars == [("Tenuto", 1000.0), ("DBOS", 20.0)]


def test_the_slowest_peer_comes_last_and_stores_its_long_thread_once(bench: dict[str, ModuleType]) -> None:
    plan = bench["plan"]
    found = bench["cells"].cells(plan.PEERS, plan.FULL, plan.WORKLOADS, 3)
    assert found[-1].peer.label == "Cayu"
    assert len({cell.key for cell in found}) == len(found)
    cayu = [cell for cell in found if cell.peer.label == "Cayu" and cell.workload in ("steps", "long")]
    assert [cell.n for cell in cayu] == [10, 100, 400, 10, 10]
    stored = row("Cayu", workload="long", part="pause", n=400, steps=400, cpu_s=300.0)
    assert "| Cayu | 750.00 |" in bench["report"].page([stored, row("Tenuto", n=400, cpu_s=0.1)], None, "")


def test_every_peer_is_pinned(bench: dict[str, ModuleType]) -> None:
    plan = bench["plan"]
    for environment in {peer.environment for peer in (*plan.PEERS, *plan.POSTGRES_PEERS)} - {"tenuto"}:
        pins = bench["environments"].pins(environment)
        heads = bench["report"].HEADS[environment].split()
        assert set(heads) <= set(pins), environment

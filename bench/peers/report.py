"""From rows to a page: tables with medians and spreads, what was aimed at, and the series of the plot."""

import json
import statistics
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from aims import Aim, aims
from environments import OWN, pins
from plan import PEERS, POSTGRES_PEERS, Peer
from tables import Table, on_server, tables

Row = dict[str, Any]
HERE = Path(__file__).resolve().parent
HEADS = {
    "langgraph": "langgraph langchain langgraph-checkpoint-sqlite langgraph-checkpoint-postgres "
    "langchain-openai",
    "openai-agents": "openai-agents openai",
    "pydantic-ai-dbos": "pydantic-ai-slim dbos openai",
    "dbos": "dbos",
    "noeta": "noeta-sdk noeta-runtime",
    "cayu": "cayu",
    "clients": "httpx openai asyncpg",
}


# --- one table ------------------------------------------------------------------------------------------


def good(rows: Iterable[Row]) -> list[Row]:
    return [row for row in rows if "error" not in row and row["workload"] != "machine"]


def spread(values: list[float], digits: int) -> str:
    """`median [least–most]`, or the one value there is."""
    if not values:
        return "–"
    middle = f"{statistics.median(values):,.{digits}f}"
    if len(values) == 1 or min(values) == max(values):
        return middle
    return f"{middle} [{min(values):,.{digits}f}–{max(values):,.{digits}f}]"


def lines_of(table: Table, rows: list[Row]) -> list[str]:
    """The table as Markdown, in the order of the plan; what failed is told in its place."""
    wanted = {table.workload, "fsyncs"} if table.workload == "steps" else {table.workload}
    mine = [row for row in rows if row.get("workload") in wanted]
    names = list(dict.fromkeys(row[table.by] for row in sorted(mine, key=place)))
    out = [f"| | {' | '.join(column.head for column in table.columns)} |"]
    out.append("|---|" + "---:|" * len(table.columns))
    for named in names:
        name, of_name = named, [row for row in mine if row[table.by] == named]
        fine = good(of_name)
        cells = [
            spread([column.value(row) for row in fine if column.pick(row)], column.digits)
            for column in table.columns
        ]
        failed = {row["error"] for row in of_name if "error" in row and row["workload"] != "fsyncs"}
        if failed and not any(row["workload"] == table.workload for row in fine):
            cells = [f"failed: {min(failed)}".replace("|", "/"), *[""] * (len(cells) - 1)]
        elif failed:
            name += " (not every run went well)"
        if any(cell != "–" for cell in cells):
            out.append(f"| {name} | {' | '.join(cells)} |")
    return out


def place(row: Row) -> int:
    """Where the plan has the row's peer."""
    labels = [peer.label for peer in (*PEERS, *POSTGRES_PEERS)]
    return labels.index(row["peer"]) if row["peer"] in labels else len(labels)


def with_long_steps(rows: list[Row]) -> list[Row]:
    """With the longest steps of a peer that is too slow to store such a thread twice: those of its pause."""
    slow = {peer.label for peer in PEERS if peer.steps_of_pause}
    stored = [
        row | {"workload": "steps", "part": "steps"}
        for row in rows
        if row["workload"] == "long" and row["part"] == "pause" and row["peer"] in slow
    ]
    return rows + [row for row in stored if "error" not in row]


# --- the page -------------------------------------------------------------------------------------------


def summary(rows: list[Row]) -> str:
    """The tables and the aims, for a terminal."""
    rows = with_long_steps(rows)
    out = []
    for table in tables(rows):
        out += ["", f"## {table.name}", "", *lines_of(table, rows)]
    return "\n".join([*out, "", *aim_lines(aims(good(rows)))])


def aim_lines(found: list[Aim]) -> list[str]:
    if not found:
        return []
    out = ["| aim | best peer | Tenuto | ratio | |", "|---|---|---|---:|---|"]
    return out + [
        f"| {aim.what} | {aim.best} | {aim.own} | {aim.ratio} | {'met' if aim.met else 'missed'} |"
        for aim in found
    ]


def page(rows: list[Row], plot: str | None, notes: str, reasons: str = "") -> str:
    """docs/benchmarks.md. `plot`: the picture beside it; `notes`, `reasons`: prose around the aims."""
    rows = with_long_steps(rows)
    machines = [row for row in rows if row["workload"] == "machine"]
    peers = POSTGRES_PEERS if on_server(rows) else PEERS
    out = [f"# Benchmarks{' on PostgreSQL' if on_server(rows) else ''}", "", notes.strip(), ""]
    if machines and (busy := busy_line(machines[-1], good(rows))):
        out += [busy, ""]
    if plot:
        out += [f"![Tenuto beside its peers]({plot})", ""]
    out += ["## What was aimed at, and what came out", "", *aim_lines(aims(good(rows)))]
    if reasons:
        out += ["", reasons.strip()]
    for table in tables(rows):
        out += ["", f"## {table.name}", "", table.about, "", *lines_of(table, rows)]
    out += ["", "## What each promises for this", "", "| | |", "|---|---|"]
    out += [f"| {peer.label} | {peer.promise} |" for peer in peers if peer.promise]
    out += ["", "## Versions and machine", "", *_versions(peers), ""]
    if machines:
        out += [_machine(machines[-1], good(rows)), ""]
    return "\n".join(out)


def busy_line(machine: Row, rows: list[Row]) -> str:
    """A warning where something else ran beside the measured process, which alone makes a load of 1."""
    loads = [row["load1"] for row in rows if "load1" in row]
    if not loads or statistics.median(loads) <= 1 + machine["cores"] / 4:
        return ""
    return (
        f"**The machine did other work during this run** (load {statistics.median(loads):.1f} on "
        f"{machine['cores']} cores): processor times are too long for all, wall times and rates more so. "
        "Read the ratios of CPU times, and nothing else."
    )


def _versions(peers: tuple[Peer, ...]) -> list[str]:
    out = []
    for environment in dict.fromkeys(peer.environment for peer in peers):
        if environment != OWN:
            pinned = pins(environment)
            said = ", ".join(f"{name} {pinned[name]}" for name in HEADS[environment].split())
            out.append(f"- {environment}: {said}")
    return [*out, "", "All pins are in `bench/peers/requirements/`."]


def _machine(row: Row, rows: list[Row]) -> str:
    probes = [one["probe_us"] for one in rows if "probe_us" in one]
    loads = [one["load1"] for one in rows if "load1" in one]
    said = (
        f"Tenuto at {row['commit'] or 'no commit'}; {row['cpu']}, {row['cores']} cores, {row['system']}, "
        f"Python {row['python']}, {row.get('database', 'SQLite')}; the measured process alone on processor "
        f"{row['processor']}."
    )
    if not probes:
        return said
    times = sorted(one["at"] for one in rows)
    return (
        f"{said} Measured {times[0]} to {times[-1]}. An fdatasync of 4 kB before each run took "
        f"{statistics.median(probes):.0f} µs ({min(probes):.0f}–{max(probes):.0f}), the load of the machine "
        f"was {statistics.median(loads):.1f} ({min(loads):.1f}–{max(loads):.1f}): where these vary, wall "
        "figures do too, and CPU figures are those to compare."
    )


def write_documents(rows: list[Row], folder: Path, plotter: Path | None) -> list[Path]:
    """Write the page, and the picture if there is a Python with matplotlib. Returns what was written."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    if on_server(rows):
        target = folder / "benchmarks-postgres.md"
        target.write_text(page(rows, None, (HERE / "notes-postgres.md").read_text()))
        return [target]
    picture = folder / "benchmarks.svg"
    if plotter is not None:
        series = json.dumps(panels(rows))
        done = subprocess.run(
            [str(plotter), str(HERE / "plot.py"), str(picture)], input=series, text=True, check=False
        )
        if done.returncode:
            print("bench-peers: the plot failed, the page is written without it", file=sys.stderr)
        else:
            written.append(picture)
    notes, reasons = ((HERE / name).read_text() for name in ("notes.md", "reasons.md"))
    target = folder / "benchmarks.md"
    target.write_text(page(rows, picture.name if picture in written else None, notes, reasons))
    return [*written, target]


def panels(rows: list[Row]) -> list[dict[str, Any]]:
    """What the plot shows: for each panel a title and the median of each peer, best first."""
    rows = with_long_steps(rows)
    out = []
    wanted = {
        "CPU ms": ("A durable step", False),
        "threads/s": ("A crowd", True),
        "resumes/s": ("Approvals", True),
        "ms to the next question": ("A long resume", False),
        "wall ms": ("Import", False),
        "CPU µs, at once": ("Deltas", False),
    }
    for table in tables(rows):
        for head, (name, more_is_better) in wanted.items():
            columns = [column for column in table.columns if column.head.split(", N=")[0] == head]
            if table.name != name or not columns:
                continue
            column = columns[-1]
            values: dict[str, list[float]] = {}
            for row in good(rows):
                if row["workload"] == table.workload and column.pick(row):
                    values.setdefault(row[table.by], []).append(column.value(row))
            bars = sorted(
                ((label, statistics.median(given)) for label, given in values.items()),
                key=lambda bar: bar[1],
                reverse=more_is_better,
            )
            title = f"{table.name}: {column.head}, {'more' if more_is_better else 'less'} is better"
            out.append({"title": title, "bars": bars})
    return out

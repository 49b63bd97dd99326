"""The tables of the report: what each shows, and how a figure is taken from a row."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

Row = dict[str, Any]


@dataclass(frozen=True)
class Column:
    """One figure of a table: what it takes from each of the rows that it is of."""

    head: str
    value: Callable[[Row], float]
    pick: Callable[[Row], bool] = lambda row: True
    digits: int = 2


@dataclass(frozen=True)
class Table:
    """The rows of one workload, in lines by their peer or by their own name."""

    name: str
    about: str
    workload: str
    columns: tuple[Column, ...]
    by: str = "peer"


def where(**wanted: Any) -> Callable[[Row], bool]:
    """Whether a row has these fields."""
    return lambda row: all(row.get(name) == value for name, value in wanted.items())


def on_server(rows: list[Row]) -> bool:
    """Whether these rows are of a database server, which counts what they cost it."""
    return any(row.get("database", "").startswith("PostgreSQL") for row in rows)


def threads_per_second(row: Row) -> float:
    return row["threads"] / row["wall_s"]


def cpu_per_thread(row: Row) -> float:
    return row["cpu_s"] / row["threads"] * 1000


def cpu_per_step(row: Row) -> float:
    return row["cpu_s"] / row["steps"] * 1000


def per_step(name: str) -> Callable[[Row], float]:
    return lambda row: row[name] / row["steps"]


def cpu_per_delta(row: Row) -> float:
    return row["cpu_s"] / row["deltas"] * 1e6


CROWD = Table(
    "A crowd",
    "Many threads of 10 steps each, 50 at a time.",
    "crowd",
    (
        Column("threads", lambda row: row["threads"], digits=0),
        Column("threads/s", threads_per_second, digits=1),
        Column("CPU ms per step", cpu_per_step),
        Column("peak MB", lambda row: row["peak_rss_mb"], digits=0),
    ),
)
APPROVALS = Table(
    "Approvals",
    "Threads of one step pause for a person; the process ends; a new one opens the database, approves them "
    "all, and runs them to their end.",
    "approvals",
    (
        Column("threads", lambda row: row["threads"], where(part="pause"), digits=0),
        Column("pauses/s", threads_per_second, where(part="pause"), digits=1),
        Column("resumes/s", threads_per_second, where(part="resume"), digits=1),
        Column("CPU ms per pause", cpu_per_thread, where(part="pause")),
        Column("CPU ms per resume", cpu_per_thread, where(part="resume")),
    ),
)
LONG = Table(
    "A long resume",
    "A thread of many steps waits in the database. A new process opens it, warms up with another thread, "
    "approves: the time up to the next question to the model. Beside it the time "
    "to open the database and to recover (the DBOS peers run the thread again by then).",
    "long",
    (
        Column("ms to the next question", lambda row: row["resume_ms"], where(part="resume"), digits=1),
        Column(
            "CPU ms to it", lambda row: row["resume_cpu_ms"], lambda row: "resume_cpu_ms" in row, digits=1
        ),
        Column("CPU ms to the end", lambda row: row["cpu_s"] * 1000, where(part="resume"), digits=1),
        Column("ms to open", lambda row: row["open_ms"], where(part="resume"), digits=0),
        Column("MB stored", lambda row: row["bytes"] / 1e6, where(part="pause"), digits=1),
    ),
)
IMPORT = Table(
    "Import",
    "A new interpreter that imports what an agent with a SQLite store needs; its files are in memory.",
    "import",
    (
        Column("wall ms", lambda row: row["wall_s"] * 1000, digits=0),
        Column("CPU ms", lambda row: row["cpu_s"] * 1000, digits=0),
        Column("peak MB", lambda row: row["peak_rss_mb"], digits=0),
    ),
    by="name",
)
DELTAS = Table(
    "Deltas",
    "A streamed reply, from a server in another process to whoever reads it in this one: CPU µs per delta. "
    "At once: the server writes as fast as it can. Trickle: one delta at a time, each a read of its own; "
    "most of that is the HTTP client and the event loop, for all of them.",
    "deltas",
    (
        Column("CPU µs, at once", cpu_per_delta, where(name="at once"), digits=1),
        Column("CPU µs, trickle", cpu_per_delta, where(name="trickle"), digits=1),
    ),
)


def tables(rows: list[Row]) -> list[Table]:
    """Those that these rows fill."""
    crowd = CROWD
    if on_server(rows):
        columns = [Column(f"{name} per step", per_step(name)) for name in ("fsyncs", "transactions")]
        crowd = replace(crowd, columns=(*crowd.columns, *columns))
    every = (steps_table(rows), crowd, APPROVALS, LONG, IMPORT, DELTAS)
    return [table for table in every if any(row["workload"] == table.workload for row in rows)]


def steps_table(rows: list[Row]) -> Table:
    """Its columns are the sizes that were measured."""
    sizes = sorted({row["n"] for row in rows if row["workload"] == "steps"})
    columns = [Column(f"CPU ms, N={n}", cpu_per_step, where(workload="steps", n=n)) for n in sizes]
    columns += [
        Column(
            f"wall ms, N={n}",
            lambda row: row["wall_s"] / row["steps"] * 1000,
            where(workload="steps", n=n),
        )
        for n in sizes
    ]
    longest = where(workload="steps", n=max(sizes, default=0))
    if sizes:
        columns.append(Column("bytes stored", per_step("bytes"), longest, digits=0))
    if on_server(rows):
        columns.append(Column("WAL bytes", per_step("wal_bytes"), longest, digits=0))
        columns += [Column(name, per_step(name), longest) for name in ("fsyncs", "transactions")]
    else:
        columns.append(Column("fsyncs", lambda row: row["fsyncs_per_step"], where(workload="fsyncs")))
    return Table("A durable step", "One thread of N steps; each figure is per step.", "steps", tuple(columns))

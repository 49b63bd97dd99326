"""The runs that a plan comes to, in their order, and how each one is made."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from databases import Files, Postgres
from plan import STEPS_PER_CROWD_THREAD, WORKLOADS, Peer, Sizes
from running import Process, stream_server

Row = dict[str, Any]


@dataclass(frozen=True)
class Cell:
    """One figure to be: a workload of a size with a peer, for the `rep`th time (from 0)."""

    workload: str
    peer: Peer
    rep: int
    n: int = 0
    threads: int = 1
    name: str = ""

    @property
    def key(self) -> tuple[str, str, int, int, int, str]:
        """What a stored row of it is found by."""
        return (self.workload, self.peer.label, self.rep, self.n, self.threads, self.name)

    def __str__(self) -> str:
        size = f" N={self.n}" if self.n else ""
        crowd = f" x {self.threads} threads" if self.threads > 1 else ""
        name = f" ({self.name})" if self.name else ""
        return f"{self.workload}: {self.peer.label}{name}{size}{crowd} #{self.rep + 1}"


def cells(peers: Iterable[Peer], sizes: Sizes, workloads: Iterable[str], reps: int) -> list[Cell]:
    """Every repeat of all before the next repeat, so that a run that is broken off has something of each.

    The slowest peer comes last, for the same reason.
    """
    found = [
        cell
        for rep in range(reps)
        for workload in WORKLOADS
        if workload in workloads
        for peer in peers
        for cell in _of(peer, workload, sizes, rep)
        if rep == 0 or not peer.is_once(workload, cell.n)
    ]
    return sorted(found, key=lambda cell: cell.peer.steps_of_pause)


def _of(peer: Peer, workload: str, sizes: Sizes, rep: int) -> Iterator[Cell]:
    match workload:
        case "steps" if peer.script:
            longest = max(sizes.steps) if peer.steps_of_pause else None
            yield from (Cell("steps", peer, rep, n) for n in sizes.steps if n != longest)
        case "crowd" if peer.script:
            threads = min(peer.fewer.get("crowd", sizes.crowd), sizes.crowd)
            yield Cell("crowd", peer, rep, STEPS_PER_CROWD_THREAD, threads)
        case "approvals" if peer.script and not peer.aside:
            threads = min(peer.fewer.get("approvals", sizes.approvals), sizes.approvals)
            yield Cell("approvals", peer, rep, 1, threads)
        case "long" if peer.script and not peer.aside:
            yield Cell("long", peer, rep, sizes.long)
        case "import":
            yield from (Cell("import", peer, rep, name=name) for name in peer.imports)
        case "deltas" if peer.client:
            yield from (Cell("deltas", peer, rep, sizes.deltas, name=name) for name in ("at once", "trickle"))
        case "fsyncs" if peer.script and rep == 0:
            yield Cell("fsyncs", peer, rep)


class Runner:
    """Makes the runs, each with a fresh database."""

    def __init__(
        self, databases: Files | Postgres, own_python: Path, sizes: Sizes, processors: tuple[int, int]
    ) -> None:
        self.databases = databases
        self._idle: dict[str, Row] = {}  # by peer: what a server counts for a process without steps
        self.sizes = sizes
        self.processor, self.other_processor = processors
        self._own_python = own_python
        self._stack = ExitStack()
        self._port: int | None = None

    def close(self) -> None:
        """Stop the server and remove the databases."""
        self._stack.close()
        self.databases.close()

    def run(self, cell: Cell, python: Path) -> Iterator[Row]:
        """The rows of this cell, each with what it is of."""
        process = Process(python, self.databases.folder, self.processor, self.sizes.timeout_seconds)
        make = {
            "steps": self._steps,
            "crowd": self._crowd,
            "approvals": self._approvals,
            "long": self._long,
            "import": self._import,
            "deltas": self._deltas,
            "fsyncs": self._fsyncs,
        }
        for part, result in make[cell.workload](cell, process):
            named = {"workload": cell.workload, "part": part, "peer": cell.peer.label, "rep": cell.rep}
            named |= {"database": self.databases.version}
            yield named | {"n": cell.n, "threads": cell.threads, "name": cell.name} | result

    def _drive(self, cell: Cell, process: Process, workload: str, path: str, turns: int = 1) -> Row:
        sizes = ["--n", cell.n, "--threads", cell.threads, "--turns", turns]
        return process.measure(
            cell.peer.script, workload, "--database", path, "--mode", cell.peer.mode, *sizes
        )

    def _counted(self, cell: Cell, process: Process, workload: str, turns: int = 1) -> tuple[Row, Row]:
        """The result with a fresh database, and what its server counted meanwhile."""
        path = self.databases.fresh()
        before = self.databases.counted()
        result = self._drive(cell, process, workload, path, turns)
        return result, {name: after - before[name] for name, after in self.databases.counted().items()}

    def _work(self, cell: Cell, process: Process, workload: str, turns: int = 1) -> Row:
        """Steps, with what a server counted for them: less what it counts where there are none."""
        result, counted = self._counted(cell, process, workload, turns)
        if not counted or "error" in result:
            return result
        if cell.peer.label not in self._idle:
            none, idle = self._counted(cell, process, "steps", turns=0)
            if "error" in none:
                return none
            self._idle[cell.peer.label] = idle
        idle = self._idle[cell.peer.label]
        return result | {name: count - idle[name] for name, count in counted.items()}

    def _steps(self, cell: Cell, process: Process) -> Iterator[tuple[str, Row]]:
        slow = cell.peer.steps_of_pause
        turns = 1 if slow else max(1, self.sizes.turn_steps // cell.n)
        yield "steps", self._work(cell, process, "steps", turns)

    def _crowd(self, cell: Cell, process: Process) -> Iterator[tuple[str, Row]]:
        yield "crowd", self._work(cell, process, "crowd")

    def _approvals(self, cell: Cell, process: Process) -> Iterator[tuple[str, Row]]:
        path = self.databases.fresh()
        paused = self._drive(cell, process, "pause", path)
        yield "pause", paused
        if "error" not in paused:
            yield "resume", self._drive(cell, process, "resume", path)

    def _long(self, cell: Cell, process: Process) -> Iterator[tuple[str, Row]]:
        slug = "".join(character for character in cell.peer.label if character.isalnum())
        stored = f"long-{slug}-{cell.n}"
        if not self.databases.has(stored):
            paused = self._drive(cell, process, "long-pause", self.databases.fresh(stored))
            yield "pause", paused | {"bytes": self.databases.bytes(stored)}
            if "error" in paused:
                self.databases.remove(stored)
                return
        yield "resume", self._drive(cell, process, "long-resume", self.databases.copy(stored))

    def _import(self, cell: Cell, process: Process) -> Iterator[tuple[str, Row]]:
        statement = cell.peer.imports[cell.name]
        process.import_time(statement)  # the first one reads the files from the disk
        yield "import", process.import_time(statement)

    def _deltas(self, cell: Cell, process: Process) -> Iterator[tuple[str, Row]]:
        if self._port is None:
            server = stream_server(self._own_python, self.sizes.deltas, self.other_processor)
            self._port = self._stack.enter_context(server)
        path = "/v1" if cell.name == "at once" else "/trickle/v1"
        turns = self.sizes.delta_turns if cell.name == "at once" else 1
        options = ["--path", path, "--turns", turns, "--deltas", self.sizes.deltas]
        database = ["--database", self.databases.fresh()]
        result = process.measure("stream_clients.py", cell.peer.client, self._port, *options, *database)
        yield "deltas", result

    def _fsyncs(self, cell: Cell, process: Process) -> Iterator[tuple[str, Row]]:
        few, many = self.sizes.fsyncs
        if cell.peer.steps_of_pause:
            many = few + 5
        counts = []
        for n in (few, many):
            options = ["--database", self.databases.fresh(), "--mode", cell.peer.mode, "--n", n]
            counts.append(process.fsyncs(cell.peer.script, "steps", *options))
        if None in counts:
            yield "fsyncs", {"error": "strace is not there, or could not run it"}
        else:
            yield "fsyncs", {"fsyncs_per_step": (counts[1] - counts[0]) / (many - few)}

"""What Tenuto is to be beside the best peer of the same run, and what it was."""

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from plan import PEERS, POSTGRES_PEERS
from tables import cpu_per_delta, cpu_per_step, on_server, per_step, threads_per_second, where

Row = dict[str, Any]
OURS = "Tenuto"
OURS_ONCE = "Tenuto (tool with effects)"
ASIDE = {peer.label for peer in (*PEERS, *POSTGRES_PEERS) if peer.aside}

CPU_RATIO = 7
RATE_RATIO = 10
LONG_RATIO = 4
DELTA_US = 45
# On PostgreSQL, most of them absolute.
SERVER_CPU_MS = 0.8
SERVER_FLAT = 1.25
SERVER_FSYNCS = 2
SERVER_FSYNCS_ONCE = 3
SERVER_BYTES = 2_000
SERVER_RATE_RATIO = 8
SERVER_RESUME_MS = 20


@dataclass(frozen=True)
class Aim:
    what: str
    best: str
    own: str
    ratio: str
    met: bool


def aims(rows: list[Row]) -> list[Aim]:
    """Those that these rows (none of which failed) can tell of."""
    if on_server(rows):
        return _on_server(rows)
    found: list[Aim | None] = []
    for n in sorted({row["n"] for row in rows if row["workload"] == "steps"}):
        values = medians(rows, where(workload="steps", n=n), cpu_per_step)
        found.append(_less(f"CPU per step at N={n}: at least {CPU_RATIO} times less", values, CPU_RATIO))
    rates = (
        (where(workload="crowd"), "a crowd, threads/s"),
        (where(workload="approvals", part="pause"), "pauses/s"),
        (where(workload="approvals", part="resume"), "resumes/s"),
    )
    for pick, name in rates:
        values = medians(rows, pick, threads_per_second)
        found.append(_more(name, values, RATE_RATIO))
    values = medians(rows, where(workload="long", part="resume"), lambda row: row["resume_ms"])
    found.append(_less("a long resume: at most a quarter", values, LONG_RATIO))
    values = medians(rows, where(workload="deltas", name="at once"), cpu_per_delta)
    found.append(_most("CPU of a delta, from the socket to whoever reads", values, DELTA_US, "µs"))
    return [aim for aim in found if aim is not None]


def _on_server(rows: list[Row]) -> list[Aim]:
    found: list[Aim | None] = []
    sizes = sorted({row["n"] for row in rows if row["workload"] == "steps"})
    cpu = {n: medians(rows, where(workload="steps", n=n), cpu_per_step) for n in sizes}
    found += [_most(f"client CPU per step at N={n}", cpu[n], SERVER_CPU_MS, "ms", 2) for n in sizes]
    if len(sizes) > 1:
        few, many = cpu[sizes[0]], cpu[sizes[-1]]
        growth = {peer: many[peer] / few[peer] for peer in many.keys() & few.keys()}
        what = f"flat: CPU per step at N={sizes[-1]}, beside N={sizes[0]}"
        found.append(_most(what, growth, SERVER_FLAT, "times", 2))
    longest = where(workload="steps", n=max(sizes, default=0))
    once = [row | {"peer": OURS} for row in rows if row["peer"] == OURS_ONCE]
    found += [
        _most("fsyncs per step", medians(rows, longest, per_step("fsyncs")), SERVER_FSYNCS),
        _most("the same, tool with effects", medians(once, longest, per_step("fsyncs")), SERVER_FSYNCS_ONCE),
        _most("bytes per step", medians(rows, longest, per_step("bytes")), SERVER_BYTES, digits=0),
    ]
    values = medians(rows, where(workload="crowd"), lambda row: row["steps"] / row["wall_s"])
    found.append(_more("a crowd in one process, steps/s", values, SERVER_RATE_RATIO))
    values = medians(rows, where(workload="long", part="resume"), lambda row: row["resume_ms"])
    found.append(
        _most("a long resume, from the approval to the next question", values, SERVER_RESUME_MS, "ms")
    )
    return [aim for aim in found if aim is not None]


def medians(rows: list[Row], pick: Callable[[Row], bool], value: Callable[[Row], float]) -> dict[str, float]:
    """By peer, what stands aside left out."""
    values: dict[str, list[float]] = {}
    for row in rows:
        if pick(row) and row["peer"] not in ASIDE:
            values.setdefault(row["peer"], []).append(value(row))
    return {peer: statistics.median(given) for peer, given in values.items()}


def _best(values: dict[str, float], choose: Callable[..., tuple[str, float]]) -> tuple[str, float] | None:
    others = [item for item in values.items() if item[0] != OURS]
    return choose(others, key=lambda item: item[1]) if others else None


def _less(what: str, values: dict[str, float], times: float) -> Aim | None:
    best = _best(values, min)
    if best is None or OURS not in values:
        return None
    ratio = best[1] / values[OURS]
    return Aim(what, f"{best[0]}, {best[1]:.2f} ms", f"{values[OURS]:.2f} ms", f"{ratio:.1f}", ratio >= times)


def _more(what: str, values: dict[str, float], times: float) -> Aim | None:
    best = _best(values, max)
    if best is None or OURS not in values:
        return None
    ratio = values[OURS] / best[1]
    what += f": at least {times} times as many"
    return Aim(what, f"{best[0]}, {best[1]:.1f}", f"{values[OURS]:,.1f}", f"{ratio:.1f}", ratio >= times)


def _most(what: str, values: dict[str, float], most: float, unit: str = "", digits: int = 1) -> Aim | None:
    """An absolute one, held against the figure as it is shown; the best peer is beside it."""
    if OURS not in values:
        return None
    best, own = _best(values, min), values[OURS]
    said, limit = (f"{number:,.{digits}f} {unit}".strip() for number in (own, most))
    peer = f"{best[0]}, {best[1]:,.{digits}f} {unit}".strip() if best else ""
    ratio = f"{best[1] / own:.1f}" if best and own else ""
    return Aim(f"{what}: at most {limit}", peer, said, ratio, round(own, digits) <= most)

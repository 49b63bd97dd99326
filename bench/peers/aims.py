"""What Tenuto is to be beside the best peer of the same run, and what it was."""

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from plan import PEERS
from tables import cpu_per_delta, cpu_per_step, threads_per_second, where

Row = dict[str, Any]
OURS = "Tenuto"
ASIDE = {peer.label for peer in PEERS if peer.aside}

CPU_RATIO = 7
RATE_RATIO = 10
LONG_RATIO = 4
DELTA_US = 45


@dataclass(frozen=True)
class Aim:
    what: str
    best: str
    own: str
    ratio: str
    met: bool


def aims(rows: list[Row]) -> list[Aim]:
    """Those that these rows (none of which failed) can tell of."""
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
        found.append(_more(f"{name}: at least {RATE_RATIO} times as many", values))
    values = medians(rows, where(workload="long", part="resume"), lambda row: row["resume_ms"])
    found.append(_less("a long resume: at most a quarter", values, LONG_RATIO))
    found.append(_delta(medians(rows, where(workload="deltas", name="at once"), cpu_per_delta)))
    return [aim for aim in found if aim is not None]


def _delta(values: dict[str, float]) -> Aim | None:
    if OURS not in values:
        return None
    best, own = _best(values, min), values[OURS]
    what = f"a delta, from the socket to whoever reads: at most {DELTA_US} µs of CPU"
    peer, ratio = (f"{best[0]}, {best[1]:.0f} µs", f"{best[1] / own:.1f}") if best else ("", "")
    return Aim(what, peer, f"{own:.1f} µs", ratio, own <= DELTA_US)


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


def _more(what: str, values: dict[str, float]) -> Aim | None:
    best = _best(values, max)
    if best is None or OURS not in values:
        return None
    ratio = values[OURS] / best[1]
    return Aim(what, f"{best[0]}, {best[1]:.1f}", f"{values[OURS]:,.1f}", f"{ratio:.1f}", ratio >= RATE_RATIO)

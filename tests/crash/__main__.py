"""`./dev crash`: the named crash points and the real workloads at length, with figures.

Exits with 1 when an effect was doubled, something was lost, or anything came out otherwise than expected;
what the processes said and wrote then stays where the last line says.
"""

import argparse
import asyncio
import contextlib
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from tests.crash.databases import KINDS, a_server, empty
from tests.crash.runs import Work, bfcl_place, install_bfcl, run
from tests.crash.stand import ROOT, Figures

RETAIL = [
    (workload, agent)
    for workload in ("retail-single", "retail-batched")
    for agent in ("retail", "retail-reviewed")
]


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def plan_of(options: argparse.Namespace) -> list[tuple[str, str, int]]:
    """Workload, agent and number of tasks, as far as their data are here. Raises `RuntimeError`."""
    shared = Path(os.environ.get("TENUTO_SHARED") or ROOT.parent / "shared")
    plan = []
    if shared.is_dir():
        os.environ["TENUTO_SHARED"] = str(shared)
        plan = [(*each, 115) for each in RETAIL]
    else:
        say("retail: left out, as ../shared (or what TENUTO_SHARED names) is not there")
    if options.bfcl:
        if why := install_bfcl():
            raise RuntimeError(f"BFCL could not be installed: {why}")
        os.environ["TENUTO_BFCL"] = str(bfcl_place())
        plan.append(("bfcl", "bfcl", 200))
    return plan


def play(kind: str, options: argparse.Namespace, server: str) -> bool:
    """All that was asked for, on one kind of database; whether it came out as it has to."""
    plan = plan_of(options)
    total, place = Figures(), Path(tempfile.mkdtemp(prefix="tenuto-crash-"))

    def one(name: str, *work: Any) -> Figures:
        here = place / name
        here.mkdir()
        with empty(kind, here, server) as database:
            return asyncio.run(run(here, database, Work(*work)))

    for number in range(options.rounds):
        for workload, agent, tasks in plan:
            seed = options.seed + number
            figures = one(f"{workload}-{agent}-{seed}", workload, agent, range(tasks), options.kills, seed)
            say(f"{kind}, {workload}, agent {agent}, seed {seed}: {figures}")
            for wrong in figures.wrong[:10]:
                say(f"  {wrong}")
            total += figures
    if RETAIL[0] in [each[:2] for each in plan]:
        work = ("retail-batched", "retail-careless", range(115), options.kills, options.seed)
        found = len(one("careless", *work).wrong)
        say(f"writes declared idempotent, which they are not: the audit finds {found} faults")
        if not found:
            total.wrong.append("the audit does not find effects that happen twice")
    say(f"{kind}, in all: {total}")
    if total.doubles or total.losses or total.wrong:
        say(f"not as promised; see {place}")
        return False
    shutil.rmtree(place)
    return True


def points(kind: str) -> bool:
    """The named crash points, on one kind of database."""
    say(f"the named crash points, {kind}:")
    os.environ["TENUTO_CRASH_DATABASE"] = kind
    test = str(Path(__file__).parent / "test_points.py")
    return pytest.main(["-q", "--no-header", "-p", "no:cacheprovider", test]) == 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev crash", description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=12, help="of the runtime in each run (default 12)")
    parser.add_argument("--seed", type=int, default=1, help="of the times of the kills")
    parser.add_argument("--rounds", type=int, default=1, help="each with the next seed")
    parser.add_argument("--bfcl", action="store_true", help="BFCL too; installs it into .bench when missing")
    parser.add_argument(
        "--database",
        choices=(*KINDS, "both"),
        default="sqlite",
        help="what the log is kept in (default sqlite); PostgreSQL is started here, or is that of "
        "TENUTO_TEST_POSTGRES",
    )
    options = parser.parse_args()
    kinds = KINDS if options.database == "both" else (options.database,)
    with a_server() if "postgres" in kinds else contextlib.nullcontext("") as server:
        if server:
            os.environ["TENUTO_TEST_POSTGRES"] = server
        try:
            good = [points(kind) & play(kind, options, server) for kind in kinds]
        except RuntimeError as error:
            say(str(error))
            return 1
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())

"""`./dev crash`: the named crash points and the real workloads at length, with figures.

Exits with 1 when an effect was doubled, something was lost, or anything came out otherwise than expected;
what the processes said and wrote then stays where the last line says.
"""

import argparse
import asyncio
import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest
from tests.crash.runs import bfcl_place, install_bfcl, run
from tests.crash.stand import ROOT, Figures

RETAIL = [
    (workload, agent)
    for workload in ("retail-single", "retail-batched")
    for agent in ("retail", "retail-reviewed")
]


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def play(options: argparse.Namespace) -> bool:
    """All that was asked for; whether it came out as it has to."""
    shared = Path(os.environ.get("TENUTO_SHARED") or ROOT.parent / "shared")
    plan = [(*each, 115) for each in RETAIL]
    if shared.is_dir():
        os.environ["TENUTO_SHARED"] = str(shared)
    else:
        say("retail: left out, as ../shared (or what TENUTO_SHARED names) is not there")
        plan = []
    if options.bfcl:
        if why := install_bfcl():
            say(f"BFCL could not be installed: {why}")
            return False
        os.environ["TENUTO_BFCL"] = str(bfcl_place())
        plan.append(("bfcl", "bfcl", 200))
    total, place = Figures(), Path(tempfile.mkdtemp(prefix="tenuto-crash-"))
    for number in range(options.rounds):
        for workload, agent, tasks in plan:
            seed = options.seed + number
            here = place / f"{workload}-{agent}-{seed}"
            here.mkdir()
            figures = asyncio.run(run(here, workload, agent, range(tasks), options.kills, seed))
            say(f"{workload}, agent {agent}, seed {seed}: {figures}")
            for wrong in figures.wrong[:10]:
                say(f"  {wrong}")
            total += figures
    if RETAIL[0] in [each[:2] for each in plan]:
        (place / "careless").mkdir()
        work = run(
            place / "careless", "retail-batched", "retail-careless", range(115), options.kills, options.seed
        )
        found = len(asyncio.run(work).wrong)
        say(f"writes declared idempotent, which they are not: the audit finds {found} faults")
        if not found:
            total.wrong.append("the audit does not find effects that happen twice")
    say(f"in all: {total}")
    if total.doubles or total.losses or total.wrong:
        say(f"not as promised; see {place}")
        return False
    shutil.rmtree(place)
    return True


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev crash", description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=12, help="of the runtime in each run (default 12)")
    parser.add_argument("--seed", type=int, default=1, help="of the times of the kills")
    parser.add_argument("--rounds", type=int, default=1, help="each with the next seed")
    parser.add_argument("--bfcl", action="store_true", help="BFCL too; installs it into .bench when missing")
    options = parser.parse_args()
    say("the named crash points:")
    points = pytest.main(
        ["-q", "--no-header", "-p", "no:cacheprovider", str(Path(__file__).parent / "test_points.py")]
    )
    return 0 if play(options) and points == 0 else 1


if __name__ == "__main__":
    sys.exit(main())

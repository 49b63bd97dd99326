"""`./dev crash`: named crash points, real workloads and a fleet under fire at length, with figures.

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
from tests.crash.fleet import UNVERIFIED, VERIFIED, Fire, manned, under_fire
from tests.crash.latency import measure
from tests.crash.runs import Work, bfcl_place, install_bfcl, run
from tests.crash.stand import ROOT, Figures, until
from tests.crash.waiting import cost, wait_beside

from tenuto.limits import LEASE_SECONDS
from tenuto.testing.postgres import PostgresServer

RETAIL = [
    (workload, agent)
    for workload in ("retail-single", "retail-batched")
    for agent in ("retail", "retail-reviewed")
]
CONTROL_KILLS = 12


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
        # With few kills, none need come between an effect and its record.
        kills = max(options.kills, CONTROL_KILLS)
        work = ("retail-batched", "retail-careless", range(115), kills, options.seed)
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
    return (
        pytest.main(
            [
                "-q",
                "--no-header",
                "-p",
                "no:cacheprovider",
                "-W",
                "ignore::pytest.PytestAssertRewriteWarning",
                test,
            ]
        )
        == 0
    )


def fleet(options: argparse.Namespace) -> bool:
    """Under fire, with tools that can be verified and without; beside many that wait; how soon it goes on."""
    place = Path(tempfile.mkdtemp(prefix="tenuto-fleet-"))
    total = Figures()
    for tools in (VERIFIED, UNVERIFIED):
        (here := place / tools).mkdir()
        fire = Fire(options.threads, (tools,), lease_seconds=LEASE_SECONDS, seed=options.seed)
        figures = asyncio.run(under_fire(here, fire))
        say(f"a server and {fire.workers} workers, each thread {tools}: {figures}")
        if tools == UNVERIFIED:
            say(f"  {figures.reviews} wait in review: nobody can know whether their effect happened")
        for wrong in figures.wrong[:10]:
            say(f"  {wrong}")
        total += figures
    (place / "idle").mkdir()
    asyncio.run(beside_and_soon(place / "idle", options))
    if total.doubles or total.losses or total.wrong:
        say(f"not as promised; see {place}")
        return False
    shutil.rmtree(place)
    return True


async def beside_and_soon(place: Path, options: argparse.Namespace) -> None:
    """What a fresh thread costs beside many that wait, and how soon a worker goes on."""
    with PostgresServer(fsync="on") as server:
        async with manned(place, server.url, workers=1, lease_seconds=LEASE_SECONDS) as made:
            say(str(await measure(made, times=100, steps=400)))
            await made.start("fleet", "fleet", 1, "pay")
            await until(made.pending)
            say(f"a fresh thread, alone: {await cost(made, first=10, threads=20)}")
            await wait_beside(made, options.waiting)
            say(f"a fresh thread, beside {options.waiting:,} that wait: {await cost(made, 100, 20)}")


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
    parser.add_argument(
        "--fleet", action="store_true", help="only a fleet on PostgreSQL under fire, and how quick it is"
    )
    parser.add_argument("--threads", type=int, default=2_000, help="of a fleet (default 2,000)")
    parser.add_argument("--waiting", type=int, default=100_000, help="threads, beside it (default 100,000)")
    options = parser.parse_args()
    if options.fleet:
        return 0 if fleet(options) else 1
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

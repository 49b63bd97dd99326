"""Whole workloads through kills, and what has to be true of them in the end."""

import asyncio
import json
import random
import shutil
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.crash.databases import log_of
from tests.crash.stand import ROOT, Figures, Stand, standing
from tests.crash.workload import RetailDatabase, is_write, place_of, retail_tasks, thread_id

BFCL = "bfcl-eval==2026.3.23"
BFCL_NEEDS = "mpmath==1.3.0"  # by its MathAPI; the rest of what it declares is for other models and checks


@dataclass(frozen=True)
class Work:
    """`tasks` of a workload for an agent, and how often the runtime is killed, at times of this seed."""

    workload: str
    agent: str
    tasks: Sequence[int]
    kills: int
    seed: int


async def run(place: Path, database: str, work: Work) -> Figures:
    """The tasks as threads side by side in one runtime on this database.

    TENUTO_SHARED, or TENUTO_BFCL, says where the data are.
    """
    workload, tasks = work.workload, work.tasks
    async with standing(place, log_of(database), Stand) as stand:
        await stand.serve()
        async with asyncio.TaskGroup() as group:
            group.create_task(stand.person())
            for index in tasks:
                text = retail_tasks()[index]["instruction"] if workload != "bfcl" else ""
                group.create_task(stand.start(work.agent, workload, index, text=text))
            await stand.complete(len(tasks), work.kills, random.Random(work.seed))
            stand.at_work = False
        told = await stand.log.query("SELECT body FROM events WHERE type = 'thread_completed'")
        stand.kill()
        figures = await stand.audit()
        answers = [json.loads(body).get("answer") for (body,) in told]
        figures.wrong += [f"told the model otherwise at {answer}" for answer in answers if answer != "[]"]
        if workload == "bfcl":
            differing = await stand.ask_host("GET", "/compare")
            figures.wrong += [
                f"bfcl {index}: the state is not that of the ground truth" for index in differing
            ]
        else:
            _compare(stand, workload, tasks)
        return figures


def _compare(stand: Stand, workload: str, tasks: Sequence[int]) -> None:
    """Every gold write once and no other, and the final database as the benchmark expects it."""
    database, figures = RetailDatabase(), stand.figures
    lines: defaultdict[int, list[dict[str, Any]]] = defaultdict(list)
    for line in stand.ledger():
        lines[place_of(line["key"].partition(":")[0])[1]].append(line)
    for index in tasks:
        task = retail_tasks()[index]
        written = Counter(line["step"] for line in lines[index] if is_write({"name": line["tool"]}))
        gold = {number for number, step in enumerate(task["steps"]) if is_write(step)}
        figures.losses += len(gold - written.keys())
        if written != Counter(gold):
            figures.wrong.append(f"{workload} {index}: wrote {written}, not {sorted(gold)}")
        if database.digest([line["patch"] for line in lines[index]]) != task["expected_db_sha256"]:
            figures.wrong.append(f"{thread_id(workload, index)}: another database than expected")


def bfcl_place() -> Path:
    """Where BFCL's package is, once `install_bfcl` has put it there."""
    return ROOT / ".bench" / BFCL.replace("==", "-")


def install_bfcl() -> str:
    """Put BFCL where `bfcl_place` says; what pip has against it, "" when it is there."""
    place = bfcl_place()
    if place.is_dir():
        return ""
    part = place.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps"]
    command += ["--target", str(part), BFCL, BFCL_NEEDS]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        part.replace(place)  # whole or not at all
    return done.stderr.strip() if done.returncode else ""

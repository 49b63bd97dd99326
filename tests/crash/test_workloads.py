"""Samples of the real workloads through kills; `./dev crash` runs all of them at length."""

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.crash.runs import bfcl_place, run
from tests.crash.stand import Figures

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
SEED = 20


async def through(place: Path, workload: str, agent: str, tasks: Sequence[int], kills: int) -> Figures:
    figures = await run(place, workload, agent, tasks, kills, SEED)
    assert (figures.doubles, figures.losses, figures.wrong) == (0, 0, []), figures
    assert figures.tasks == len(tasks)
    assert figures.kills > kills // 2
    return figures


async def test_retail_with_verify(shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENUTO_SHARED", str(shared))
    await through(tmp_path, "retail-batched", "retail", range(115), 4)


async def test_retail_where_a_person_settles_what_is_in_doubt(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENUTO_SHARED", str(shared))
    sample = random.Random(SEED).sample(range(115), 30)
    figures = await through(tmp_path, "retail-single", "retail-reviewed", sample, 4)
    assert figures.reviews, "no kill came between an intent and its result"


async def test_bfcl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not bfcl_place().is_dir():
        pytest.skip("BFCL is not installed: `./dev crash --bfcl` does that")
    monkeypatch.setenv("TENUTO_BFCL", str(bfcl_place()))
    await through(tmp_path, "bfcl", "bfcl", random.Random(SEED).sample(range(200), 20), 3)

"""Samples of the real workloads through kills; `./dev crash` runs all of them at length."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.crash.conftest import Databases
from tests.crash.runs import Work, bfcl_place, run
from tests.crash.stand import Figures

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
SEED = 20


async def through(work: Work, place: Path, database: str) -> Figures:
    figures = await run(place, database, work)
    assert (figures.doubles, figures.losses, figures.wrong) == (0, 0, []), figures
    assert figures.tasks == len(work.tasks)
    assert figures.kills > work.kills // 2
    return figures


@pytest.fixture
def database(tmp_path: Path, databases: Databases) -> Iterator[str]:
    """One for each test: all that is in it is held against the ledger."""
    with databases(tmp_path) as url:
        yield url


@pytest.mark.sample
async def test_retail_with_verify(
    shared: Path, tmp_path: Path, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENUTO_SHARED", str(shared))
    # After each kill on PostgreSQL a lease has to end: there, a smaller sample.
    tasks, kills = (range(115), 4) if database.startswith("sqlite") else (range(25), 2)
    await through(Work("retail-batched", "retail", tasks, kills, SEED), tmp_path, database)


async def test_retail_where_a_person_settles_what_is_in_doubt(
    shared: Path, tmp_path: Path, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENUTO_SHARED", str(shared))
    sample = random.Random(SEED).sample(range(115), 30)
    figures = await through(Work("retail-single", "retail-reviewed", sample, 4, SEED), tmp_path, database)
    assert figures.reviews, "no kill came between an intent and its result"


async def test_bfcl(tmp_path: Path, database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if not bfcl_place().is_dir():
        pytest.skip("BFCL is not installed: `./dev crash --bfcl` does that")
    monkeypatch.setenv("TENUTO_BFCL", str(bfcl_place()))
    sample = random.Random(SEED).sample(range(200), 20)
    await through(Work("bfcl", "bfcl", sample, 3, SEED), tmp_path, database)

"""The simulation is worth something only if it finds faults: each of these, within so many seeds."""

from typing import Any

import pytest
from tests.simulation.faults import FAULTS, Fault

from tenuto.store.sqlite_write import Transaction
from tenuto.testing.simulation import BrokenPromise, simulate


@pytest.mark.parametrize(("fault", "seeds", "promise"), FAULTS)
def test_the_simulation_finds_the_fault(
    fault: Fault, seeds: int, promise: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault(monkeypatch)
    seen = broken_promises(seeds, promise)
    told = f"{fault.__name__} broke {seen or 'nothing'} in {seeds} seeds, not {promise!r}"
    assert promise in seen, told


def broken_promises(seeds: int, until: str) -> set[str]:
    """Those that the first seeds break, up to the one that is waited for."""
    seen: set[str] = set()
    for seed in range(seeds):
        try:
            simulate(seed)
        except BrokenPromise as broken:
            seen.add(broken.promise)
            if broken.promise == until:
                break
    return seen


def test_a_patch_that_is_itself_wrong_is_no_fault_that_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def release(*_: Any, **__: Any) -> None:
        raise AttributeError("the patch itself is wrong")

    monkeypatch.setattr(Transaction, "release", release)
    seen = broken_promises(3, "")
    assert seen
    assert not seen & {promise for _, _, promise in (param.values for param in FAULTS)} - {"nothing is stuck"}

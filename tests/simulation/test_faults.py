"""The simulation is worth something only if it finds faults: each of these, within so many seeds."""

import pytest
from tests.simulation.faults import FAULTS, Fault

from tenuto.testing.simulation import BrokenPromise, simulate


@pytest.mark.parametrize(("fault", "seeds"), FAULTS)
def test_the_simulation_finds_the_fault(fault: Fault, seeds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    fault(monkeypatch)
    for seed in range(seeds):
        try:
            simulate(seed)
        except BrokenPromise:
            return
    pytest.fail(f"{fault.__name__} went unseen for {seeds} seeds")

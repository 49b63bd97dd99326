"""bench/scale.py: what it calculates from what it measured, by hand."""

import argparse
import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "bench" / "scale.py"


def test_the_calculation(capsys: pytest.CaptureFixture[str]) -> None:
    spec = importlib.util.spec_from_file_location("scale", SCRIPT)
    assert spec
    assert spec.loader
    scale = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(scale)
    measured = scale.Measured(
        server_ms=1.0,
        worker_ms=2.0,
        step_bytes=1_000.0,
        step_wal=2_000.0,
        thread_bytes=5_000.0,
        parked_bytes=4_000.0,
        said_ms=0.05,
    )
    options = argparse.Namespace(threads_per_day=86_400, steps=10, cores=4, peak=10.0)
    scale.report(measured, options)
    told = capsys.readouterr().out
    for line in (
        "the database carries              2,000 steps/s, 4,000 events/s",  # 4 cores, half of 1000 ms each
        "needed on average, at the peak     10.0 steps/s, 100 steps/s",
        "worker cores at the peak            0.2",  # 100 steps of 2 ms each second
        "replies followed live at once     4,000, if it did nothing else",  # 40,000 a second, ten of each
        "growth                             1.30 GB a day, 473 GB a year",  # 86,400 x 15 kB
        "a terabyte lasts                    772 days, or 250 million threads that wait",
    ):
        assert line in told, line

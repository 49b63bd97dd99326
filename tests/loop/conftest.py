"""Timers of a test are short, so a worker looks often."""

import pytest

from tenuto import limits


@pytest.fixture(autouse=True)
def look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "POLL_SECONDS", 0.05)

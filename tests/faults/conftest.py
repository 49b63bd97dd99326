"""Timers of a test are short, so a worker looks often and comes back soon."""

import pytest

from tenuto import limits


@pytest.fixture(autouse=True)
def look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(limits, "RETRY_LATER_SECONDS", 0.2)

"""Fixtures for all tests. Nothing here runs unless a test asks for it."""

import os
import signal
from pathlib import Path

import pytest

pytest_plugins = ["tenuto.testing.postgres"]
REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared() -> Path:
    """The recorded provider streams and argument cases, which lie beside the checkout.

    `TENUTO_SHARED` names another place. A test that needs them is skipped where they are missing.
    """
    place = Path(os.environ.get("TENUTO_SHARED") or REPOSITORY.parent / "shared")
    if not place.is_dir():
        pytest.skip("recorded provider data not found: put it in ../shared or name it with TENUTO_SHARED")
    return place


# A shell that starts this in the background leaves SIGINT ignored, and every process that a test starts would
# inherit that: then no Ctrl-C could be tested.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

"""Spans of one test, in memory."""

from collections.abc import Iterator

import pytest
from tests.observe.traced import Spans


@pytest.fixture
def spans() -> Iterator[Spans]:
    made = Spans()
    yield made
    made.provider.shutdown()

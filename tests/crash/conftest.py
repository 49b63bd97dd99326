"""Which database the crashes happen on: all of them on SQLite, those marked `sample` on PostgreSQL too.

`./dev crash --database` has them all on either, by TENUTO_CRASH_DATABASE.
"""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from tests.crash.databases import KINDS, empty

Databases = Callable[[Path], AbstractContextManager[str]]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "sample: on PostgreSQL in `./dev test` too, not in `./dev crash` alone"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    named = os.environ.get("TENUTO_CRASH_DATABASE")

    def is_wanted(item: pytest.Item) -> bool:
        callspec = getattr(item, "callspec", None)
        kind = callspec and callspec.params.get("database_kind")
        if kind is None or named == "both":
            return True
        if named:
            return bool(kind == named)
        return kind == "sqlite" or item.get_closest_marker("sample") is not None

    left_out = [item for item in items if not is_wanted(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if is_wanted(item)]


@pytest.fixture(scope="module", params=KINDS)
def database_kind(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    return kind


@pytest.fixture(scope="module")
def databases(request: pytest.FixtureRequest, database_kind: str) -> Databases:
    server = request.getfixturevalue("postgres_server") if database_kind == "postgres" else ""
    return lambda place: empty(database_kind, place, server)

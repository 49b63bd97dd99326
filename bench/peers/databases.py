"""Where a measured process keeps its threads: a file for SQLite, or a database of a PostgreSQL of this run.

Both are used by name: "run" is made anew for each run, others are stored and copied to it.
"""

import asyncio
import shutil
import sqlite3
import sys
from pathlib import Path
from typing import Any

from environments import ROOT
from running import on_processor

sys.path.append(str(ROOT))
from bench.postgres import counted

COUNTS = {"syncs": "fsyncs", "kept": "bytes", "commits": "transactions", "wal": "wal_bytes"}
SETTINGS = {"fsync": "on", "max_wal_size": "4GB"}


class Files:
    """In `folder`, which is on a disk, as fsync costs nothing in memory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.version = f"SQLite {sqlite3.sqlite_version}"

    def fresh(self, name: str = "run") -> str:
        """Where an empty database of this name may be made; what was there is gone."""
        self.remove(name)
        return str(self._path(name))

    def copy(self, name: str) -> str:
        """A copy of it, as "run"."""
        target = Path(self.fresh())
        for found in self.folder.glob(f"{name}.db*"):
            shutil.copy(found, target.with_name(target.name + found.name.removeprefix(f"{name}.db")))
        return str(target)

    def has(self, name: str) -> bool:
        return self._path(name).exists()

    def remove(self, name: str) -> None:
        """The file, its log and its shared memory, and whatever a library puts beside them."""
        for found in self.folder.glob(f"{name}.db*"):
            found.unlink()

    def bytes(self, name: str) -> float:
        return sum(found.stat().st_size for found in self.folder.glob(f"{name}.db*"))

    def counted(self) -> dict[str, float]:
        """What the server did so far for "run": there is no server."""
        return {}

    def close(self) -> None:
        for left in self.folder.glob("*.db*"):
            left.unlink()

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.db"


class Postgres:
    """In a server of its own, with fsync, on the processors that are not the measured process's."""

    def __init__(self, processors: list[int]) -> None:
        from tenuto.testing.postgres import PostgresServer

        self._server = PostgresServer(**SETTINGS)
        with on_processor(*processors):
            self._server.__enter__()
        self.folder = self._server.folder
        self._names: set[str] = set()
        number = str(self._execute("SELECT current_setting('server_version')"))
        self.version = f"PostgreSQL {number.split(maxsplit=1)[0]}"

    def fresh(self, name: str = "run") -> str:
        return self._make(name, "template1")

    def copy(self, name: str) -> str:
        return self._make("run", name)

    def has(self, name: str) -> bool:
        return name in self._names

    def remove(self, name: str) -> None:
        self._execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
        self._names.discard(name)

    def bytes(self, name: str) -> float:
        return asyncio.run(counted(self._url(name)))["kept"]

    def counted(self) -> dict[str, float]:
        return {COUNTS[name]: count for name, count in asyncio.run(counted(self._url("run"))).items()}

    def close(self) -> None:
        self._server.__exit__()

    def _make(self, name: str, template: str) -> str:
        self.remove(name)
        self._execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
        self._names.add(name)
        return self._url(name)

    def _url(self, name: str) -> str:
        return self._server.url.replace("/postgres?", f"/{name}?")

    def _execute(self, statement: str) -> Any:
        import asyncpg

        async def run() -> Any:
            connection = await asyncpg.connect(self._server.url)
            try:
                return await connection.fetchval(statement)
            finally:
                await connection.close()

        return asyncio.run(run())

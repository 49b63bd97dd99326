"""`tenuto doctor`: what it finds, what it says to do, and that it leaves everything as it was."""

import asyncio
import contextlib
import json
import os
import re
import shlex
import sqlite3
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Shell

from tenuto.cli import doctor
from tenuto.store.sqlite import SQLiteStore

Found = list[tuple[str, str, str]]


def findings(shell: Shell, *arguments: str, code: int = 0) -> Found:
    """(check, level, text and advice) of every line."""
    with shell.popen("doctor", "--json", *arguments) as process:
        output, errors = process.communicate(timeout=40)
    assert (process.returncode, errors) == (code, "")
    told = json.loads(output)
    assert told["ok"] is (code == 0)
    return [(f["check"], f["level"], f"{f['text']} → {f['advice']}") for f in told["findings"]]


def of(found: Found, check: str) -> list[tuple[str, str]]:
    return [(level, text) for name, level, text in found if name == check]


@pytest.fixture
def used(shell: Shell) -> Shell:
    """A database with a finished thread, as only its owner can read it."""
    shell("run", "hello")
    shell.database.chmod(0o600)
    return shell


def execute(path: Path, statement: str, *values: object) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute(statement, values)
    connection.close()


def everything(place: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in place.iterdir() if path.is_file()}


def test_a_sound_database(used):
    before = everything(used.place)
    output = used("doctor")
    lines = [line.split() for line in output.splitlines()]
    assert [line[1] for line in lines if line[0] == "ok"] == [
        *["file", "permissions", "space", "wal", "schema", "pages", "workers", "clock"],
        *["agents", "provider", "tokens", "tokens"],
    ]
    assert output.endswith("problems: 0, warnings: 0\n")
    assert f"{used.database}, " in output
    assert everything(used.place) == before


def test_a_missing_database_is_said_and_not_made(shell):
    ((level, text),) = of(findings(shell), "database")
    assert level == "warning"
    assert text.startswith(
        f"there is no {shell.database} yet → the first `tenuto run` or `tenuto serve` makes"
    )
    assert not list(shell.place.iterdir())


def test_a_place_that_cannot_be(shell, tmp_path):
    found = findings(shell, "--database", f"sqlite:///{tmp_path}/nowhere/x.db", code=1)
    assert of(found, "database")[0][0] == "problem"
    assert of(findings(shell, "--database", f"sqlite:///{tmp_path}", code=1), "database")[0][0] == "problem"
    assert of(findings(shell, "--database", "sqlite://:memory:"), "database")[0][0] == "warning"


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: path.write_text("no database at all, " * 50), "file is not a database"),
        (lambda path: execute(path, "CREATE TABLE things (id)"), "some other program"),
        (lambda path: execute(path, "PRAGMA user_version = 99"), "Upgrade Tenuto"),
    ],
)
def test_a_file_that_is_not_ours(shell, make, said):
    if said == "Upgrade Tenuto":
        shell("run", "hello")
    make(shell.database)
    before = everything(shell.place)
    ((level, text),) = of(findings(shell, code=1), "database")
    assert level == "problem"
    assert said in text
    assert everything(shell.place) == before


def test_damage_is_found_and_everything_else_still_told(used):
    size = os.stat(used.database).st_size
    with used.database.open("r+b") as file:
        file.seek(4096 * 3)
        file.write(b"\xff" * (size - 4096 * 3))
    found = findings(used, code=1)
    assert "problem" in [level for level, _ in of(found, "pages") + of(found, "database")]
    assert of(found, "agents")[0][0] == "ok"


def test_others_who_can_read_it(used, monkeypatch):
    used.database.chmod(0o644)
    monkeypatch.setattr(doctor, "_others_get_to", lambda _place: True)
    found = list(doctor._access(used.database))
    assert (found[1].level, found[1].advice) == ("warning", f"chmod 600 {used.database}*")
    monkeypatch.undo()
    # A directory that is closed to others keeps them from it all the same.
    used.place.chmod(0o700)
    assert list(doctor._access(used.database))[1].level == "ok"


@pytest.mark.parametrize(("free", "level"), [(1 << 20, "problem"), (1 << 28, "warning"), (1 << 40, "ok")])
def test_free_space(used, monkeypatch, free, level):
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _place: type("Usage", (), {"free": free}))
    assert next(doctor._space(used.database)).level == level


def test_a_large_wal(used):
    with Path(f"{used.database}-wal").open("wb") as wal:
        wal.truncate(1 << 30)
    assert [(f.check, f.level) for f in doctor._space(used.database)][1] == ("wal", "warning")


def test_a_clock_behind_the_log(used):
    execute(used.database, "UPDATE events SET at = at + 7200000 WHERE seq = 4")
    ((level, text),) = of(findings(used, code=1), "clock")
    assert level == "problem"
    assert text.startswith("this machine's clock is 119 min behind the last event") or "2 h behind" in text


def test_leases_of_the_dead_and_of_the_hanging(used):
    now = int(time.time() * 1000)
    execute(used.database, "UPDATE threads SET lease_owner = 'gone', lease_until = ?", now + 10_000)
    assert "died" in of(findings(used), "leases")[0][1]

    async def hang() -> Found:
        store = SQLiteStore(str(used.database))
        await store.open()
        try:
            await store.register("busy", ["desk"])
            execute(used.database, "UPDATE threads SET lease_owner = 'busy', lease_until = ?", now - 60_000)
            return await asyncio.to_thread(findings, used)
        finally:
            await store.close()

    found = asyncio.run(hang())
    assert f"1 alive (process {os.getpid()}); they take threads of: desk" in of(found, "workers")[0][1]
    assert "has not renewed it for" in of(found, "leases")[0][1]


def test_events_whose_thread_was_removed(used):
    execute(used.database, "DELETE FROM threads")
    ((level, text),) = of(findings(used, code=1), "threads")
    assert level == "problem"
    assert text.startswith("thread number 1, whose row is gone, has 4 events out of their place")


def test_threads_that_no_worker_would_find(used):
    execute(used.database, "UPDATE threads SET ready_at = NULL, status = 'running'")
    ((level, text),) = of(findings(used, code=1), "threads")
    assert level == "problem"
    assert "is running and no worker will look at it" in text
    assert re.search(r"→ wake it: tenuto extend \S{36} --steps 1$", text)


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("DROP TABLE interrupts", "the table interrupts is missing → restore the file from a backup"),
        ("DROP TABLE labels", "the table labels is missing"),
        (
            "DROP INDEX events_place",
            "the index events_place is missing → stop all workers, then make it anew",
        ),
        ("DROP VIEW task_events", "the view task_events is missing → stop all workers, then make it anew"),
        ("ALTER TABLE threads ADD COLUMN mine TEXT", "the table threads is not as it was made"),
    ],
)
def test_what_a_schema_lacks(used, statement, said):
    execute(used.database, statement)
    assert any(said in text for level, text in of(findings(used, code=1), "schema") if level == "problem")


def test_an_index_and_a_view_are_made_anew_as_it_says(used):
    execute(used.database, "DROP INDEX events_place")
    execute(used.database, "DROP VIEW task_events")
    told = of(findings(used, code=1), "schema")[1:]
    assert len(told) == 2
    for _, text in told:
        command, path, statement = shlex.split(text.partition("make it anew: ")[2])
        assert (command, path) == ("sqlite3", str(used.database))
        execute(used.database, statement)
    assert [level for level, _ in of(findings(used), "schema")] == ["ok"]


def test_a_row_that_cannot_be_read_keeps_no_other_check_from_being_made(used):
    execute(used.database, "UPDATE events SET at = 'x'")
    execute(used.database, "INSERT INTO workers VALUES ('w1', 'notjson', 1, 1)")
    found = findings(used, code=1)
    assert [text for level, text in of(found, "database") if level == "problem"] != []
    assert of(found, "workers") != []


def test_threads_that_nobody_takes(used):
    execute(used.database, "UPDATE threads SET ready_at = 1, status = 'running'")
    ((level, text),) = of(findings(used), "leases")
    assert level == "warning"
    assert "no worker takes the 1 threads of agent desk, ready since" in text


def test_agents_that_cannot_be_loaded(shell):
    found = of(findings(shell, "--agent", "tests.cli.desk:agents,tests.cli.desk:nobody", code=1), "agents")
    assert [level for level, _ in found] == ["ok", "ok", "problem"]
    assert "tests.cli.desk has no 'nobody'" in found[2][1]


@pytest.mark.parametrize(
    ("approver", "submit", "levels"),
    [
        ("", "", ["ok", "ok"]),
        ("hunter2", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", ["warning", "warning"]),
        ("Xk39-vQpe_71mZ-tR04", "bY7q.2Lw9-c8Hd_uN5s", ["ok", "ok"]),
        ("Xk39-vQpe_71mZ-tR04", " Xk39-vQpe_71mZ-tR04", ["ok", "ok", "warning"]),
    ],
)
def test_tokens(shell, approver, submit, levels):
    shell.environment |= {"APPROVER_SECRET": approver, "SUBMIT_TOKEN": submit}
    found = of(findings(shell), "tokens")
    assert [level for level, _ in found] == levels
    for token in (approver.strip(), submit.strip()):
        assert not token or token not in str(found)


# -- the provider --------------------------------------------------------------------------------------------


@contextlib.contextmanager
def provider(status: int, body: bytes) -> Iterator[tuple[str, list[Any]]]:
    """Answers every GET so; its URL, and what it was asked."""
    asked: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append((self.path, self.headers["Authorization"]))
            self.send_response(status)
            self.send_header("Location", "http://127.0.0.1:1/elsewhere")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1", asked
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def bare(shell: Shell, tmp_path: Path) -> Shell:
    """With an agent that needs the environment's model."""
    place = tmp_path / "project"
    place.mkdir()
    (place / "plain.py").write_text("from tenuto import Agent\nagent = Agent('plain')\n")
    shell.environment["PYTHONPATH"] = os.pathsep.join([str(place), shell.environment.get("PYTHONPATH", "")])
    shell.environment["TENUTO_AGENT"] = "plain:agent"
    return shell


KEY = "sk-secret-0123456789"
LISTED = b'{"object":"list","data":[{"id":"gpt-x","object":"model"},{"id":"gpt-y"}]}'


@pytest.mark.parametrize(
    ("status", "body", "level", "said"),
    [
        (200, LISTED, "ok", "it answers and has gpt-x"),
        (200, LISTED.replace(b"gpt-x", b"gpt-z"), "warning", "does not list gpt-x among its 2 models"),
        (200, b"<html>", "ok", "does not list its models"),
        (404, b"", "ok", "it answers (404)"),
        (401, b'{"error":"bad key"}', "problem", "refuses the key (401) → set PROVIDER_API_KEY"),
        (302, b"", "problem", "it redirects (302)"),
        (503, b"", "warning", "with 503"),
    ],
)
def test_a_provider_is_asked_for_its_models_and_nothing_more(bare, status, body, level, said):
    with provider(status, body) as (url, asked):
        bare.environment |= {"PROVIDER_URL": url, "PROVIDER_MODEL": "gpt-x", "PROVIDER_API_KEY": KEY}
        found = of(findings(bare, code=int(level == "problem")), "provider")
        assert asked == [("/v1/models", f"Bearer {KEY}")]
    assert found[0] == ("ok", f"gpt-x at {url}/chat/completions, with a key → ")
    assert found[1][0] == level
    assert said in found[1][1]
    assert KEY not in str(found)


def test_a_provider_that_is_not_there(bare):
    with provider(200, b"") as (url, _):
        pass
    bare.environment |= {"PROVIDER_URL": url, "PROVIDER_MODEL": "gpt-x"}
    found = of(findings(bare, code=1), "provider")
    assert found[0][1].endswith("without a key → ")
    assert found[1][0] == "problem"
    assert "connection failed" in found[1][1]


def test_a_provider_that_is_not_named(bare, shell):
    ((level, text),) = of(findings(bare, code=1), "provider")
    assert level == "problem"
    assert "PROVIDER_URL" in text
    del shell.environment["TENUTO_AGENT"]
    assert of(findings(shell), "provider")[0][0] == "warning"


def test_that_it_does_not_look_at_the_server_that_is_named_is_said(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert of(findings(shell), "server") == []
    monkeypatch.setitem(shell.environment, "TENUTO_URL", "http://127.0.0.1:9")
    ((level, text),) = of(findings(shell), "server")
    assert level == "warning"
    assert "TENUTO_URL names a server" in text

"""What is wrong with a command is said before anything is loaded or touched."""

import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from tests.cli.conftest import ROOT, Shell
from tests.cli.test_docs import commands
from typer.testing import CliRunner

from tenuto.cli.app import app

# A module that leaves a mark when it is imported.
MARKING = 'open("imported", "w").close()\nfrom tests.cli.desk import agent\n'


@pytest.fixture
def marking(tmp_path: Path) -> Shell:
    (tmp_path / "marking.py").write_text(MARKING)
    shell = Shell(tmp_path, cwd=tmp_path)
    shell.environment["PYTHONPATH"] = f"{ROOT}{os.pathsep}{ROOT / 'src'}"
    shell.environment["TENUTO_AGENT"] = "marking:agent"
    return shell


@pytest.fixture
def loggers_as_they_were() -> Iterator[None]:
    logger = logging.getLogger("tenuto")
    before = list(logger.handlers)
    yield
    logger.handlers = before


def test_every_help_has_an_example():
    for command in ["tenuto", *commands(typer.main.get_command(app), "tenuto")]:
        shown = CliRunner().invoke(app, [*command.split()[1:], "--help"])
        assert shown.exit_code == 0
        assert re.search(r"Example: (tenuto|\./dev) \w+", " ".join(shown.output.split())), command


def test_the_exit_code_of_a_real_process_is_2(marking):
    assert "No such command 'nope'" in marking("nope", code=2)
    assert "Usage: tenuto run" in marking("run", code=2)
    assert not (marking.cwd / "imported").exists()


def test_the_example_agent_is_loaded_only_when_usage_is_right(marking):
    marking("run", "hello")
    assert (marking.cwd / "imported").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["run"],
        ["run", ""],
        ["run", " \n "],
        ["run", "hello", "--agent", "marking"],
        ["run", "hello", "--agent", "marking:agent:x"],
        ["run", "hello", "--agent", "../marking:agent"],
        ["run", "hello", "--database", "mysql://x"],
        ["run", "hello", "--thread", "not-an-id"],
        ["run", "hello", "--nope"],
        ["run", "hello", "more"],
        ["serve", "--port", "70000"],
        ["serve", "--port", "x"],
        ["serve", "marking"],
        ["show"],
        ["show", "xyz"],
        ["show", "ab", "--after", "-1"],
        ["show", "ab", "--json", "--follow"],
        ["threads", "--status", "nope"],
        ["threads", "--limit", "0"],
        ["threads", "--metadata", "customer"],
        ["threads", "--before", "xyz"],
        ["show", "ab", "--format", "html"],
        ["show", "ab", "--format", "markdown", "--json"],
        ["follow", "ab", "--until", "dawn"],
        ["send", "ab"],
        ["chat", " "],
        ["chat", "--thread", "not-an-id"],
        ["send", "ab", " "],
        ["extend", "ab", "--steps", "-1"],
        ["export", "xyz"],
        ["verify"],
        ["verify", "ab", "--all"],
        ["inbox", "approve"],
        ["inbox", "approve", "xyz"],
        ["inbox", "--json", "approve", "ab"],
        ["inbox", "edit", "ab"],
        ["inbox", "edit", "ab", "--arguments", "{"],
        ["inbox", "edit", "ab", "--arguments", "[1]"],
        ["inbox", "edit", "ab", "--arguments", "@no-such-file"],
        ["inbox", "answer", "ab", " "],
        ["inbox", "review", "ab", "perhaps"],
        ["inbox", "review", "ab", "drop", "--result", "x"],
        ["inbox", "approve", "ab", "--database", "file.db"],
    ],
    ids=" ".join,
)
@pytest.mark.usefixtures("loggers_as_they_were")
def test_wrong_usage_exits_with_2_before_anything_is_loaded(marking, monkeypatch, arguments):
    """In the test's own process: one for each would take longer than all the other tests here."""
    before = sorted(path.name for path in marking.place.iterdir())
    monkeypatch.chdir(marking.cwd)
    monkeypatch.syspath_prepend(str(marking.cwd))
    ended = CliRunner().invoke(app, arguments, prog_name="tenuto", env=marking.environment)
    assert ended.exit_code == 2, ended.output
    assert "Usage: tenuto" in ended.output
    assert "marking" not in sys.modules
    assert sorted(path.name for path in marking.place.iterdir()) == before


def test_run_and_serve_without_any_agent_say_how_to_name_one(marking):
    del marking.environment["TENUTO_AGENT"]
    for command in (["run", "hello"], ["serve"]):
        output = marking(*command, code=2)
        assert "TENUTO_AGENT" in output
        assert "pyproject.toml" in output
    assert not marking.database.exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["inbox"],
        ["threads"],
        ["show", "ab"],
        ["verify", "--all"],
        ["inbox", "approve", "ab"],
        ["run", "--thread", "ab"],
    ],
    ids=" ".join,
)
def test_a_command_that_reads_does_not_create_a_database(shell, arguments):
    output = shell(*arguments, code=1)
    assert (
        output
        == f"tenuto: there is no database {shell.database}; name one with --database or TENUTO_DATABASE\n"
    )
    assert list(shell.place.iterdir()) == []


def test_a_database_of_something_else_is_one_clear_line(shell):
    shell.database.write_bytes(b"this is no database file, but long enough to look at" * 20)
    output = shell("threads", code=1)
    assert output.startswith(f"tenuto: {shell.database}: ")
    assert output.count("\n") == 1


def test_debug_shows_the_traceback(shell):
    shell.environment["TENUTO_DEBUG"] = "1"
    process = shell.popen("threads")
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 1
    assert errors.startswith("Traceback")
    assert "NotFound" in errors


def test_help_is_there_at_once(shell):
    """Neither pydantic nor a server nor a database driver is loaded, and little work is done."""
    command = [sys.executable, "-X", "importtime", "-m", "tenuto", "--help"]
    loaded = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stderr
    modules = {line.rpartition("|")[2].strip() for line in loaded.splitlines()}
    assert "typer" in modules
    heavy = (
        "pydantic",
        "fastapi",
        "uvicorn",
        "openai",
        "httpx2",
        "rich.console",
        "sqlite3",
    )
    assert not modules.intersection(heavy)
    seconds = []
    for _ in range(5):
        # Work, not time: how long that takes is also a matter of what else the machine does.
        before = os.times()
        shell("--help")
        after = os.times()
        seconds.append(
            after.children_user + after.children_system - before.children_user - before.children_system
        )
    assert min(seconds) < 0.4, seconds


def test_both_entry_points_are_the_same(shell):
    script = Path(sys.executable).with_name("tenuto")
    output = subprocess.run([script, "--help"], capture_output=True, text=True, check=True).stdout
    assert output == shell("--help")


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_reader_that_has_seen_enough_is_told_nothing(shell, form):
    shell("run", "-", stdin="hello " + "x" * 200_000)
    thread = shell.json("threads", "--json")[0]["id"]
    with shell.popen("show", thread, "--format", form) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(10)
        process.stdout.close()
        assert process.wait(20) == 1
        assert process.stderr.read() == ""


@pytest.mark.parametrize(
    "command", ["show THREAD --json", "export THREAD", "follow THREAD --jsonl --until rest"]
)
def test_a_stream_that_the_caller_closed_is_nobody_who_reads(shell, command):
    thread = shell.started("hello")
    closed = ["sh", "-c", 'exec "$@" <&- >&-', "sh", sys.executable, "-m", "tenuto"]
    arguments = command.replace("THREAD", thread).split()
    done = subprocess.run(
        closed + arguments, cwd=ROOT, env=shell.environment, stderr=subprocess.PIPE, text=True, check=True
    )
    assert done.stderr == ""
    shell("verify", thread)  # what was printed is not in the database's file

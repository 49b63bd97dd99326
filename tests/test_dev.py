"""./dev, as far as it can be seen without installing anything: usage, and the machines that it refuses."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout without .venv, in a place with a space in its name."""
    place = tmp_path / "a checkout"
    place.mkdir()
    for name in ("dev", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, place)
    return place


def dev(script: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", str(script), *arguments],
        env=os.environ | environment,
        cwd="/",
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def program(path: Path, *lines: str) -> str:
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    path.chmod(0o755)
    return str(path)


def test_help_names_every_command(checkout: Path) -> None:
    shown = dev(checkout / "dev", "help")
    assert (shown.returncode, shown.stderr) == (0, "")
    for command in ("setup", "demo", "test", "check", "bench", "bench-peers"):
        assert f"\n  {command} " in shown.stdout


@pytest.mark.parametrize("arguments", [(), ("tset",)])
def test_an_unknown_command_is_a_usage_error(checkout: Path, arguments: tuple[str, ...]) -> None:
    shown = dev(checkout / "dev", *arguments)
    assert shown.returncode == 2
    assert shown.stdout == ""
    assert "usage: ./dev COMMAND" in shown.stderr
    assert not (checkout / ".venv").exists()


def test_an_older_python_is_refused_in_one_line(checkout: Path, tmp_path: Path) -> None:
    old = program(tmp_path / "python3.9", "echo 3.9", "exit 1")
    shown = dev(checkout / "dev", "setup", PYTHON=old)
    assert shown.returncode == 1
    assert shown.stderr == (
        f"./dev: Tenuto needs Python 3.11, 3.12 or 3.13; {old} is 3.9, so please install one of these\n"
    )


def test_a_python_that_is_not_there_is_named(checkout: Path) -> None:
    shown = dev(checkout / "dev", "setup", PYTHON="/nowhere/python")
    assert (shown.returncode, shown.stderr) == (1, "./dev: PYTHON=/nowhere/python is not a program\n")


def test_a_python_without_venv_is_told_the_package(checkout: Path, tmp_path: Path) -> None:
    """Debian ships Python without ensurepip."""
    without = f'case $2 in *ensurepip*) exit 1;; *) exec "{sys.executable}" "$@";; esac'
    shown = dev(checkout / "dev", "setup", PYTHON=program(tmp_path / "python3", without))
    assert shown.returncode == 1
    assert "apt-get install python3-venv" in shown.stderr
    assert not (checkout / ".venv").exists()


def test_it_works_through_a_symbolic_link(checkout: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to("a checkout/dev")
    shown = dev(link, "setup", PYTHON=program(tmp_path / "python3.9", "exit 1"))
    assert "pyproject.toml" not in shown.stderr
    assert "Tenuto needs Python" in shown.stderr


def test_a_file_in_the_place_of_the_environment_is_left_alone(checkout: Path) -> None:
    (checkout / ".venv").write_text("mine")
    shown = dev(checkout / "dev", "setup")
    assert (shown.returncode, shown.stderr) == (1, "./dev: .venv is in the way: it is not a directory\n")
    assert (checkout / ".venv").read_text() == "mine"

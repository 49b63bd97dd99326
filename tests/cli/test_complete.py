"""The TAB key, in a real bash: commands, options, and ids out of the local database."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
eval "$(tenuto --show-completion)"
try() {
    COMP_WORDS=("$@"); COMP_CWORD=$(( $# - 1 )); COMPREPLY=()
    _tenuto_completion tenuto
    echo "${COMPREPLY[@]}"
}
"""


def bash_version() -> tuple[int, ...]:
    if shutil.which("bash") is None:
        return (0,)
    command = ["bash", "-c", "echo ${BASH_VERSINFO[0]} ${BASH_VERSINFO[1]}"]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return tuple(map(int, found.split()))


@pytest.mark.parametrize(
    ("named", "begins"),
    [("zsh", "#compdef tenuto"), ("fish", "complete --command tenuto"), ("bash", "_tenuto_completion() {")],
)
def test_the_shell_that_is_named_is_meant(shell, named, begins):
    assert shell("--show-completion", named).startswith(begins)
    home = shell.place / "home"
    home.mkdir()
    shell.environment["HOME"] = str(home)
    assert f"{named} completion installed" in shell("--install-completion", named)
    shell("--show-completion", "tcsh", code=2)


@pytest.mark.skipif(bash_version() < (4, 4), reason="Typer completes in bash 4.4 or later")
def test_ids_and_names_are_offered_and_nothing_is_touched(shell):
    done, row = shell.started("hello"), shell.waiting("send hi")
    before = {path.name: path.read_bytes() for path in shell.place.iterdir() if path.is_file()}
    other = f"sqlite:///{shell.place}/none.db"
    broken = shell.place / "broken.db"
    broken.write_text("no database")
    lines = [
        "try tenuto inb",
        "try tenuto inbox rej",
        'try tenuto show ""',
        f"try tenuto follow {row.thread_id[:6]}",
        f"try tenuto run --thread {row.thread_id[:6]}",
        'try tenuto inbox approve ""',
        "try tenuto threads --status awaiting_a",
        f'try tenuto show --database {other} ""',
        f'try tenuto show --database sqlite:///{broken} ""',
        'try tenuto show --url http://127.0.0.1:9 ""',
    ]
    path = f"{Path(sys.executable).parent}{os.pathsep}{shell.environment['PATH']}"
    process = subprocess.run(
        ["bash", "-c", SCRIPT + "\n".join(lines)],
        env=shell.environment | {"PATH": path},
        cwd=shell.place,
        capture_output=True,
        text=True,
        check=True,
    )
    assert process.stderr == ""
    assert process.stdout.splitlines() == [
        "inbox",
        "reject",
        f"{row.thread_id} {done}",
        row.thread_id,
        row.thread_id,
        row.id,
        "awaiting_approval awaiting_answer",
        "",
        "",
        "",
    ]
    broken.unlink()
    assert {path.name: path.read_bytes() for path in shell.place.iterdir() if path.is_file()} == before

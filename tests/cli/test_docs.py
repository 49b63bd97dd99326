"""docs/cli.md names every command there is, and no other."""

import re
from collections.abc import Iterator
from typing import Any

import typer
from tests.cli.conftest import ROOT

from tenuto.cli.app import app


def commands(group: Any, name: str) -> Iterator[str]:
    for part, command in group.commands.items():
        yield f"{name} {part}"
        if hasattr(command, "commands"):
            yield from commands(command, f"{name} {part}")


def test_the_page_has_every_command():
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    told = re.findall(r"^\| `(tenuto [a-z ]+)` \|", page, re.MULTILINE)
    assert len(told) == len(set(told))
    assert set(told) == set(commands(typer.main.get_command(app), "tenuto"))

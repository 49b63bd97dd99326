"""The tables of crashes and faults in the documentation name tests that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(("heading", "rows"), [("Crash windows", 7), ("When the outside fails", 20)])
def test_every_row_names_a_test_that_exists(heading: str, rows: int) -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    section = text[text.index(f"## {heading}") :].split("\n## ")[0]
    told = [line for line in section.splitlines() if line.startswith("|") and "shown by" not in line]
    told = [line for line in told if not line.startswith("| ---")]
    assert len(told) >= rows
    for row in told:
        shown_by = row.rstrip("| ").rpartition(" | ")[2]
        named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", shown_by)
        assert named, row
        # Whatever else is named there is a command: a file or folder alone would show nothing.
        rest = re.sub(r"`tests/[\w/]+\.py::\w+`", "", shown_by)
        assert "tests/" not in rest, row
        for path, name in named:
            source = (ROOT / path).read_text(encoding="utf-8")
            assert re.search(rf"^(async )?def {name}\(", source, re.MULTILINE), row

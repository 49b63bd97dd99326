"""What `import tenuto` offers is a promise: this list changes only on purpose, with the changelog."""

import re
from pathlib import Path

import tenuto
from tenuto.events import TYPES

DOCS = Path(__file__).parents[1] / "docs"

PUBLIC = """
    AccessDenied Agent AlreadyDecided Client ConfigurationError Conflict DidNotHappen Happened
    InterruptNotFound InvalidInput ModelError NotDone NotFound Runtime Settings Stale StoreError
    TenutoError ThreadNotFound ThreadState ToolContext Unknown UnknownAgent Until __version__ ask_person
    run_process tool wait_until
"""


def test_the_names_are_the_promised_ones():
    assert set(tenuto.__all__) == set(PUBLIC.split())
    assert [name for name in tenuto.__all__ if not hasattr(tenuto, name)] == []


def test_every_event_is_documented():
    text = (DOCS / "architecture.md").read_text()
    assert [name for name in TYPES if f"`{name}`" not in text] == []


def test_no_documented_event_is_made_up():
    text = (DOCS / "architecture.md").read_text()
    table = text[text.index("| group | event |") :].split("\n\n")[0]
    named = [name for row in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split("|")[2])]
    assert sorted(named) == sorted(TYPES)

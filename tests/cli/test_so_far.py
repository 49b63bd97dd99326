"""A reply that is told so far goes on where it stands on the screen, and is not said twice."""

import io

import pytest
from rich.console import Console

from tenuto.cli.run import Screen
from tenuto.cli.screen import FormattedScreen
from tenuto.messages import ReplySoFar, TextDelta


@pytest.mark.parametrize(
    ("items", "shown"),
    [
        ([ReplySoFar("Hel"), TextDelta("lo.")], "Hello.\n"),
        ([TextDelta("He"), ReplySoFar("Hel"), TextDelta("lo.")], "Hello.\n"),
        ([TextDelta("Hel"), ReplySoFar("Hel"), TextDelta("lo.")], "Hello.\n"),
        ([TextDelta("Good"), ReplySoFar("Hel"), TextDelta("lo.")], "Good\nHello.\n"),
        ([TextDelta("Good"), ReplySoFar("")], "Good\n"),
    ],
)
@pytest.mark.parametrize("kind", [Screen, FormattedScreen])
async def test_what_is_missing_is_added(kind, items, shown):
    out = io.StringIO()
    screen = kind(Console(file=out, width=60, force_terminal=False))
    for item in items:
        screen.show(item)
    screen.end_line()
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    assert [line for line in lines if line] == shown.splitlines()

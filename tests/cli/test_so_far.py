"""A reply told so far, or broken into, goes on where it stands on the screen, and is not said twice."""

import io

import pytest
from rich.console import Console

from tenuto.cli.run import Screen
from tenuto.cli.screen import FormattedScreen
from tenuto.events import CancelRequested, Entry, ModelReplied
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


@pytest.mark.parametrize("kind", [Screen, FormattedScreen])
@pytest.mark.parametrize("rest", ["", "there"])
async def test_what_breaks_into_a_reply_does_not_make_it_come_twice(kind, rest):
    out = io.StringIO()
    screen = kind(Console(file=out, width=60, force_terminal=False))
    screen.show(TextDelta("Hello "))
    screen.break_line()
    screen.show(Entry(seq=4, at_ms=0, event=CancelRequested(by="ana", reason="enough")))
    if rest:
        screen.show(TextDelta(rest))
    replied = ModelReplied(step=1, seen_seq=2, text=f"Hello {rest}")
    screen.show(Entry(seq=5, at_ms=0, event=replied))
    said = [line.strip() for line in out.getvalue().splitlines() if line.strip()]
    assert said == ["Hello", "by ana: enough", *filter(None, [rest])]
    screen.show(Entry(seq=6, at_ms=0, event=replied))  # the next reply, of which no part was seen
    screen.end_line()
    said = [line.strip() for line in out.getvalue().splitlines() if line.strip()]
    assert said[-1] == f"Hello {rest}".strip()

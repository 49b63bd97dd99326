"""Markdown that streams: whatever the pieces, what is left on the screen is the whole, formatted."""

import asyncio
import io

import pyte
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from tenuto.cli import region
from tenuto.cli.region import MarkdownStream, Region, markdown
from tenuto.cli.terminal import safe

COLUMNS = 60
BLOCKS = [
    "# Title",
    "Some **bold** text,\nand `more` of it 日本 👩‍👧.",
    "1. one\n\n2. two\n   - nested\n\n   more of two",
    "```python\ndef f(x):\n    return x\n\nprint(1)\n```",
    "| a | b |\n|---|---|\n| 1 | 2 |\n| 3 | 4 |",
    "> quoted\n> twice",
    "Under\n===",
    "    indented code",
    "&#8238;x and &#27;[2J and \x1b[2J",
    "***",
    "word " * 60,
]


def console(lines):
    out = io.StringIO()
    made = Console(file=out, force_terminal=True, width=COLUMNS, height=lines, color_system=None)
    return out, made


def seen(output):
    screen = pyte.HistoryScreen(COLUMNS, 10, history=5000)
    pyte.Stream(screen).feed(output.replace("\n", "\r\n"))
    past = ["".join(line[column].data for column in range(COLUMNS)) for line in screen.history.top]
    return [line.rstrip() for line in (*past, *screen.display) if line.strip()]


def streamed(pieces, pause):
    out, made = console(10)

    async def feed():
        shown = Region(made)
        shown.out.width, shown.out.height = COLUMNS, 10
        stream = MarkdownStream(shown)
        for piece in pieces:
            stream.feed(piece)
            if pause:
                await asyncio.sleep(0)
                shown._draw()
        stream.finish()
        assert (shown._live, shown._due) == (None, None)  # nothing is redrawn any more

    asyncio.run(feed())
    return out.getvalue()


def whole(text):
    out, made = console(1000)
    made.print(markdown(safe(text)))
    return seen(out.getvalue())


@settings(deadline=None, max_examples=60)
@given(
    blocks=st.lists(st.sampled_from(BLOCKS), min_size=1, max_size=6),
    cuts=st.lists(st.integers(1, 40), min_size=1, max_size=20),
    pause=st.booleans(),
)
def test_pieces_make_the_same_as_the_whole(blocks, cuts, pause):
    text = "\n\n".join(blocks) + "\n"
    pieces, place, number = [], 0, 0
    while place < len(text):
        size = cuts[number % len(cuts)]
        pieces.append(text[place : place + size])
        place, number = place + size, number + 1
    output = streamed(pieces, pause)
    assert seen(output) == whole(text)
    assert "\x1b[2J" not in output
    assert "\u202e" not in output


def test_what_is_redrawn_is_never_more_than_the_terminal_has():
    text = "```\n" + "".join(f"line {n}\n" for n in range(200)) + "```\n"
    output = streamed([text[place : place + 7] for place in range(0, len(text), 7)], pause=True)
    assert seen(output) == whole(text)
    ups = max(len(part.split("\x1b[1A")) for part in output.split("\n"))
    assert ups <= 10


def test_a_long_block_is_shown_as_it_came_until_it_is_whole(monkeypatch):
    monkeypatch.setattr(region, "FORMATTED_CHARACTERS", 50)
    text = "word " * 100
    assert seen(streamed([text[:300], text[300:]], pause=True)) == whole(text)

"""The last lines of a terminal, redrawn as things change, and Markdown that streams above them.

What is finished is printed once and scrolls away like any other output; only what may still change is
redrawn, in one write, so that nothing flickers, and never more of it than the terminal has lines. What comes
out of a Markdown reader is made safe again: `&#8238;` is a harmless word until it is read.
"""

import asyncio
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.live import Live
from rich.markdown import Markdown
from rich.segment import Segment
from rich.text import Text

from tenuto.cli.terminal import safe

if TYPE_CHECKING:
    from markdown_it import MarkdownIt

SHORT_CHARACTERS: Final = 1_000
REDRAW_SECONDS: Final = 0.05
# A block longer than this is shown as it came until it is whole: to read it again and again costs more.
FORMATTED_CHARACTERS: Final = 4_000


class Region:
    """Holds the last lines of the terminal while there is something to show in them."""

    def __init__(self, out: Console) -> None:
        # Lines that the terminal itself would break could not be counted, nor taken back.
        self.out = Console(file=out.file, markup=False, emoji=False, highlight=False, soft_wrap=False)
        self._live: Live | None = None
        self._shown: Any = Group()
        self._due: asyncio.TimerHandle | None = None

    def show(self, what: Any) -> None:
        """Show this soon, or what it makes then; what is shown next takes its place."""
        self._shown = what
        if self._due is None:
            self._due = asyncio.get_running_loop().call_later(REDRAW_SECONDS, self._draw)

    def print(self, what: Any, then: Any = None) -> None:
        """Print for good, above the region, which shows `then` in the same moment; without it, nothing."""
        self._shown = then or Group()
        if self._live is not None:
            self._live.update(_Last(self._shown))
        self.out.print(what)

    def clear(self) -> None:
        """Take back what is shown; the cursor is where it was before."""
        self._shown = Group()
        if self._due is not None:
            self._due.cancel()
            self._due = None
        if self._live is not None:
            self._live.update(self._shown)
            self._live.stop()
            self._live = None

    def _draw(self) -> None:
        self._due = None
        if self._live is None:
            self._live = Live(console=self.out, auto_refresh=False, transient=True, vertical_overflow="crop")
            self._live.start()
        self._live.update(_Last(self._shown() if callable(self._shown) else self._shown), refresh=True)


class MarkdownStream:
    """Text of one reply as it arrives: whole blocks are printed, the one that grows is in the region."""

    def __init__(self, region: Region) -> None:
        self._region = region
        self._text = ""  # of the blocks that are not printed yet
        self._parser: MarkdownIt | None = None
        self._begun = False
        self._look_at = 0  # how long the text has to be before it is worth looking for whole blocks again

    def feed(self, text: str) -> None:
        """More text, of any length."""
        self._text += safe(text)
        if "\n" in text and len(self._text) >= self._look_at:
            if end := self._finished():
                block, self._text = self._text[:end], self._text[end:]
                self._region.print(self._next(markdown(block)), Group("", self._tail()))
                self._begun = True
            # A long block is read again only when it has grown by a share of itself: so each of its lines
            # costs no more than one of a short block.
            length = len(self._text)
            self._look_at = length + length // 8 if length > SHORT_CHARACTERS else 0
        self._region.show(lambda: self._next(self._tail()))

    def finish(self) -> None:
        """The reply is whole: what is left of it is printed."""
        rest, self._text, self._look_at = self._text, "", 0
        self._region.clear()
        if rest.strip():
            self._region.print(self._next(markdown(rest)))
        self._begun = False

    def _tail(self) -> Any:
        plain = len(self._text) > FORMATTED_CHARACTERS
        return Text(self._text[-FORMATTED_CHARACTERS:]) if plain else markdown(self._text)

    def _next(self, block: Any) -> Group:
        """With an empty line between it and the block before."""
        return Group("", block) if self._begun else Group(block)

    def _finished(self) -> int:
        """How many characters hold blocks that no later text can change: all but the last, by whole lines."""
        if self._parser is None:
            from markdown_it import MarkdownIt

            self._parser = MarkdownIt().enable("table")
        lines = self._text[: self._text.rindex("\n") + 1].splitlines(keepends=True)
        tokens = self._parser.parse("".join(lines))
        starts = [token.map[0] for token in tokens if token.level == 0 and token.map and token.nesting >= 0]
        return sum(map(len, lines[: starts[-1]])) if len(starts) > 1 else 0


def markdown(text: str) -> Any:
    """Safe text, formatted. Links show where they go."""
    return _Safe(Markdown(text, code_theme="ansi_dark", hyperlinks=False))


class _Safe:
    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for segment in console.render(self._inner, options):
            yield segment if segment.control else Segment(safe(segment.text), segment.style)


class _Last:
    """As many of the last lines as the terminal has, but one for the cursor."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = console.render_lines(self._inner, options, pad=False)
        for line in lines[-max(1, console.height - 2) :]:
            yield from line
            yield Segment.line()

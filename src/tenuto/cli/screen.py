"""A turn at a terminal: Markdown as it arrives, reasoning dimmed, calls with how far they are."""

from msgspec import structs
from rich.console import Console, Group
from rich.text import Text

from tenuto.cli.region import MarkdownStream, Region, markdown
from tenuto.cli.run import Screen
from tenuto.cli.terminal import safe
from tenuto.events import AnyEvent, CallFinished, Entry, ModelReplied
from tenuto.messages import Live, ReasoningDelta, StatusLine, TextDelta, ToolProgress
from tenuto.stream import Replayed

PROGRESS_CHARACTERS = 200


def screen_for(out: Console) -> Screen:
    """Formatted and redrawn where that can be shown, else plain lines."""
    return FormattedScreen(out) if out.is_terminal and not out.is_dumb_terminal else Screen(out)


class FormattedScreen(Screen):
    """Shows one thread while it runs. Nothing else may be printed before `break_line` or `end_line`."""

    def __init__(self, out: Console) -> None:
        super().__init__(out)
        self._region = Region(out)
        self._text = MarkdownStream(self._region)
        self._thought = ""  # the last line of the reasoning that arrives
        self._progress: dict[str, str] = {}  # by call

    def show(self, item: Entry | Replayed | Live) -> None:
        """Print or draw what there is to see of it."""
        match item:
            case TextDelta(text):
                self._end_thought()
                self._streamed += text
                self._line_open = True
                self._text.feed(text)
            case ReasoningDelta(text):
                *lines, self._thought = (self._thought + safe(text)).split("\n")
                for line in lines:
                    self._region.print(Text(line, "dim"))
                self._region.show(Text(self._thought, "dim"))
            case ToolProgress(call_id, message, fraction):
                share = "" if fraction is None else f" {fraction:.0%}"
                self._progress[call_id] = f"… {safe(message, PROGRESS_CHARACTERS)}{share}"
                self._show_progress()
            case StatusLine(text):
                if not (self._line_open or self._progress):
                    self._region.show(Text(f"… {safe(text, PROGRESS_CHARACTERS)}", "dim"))
            case _:
                super().show(item)

    def waiting(self) -> None:
        """Something was asked, and nothing came yet."""
        self._region.show(Text("…", "dim"))

    def break_line(self) -> None:
        """What comes next begins on a line of its own; the reply that arrives may go on behind it."""
        self._end_thought()
        self._text.finish()
        self._line_open = False

    def _event(self, event: AnyEvent) -> None:
        if isinstance(event, CallFinished):
            self._progress.pop(event.call_id, None)
        if isinstance(event, ModelReplied) and event.text and event.text != self._streamed:
            self.end_line()
            self._region.print(markdown(safe(event.text)))
            event = structs.replace(event, text="")
        super()._event(event)
        self._show_progress()

    def _show_progress(self) -> None:
        if self._progress and not self._line_open:
            self._region.show(Group(*(Text(line, "dim") for line in self._progress.values())))

    def _end_thought(self) -> None:
        if self._thought:
            self._region.clear()
            self._region.print(Text(self._thought, "dim"))
        self._thought = ""

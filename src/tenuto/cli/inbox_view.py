"""The live inbox without its terminal: what is chosen, what a key means, what there is to see."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from tenuto.approvals import Decision
from tenuto.cli.ask import CHOICES
from tenuto.cli.keys import Field
from tenuto.cli.terminal import moment, now_ms, safe, span
from tenuto.cli.view import asked, asked_briefly, expires_in
from tenuto.rows import InterruptRow

SHORT_ID: Final = 8
# Where there is no room for all: from how many columns on each is shown.
COLUMNS: Final = {
    "": 0,
    "id": 0,
    "kind": 50,
    "tool": 0,
    "arguments": 0,
    "thread": 100,
    "age": 80,
    "expires in": 60,
}
TOOL_CHARACTERS: Final = 24
KEYS: Final = {
    "list": "↑↓ or j k: choose · enter: open · q: quit",
    "approval": "a: approve · r: reject · e: edit · ↑↓: scroll · esc: back",
    "question": "a: answer · ↑↓: scroll · esc: back",
    "review": "h: it happened · n: it did not, run it again · d: drop it · esc: back",
    "decided": "esc: back",
    "field": "enter: do it · esc: back",
}


@dataclass(frozen=True)
class Choice:
    """A person decides this: `row` as it was shown to them, with its digest."""

    row: InterruptRow
    verb: str
    decision: Decision


@dataclass
class InboxView:
    """`rows`: what waits, oldest first. `opened`: what is looked at, as it was when it was opened."""

    rows: list[InterruptRow] = field(default_factory=list)
    opened: InterruptRow | None = None
    note: str = ""
    quit: bool = False
    _chosen: int = 0
    _top: int = 0
    _typed: Field | None = None
    _pending: tuple[str, str, bool] = ("", "", False)  # verb, key of what is typed, whether it is needed
    _lines: int = 0
    _room: int = 1

    def refresh(self, rows: list[InterruptRow]) -> bool:
        """What waits now; what was chosen stays chosen. Whether there is something else to see."""
        before = self.rows
        if self.rows:
            chosen = self.rows[self._chosen].id
            places = [place for place, row in enumerate(rows) if row.id == chosen]
            self._chosen = places[0] if places else min(self._chosen, max(0, len(rows) - 1))
        self.rows = rows
        return before != rows

    def decided(self, row: InterruptRow) -> None:
        """Somebody decided what is open, or it expired: it is shown so, and no key decides it any more."""
        if self.opened is not None and self.opened.id == row.id:
            self.opened, self._typed = row, None

    def close(self) -> None:
        """Back to the list."""
        self.opened, self._typed, self._top = None, None, 0

    def press(self, key: str) -> Choice | None:
        """What a key does; a choice that has to be carried out. "edit" comes without its arguments."""
        if self._typed is not None:
            return self._type(key, self._typed)
        self.note = ""
        if self.opened is not None:
            return self._look(key, self.opened)
        match key:
            case "q" | "end of input":
                self.quit = True
            case "j" | "down":
                self._chosen = min(self._chosen + 1, max(0, len(self.rows) - 1))
            case "k" | "up":
                self._chosen = max(0, self._chosen - 1)
            case "g" | "home":
                self._chosen = 0
            case "G" | "end":
                self._chosen = max(0, len(self.rows) - 1)
            case "enter" | "right" if self.rows:
                self.opened, self._top = self.rows[self._chosen], 0
            case _:
                pass
        return None

    def _look(self, key: str, row: InterruptRow) -> Choice | None:
        match key:
            case "escape" | "q" | "left" | "backspace":
                self.close()
            case "end of input":
                self.quit = True
            case "j" | "down":
                self._top += 1
            case "k" | "up":
                self._top -= 1
            case "page down" | " ":
                self._top += self._room
            case "page up":
                self._top -= self._room
            case _ if row.outcome is None and not row.fault and (choice := CHOICES.get((row.kind, key))):
                verb, typed = choice
                if typed is None:
                    return self._choice(row, verb, Decision())
                self._typed, self._pending = Field(typed[0]), (verb, *typed[1:])
            case _:
                pass
        self._top = max(0, min(self._top, self._lines - self._room))
        return None

    def _type(self, key: str, typed: Field) -> Choice | None:
        verb, name, needed = self._pending
        match key:
            case "escape" | "end of input":
                self._typed = None
            case "enter" if self.opened is not None and (typed.text.strip() or not needed):
                self._typed = None
                return self._choice(self.opened, verb, Decision({name: typed.text.strip()}))  # type: ignore[misc]  # a key of CHOICES
            case _:
                typed.press(key)
        return None

    def _choice(self, row: InterruptRow, verb: str, decision: Decision) -> Choice:
        if row.digest:
            decision["digest"] = row.digest
        return Choice(row, verb, decision)

    # -- what there is to see ----------------------------------------------------------------------------

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        head, body, foot = self._head(), self._body(console), self._foot(console.width)
        self._room = max(1, console.height - len(head) - len(foot))
        lines = console.render_lines(body, options, pad=False)
        self._lines = len(lines)
        if self.opened is None:
            # The header of the table stays, its rows scroll with what is chosen.
            visible = max(1, self._room - 1)
            first = max(0, min(self._chosen - visible // 2, len(self.rows) - visible))
            lines = [*lines[:1], *lines[1 + first :]][: self._room]
        else:
            self._top = max(0, min(self._top, self._lines - self._room))
            lines = lines[self._top : self._top + self._room]
        lines += [[] for _ in range(self._room - len(lines))]
        yield from head
        for segments in lines:
            yield from segments
            yield Segment.line()
        yield from foot

    def _head(self) -> list[Text]:
        if self.opened is None:
            count = f"{len(self.rows)} wait for a person" if self.rows else "nothing waits for a person"
            return [_line(f"inbox: {count}", "bold"), _line("")]
        row = self.opened
        return [_line(f"{row.kind} {row.id}", "bold magenta"), _line("")]

    def _foot(self, columns: int) -> list[Text]:
        shown = _line(self.note, "yellow")
        if self._typed is not None:
            before, under, after = self._typed.shown()
            # However long it is and narrow the terminal: what is typed can be seen.
            room = columns - cell_len(under)
            shown = Text(_last_cells(self._typed.prompt + before, room), no_wrap=True, overflow="crop")
            shown.append(under, "reverse").append(after)
            keys = "field"
        elif self.opened is None:
            keys = "list"
        else:
            keys = "decided" if self.opened.outcome is not None else self.opened.kind
        below = self._lines - self._top - self._room
        more = f"… {below} more lines · " if self.opened is not None and below > 0 else ""
        return [_line(""), shown, _line(more + KEYS[keys], "dim")]

    def _body(self, console: Console) -> Table | Group:
        if self.opened is not None:
            return Group(*self._details(self.opened))
        table = Table(box=None, expand=True, pad_edge=False, padding=(0, 1), width=console.width)
        names = [name for name, columns in COLUMNS.items() if console.width >= columns]
        for name in names:
            table.add_column(
                name, no_wrap=True, overflow="ellipsis", ratio=1 if name == "arguments" else None
            )
        for place, row in enumerate(self.rows):
            cells = {
                "": ">" if place == self._chosen else "",
                "id": row.id[:SHORT_ID],
                "kind": row.kind,
                "tool": safe(row.name, TOOL_CHARACTERS),
                "arguments": safe(asked_briefly(row), console.width),
                "thread": row.thread_id[:SHORT_ID],
                "age": span(now_ms() - row.raised_at_ms),
                "expires in": expires_in(row),
            }
            table.add_row(
                *(Text(cells[name]) for name in names), style="reverse" if place == self._chosen else ""
            )
        return table

    def _details(self, row: InterruptRow) -> Iterator[Text]:
        for style, text in asked(row.kind, row.name, row.arguments, row.prompt):
            yield Text(text, style)
        yield Text("")
        yield Text(f"agent {safe(row.agent)}, thread {row.thread_id}", "dim")
        yield Text(f"raised {moment(row.raised_at_ms)}, expires in {expires_in(row)}", "dim")
        yield Text(f"digest {row.digest or 'none'}", "dim")
        if row.outcome is not None:
            when = f", {moment(row.resolved_at_ms)}" if row.resolved_at_ms else ""
            yield Text(f"\n{row.outcome} by {safe(row.by) or 'unknown'}{when}", "bold yellow")
            if row.comment:
                yield Text(safe(row.comment))


def _line(text: str, style: str = "") -> Text:
    """One line, cut where the terminal ends."""
    return Text(safe(text, 400), style, no_wrap=True, overflow="ellipsis")


def _last_cells(text: str, cells: int) -> str:
    """The end of it that is at most so wide."""
    for place in range(len(text), 0, -1):
        cells -= cell_len(text[place - 1])
        if cells < 0:
            return text[place:]
    return text

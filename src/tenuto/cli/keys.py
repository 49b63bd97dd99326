"""Keys as they are pressed, and a line of text that is typed with them, while everything else goes on."""

import asyncio
import codecs
import contextlib
import os
import re
import sys
import termios
import tty
from collections.abc import Iterator
from typing import Any, Final

from tenuto.cli.terminal import safe

_SEQUENCE: Final = re.compile(r"\x1b[\[O]([0-9;]*)([A-Za-z~])|\x1b|[^\x1b]")
_NAMED: Final = {
    ("", "A"): "up",
    ("", "B"): "down",
    ("", "C"): "right",
    ("", "D"): "left",
    ("", "H"): "home",
    ("", "F"): "end",
    ("1", "~"): "home",
    ("3", "~"): "delete",
    ("4", "~"): "end",
    ("5", "~"): "page up",
    ("6", "~"): "page down",
}
_CONTROL: Final = {
    "\r": "enter",
    "\n": "enter",
    "\x1b": "escape",
    "\x7f": "backspace",
    "\x08": "backspace",
    "\x01": "home",
    "\x05": "end",
    "\x15": "clear",
    "\x04": "end of input",
    "\t": "tab",
}

# A terminal in this mode says where a paste begins and ends. Taken for keys, its lines would decide things.
_PASTES, _NO_PASTES = "\x1b[?2004h", "\x1b[?2004l"
_PASTE_BEGINS, _PASTE_ENDS = "\x1b[200~", "\x1b[201~"
PASTED: Final = "pasted "


def keys_of(text: str) -> Iterator[str]:
    """The keys that a terminal tells of with this text: names, or the characters themselves."""
    for found in _SEQUENCE.finditer(text):
        if found[2]:
            yield _NAMED.get((found[1], found[2]), "")
        elif (key := _CONTROL.get(found[0])) is not None:
            yield key
        elif found[0].isprintable():
            yield found[0]


class Keyboard:
    """The terminal's keys, one by one, without echo. Ctrl-C is still a signal.

    What is pasted is one key, `PASTED` and its text in one line, and only a `Field` takes it.
    """

    def __init__(self) -> None:
        self._file = -1
        self._out = sys.stdout  # as it is now: it may be redirected when the terminal is lent
        self._rest = ""  # of a paste that is not over
        self._keys: asyncio.Queue[str] = asyncio.Queue()
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._before: list[Any] | None = None

    def __enter__(self) -> "Keyboard":
        self._file = sys.stdin.fileno()
        self._before = termios.tcgetattr(self._file)
        tty.setcbreak(self._file, termios.TCSADRAIN)
        self._write(_PASTES)
        asyncio.get_running_loop().add_reader(self._file, self._read)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.get_running_loop().remove_reader(self._file)
        self._write(_NO_PASTES)
        if self._before is not None:
            termios.tcsetattr(self._file, termios.TCSADRAIN, self._before)

    async def key(self) -> str:
        """The next key."""
        return await self._keys.get()

    @contextlib.contextmanager
    def lent(self) -> Iterator[None]:
        """Another program has the terminal meanwhile."""
        self.__exit__()
        try:
            yield
        finally:
            self.__enter__()

    def _read(self) -> None:
        try:
            data = os.read(self._file, 4096)
        except OSError:  # the terminal is gone
            data = b""
        if not data:
            asyncio.get_running_loop().remove_reader(self._file)
            self._keys.put_nowait("end of input")
        text, self._rest = self._rest + self._decoder.decode(data), ""
        while text:
            typed, begins, text = text.partition(_PASTE_BEGINS)
            for key in filter(None, keys_of(typed)):
                self._keys.put_nowait(key)
            if begins:
                pasted, ends, after = text.partition(_PASTE_ENDS)
                if not ends:
                    self._rest = begins + text
                    return
                self._keys.put_nowait(PASTED + "".join(c if c.isprintable() else " " for c in pasted).strip())
                text = after

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):  # the terminal is gone
            self._out.write(text)
            self._out.flush()


class Field:
    """A line that is being typed."""

    def __init__(self, prompt: str) -> None:
        self.prompt = prompt
        self.text = ""
        self._place = 0

    def press(self, key: str) -> None:
        """Any key but those that end it."""
        before, after = self.text[: self._place], self.text[self._place :]
        match key:
            case "backspace":
                before = before[:-1]
            case "delete":
                after = after[1:]
            case "clear":
                before = ""
            case "left":
                before, after = before[:-1], before[-1:] + after
            case "right":
                before, after = before + after[:1], after[1:]
            case "home":
                before, after = "", before + after
            case "end":
                before, after = before + after, ""
            case _ if len(key) == 1 or key.startswith(PASTED):
                before += key.removeprefix(PASTED)
            case _:
                pass
        self.text, self._place = before + after, len(before)

    def shown(self) -> tuple[str, str, str]:
        """What is before the cursor, under it, and behind it."""
        under = self.text[self._place : self._place + 1] or " "
        return safe(self.text[: self._place]), safe(under), safe(self.text[self._place + 1 :])

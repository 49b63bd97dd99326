"""Printing: what others wrote made safe, times for people, JSON for programs."""

import contextlib
import getpass
import json
import logging
import os
import re
import signal
import sys
import termios
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from rich.console import Console

# What moves the cursor, starts an escape sequence, reorders what is shown or is not seen at all. Line feed
# and tab stay, and so do the joiners that emoji and some scripts are made with.
_UNSAFE: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff"
    "\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)
_PIPE_COLUMNS: Final = 160


def safe(text: str, characters: int | None = None) -> str:
    """The text with its control characters escaped as in JSON; with a limit also on one line, and cut."""
    if characters is not None:
        text = " ".join(text[: characters * 2].split())
        text = text if len(text) <= characters else text[: characters - 1] + "…"
    return _UNSAFE.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    number = ord(found.group())
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def console(*, errors: bool = False) -> "Console":
    """Where people read. Text is taken as it is; no colours where none are wanted (NO_COLOR, a pipe)."""
    from rich.console import Console

    made = Console(stderr=errors, markup=False, emoji=False, highlight=False, soft_wrap=True)
    if not made.is_terminal:
        made.width = _PIPE_COLUMNS
    return made


def complain(text: str) -> None:
    """One clear line on stderr."""
    console(errors=True).print(f"tenuto: {safe(text)}", style="red")


@contextlib.contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """A line at the terminal that says how far long work is; nothing where nobody watches."""
    watched = console(errors=True)
    if not watched.is_terminal:
        yield lambda _text: None
        return
    with watched.status("") as line:
        yield line.update


class _Told(logging.Handler):
    """Hands each record on as one safe line of text, with an exception's words, not its traceback."""

    def __init__(self, tell: Callable[[str], object]) -> None:
        super().__init__()
        self._tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        try:
            self._tell(safe(f"tenuto: {record.getMessage()}" + (f": {error}" if error else ""), 1000))
        except Exception:  # noqa: BLE001 - as every handler of the standard library does
            self.handleError(record)


@contextlib.contextmanager
def losing_no_output() -> Iterator[None]:
    """Let Ctrl-C discard only what was typed, and not what was printed and is still on its way."""
    if not is_interactive():
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    kept = [*before]
    kept[3] |= termios.NOFLSH
    termios.tcsetattr(sys.stdin, termios.TCSANOW, kept)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSANOW, before)


class Ended(KeyboardInterrupt):
    """SIGTERM where a person is asked: unlike Ctrl-C there, it is no answer."""


def end_as_ctrl_c(_number: int, frame: FrameType | None) -> None:
    """What SIGTERM does: what runs here is handed over, the terminal given back, no half of a file left."""
    handler = signal.getsignal(signal.SIGINT)
    # Ctrl-C is ignored in the background of a script; SIGTERM is not.
    if handler is signal.default_int_handler or not callable(handler):
        raise Ended
    handler(signal.SIGINT, frame)


def log_briefly() -> None:
    """Let commands that people wait for log without tracebacks; TENUTO_DEBUG=1 shows them."""
    if os.environ.get("TENUTO_DEBUG") != "1":
        # Where stderr is now, not where it was: what is drawn at the end of a terminal makes room for it.
        logging.getLogger("tenuto").addHandler(_Told(lambda line: print(line, file=sys.stderr, flush=True)))


@contextlib.contextmanager
def log_to(tell: Callable[[str], object]) -> Iterator[None]:
    """Log to `tell` alone, which may be called on any thread."""
    logger = logging.getLogger("tenuto")
    before, logger.handlers = logger.handlers, [_Told(tell)]
    try:
        yield
    finally:
        logger.handlers = before


@contextlib.contextmanager
def printing_aside(aside: bool = True) -> Iterator[None]:
    """What tools that run here print goes to stderr: standard output is for a program."""
    with contextlib.redirect_stdout(sys.stderr) if aside else contextlib.nullcontext():
        yield


def is_interactive() -> bool:
    """Whether somebody can be asked here."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def user() -> str:
    """Who sits here, by the operating system."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "unknown"


def print_json(value: Any) -> None:
    """One JSON document for programs, ASCII alone, so that it can carry anything anywhere."""
    sys.stdout.write(json.dumps(msgspec.to_builtins(value), indent=2) + "\n")


def pretty(arguments: str) -> str:
    """Canonical JSON, spread over lines; its values as they are."""
    try:
        return safe(json.dumps(json.loads(arguments), indent=2, ensure_ascii=False))
    except ValueError:
        return safe(arguments)


def moment(at_ms: int) -> str:
    """A time as a person here would write it, to the second."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def span(milliseconds: int) -> str:
    """A length of time in its largest unit: 45 s, 12 min, 5 h, 3 d."""
    seconds = max(0, milliseconds) // 1000
    for unit, size, most in (("s", 1, 120), ("min", 60, 7200), ("h", 3600, 172_800)):
        if seconds < most:
            return f"{seconds // size} {unit}"
    return f"{seconds // 86400} d"


def now_ms() -> int:
    """For ages and what is left; nothing is decided by it."""
    return time.time_ns() // 1_000_000

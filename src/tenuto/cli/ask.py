"""Asking at the terminal: approvals, questions and reviews.

Called only while the thread rests: nothing runs here meanwhile, so waiting for a key press may block.
"""

import os
import shlex
import signal
import subprocess
import sys
import tempfile
import termios
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tenuto.approvals import Decision
from tenuto.cli.find import AnyRuntime
from tenuto.cli.terminal import complain, moment, pretty, safe
from tenuto.cli.view import asked
from tenuto.errors import AlreadyDecided, ConfigurationError, InvalidInput, Stale
from tenuto.events import ThreadId
from tenuto.rows import InterruptRow

if TYPE_CHECKING:
    from rich.console import Console

# By kind and key: the verb, and what is typed with it, as (prompt, key of the decision, if it is needed).
CHOICES: Final[dict[tuple[str, str], tuple[str, tuple[str, str, bool] | None]]] = {
    ("approval", "a"): ("approve", None),
    ("approval", "r"): ("reject", ("Why? The model reads it; may be empty: ", "comment", False)),
    ("approval", "e"): ("edit", None),
    ("question", "a"): ("answer", ("Your answer: ", "answer", True)),
    ("review", "h"): ("happened", ("Its result, for the model; may be empty: ", "answer", False)),
    ("review", "n"): ("did_not_happen", None),
    ("review", "d"): ("drop", ("A comment for the model; may be empty: ", "comment", False)),
}
# By kind: what is asked, and the words that answer, by their first letters too; the last one: later.
ASKED: Final = {
    "approval": ("[a]pprove, [r]eject, [e]dit, [l]ater? ", "approve reject edit later"),
    "question": ("Your answer (empty: later): ", ""),
    "review": (
        "Did it happen? [h]appened, did [n]ot happen (it will run again), [d]rop it, [l]ater? ",
        "happened not drop later",
    ),
}


async def ask(runtime: AnyRuntime, thread_id: ThreadId, left: set[str], out: "Console", by: str) -> bool:
    """Ask about everything pending in the thread but what is in `left`; "later" adds to that.

    True when something was decided, by whomever. Raises KeyboardInterrupt; then nothing was decided.
    """
    rows = [row for row in await runtime.interrupts(thread_id=thread_id) if row.id not in left]
    decided = False
    for row in rows:
        out.print(f"\n{row.kind} {row.id}", style="bold magenta")
        for style, text in asked(row.kind, row.name, row.arguments, row.prompt):
            out.print(text, style=style)
        expires = f"expires {moment(row.expires_at_ms)}  " if row.expires_at_ms else ""
        out.print(f"{expires}digest {row.digest or 'none'}", style="dim")
        forget_typed()
        if await _decide(runtime, row, by):
            decided = True
        else:
            left.add(row.id)
    return decided


async def _decide(runtime: AnyRuntime, row: InterruptRow, by: str) -> bool:
    """Ask until there is a decision that stands; False for later."""
    while True:
        if (choice := _chosen(row)) is None:
            return False
        verb, decision = choice
        decision["channel"] = "terminal"
        if row.digest:
            decision["digest"] = row.digest
        try:
            await runtime.resolve(row.id, verb, by=by, **decision)
            return True
        except AlreadyDecided as error:
            complain(f"{error}, {moment(error.at_ms)}")
            return True
        except (InvalidInput, ConfigurationError, Stale) as error:
            complain(str(error))


def _chosen(row: InterruptRow) -> tuple[str, Decision] | None:
    """A verb, and what goes with it; None for later."""
    prompt, words = ASKED[row.kind]
    if row.kind == "question":
        answer = read_line(prompt)
        return ("answer", Decision(answer=answer)) if answer and answer.strip() else None
    if (choice := CHOICES.get((row.kind, _key(prompt, words)))) is None:
        return None
    verb, typed = choice
    if verb == "edit":
        arguments = _edited(row.arguments)
        return _chosen(row) if arguments is None else (verb, Decision(arguments=arguments))
    if typed is None:
        return verb, Decision()
    text = read_line(typed[0])
    return None if text is None else (verb, Decision({typed[1]: text}))  # type: ignore[misc]  # a key of CHOICES


def _edited(arguments: str) -> str | None:
    """New arguments as JSON text, from one line or from $EDITOR; None when nothing was changed."""
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR")
    typed = read_line(f"New arguments as JSON (empty: {'open ' + safe(editor) if editor else 'back'}): ")
    if typed is None or typed.strip() or not editor:
        return (typed or "").strip() or None
    with tempfile.TemporaryDirectory(prefix="tenuto-") as place:
        file = Path(place, "arguments.json")
        before = pretty(arguments) + "\n"
        file.write_text(before, encoding="utf-8")
        try:
            subprocess.run([*shlex.split(editor), str(file)], check=True)  # noqa: S603 - the user's own editor
            after = file.read_text(encoding="utf-8")
        except (OSError, ValueError, subprocess.CalledProcessError) as error:
            complain(f"nothing was changed: {error}")
            return None
    return after if after != before else None


def _key(prompt: str, words: str) -> str:
    """The first letter of one of these words, the last one's at the end of input.

    Only the letter or the word is taken: "actually no" approves nothing.
    """
    letters = {typed: word[0] for word in words.split() for typed in (word, word[0])}
    while (line := read_line(prompt)) is not None:
        if letter := letters.get(line.strip().lower()):
            return letter
    return words.rsplit(maxsplit=1)[-1][0]


def forget_typed() -> None:
    """What was typed before there was anything to read is no answer to it."""
    if sys.stdin.isatty():
        termios.tcflush(sys.stdin, termios.TCIFLUSH)


def confirm(prompt: str) -> bool:
    """Yes or no; no at the end of input. Raises KeyboardInterrupt."""
    forget_typed()
    return _key(prompt, "yes no") == "y"


def read_line(prompt: str) -> str | None:
    """A line from the terminal; None at the end of input. Raises KeyboardInterrupt."""
    import readline  # noqa: F401 - gives input() its line editing

    # asyncio's own handler would only set a flag, and the read would go on.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return input(prompt)
    except EOFError:
        print()
        return None
    except KeyboardInterrupt:
        print()  # what is said then begins on a line of its own
        raise
    finally:
        signal.signal(signal.SIGINT, handler)

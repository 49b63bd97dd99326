"""The command line: run an agent, decide what waits for a person, look at what happened.

`commands/` has the commands and nothing else, `app.py` joins them, `options.py` has the options that several
share, `complete.py` what TAB offers for them; `target.py` and `find.py` find the database or server and what
is in it, `agents.py` the agents that MODULE:AGENT names. `run.py` advances a thread and shows it; `chat.py`
has a `conversation.py` with a person, on a `screen.py` and with a `history.py`, `chat_lines.py` one with a
program; `ask.py` asks at the terminal. `inbox.py` decides, `live_inbox.py` by the keys of `keys.py` what its
`inbox_view.py` shows; `tell.py` tells a thread something; `look.py` reads, `follow.py` and `export.py` are
what they are called; `token.py` lets people use a server; `doctor.py` says what is wrong and what to do.
`view.py` puts an event into words, `transcript.py` a thread into Markdown, `lines.py` into JSON lines;
`terminal.py` prints, `region.py` redraws the end of a terminal.

Everything goes through `tenuto.Runtime`; a command decides nothing that a program could not. What models,
tools and people wrote is escaped before it reaches a terminal and is never read as markup. Rich, a server, a
database driver and all that is heavy are imported when a command needs them. Exit codes: 0; 1 with one line
on stderr (TENUTO_DEBUG=1 shows the traceback); 2 for wrong usage, before any agent is loaded or file touched;
130 after Ctrl-C or SIGTERM, with nothing lost.
"""

import os
import signal
import sys


def main() -> None:
    """The entry point of `tenuto`. Leaves by SystemExit."""
    _open_streams()  # first: what is opened before would get the number of a stream
    from tenuto.cli.app import app
    from tenuto.cli.terminal import complain, end_as_ctrl_c
    from tenuto.errors import TenutoError

    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a character gets its escape, not a traceback.
        if reconfigure := getattr(stream, "reconfigure", None):
            reconfigure(errors="backslashreplace")
    signal.signal(signal.SIGTERM, end_as_ctrl_c)
    if sys.argv[1:2] in (["--show-completion"], ["--install-completion"]) and sys.argv[2:]:
        # The shell is named: Typer would take the one it is run in, and leave out the name without a word.
        os.environ["_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION"] = "1"
    try:
        app(prog_name="tenuto")
    except Exception as error:
        if isinstance(error, BrokenPipeError):
            # Whoever read the output has seen enough; nothing may be flushed into the closed pipe at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(1)
        if os.environ.get("TENUTO_DEBUG") == "1":
            raise
        known = isinstance(error, TenutoError | OSError)
        complain(str(error) if known else f"{error!r}; this is a bug, and TENUTO_DEBUG=1 shows where")
        sys.exit(1)


def _open_streams() -> None:
    """Let a standard stream that the caller closed (`>&-`) be one that nobody writes or reads."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # The lowest free number is that of the closed stream, so that no database or socket gets it.
            file = os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, open(file, mode, encoding="utf-8", closefd=False))  # noqa: SIM115 - to the end

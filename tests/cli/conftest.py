"""The command line as a user has it: real processes, and a real terminal where somebody is asked."""

import asyncio
import contextlib
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pyte
import pytest
from tests.cli import desk

from tenuto import Runtime
from tenuto.events import Entry, ThreadId
from tenuto.rows import InterruptRow

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 40.0
COLUMNS, LINES = 120, 40

# Makes standard input the controlling terminal, then becomes the program that is to be controlled.
CONTROLLED = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


_started: list[subprocess.Popen[str]] = []


class Shell:
    """Runs `tenuto` in a directory with its own database and environment."""

    def __init__(self, place: Path, *, cwd: Path = ROOT) -> None:
        self.place = place
        self.cwd = cwd
        self.database = place / "tenuto.db"
        self.sent = place / "sent"
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "PYTHONPATH") if name in os.environ}
        self.environment: dict[str, str] = kept | {
            "TENUTO_DATABASE": f"sqlite:///{self.database}",
            "TENUTO_AGENT": "tests.cli.desk:agent",
            "SENT": str(self.sent),
            "TERM": "xterm-256color",
            "LC_ALL": "C.UTF-8",
            "COLUMNS": str(COLUMNS),
            "TENUTO_LOG_LEVEL": "warning",  # a pipe that nobody reads must not fill
            "XDG_STATE_HOME": str(place / "state"),
        }

    def popen(self, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tenuto", *arguments]
        defaults: dict[str, Any] = {
            "cwd": self.cwd,
            "env": self.environment,
            "text": True,
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
        }
        process = subprocess.Popen(command, **(defaults | options))
        _started.append(process)
        return process

    def __call__(self, *arguments: str, code: int = 0, stdin: str | None = None) -> str:
        """Run a command to its end, check its exit code; its output, that of both streams if it failed."""
        options = {} if stdin is None else {"stdin": subprocess.PIPE}
        with self.popen(*arguments, **options) as process:
            output, errors = process.communicate(stdin, timeout=SECONDS)
        assert process.returncode == code, f"{arguments}: {process.returncode}\n{output}\n{errors}"
        assert "Traceback" not in errors
        if code == 0:
            assert errors == ""
            return output
        return output + errors

    def json(self, *arguments: str, **options: Any) -> Any:
        return json.loads(self(*arguments, **options))

    def pending(self) -> list[dict[str, Any]]:
        return self.json("inbox", "--json")

    def paused(self, message: str) -> dict[str, Any]:
        """Start a thread that stops for a person; the first that it asks."""
        row: dict[str, Any] = msgspec.to_builtins(self.waiting(message))
        return row

    def events(self, thread: str, type_name: str = "") -> list[dict[str, Any]]:
        events = self.json("show", thread, "--json")
        return [entry for entry in events if type_name in ("", entry["type"])]

    def started(self, message: str) -> str:
        """The id of a new thread of `desk`, run in the test's own process until it rests: quicker."""

        async def run() -> str:
            async with Runtime([desk.agent], f"sqlite:///{self.database}") as runtime:
                thread = await runtime.start("desk", message, by="ana")
                await runtime.wait(thread)
                return thread

        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("SENT", str(self.sent))
            return asyncio.run(run())

    def log(self, thread: str) -> list[Entry]:
        """Its events, read in the test's own process."""

        async def read() -> list[Entry]:
            async with Runtime(database=f"sqlite:///{self.database}") as runtime:
                return await runtime.events(thread)

        return asyncio.run(read())

    def waiting(self, message: str) -> InterruptRow:
        """What a new thread of `desk` waits for, as `started`."""

        async def read(thread: ThreadId) -> InterruptRow:
            async with Runtime(database=f"sqlite:///{self.database}") as runtime:
                return (await runtime.interrupts(thread_id=thread))[0]

        return asyncio.run(read(ThreadId(self.started(message))))

    def lines_sent(self) -> list[str]:
        return self.sent.read_text(encoding="utf-8").splitlines() if self.sent.exists() else []

    @contextlib.contextmanager
    def serving(self, *arguments: str, **environment: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
        """`tenuto serve` and its URL; asked to end afterwards."""
        process = self.popen("serve", "--port", "0", *arguments, env=self.environment | environment)
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            found = re.search(r"http://\S+", line)
            assert found, line + (process.stderr.read() if process.stderr else "")
            yield process, found.group()
        finally:
            process.terminate()
            process.communicate(timeout=SECONDS)


class Terminal:
    """A process at a pseudo terminal, which is its controlling one: Ctrl-C is a key here."""

    def __init__(self, arguments: list[str], cwd: Path, environment: Mapping[str, str]) -> None:
        self._file, tty = pty.openpty()
        termios.tcsetwinsize(tty, (LINES, COLUMNS))
        self._process = subprocess.Popen(
            [sys.executable, "-c", CONTROLLED, sys.executable, *arguments],
            cwd=cwd,
            env=dict(environment),
            stdin=tty,
            stdout=tty,
            stderr=tty,
            start_new_session=True,
        )
        os.close(tty)
        self.output = ""
        self._seen = 0

    def expect(self, text: str | re.Pattern[str], seconds: float = SECONDS) -> str:
        """Read on until `text` appears behind what was expected before; all that came before it."""
        ends_at = time.monotonic() + seconds
        pattern = re.compile(re.escape(text)) if isinstance(text, str) else text
        while (found := pattern.search(self.output, self._seen)) is None:
            left = ends_at - time.monotonic()
            assert left > 0, f"{text!r} did not appear in:\n{self.output[self._seen :]}"
            assert self._read(left), f"ended without {text!r}:\n{self.output[self._seen :]}"
        before, self._seen = self.output[self._seen : found.start()], found.end()
        return before

    def screen(self) -> list[str]:
        """What a person sees of it by now, or has scrolled past."""
        shown = pyte.HistoryScreen(COLUMNS, LINES, history=1000)
        pyte.Stream(shown).feed(self.output.replace("\n", "\r\n"))
        past = ["".join(line[column].data for column in range(COLUMNS)) for line in shown.history.top]
        return [line.rstrip() for line in (*past, *shown.display)]

    def type(self, text: str) -> None:
        os.write(self._file, text.encode())

    def press(self, key: str) -> None:
        """A control key, as a person would: when the line editor has set up the terminal."""
        time.sleep(0.3)
        self.type(key)

    def go_on(self) -> None:
        """As a shell's `fg` does: once it is stopped."""
        ends_at = time.monotonic() + SECONDS
        while Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
            assert time.monotonic() < ends_at, "was not stopped"
            time.sleep(0.01)
        self._process.send_signal(signal.SIGCONT)

    def terminate(self) -> None:
        """As `kill` does without an option, when it waits for whatever it waits for."""
        time.sleep(0.3)
        self._process.terminate()

    def wait(self, seconds: float = SECONDS) -> int:
        """Read until it ends; its exit code."""
        ends_at = time.monotonic() + seconds
        while self._read(ends_at - time.monotonic()):
            assert time.monotonic() < ends_at, f"did not end:\n{self.output}"
        return self._process.wait(seconds)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._file)

    def _read(self, seconds: float) -> bool:
        readable, _, _ = select.select([self._file], [], [], max(seconds, 0))
        if not readable:
            return True
        try:
            data = os.read(self._file, 65536)
        except OSError:  # the other side is closed
            return False
        self.output += data.decode(errors="replace").replace("\r\n", "\n")
        return bool(data)


@pytest.fixture(autouse=True)
def nothing_is_left_running() -> Iterator[None]:
    """What a failed test has started ends with it, and does not trouble the next one."""
    yield
    while _started:
        with _started.pop() as process:
            process.kill()


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


@pytest.fixture
def terminal(shell: Shell) -> Iterator[Any]:
    """Runs `tenuto` with these arguments at a terminal."""
    opened: list[Terminal] = []

    def start(*arguments: str, **environment: str) -> Terminal:
        opened.append(Terminal(["-m", "tenuto", *arguments], shell.cwd, shell.environment | environment))
        return opened[-1]

    yield start
    for each in opened:
        each.close()

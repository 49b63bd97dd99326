"""Child processes that end with us, however we end short of a kill -9 of our own."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Final, Self

from tenuto.errors import TenutoError

START_SECONDS: Final = 30.0
END_SECONDS: Final = 3.0
_POLL_SECONDS: Final = 0.02
_SIGNALS: Final = (signal.SIGTERM, signal.SIGHUP)


class ProcessFailed(TenutoError):
    """A process of ours did not start, or ended before its time."""


class Processes:
    """Python processes in their own process groups, each with a log file in `place`.

    Inside the context SIGTERM and SIGHUP end it as Ctrl-C does, so that leaving it always runs.
    """

    def __init__(self, place: Path, environment: Mapping[str, str]) -> None:
        self.place = place
        self.environment = dict(environment)
        self._running: list[subprocess.Popen[bytes]] = []
        self._handlers: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        for number in _SIGNALS:
            self._handlers[number] = signal.signal(number, _leave)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # Nothing may cut this short; a second Ctrl-C waits as well.
        for number in (*_SIGNALS, signal.SIGINT):
            self._handlers.setdefault(number, signal.getsignal(number))
            signal.signal(number, signal.SIG_IGN)
        try:
            for process in self._running:
                process.terminate()
            for process in self._running:
                try:
                    process.wait(END_SECONDS)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
        finally:
            for number, handler in self._handlers.items():
                signal.signal(number, handler)

    def start(self, name: str, *arguments: str) -> tuple[subprocess.Popen[bytes], str]:
        """Run `python -m …` until it prints a URL; the process and that. Raises `ProcessFailed`."""
        path = self.place / f"{name}.log"
        with path.open("ab") as log:
            begins_at = log.tell()
            process = subprocess.Popen(  # noqa: S603 - our own modules
                [sys.executable, "-m", *arguments],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,
            )
        self._running.append(process)
        ends_at = time.monotonic() + START_SECONDS
        while time.monotonic() < ends_at:
            said = path.read_bytes()[begins_at:].decode(errors="replace")
            urls = [word for word in said.split() if word.startswith("http://")]
            if urls and said.endswith("\n"):
                return process, urls[0]
            if process.poll() is not None:
                last = (said.strip().splitlines() or ["it said nothing"])[-1]
                raise ProcessFailed(f"the {name} ended with code {process.returncode}: {last}")
            time.sleep(_POLL_SECONDS)
        raise ProcessFailed(f"the {name} was not ready within {START_SECONDS:g} s; see {path}")

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """kill -9, and nothing else."""
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        self._running.remove(process)


def _leave(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt

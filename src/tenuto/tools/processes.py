"""Programs that a tool starts: they end with its call, with everything that they started themselves.

A program gets a session and process group of its own. However the call ends (by itself, by its timeout, by
being cancelled), the group is ended: asked by SIGTERM, and killed by SIGKILL if it does not listen. What
left the group on purpose (`setsid`) is out of reach, and so is everything when this process is killed.
"""

import asyncio
import os
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from tenuto.errors import NotDone
from tenuto.limits import MAX_RESULT_CHARACTERS, STOP_SECONDS, TOOL_TIMEOUT_SECONDS
from tenuto.tools.running import ToolContext

_LOOK_SECONDS: Final = 0.02


async def run_process(
    *command: str | os.PathLike[str],
    input: str | bytes | None = None,  # noqa: A002 - as subprocess.run calls it
    timeout: float | None = None,
    context: ToolContext | None = None,
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, without a shell, and return its exit code and what it wrote.

    Each output is UTF-8, anything else replaced by U+FFFD, cut at `MAX_RESULT_CHARACTERS` with a mark that
    says so; a program that writes more is not held up. `input` is all that it can read. It is ended after
    `timeout` seconds, else after `TOOL_TIMEOUT_SECONDS`, and with `context` before the call's deadline: after
    that the call may be verified or run again.

    Raises `NotDone` when the program cannot be started, and TimeoutError when it had to be ended: then it
    may have had an effect. A non-zero exit code raises nothing; `check_returncode()` of the result does.
    """
    arguments = [os.fspath(part) for part in command]
    seconds = _seconds(timeout, context)
    loop = asyncio.get_running_loop()
    try:
        transport, program = await loop.subprocess_exec(
            _Program,
            *arguments,
            stdin=subprocess.DEVNULL if input is None else subprocess.PIPE,
            cwd=cwd,
            env=None if env is None else dict(env),
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        raise NotDone(f"{arguments[:1]} could not be started: {error}; nothing was run") from error
    try:
        _feed(transport, input)
        async with asyncio.timeout(seconds):
            await program.exited.wait()
    except TimeoutError as error:
        said = program.text(2) or program.text(1)
        raise TimeoutError(
            f"{arguments[0]} did not end within {seconds:.3g} s and was killed; the last that it wrote: "
            f"{said[-1000:] or 'nothing'}"
        ) from error
    finally:
        try:
            await _end_group(transport.get_pid())
            with suppress(TimeoutError):  # a program that left the group may keep the pipes open
                async with asyncio.timeout(STOP_SECONDS):
                    await program.closed.wait()
                    await program.exited.wait()
        finally:
            transport.close()
    code = transport.get_returncode()
    assert code is not None
    return subprocess.CompletedProcess(arguments, code, program.text(1), program.text(2))


def _seconds(timeout: float | None, context: ToolContext | None) -> float:
    """How long it may take, so that its end, at most two `STOP_SECONDS` later, is before the deadline."""
    # A call without a deadline has 0 there, or the time of its own beginning.
    left = (context.deadline_ms - context.now_ms) / 1000 if context is not None else 0.0
    left = max(left - 2 * STOP_SECONDS, left / 2)
    given = [seconds for seconds in (timeout, left) if seconds is not None and seconds > 0]
    return min(given, default=TOOL_TIMEOUT_SECONDS)


def _feed(transport: asyncio.SubprocessTransport, text: str | bytes | None) -> None:
    if text is not None:
        pipe: Any = transport.get_pipe_transport(0)
        pipe.write(text.encode(errors="replace") if isinstance(text, str) else text)
        pipe.write_eof()


class _Program(asyncio.SubprocessProtocol):
    """What it wrote, up to a bound, and whether it still runs. Its exit is told apart from the end of its
    output: what it has started may keep that open.
    """

    def __init__(self) -> None:
        self.exited = asyncio.Event()
        self.closed = asyncio.Event()
        self._written = {1: bytearray(), 2: bytearray()}
        self._left_out = {1: 0, 2: 0}
        self._open = {1, 2}

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        room = MAX_RESULT_CHARACTERS - len(self._written[fd])
        self._written[fd] += data[:room]
        self._left_out[fd] += len(data[room:])

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        self._open.discard(fd)
        if not self._open:
            self.closed.set()

    def process_exited(self) -> None:
        self.exited.set()

    def text(self, fd: int) -> str:
        if not self._left_out[fd]:
            return self._written[fd].decode(errors="replace")
        # Room for the mark, so that a tool can return the text as it is.
        kept = self._written[fd][: MAX_RESULT_CHARACTERS - 100]
        left_out = len(self._written[fd]) - len(kept) + self._left_out[fd]
        return f"{kept.decode(errors='replace')}\n[cut: {left_out} of {len(kept) + left_out} bytes left out]"


async def _end_group(group: int) -> None:
    """End what is left of a process group. A second cancellation only shortens the time that it is given."""
    if not _signal(group, signal.SIGTERM):
        return
    try:
        async with asyncio.timeout(STOP_SECONDS):
            while _signal(group, 0):  # noqa: ASYNC110 - the kernel tells nobody when a group is empty
                await asyncio.sleep(_LOOK_SECONDS)
    except TimeoutError:
        pass
    finally:
        _signal(group, signal.SIGKILL)


def _signal(group: int, number: int) -> bool:
    """Whether anybody was there to get it. Never our own group: the program leads one of its own."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    except PermissionError:  # macOS says so of a group of zombies; elsewhere somebody else's program
        return number != 0
    return True

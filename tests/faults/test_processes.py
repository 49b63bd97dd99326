"""Programs that a tool starts: what they wrote, and that nothing of them outlives the call."""

import asyncio
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.loop.world import at_work, finished, rest, results

from tenuto import NotDone, ToolContext, run_process, tool
from tenuto.limits import MAX_RESULT_CHARACTERS
from tenuto.models.scripted import call

NOW = 1_700_000_000_000

# A parent, a child and a grandchild that all write their ids and ignore SIGTERM.
STUBBORN = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for _ in range(2):
    if os.fork():
        break
with open(sys.argv[1], "a") as pids:
    pids.write(f"{os.getpid()}\\n")
time.sleep(300)
"""

# Leaves a child behind that keeps its output open, and ends at once.
LEAVING = """
import os, sys, time
if os.fork() == 0:
    with open(sys.argv[1], "a") as pids:
        pids.write(f"{os.getpid()}\\n")
    time.sleep(300)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
print("started it")
"""


def python(program: str, *arguments: object) -> list[str]:
    return [sys.executable, "-c", program, *map(str, arguments)]


def is_running(pid: int) -> bool:
    """One that ended and that nobody has waited for yet does not run."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        if Path("/proc/self").exists():
            return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def written(file: Path) -> list[int]:
    """The processes that have written themselves down."""
    return (
        [int(line) for line in file.read_text().splitlines(True) if line[-1] == "\n"] if file.exists() else []
    )


async def pids(file: Path, count: int) -> list[int]:
    """... once so many have."""
    async with asyncio.timeout(10):
        while len(written(file)) < count:  # noqa: ASYNC110 - of other processes
            await asyncio.sleep(0.01)
    return written(file)


async def none_runs(file: Path, count: int) -> None:
    found = await pids(file, count)
    assert len(found) == count
    async with asyncio.timeout(5):
        while any(map(is_running, found)):  # noqa: ASYNC110 - a signal takes a moment
            await asyncio.sleep(0.01)


async def test_a_program_is_run_to_its_end() -> None:
    program = "import sys; print(sys.argv[1], sys.stdin.read()); sys.stderr.write('oops'); sys.exit(3)"
    done = await run_process(*python(program, "$HOME; echo"), input="żółw")
    assert (done.returncode, done.stdout, done.stderr) == (3, "$HOME; echo żółw\n", "oops")
    assert done.args[0] == sys.executable


async def test_without_input_there_is_nothing_to_read() -> None:
    done = await run_process(*python("import sys; print(repr(sys.stdin.read()))"))
    assert done.stdout == "''\n"


async def test_where_and_with_what(tmp_path: Path) -> None:
    program = "import os; print(os.getcwd(), os.environ['A'])"
    done = await run_process(*python(program), cwd=tmp_path, env={"A": "1"})
    where, one = done.stdout.split()
    assert (os.path.samefile(where, tmp_path), one) == (True, "1")  # noqa: ASYNC240 - a test's own place


async def test_a_program_that_does_not_read_its_input_is_no_error() -> None:
    assert (await run_process(*python("pass"), input=b"x" * 1_000_000)).returncode == 0


async def test_output_is_text_whatever_it_is() -> None:
    program = r"import os; os.write(1, b'a\xff\x00\xed\xa0\x80z')"
    assert (await run_process(*python(program))).stdout == "a\ufffd\x00\ufffd\ufffd\ufffdz"


async def test_output_is_cut_with_a_mark_and_never_held_up() -> None:
    done = await run_process(*python("import os\nfor _ in range(50): os.write(2, b'x' * 100_000)"))
    head, mark = done.stderr.split("\n")
    assert done.returncode == 0
    assert len(done.stderr) <= MAX_RESULT_CHARACTERS
    assert set(head) == {"x"}
    assert mark == f"[cut: {5_000_000 - len(head)} of 5000000 bytes left out]"


@pytest.mark.parametrize("command", [["no-such-program"], [""], ["a\0b"]])
async def test_a_program_that_cannot_be_started_did_nothing(command: list[str]) -> None:
    with pytest.raises(NotDone, match="nothing was run"):
        await run_process(*command)


async def test_at_the_timeout_the_whole_group_is_killed(tmp_path: Path) -> None:
    with pytest.raises(TimeoutError, match="did not end within 3 s and was killed"):
        await run_process(*python(STUBBORN, tmp_path / "pids"), timeout=3)
    await none_runs(tmp_path / "pids", 3)


async def test_a_group_that_listens_may_clean_up(tmp_path: Path) -> None:
    program = (
        "import signal, sys, time\n"
        "def leave(*_): open(sys.argv[1], 'w').close(); sys.exit()\n"
        "signal.signal(signal.SIGTERM, leave)\nprint('ready', flush=True)\ntime.sleep(300)"
    )
    with pytest.raises(TimeoutError, match="the last that it wrote: ready"):
        await run_process(*python(program, tmp_path / "cleaned"), timeout=1)
    assert (tmp_path / "cleaned").exists()


@pytest.mark.parametrize("cancellations", [1, 2])
async def test_cancelling_kills_the_whole_group(tmp_path: Path, cancellations: int) -> None:
    running = asyncio.create_task(run_process(*python(STUBBORN, tmp_path / "pids")))
    await pids(tmp_path / "pids", 3)
    for _ in range(cancellations):
        running.cancel()
        await asyncio.sleep(0.05)
    with pytest.raises(asyncio.CancelledError):
        await running
    await none_runs(tmp_path / "pids", 3)


async def test_what_it_left_behind_ends_with_it(tmp_path: Path) -> None:
    started = time.monotonic()
    done = await run_process(*python(LEAVING, tmp_path / "pids"))
    assert (done.returncode, done.stdout) == (0, "started it\n")
    assert time.monotonic() - started < 10
    await none_runs(tmp_path / "pids", 1)


async def test_one_that_left_the_group_does_not_hold_the_call_up(tmp_path: Path) -> None:
    program = LEAVING.replace("if os.fork() == 0:", "if os.fork() == 0:\n    os.setsid()")
    done = await run_process(*python(program, tmp_path / "pids"))
    assert done.stdout == "started it\n"
    (escaped,) = await pids(tmp_path / "pids", 1)
    assert is_running(escaped)
    os.kill(escaped, 9)


@pytest.mark.parametrize(
    ("timeout", "deadline_ms", "seconds"),
    [
        (None, NOW + 10_000, "9 s"),
        (5.0, NOW + 10_000, "5 s"),
        (60.0, NOW + 1_000, "0.5 s"),
        (0.25, 0, "0.25 s"),
    ],
)
async def test_a_program_ends_before_the_deadline_of_its_call(
    timeout: float | None, deadline_ms: int, seconds: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = ToolContext(now_ms=NOW, deadline_ms=deadline_ms)
    real = asyncio.timeout
    monkeypatch.setattr(asyncio, "timeout", lambda when: real(min(when, 0.2)))
    with pytest.raises(TimeoutError, match=f"did not end within {seconds} "):
        await run_process(shutil.which("sleep") or "sleep", "300", timeout=timeout, context=context)


@pytest.mark.parametrize("how", ["timeout", "cancel"])
async def test_a_tool_leaks_no_process(tmp_path: Path, how: str) -> None:
    @tool(effect="once", timeout=5 if how == "timeout" else 60)
    async def build(context: ToolContext) -> str:
        done = await run_process(*python(STUBBORN, tmp_path / "pids"), context=context)
        return done.stdout

    async with at_work([build], [call("build"), "done"]) as runtime:
        thread = await runtime.start("ops", "go")
        await pids(tmp_path / "pids", 3)
        if how == "cancel":
            await runtime.cancel(thread, by="ana")
        state = await rest(runtime, thread)
        await none_runs(tmp_path / "pids", 3)
        if how == "cancel":
            assert state.status == "cancelled"
        else:  # nobody knows what it did before it was killed
            assert state.status == "awaiting_review"
            assert "did not end within 4 s and was killed" in state.interrupts[0].prompt


async def test_a_program_that_is_not_there_is_told_to_the_model() -> None:
    @tool(effect="once")
    async def build() -> Any:
        return (await run_process("no-such-program")).stdout

    async with at_work([build], [call("build"), "done"]) as runtime:
        thread = await runtime.start("ops", "go")
        assert (await rest(runtime, thread)).answer == "done"
        (result,) = await finished(runtime, thread)
        assert (result.ok, result.unknown) == (False, False)
        assert "no-such-program" in results(runtime.model.requests[1])[0]  # type: ignore[attr-defined]  # by at_work

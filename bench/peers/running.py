"""One measured process at a time: pinned to a processor, behind a look at the disk, its result a dict.

A process that fails, or takes too long, is a result that says so. Nothing here raises for a peer's sake.
"""

import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PROBES = 32


@dataclass(frozen=True)
class Process:
    """How to start a measured process. `processor`: which one it is pinned to, where that can be done."""

    python: Path
    folder: Path
    processor: int
    timeout_seconds: int

    def measure(self, script: str, *arguments: object, before: tuple[str, ...] = ()) -> dict[str, Any]:
        """The result that the script prints, with `probe_us` and `load1` of the moment before; or `error`."""
        state = {"probe_us": probe_us(self.folder), "load1": os.getloadavg()[0]}
        done = self._run([*before, str(self.python), str(HERE / script), *map(str, arguments)])
        if isinstance(done, str):
            return state | {"error": done}
        for line in done.stdout.splitlines():
            if line.startswith("RESULT "):
                return state | json.loads(line.removeprefix("RESULT "))
        words = (done.stderr or done.stdout).strip().splitlines() or [f"ended with {done.returncode}"]
        return state | {"error": words[-1][-300:]}

    def import_time(self, statement: str) -> dict[str, Any]:
        """Wall and processor time of an interpreter that starts, imports and ends; its memory."""
        code = f"{statement}\nimport resource\nr = resource.getrusage(resource.RUSAGE_SELF)\n"
        code += "print('RESULT', r.ru_utime + r.ru_stime, r.ru_maxrss)"
        state = {"probe_us": probe_us(self.folder), "load1": os.getloadavg()[0]}
        started = time.perf_counter()
        done = self._run([str(self.python), "-c", code])
        wall = time.perf_counter() - started
        if isinstance(done, str) or done.returncode:
            words = done if isinstance(done, str) else done.stderr.strip().splitlines()[-1][-300:]
            return state | {"error": words}
        _, cpu, kilobytes = done.stdout.splitlines()[-1].split()
        return state | {"wall_s": wall, "cpu_s": float(cpu), "peak_rss_mb": int(kilobytes) / 1024}

    def fsyncs(self, script: str, *arguments: object) -> int | None:
        """How often the script called fsync or fdatasync; None where strace is missing or it failed."""
        strace = shutil.which("strace")
        if strace is None:
            return None
        with tempfile.NamedTemporaryFile("r") as report:
            traced = (strace, "-f", "-c", "-e", "trace=fsync,fdatasync", "-o", report.name)
            if "error" in self.measure(script, *arguments, before=traced):
                return None
            lines = report.read().splitlines()
        return sum(int(line.split()[3]) for line in lines if line.rstrip().endswith("sync"))

    def _run(self, command: list[str]) -> subprocess.CompletedProcess[str] | str:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        try:
            with on_processor(self.processor):
                return subprocess.run(
                    command,
                    capture_output=True,
                    text=True,
                    timeout=self.timeout_seconds,
                    env=environment,
                    cwd=self.folder,
                    stdin=subprocess.DEVNULL,
                    check=False,
                )
        except subprocess.TimeoutExpired:
            return f"not done within {self.timeout_seconds} s"
        except OSError as error:
            return f"could not be started: {error}"


def probe_us(folder: Path) -> float:
    """The median time of an fdatasync now: wall figures can only be compared at equal ones."""
    place = folder / "probe"
    block = os.urandom(4096)
    sync = getattr(os, "fdatasync", os.fsync)
    taken = []
    descriptor = os.open(place, os.O_CREAT | os.O_RDWR)
    try:
        for index in range(PROBES):
            os.pwrite(descriptor, block, 4096 * index)
            started = time.perf_counter()
            sync(descriptor)
            taken.append(time.perf_counter() - started)
    finally:
        os.close(descriptor)
        place.unlink()
    return statistics.median(taken) * 1e6


@contextmanager
def on_processor(*numbers: int) -> Iterator[None]:
    """What is started inside runs on these processors, where a process can be bound to some."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, numbers)
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


@contextmanager
def stream_server(python: Path, deltas: int, processor: int) -> Iterator[int]:
    """The port of a server of streamed replies, in a process of its own on another processor."""

    with on_processor(processor):
        server = subprocess.Popen(
            [str(python), str(HERE / "stream_server.py"), str(deltas)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
    assert server.stdin is not None
    assert server.stdout is not None
    try:
        yield int(server.stdout.readline())
    finally:
        server.stdin.close()
        server.wait(10)
        server.stdout.close()

"""Jobs a second, and processor time of the splitter, beside agere 0.2.0 on the same work.

    .venv/bin/python bench/flow.py [--quick]

Each library runs in a process of its own, in turns, several times; the best time of each counts, since
whatever else the machine does only ever adds. Times are processor time. agere is installed into an
environment of its own, as the peers are, when it is first needed; without it, Tenuto is measured alone.
"""

import argparse
import asyncio
import importlib
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "peers"))
from environments import CannotMake, python_of

JOBS = ("jobs, each putting the next", "jobs, all put at once", "jobs with a handler each")
KILOBYTE = 1_024
CHARACTERS_A_CHUNK = 8


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="less work and fewer turns")
    parser.add_argument("--measure", choices=["tenuto", "agere"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure(arguments.measure, arguments.quick)))
        return 0
    results = run_in_turns(arguments.quick)
    print_results(results)
    return 0


# --- one library in this process ------------------------------------------------------------------------


def measure(library: str, quick: bool) -> dict[str, float]:
    """Microseconds of processor time: a job, or a kilobyte of arguments."""
    if library == "tenuto":
        flow = importlib.import_module("tenuto.flow")
        dispatch = flow.async_dispatcher_tools_call_for_openai
    else:
        flow = importlib.import_module("agere.commander")
        dispatch = importlib.import_module("agere.utils.dispatcher").async_dispatcher_tools_call_for_openai
    count = 3_000 if quick else 10_000
    times: dict[str, float] = {}
    for name, jobs in workloads(flow, count).items():
        begin = time.process_time()
        flow.CommanderAsync().run(jobs(), auto_exit=True)
        times[name] = (time.process_time() - begin) / count * 1e6
    for spoken in (True, False):
        for kilobytes in (16, 64) if quick else (16, 64, 256):
            chunks = reply(kilobytes * KILOBYTE, spoken)
            begin = time.process_time()
            asyncio.run(split(dispatch, chunks))
            name = f"splitter, {kilobytes} kB {'half' if spoken else 'none'} for the user"
            times[name] = (time.process_time() - begin) / kilobytes * 1e6
    return times


def workloads(flow: Any, count: int) -> dict[str, Callable[[], Any]]:
    class Chained(flow.Job):  # type: ignore[misc]  # the base comes from either library
        def __init__(self, left: int) -> None:
            super().__init__()
            self.left = left

        @flow.tasker(flow.PASS_WORD)
        async def task(self) -> None:
            if self.left:
                await self.put_job(Chained(self.left - 1), parent=self.commander)

    class Empty(flow.Job):  # type: ignore[misc]  # the base comes from either library
        @flow.tasker(flow.PASS_WORD)
        async def task(self) -> None: ...

    @flow.handler(flow.PASS_WORD)
    async def nothing(self_handler: Any) -> None: ...

    return {
        JOBS[0]: lambda: Chained(count - 1),
        JOBS[1]: lambda: [Empty() for _ in range(count)],
        JOBS[2]: lambda: [flow.BasicJob(nothing()) for _ in range(count)],
    }


def reply(length: int, spoken: bool) -> list[Any]:
    """A streamed call whose arguments have this many characters, half of them for the user or none."""
    half = "The quick brown fox, and so on. " * (length // 2 // 32)
    text = json.dumps({"to_user": half, "body": half} if spoken else {"body": half + half})
    parts = [text[at : at + CHARACTERS_A_CHUNK] for at in range(0, len(text), CHARACTERS_A_CHUNK)]
    head = [chunk(), chunk("", name="write")]
    return [*head, *(chunk(part) for part in parts), chunk(finish="tool_calls")]


def chunk(arguments: str | None = None, name: str | None = None, finish: str | None = None) -> Any:
    calls = None
    if arguments is not None:
        function = SimpleNamespace(name=name, arguments=arguments)
        kind, call_id = ("function", "call_0") if name else (None, None)
        calls = [SimpleNamespace(index=0, id=call_id, type=kind, function=function)]
    delta = SimpleNamespace(content=None, tool_calls=calls)
    return SimpleNamespace(choices=[SimpleNamespace(index=0, delta=delta, finish_reason=finish)])


async def split(dispatch: Any, chunks: list[Any]) -> None:
    async def source() -> AsyncIterator[Any]:
        for one in chunks:
            yield one

    make_generator = await dispatch(source())
    texts = [text async for text in make_generator("to_user")]
    calls = [json.loads(call) async for call in make_generator("function_call")]
    said, kept = "".join(texts), calls[0]["arguments"]["body"]
    assert said in (kept, ""), "both have to do the whole work"


# --- both, in turns -------------------------------------------------------------------------------------


def run_in_turns(quick: bool) -> dict[str, dict[str, float]]:
    pythons = {"tenuto": Path(sys.executable), "agere": agere_python()}
    best: dict[str, dict[str, float]] = {}
    for _ in range(2 if quick else 5):
        for library, python in pythons.items():
            if python is None:
                continue
            command = [str(python), __file__, "--measure", library, *(["--quick"] if quick else [])]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            for name, taken in json.loads(done.stdout).items():
                mine = best.setdefault(name, {})
                mine[library] = min(taken, mine.get(library, taken))
    return best


def agere_python() -> Path | None:
    """The Python of agere's environment, which is made if it is missing. None if it cannot be made."""
    try:
        return python_of("agere")
    except CannotMake as error:
        print(f"agere 0.2.0 cannot be installed, so Tenuto is measured alone: {error}")
        return None


def print_results(results: dict[str, dict[str, float]]) -> None:
    print(f"{'':38}{'tenuto':>12}{'agere 0.2.0':>14}{'tenuto is':>18}")
    for name, taken in results.items():
        jobs = name in JOBS
        shown = {library: 1e6 / one if jobs else one for library, one in taken.items()}
        unit = "jobs/s" if jobs else "µs/kB"
        ours, theirs = shown["tenuto"], shown.get("agere")
        line = f"{name:38}{ours:>12,.0f}"
        if theirs is None:
            line += f"{'-':>14}{'':18}"
        else:
            factor = ours / theirs if jobs else theirs / ours
            line += f"{theirs:>14,.0f}{factor:>11.2f}x as fast"
        print(f"{line}  {unit}")


if __name__ == "__main__":
    sys.exit(main())

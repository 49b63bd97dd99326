"""A user's own agent through the crash matrix: real processes, killed at every event and every effect.

One run without a crash finds the points. Then each point has a run of its own, in its own folder: a process
that kills itself there with SIGKILL, and another that goes on from the same SQLite file. Besides, each
decision is made twice at once, and a process frozen with SIGSTOP past its lease comes back when another has
taken over. What happened is held against the ledger: see `audit`. As a child: `python -m` this module.
"""

import asyncio
import contextlib
import logging
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import msgspec

from tenuto.errors import ConfigurationError, TenutoError
from tenuto.events import ThreadId
from tenuto.limits import LEASE_SECONDS
from tenuto.rows import ENDED
from tenuto.runtime import Runtime, Settings
from tenuto.testing.crashaudit import Case, Outcome, audit
from tenuto.testing.watched import Ledger, Script, Watch, Watched, load_script, named
from tenuto.tools import error_text

SHORT_LEASE_SECONDS = 1.0
POLL_SECONDS = 0.01
START_SECONDS = 20.0


class Subject(msgspec.Struct, frozen=True):
    """What is tested: MODULE:AGENT, the script, MODULE:MAPPING of fakes or "". `seed` gives the thread its
    id and Python's `random` its start; `seconds` is what a process has to bring the thread to rest.
    """

    agent: str
    script: str
    fakes: str = ""
    seed: int = 0
    seconds: float = 30.0

    @property
    def thread_id(self) -> ThreadId:
        number = random.Random(self.seed).getrandbits(128)  # noqa: S311 - repeatable, which is the point
        return ThreadId(str(uuid.UUID(int=number, version=4)))


class _Order(msgspec.Struct):
    """What a child is told, on its standard input."""

    subject: Subject
    folder: str
    case: Case
    restarted: bool = False


# -- the parent --------------------------------------------------------------------------------------------


class CrashTest:
    """Use `plan`, then `run`; `stop` from wherever ends every process at once."""

    def __init__(self, subject: Subject, folder: Path) -> None:
        self.subject = subject
        self.folder = folder
        self.script: Script = load_script(subject.script)
        self.tools: list[str] = []
        self._status = ""
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self._stopped = False

    def plan(self) -> tuple[Outcome, list[Case]]:
        """Run once without a crash; what came of it, and the cases that it leads to.

        Raises `ConfigurationError` when the agent cannot be run by this script.
        """
        first = self._play(Case("no crash"))
        lines = Ledger(Path(first.folder) / "ledger.jsonl").lines()
        if not first.status:
            raise ConfigurationError("; ".join(first.broken))
        if first.status == "failed":
            raise ConfigurationError(f"without a crash, {first.thread}")
        if first.status not in ENDED and not first.status.startswith("awaiting"):
            why = "; ".join(first.broken) or _ended(first.folder, 0)
            raise ConfigurationError(f"without a crash, the thread does not come to rest: {why}")
        asked = sum(label.startswith("model_replied") for line in lines for label in line.get("labels", ()))
        if first.status in ENDED and asked < len(self.script.replies):
            raise ConfigurationError(
                f"the script has {len(self.script.replies)} replies, and the model was asked {asked} times: "
                f"reply {asked + 1} is never given"
            )
        if not first.bodies:
            why = "; ".join(f"{tool}: {said}" for tool, said in first.idle.items()) or "no tool was called"
            raise ConfigurationError(f"no tool's body ran, so there is nothing to test: {why}")
        self._status = first.status
        self.tools = list(first.bodies)
        return first, list(_cases(lines))

    def run(self, cases: Sequence[Case], done: Callable[[Outcome], None]) -> list[Outcome]:
        """Run the cases side by side, and tell each outcome as it comes; in order when all are there."""
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            try:
                futures = [pool.submit(self._play, case) for case in cases]
                for future in as_completed(futures):
                    done(future.result())
                return [future.result() for future in futures]
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                self.stop()  # what is running ends with its children
                raise

    def stop(self) -> None:
        """Kill every child, the frozen ones too, with all that they have started."""
        with self._lock:
            self._stopped = True
            for process in self._running:
                _signal(process, signal.SIGKILL)

    def _play(self, case: Case) -> Outcome:
        begun = time.monotonic()
        folder = self.folder / re.sub(r"\W+", "-", case.name)
        folder.mkdir(parents=True)
        outcome = Outcome(case, str(folder))
        try:
            if case.how == "stale worker":
                self._outlive_lease(outcome)
            else:
                ended = self._child(outcome, restarted=False)
                outcome.reached = case.how != "kill" or self._end(ended) == -signal.SIGKILL
                if case.how == "kill" and outcome.reached:
                    ended = self._child(outcome, restarted=True)
                self._must_end_well(outcome, ended)
            if self._status or not outcome.broken:
                truthful = self.script.reviews != "did_not_happen"
                asyncio.run(audit(self.subject.thread_id, outcome, truthful=truthful))
                self._compare(outcome)
        except BaseException:
            self.stop()
            raise
        outcome.seconds = round(time.monotonic() - begun, 3)
        return outcome

    def _outlive_lease(self, outcome: Outcome) -> None:
        """Freeze a worker, let another end the thread, and wake the first when its lease is long over."""
        stale = self._child(outcome, restarted=False)
        outcome.reached = self._end(stale) is None
        frozen_at = time.monotonic()
        if outcome.reached:
            self._must_end_well(outcome, self._child(outcome, restarted=True))
            time.sleep(max(0.0, frozen_at + SHORT_LEASE_SECONDS * 1.2 - time.monotonic()))
            _signal(stale, signal.SIGCONT)
        self._must_end_well(outcome, stale)

    def _child(self, outcome: Outcome, *, restarted: bool) -> subprocess.Popen[bytes]:
        order = _Order(self.subject, outcome.folder, outcome.case, restarted)
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(place for place in sys.path if place),
            "TENUTO_CRASHTEST": outcome.folder,
        }
        with self._lock, (Path(outcome.folder) / "log").open("ab") as log:
            if self._stopped:
                raise InterruptedError
            process = subprocess.Popen(
                [sys.executable, "-m", "tenuto.testing.crashtest"],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                bufsize=0,
                process_group=0,
            )
            self._running.add(process)
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it is dead already; its end says more
            # It stays open: its end tells the child that we are gone.
            process.stdin.write(msgspec.json.encode(order) + b"\n")
        return process

    def _end(self, process: subprocess.Popen[bytes]) -> int | None:
        """Wait until it ends or is frozen; its exit code or None. One that takes too long is killed."""
        ends_at = time.monotonic() + self.subject.seconds + START_SECONDS
        while process.returncode is None:
            with self._lock:  # so that nobody signals a process id that is free again
                pid, status = os.waitpid(process.pid, os.WNOHANG | os.WUNTRACED)
                if pid and os.WIFSTOPPED(status):
                    return None
                if pid:
                    process.returncode = os.waitstatus_to_exitcode(status)
                    self._running.discard(process)
            if process.returncode is not None and process.stdin is not None:
                process.stdin.close()
            elif time.monotonic() > ends_at:
                _signal(process, signal.SIGKILL)
            else:
                time.sleep(POLL_SECONDS)
        return process.returncode

    def _must_end_well(self, outcome: Outcome, process: subprocess.Popen[bytes]) -> None:
        code = self._end(process)
        if code != 0:
            said = (Path(outcome.folder) / "log").read_text(errors="replace").strip().splitlines()
            outcome.broken.append(said[-1] if said and code == 1 else _ended(outcome.folder, code))

    def _compare(self, outcome: Outcome) -> None:
        left = self.script.reviews == "leave" and outcome.status == "awaiting_review"
        if self._status and outcome.status != self._status and not left:
            outcome.broken.append(f"the thread is {outcome.status}; without a crash it is {self._status}")


def _ended(folder: str, code: int | None) -> str:
    """What is known of a process that did not end by itself as it should."""
    lines = Ledger(Path(folder) / "ledger.jsonl").lines()
    began = {line["key"]: line["tool"] for line in lines if line["kind"] == "start"}
    for line in lines:
        if line["kind"] == "end":
            began.pop(line["key"], None)
    at = f" in the body of {', '.join(began.values())}" if began else ""
    how = signal.Signals(-code).name if code is not None and code < 0 else f"exit code {code}"
    return f"a process ended with {how}{at}; its log has what it said last"


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    if process.returncode is None:
        os.killpg(process.pid, number)


def _cases(lines: list[dict[str, Any]]) -> Iterator[Case]:
    """Every boundary of the run that left these lines in its ledger, in its order."""
    stale: list[Case] = []
    for line in lines:
        if line["kind"] == "append":
            label = line["labels"][0]
            yield Case("kill", f"before {label}")
            yield Case("kill", f"after {label}")
            if label.startswith(("interrupt_resolved", "model_replied")):
                stale.append(Case("stale worker", f"before {label}"))
            elif label.startswith("call_started"):
                stale.append(Case("stale worker", f"after {label}"))
        elif line["kind"] == "end" and line["effect"] != "read":
            yield Case("kill", f"after {line['label']}")
            stale.append(Case("stale worker", f"after {line['label']}"))
    if any(line["kind"] == "decided" for line in lines):
        yield Case("decide twice")
    yield from stale


# -- the child ---------------------------------------------------------------------------------------------


def main() -> int:
    """Play one case, as told on standard input; 1 with one line on stderr for what cannot be run."""
    order = msgspec.json.decode(sys.stdin.buffer.readline(), type=_Order)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    random.seed(order.subject.seed)
    logging.basicConfig(level=logging.WARNING)
    try:
        asyncio.run(_live(order))
    except Exception as error:
        if not isinstance(error, TenutoError | TimeoutError):
            logging.getLogger("tenuto").exception("this case cannot be played")
        sys.stderr.write(f"{error_text(error) if not isinstance(error, TenutoError) else error}\n")
        return 1
    return 0


def _end_with_parent() -> None:
    os.read(sys.stdin.fileno(), 1)  # nobody writes: this returns at the end of the pipe
    os._exit(1)


async def _live(order: _Order) -> None:
    subject, case, folder = order.subject, order.case, Path(order.folder)

    async def stop() -> None:
        if case.how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        await watched.store.at_rest()
        os.kill(os.getpid(), signal.SIGSTOP)

    agent = named(subject.agent, "agent")
    stops = case.how in ("kill", "stale worker") and not order.restarted
    watched = Watched(
        agent[0] if isinstance(agent, list | tuple) else agent,
        load_script(subject.script),
        Watch(Ledger(folder / "ledger.jsonl"), case.point if stops else "", stop),
        thread_id=subject.thread_id,
        fakes=named(subject.fakes, "mapping of fakes") if subject.fakes else None,
        lives=int(order.restarted),
    )
    short = case.how == "stale worker" and not order.restarted
    settings = Settings(lease_seconds=SHORT_LEASE_SECONDS if short else LEASE_SECONDS)
    async with contextlib.AsyncExitStack() as stack:
        runtime = await stack.enter_async_context(Runtime([watched.agent], watched.store, settings=settings))
        runtimes = [runtime]
        if case.how == "decide twice":
            database = f"sqlite:///{folder / 'tenuto.db'}"
            other = Runtime([watched.agent], database, settings=Settings(worker=False))
            runtimes.append(await stack.enter_async_context(other))
        status = await watched.play(runtimes, subject.seconds)
        if status in ENDED:
            await watched.decide_again(runtime)


if __name__ == "__main__":
    sys.exit(main())

"""`tenuto crashtest`: progress while the cases run, a table of what happened, and reports."""

import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from shlex import join
from types import FrameType
from typing import Any

import msgspec
from msgspec.structs import replace

from tenuto.cli.agents import load_agents
from tenuto.cli.terminal import complain, console, safe
from tenuto.errors import ConfigurationError
from tenuto.testing.crashaudit import Case, Outcome
from tenuto.testing.crashtest import CrashTest, Subject

TOOL_COLUMNS = 6


def crashtest(subject: Subject, only: str, *, listing: bool, report: Path | None, keep: bool) -> int:
    """Run the matrix, or the cases with `only` in their names; the exit code: 1 when a promise broke, 2 when
    nothing could be run, 141 when whoever read the output went away. Folders of cases that broke one stay;
    with `keep` all do. SIGTERM and SIGHUP clean up as Ctrl-C does.
    """
    before = {number: signal.signal(number, _leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        return _crashtest(subject, only, listing=listing, report=report, keep=keep)
    except ConfigurationError as error:
        complain(str(error))
        return 2
    except (BrokenPipeError, SystemExit):  # the second is what Rich makes of the first
        # Not 1, which says that a promise broke. Nothing may be flushed into the closed pipe at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except _Ended as ended:
        signal.signal(ended.number, signal.SIG_DFL)
        os.kill(os.getpid(), ended.number)
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Ended(KeyboardInterrupt):
    """By a signal; it is sent once more when all is cleaned up."""

    def __init__(self, number: int) -> None:
        self.number = number
        super().__init__()


def _leave(number: int, _frame: FrameType | None) -> None:
    raise _Ended(number)


def _check_report(folder: Path) -> None:
    """Before anything runs: raises `ConfigurationError` where no report could be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ConfigurationError(f"no report can be written to {folder}: {error.strerror}") from error


def _crashtest(subject: Subject, only: str, *, listing: bool, report: Path | None, keep: bool) -> int:
    # Here as well: an agent that cannot be loaded is one clear line, and its place is where the others are.
    if len(agents := load_agents([subject.agent])) > 1:
        raise ConfigurationError(f"{subject.agent} has {len(agents)} agents; name one of them")
    if report is not None and not listing:
        _check_report(report)
    place = Path(tempfile.mkdtemp(prefix="tenuto-crashtest-"))
    broken: list[Outcome] = []
    try:
        test = CrashTest(subject, place)
        first, cases = test.plan()
        chosen = [case for case in cases if only in case.name]
        if only and not chosen:
            raise ConfigurationError(f"no case has {only!r} in its name; --list shows them all")
        if listing:
            for case in chosen:
                print(safe(case.name))
            return 0
        ended: list[Outcome] = [first]
        try:
            outcomes = [first, *_run(test, chosen, ended)]
        except KeyboardInterrupt:
            _show(test, ended, not_run=len(chosen) + 1 - len(ended))
            raise
        broken = [outcome for outcome in outcomes if outcome.broken]
        _show(test, outcomes)
        left = {outcome.folder for outcome in (outcomes if keep else broken)}
        if report is not None:
            _write(report, test, outcomes, left)
    finally:
        left = {outcome.folder for outcome in broken}
        for folder in () if keep else place.iterdir():
            if str(folder) not in left:
                shutil.rmtree(folder)
        if not any(place.iterdir()):
            place.rmdir()
    if keep:
        console().print(f"each run's database, ledger and log: {place}")
    if broken:
        complain(_summary(outcomes))
    return 1 if broken else 0


def _run(test: CrashTest, cases: list[Case], ended: list[Outcome]) -> list[Outcome]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}")
    out = console(errors=True)
    with Progress(*columns, console=out, transient=True, disable=not out.is_terminal) as progress:
        task = progress.add_task("", total=len(cases))

        def done(outcome: Outcome) -> None:
            ended.append(outcome)
            name = safe(outcome.case.name, 60)
            progress.update(task, advance=1, description=name)
            if not out.is_terminal:  # a bar would not be seen: a line each instead
                said = "BROKEN" if outcome.broken else outcome.status
                print(f"{len(ended) - 1}/{len(cases)} {name}: {said}", file=sys.stderr, flush=True)

        return test.run(cases, done)


def _show(test: CrashTest, outcomes: list[Outcome], not_run: int = 0) -> None:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("crash point", *_columns(test), "the thread"):
        table.add_column(safe(column), overflow="fold")
    for outcome in outcomes:
        style = "red" if outcome.broken else "" if outcome.reached else "dim"
        table.add_row(*map(safe, _cells(test, outcome)), style=style)
    out = console()
    out.print(table, soft_wrap=False)
    broken = [outcome for outcome in outcomes if outcome.broken]
    for outcome in broken:
        for line in outcome.broken:
            out.print(safe(f"{outcome.case.name}: {line}"), style="red")
        out.print(f"  database, ledger and log: {outcome.folder}")
        if outcome.case.how != "no crash":
            out.print(f"  once more: {safe(_again(test.subject, outcome.case))}")
    for line in _idle(outcomes):
        out.print(safe(line), style="yellow")
    if not_run:
        out.print(f"{_summary(outcomes)}; {not_run} were not run")
    elif not broken:
        out.print(_summary(outcomes))


def _idle(outcomes: list[Outcome]) -> list[str]:
    idle = outcomes[0].idle.items()
    return [f"nothing was shown about {tool}, whose body never ran: {why}" for tool, why in idle]


def _columns(test: CrashTest) -> list[str]:
    return test.tools if len(test.tools) <= TOOL_COLUMNS else ["bodies run"]


def _cells(test: CrashTest, outcome: Outcome) -> list[str]:
    bodies = outcome.bodies
    if len(test.tools) <= TOOL_COLUMNS:
        runs = [str(bodies.get(tool, 0)) for tool in test.tools]
    else:
        runs = [", ".join(f"{tool} {times}" for tool, times in bodies.items())]
    thread = outcome.thread if outcome.reached else f"{outcome.thread} (this point did not come again)"
    return [outcome.case.name, *runs, f"BROKEN: {thread}" if outcome.broken else thread]


def _summary(outcomes: list[Outcome]) -> str:
    broken = sum(bool(outcome.broken) for outcome in outcomes)
    missed = sum(not outcome.reached for outcome in outcomes)
    text = f"{len(outcomes)} runs: " + (f"{broken} broke a promise" if broken else "every promise was kept")
    return text + (f"; {missed} did not come to their point" if missed else "")


def _again(subject: Subject, case: Case) -> str:
    words = ["tenuto", "crashtest", subject.agent, "--script", subject.script]
    words += ["--fakes", subject.fakes] if subject.fakes else []
    words += ["--seed", str(subject.seed)] if subject.seed else []
    return join([*words, "--only", case.name])


def _write(folder: Path, test: CrashTest, outcomes: list[Outcome], left: set[str]) -> None:
    """report.md for people and report.json for programs, which names the folders that are `left`."""
    folder.mkdir(parents=True, exist_ok=True)
    runs = [outcome if outcome.folder in left else replace(outcome, folder="") for outcome in outcomes]
    facts: dict[str, Any] = {"subject": test.subject, "python": sys.version.split()[0], "runs": runs}
    facts["broken"] = sum(bool(outcome.broken) for outcome in outcomes)
    encoded = msgspec.json.format(msgspec.json.encode(facts), indent=2)
    (folder / "report.json").write_bytes(encoded + b"\n")
    head = ["crash point", *_columns(test), "the thread"]
    rows = [head, ["---"] * len(head), *(_cells(test, outcome) for outcome in outcomes)]
    lines = [f"# Crash test of {test.subject.agent}", "", _summary(outcomes), ""]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    lines += [f"\n{line}" for line in _idle(outcomes)]
    for outcome in outcomes:
        lines += [f"\n**{outcome.case.name}**: {line}" for line in outcome.broken]
    (folder / "report.md").write_text(safe("\n".join(lines)) + "\n", encoding="utf-8")

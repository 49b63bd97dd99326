"""`tenuto crashtest` as a user runs it: what it counts, what it finds, and how it ends."""

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.testing.shop import ROOT, Shop

PAY = {"calls": [{"name": "pay", "arguments": {"amount": 5}}]}
STORE = {"calls": [{"name": "store", "arguments": {"name": "lamp"}}]}


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_the_example_is_killed_everywhere_and_keeps_every_promise(shop: Shop) -> None:
    shop.environment["PYTHONPATH"] += f"{os.pathsep}{ROOT}"
    names = ("examples.orders.agent:agent", "--script", "examples.orders.crash:script")
    runs = shop.runs(*names, "--fakes", "examples.orders.crash:fakes")
    assert not any(run["broken"] for run in runs.values())
    assert all(run["reached"] and run["status"] == "completed" for run in runs.values())
    assert {run["bodies"]["refund_order"] for run in runs.values()} == {1}
    # In the order in which a refund's events come: three replies, a read, an approval and a call. A person is
    # asked in the commit of the reply that wants it.
    events = ["thread_started", "model_replied", "call_finished get_order", "model_replied #2"]
    events += ["interrupt_resolved refund_order"]
    events += ["call_started refund_order", "call_finished refund_order", "model_replied #3"]
    killed = [name.removeprefix("kill ") for name in runs if name.startswith("kill")]
    expected = [f"{when} {event}" for event in events for when in ("before", "after")]
    expected.insert(expected.index("before call_finished refund_order"), "after effect refund_order")
    assert killed == expected
    assert "decide twice" in runs
    assert sum(name.startswith("stale worker") for name in runs) == 6
    assert runs["kill after call_started refund_order"]["thread"] == "verify: DidNotHappen, completed"
    for name in ("after effect refund_order", "before call_finished refund_order"):
        assert runs[f"kill {name}"]["thread"] == "verify: Happened, completed"
    # A read may run again, until its result is in the log.
    assert runs["kill before call_finished get_order"]["bodies"]["get_order"] == 2
    assert runs["kill after call_finished get_order"]["bodies"]["get_order"] == 1
    text = (shop.place / "report" / "report.md").read_text()
    assert "| kill after effect refund_order | 1 | 1 | verify: Happened, completed |" in text
    assert list(shop.folders.iterdir()) == []


def test_reviews_are_settled_by_what_really_happened(shop: Shop) -> None:
    runs = shop.runs("shop:agent", "--script", shop.script(PAY, "done"), "--only", "pay")
    assert runs["kill after call_started pay"]["thread"] == "review: did_not_happen, completed"
    assert runs["kill after effect pay"]["thread"] == "review: happened, completed"
    assert runs["stale worker after effect pay"]["thread"] == "review: happened, completed"
    assert {run["bodies"]["pay"] for run in runs.values()} == {1}


@pytest.mark.parametrize(
    ("reviews", "bodies", "thread"),
    [
        ("leave", 1, "awaiting_review"),
        ("drop", 1, "review: dropped, completed"),
        ("happened", 1, "review: happened, completed"),
        # Whoever says so wrongly has it run twice; that is no promise of the runtime's.
        ("did_not_happen", 2, "review: did_not_happen, completed"),
    ],
)
def test_a_script_can_say_how_reviews_are_settled(shop: Shop, reviews: str, bodies: int, thread: str) -> None:
    script = shop.script(PAY, "done", reviews=reviews)
    run = shop.runs("shop:agent", "--script", script, "--only", "kill after effect")["kill after effect pay"]
    assert (run["bodies"], run["thread"]) == ({"pay": bodies}, thread)


@pytest.mark.parametrize(
    ("decisions", "arguments"),
    [
        ({"pay": "reject"}, ['{"name":"lamp"}']),
        ([{"verb": "reject", "comment": "too much"}, "approve"], ['{"amount":5}']),
        (
            {"pay": {"verb": "edit", "arguments": {"amount": 4}}},
            ['{"amount":4}', '{"amount":4}', '{"name":"lamp"}'],
        ),
    ],
)
def test_people_decide_by_tool_or_in_order(shop: Shop, decisions: Any, arguments: list[str]) -> None:
    question = {"calls": [{"name": "ask_person", "arguments": {"question": "Really?"}}]}
    if isinstance(decisions, dict):
        decisions |= {"ask_person": {"answer": "yes"}}
        script = shop.script(PAY, question, PAY, STORE, "done", decisions=decisions)
    else:
        script = shop.script(PAY, PAY, "done", decisions=decisions)
    runs = shop.runs("shop:agent", "--script", script, "--only", "decide twice", "--keep")
    assert [run["status"] for run in runs.values()] == ["completed"] * 2
    lines = (Path(runs["decide twice"]["folder"]) / "ledger.jsonl").read_text().splitlines()
    found = [line["arguments"] for line in map(json.loads, lines) if line["kind"] == "start"]
    assert found == arguments


def test_two_decisions_at_once_and_one_later_are_one_decision(shop: Shop) -> None:
    script = shop.script(PAY, "done")
    run = shop.runs("shop:agent", "--script", script, "--only", "decide twice", "--keep")["decide twice"]
    lines = (Path(run["folder"]) / "ledger.jsonl").read_text().splitlines()
    assert [line["accepted"] for line in map(json.loads, lines) if line["kind"] == "decided"] == [1, 0]


def test_a_worker_that_comes_back_finds_its_lease_gone(shop: Shop) -> None:
    name = "stale worker after effect pay"
    script = shop.script(PAY, "done")
    run = shop.runs("shop:agent", "--script", script, "--only", name, "--keep")[name]
    assert run["reached"]
    # What it then wanted to record was refused.
    assert "this holder's was" in (Path(run["folder"]) / "log").read_text()


def test_a_worker_that_comes_back_begins_nothing_that_it_had_dispatched(shop: Shop) -> None:
    """It is frozen between two calls of one reply, and the other worker runs both."""
    calls = [{"name": "note", "arguments": {"text": "a"}}, {"name": "ship", "arguments": {"order": 1}}]
    name = "stale worker after effect note"
    run = shop.runs("shop:agent", "--script", shop.script({"calls": calls}, "done"), "--only", name)[name]
    assert (run["reached"], run["bodies"]) == (True, {"note": 2, "ship": 1})


@pytest.mark.parametrize(
    ("agent", "reply", "found"),
    [
        ("careless", STORE, "store is idempotent, and 2 runs under one key had different results"),
        ("denied", PAY, "pay is once and came to its end 2 times: its verify said that it did not happen"),
    ],
)
def test_a_tool_that_is_not_what_it_says_is_found(shop: Shop, agent: str, reply: Any, found: str) -> None:
    script = shop.script(reply, "done")
    runs = shop.runs(f"shop:{agent}_agent", "--script", script, "--only", "kill after effect", code=1)
    (run,) = [run for name, run in runs.items() if name != "no crash"]
    assert run["broken"] == [found]
    # Its folder stays, so that it can be looked at; that of the other run does not.
    assert sorted(path.name for path in Path(run["folder"]).parent.iterdir()) == [Path(run["folder"]).name]


@pytest.mark.parametrize(
    ("mutation", "only", "found"),
    [
        (
            "intent",
            "kill after effect",
            "pay is once and ran 2 times, though nobody said that it did not happen",
        ),
        ("epoch", "stale worker after effect", "call s0001c000 has 2 results"),
        ("decision", "decide twice", "was decided 2 times"),
        ("history", "decide twice", "a request was not well formed"),
    ],
)
def test_a_runtime_that_is_not_what_it_says_is_found(
    shop: Shop, mutation: str, only: str, found: str
) -> None:
    arguments = (f"{mutation}:agent", "--script", shop.script(PAY, "done"), "--only", only)
    runs = shop.runs(*arguments, "--seconds", "10", code=1)
    (run,) = [run for name, run in runs.items() if name != "no crash"]
    assert any(found in line for line in run["broken"]), run["broken"]


def test_help_has_an_example(shop: Shop) -> None:
    assert "Example: tenuto crashtest examples.orders.agent:agent" in shop("--help")


def test_off_a_terminal_each_case_is_a_line_when_it_ends(shop: Shop) -> None:
    with shop.popen("shop:agent", "--script", shop.script(PAY, "done"), "--only", "call_started") as process:
        _, errors = process.communicate(timeout=100)
    lines = sorted(line.partition(" ")[2] for line in errors.splitlines())
    assert lines == [
        "kill after call_started pay: completed",
        "kill before call_started pay: completed",
        "stale worker after call_started pay: completed",
    ]


def test_a_body_that_ends_the_process_is_named(shop: Shop) -> None:
    script = shop.script({"calls": [{"name": "leave", "arguments": {}}]}, "done")
    errors = shop("shop:leaving_agent", "--script", script, code=2)
    assert "a process ended with exit code 7 in the body of leave; its log has" in errors


def test_a_body_that_ends_the_process_as_if_all_were_well_is_named(shop: Shop) -> None:
    script = shop.script({"calls": [{"name": "leave", "arguments": {}}]}, "done")
    errors = shop("shop:quietly_leaving_agent", "--script", script, code=2)
    assert "the thread does not come to rest: a process ended with exit code 0 in the body of leave" in errors


def test_a_tool_of_which_nothing_is_shown_is_named(shop: Shop) -> None:
    both = {"calls": [*PAY["calls"], *STORE["calls"]]}
    script = shop.script(both, "done", decisions={"pay": "leave"})
    output = shop(
        "shop:agent", "--script", script, "--only", "after effect", "--report", str(shop.place / "r")
    )
    said = "nothing was shown about pay, whose body never ran: its call is not decided, so it waits"
    assert said in " ".join(output.split())
    assert said in (shop.place / "r" / "report.md").read_text()


def test_a_report_that_cannot_be_written_is_refused_before_anything_runs(shop: Shop) -> None:
    (shop.place / "file").write_text("")
    script = shop.script(PAY, "done")
    errors = shop("shop:agent", "--script", script, "--report", str(shop.place / "file" / "r"), code=2)
    assert errors.startswith(f"tenuto: no report can be written to {shop.place}/file/r: ")
    assert errors.count("\n") == 1


def test_a_reader_that_goes_away_is_no_broken_promise(shop: Shop) -> None:
    script = shop.script(PAY, "done")
    with shop.popen("shop:agent", "--script", script, "--only", "after effect") as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(60) == 141


def test_the_cases_are_listed_and_not_run(shop: Shop) -> None:
    listed = shop("shop:agent", "--script", shop.script(PAY, "done"), "--list", "--only", "call_started")
    assert listed.splitlines() == [
        "kill before call_started pay",
        "kill after call_started pay",
        "stale worker after call_started pay",
    ]


def test_a_fake_runs_in_place_of_a_tool(shop: Shop) -> None:
    script = shop.script(PAY, "done")
    arguments = ("shop:agent", "--script", script, "--fakes", "shop:fakes", "--only", "decide", "--keep")
    run = shop.runs(*arguments)["decide twice"]
    assert '"result":"faked"' in (Path(run["folder"]) / "ledger.jsonl").read_text()


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (["shop:nobody"], "agent shop:nobody: shop has no 'nobody'"),
        (["nowhere:agent"], "there is no module 'nowhere'"),
        (["shop:number"], "number is int, not an Agent"),
        (["shop:agent", "--script", "none.json"], "script none.json: "),
        (["shop:agent", "--script", "shop:script"], "no script today"),
        (
            ["shop:agent", "--fakes", "shop:wrong_fakes"],
            "agent shop has no tool 'buy' that could be replaced",
        ),
        (["shop:agent", "--fakes", "shop:other_fakes"], "the fake of pay does not take its arguments: "),
        (["shop:agent", "--fakes", "shop:agent"], "the fakes are a mapping of tool names, not Agent"),
        (["shop:agent", "--only", "nothing"], "no case has 'nothing' in its name; --list shows them all"),
    ],
    ids=" ".join,
)
def test_what_cannot_be_run_is_one_clear_line(shop: Shop, arguments: list[str], found: str) -> None:
    script = shop.script(PAY, "done")
    given = arguments if "--script" in arguments else [*arguments, "--script", script]
    errors = shop(*given, code=2)
    assert errors.startswith("tenuto: ")
    assert found in errors
    assert errors.count("\n") == 1
    assert list(shop.folders.iterdir()) == []


def test_a_decision_for_a_tool_that_is_not_there_is_refused(shop: Shop) -> None:
    """It would be a decision that is not made, and the call be approved."""
    script = shop.script(PAY, "done", decisions={"pya": "reject"})
    errors = shop("shop:agent", "--script", script, code=2)
    assert "decisions name tools that the agent has not: pya" in errors


@pytest.mark.parametrize(
    ("replies", "found"),
    [
        ([PAY], "without a crash, failed: the script has 1 replies, and the model was asked once more"),
        ([{"cals": []}], "'cals' is not known"),
        (
            [PAY, {"calls": [{"name": "pya"}]}],
            "reply 2 of the script calls 'pya', a tool that agent shop has not",
        ),
        (
            [PAY, "done", "never"],
            "3 replies, and the model was asked 2 times: reply 3 is never given",
        ),
        (["done"], "no tool's body ran, so there is nothing to test: no tool was called"),
        (
            [{"calls": [{"name": "pay", "arguments": {"amuont": 5}}]}, "done"],
            "no tool's body ran, so there is nothing to test: pay: Error: ",
        ),
    ],
)
def test_replies_that_do_not_do_are_one_clear_line(shop: Shop, replies: list[Any], found: str) -> None:
    errors = shop("shop:agent", "--script", shop.script(*replies), code=2)
    assert found in errors
    assert errors.count("\n") == 1


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM), (signal.SIGKILL, -signal.SIGKILL)],
)
def test_children_end_with_it(shop: Shop, number: int, code: int) -> None:
    def children(state: str = "") -> list[str]:
        found = []
        for process in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if f"TENUTO_CRASHTEST={shop.folders}".encode() in (process / "environ").read_bytes():
                    of = (process / "stat").read_text().rpartition(")")[2].split()[0]
                    found += [process.name] if of != "Z" and state in ("", of) else []
        return found

    script = shop.script(PAY, "done")
    with shop.popen("shop:agent", "--script", script, "--only", "stale") as process:
        _until(lambda: children("T"))  # a frozen one as well
        process.send_signal(number)
        output, _ = process.communicate(timeout=20)
        assert process.returncode == code
        assert ("no crash" in output) is (number != signal.SIGKILL)  # what was done until then is shown
        assert bool(re.search(r"runs: .*; [1-9]\d* were not run", output)) is (number != signal.SIGKILL)
    _until(lambda: not children())
    assert bool(list(shop.folders.iterdir())) is (number == signal.SIGKILL)


def _until(condition: Callable[[], Any]) -> None:
    ends_at = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < ends_at
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_the_page_does_what_it_says(tmp_path: Path) -> None:
    shop, page = Shop(tmp_path), (ROOT / "docs" / "crashtest.md").read_text()
    for language, text in re.findall(r"^```(\w+)\n(.*?)^```", page, re.DOTALL | re.MULTILINE):
        if language == "sh":
            for line in text.splitlines():
                tenuto, crashtest, *arguments = shlex.split(line)
                assert (tenuto, crashtest) == ("tenuto", "crashtest")
                assert shop(*arguments)
        else:
            name = "crash.json" if language == "json" else text.split()[1]
            (tmp_path / name).write_text(text)
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "1 passed" in done.stdout, done.stdout
    assert (
        "| kill after effect refund | 1 | review: happened, completed |"
        in (tmp_path / "report" / "report.md").read_text()
    )

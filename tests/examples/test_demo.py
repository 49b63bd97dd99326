"""The guided tour, with nobody there, with somebody who says no, and broken off."""

import json
import os
import re
import signal
import time
from pathlib import Path

import pytest
from tests.cli.conftest import Shell, Terminal


@pytest.fixture
def tour(tmp_path):
    shell = Shell(tmp_path)
    shell.environment["TMPDIR"] = str(tmp_path)
    return shell


def told(output: str) -> Path:
    """The folder of a tour."""
    found = re.search(r"Everything below is in (\S+),", output)
    assert found
    return Path(found.group(1))


def processes_of(output: str) -> list[int]:
    return [int(pid) for pid in re.findall(r"\(process (\d+)", output)]


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_with_nobody_there_it_approves_by_itself(tour):
    started = time.monotonic()
    output = tour("demo")
    assert time.monotonic() - started < 60
    steps = re.split(r"^\d\. ", output, flags=re.MULTILINE)[1:]
    assert len(steps) == 7
    assert "Order 17 (desk lamp, 42.00) is delivered." in steps[1]
    assert '"status": "awaiting_approval"' in steps[2]
    assert "ledger: empty" in steps[2]
    first, second = processes_of(steps[0])[-1], processes_of(steps[3])[-1]
    assert f"process {first} is dead" in steps[3]
    assert second != first
    assert "still waits" in steps[3]
    assert "ledger: empty" in steps[3]
    assert "Order 17 is refunded: 42.00, refund R1." in steps[4]
    assert re.search(r"^404  .*^409  .*approved by approver", steps[5], re.DOTALL | re.MULTILINE)
    assert "started|0\nawaiting_approval|2\napproved|2\ncompleted|3\n" in steps[6]
    (refund,) = [json.loads(line) for line in (told(output) / "ledger.jsonl").read_text().splitlines()]
    assert (refund["order_id"], refund["amount"]) == ("17", "42.00")
    assert not any(is_running(pid) for pid in processes_of(output))
    # What it says to look at is there.
    command = re.findall(r"^  tenuto (show .*)$", output, re.MULTILINE)[0].split()
    assert "refund_order" in tour(*command)


def test_a_person_may_say_no(tour):
    person = Terminal(["-m", "tenuto", "demo"], tour.cwd, tour.environment)
    person.expect("Approve this refund? [y/n] ")
    person.type("n\n")
    person.expect("Order 17 was not refunded.")
    person.expect("rejected|2\ncompleted|3")
    assert person.wait() == 0
    person.close()
    assert not (told(re.sub(r"\x1b\[[0-9;]*m", "", person.output)) / "ledger.jsonl").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_broken_off_it_leaves_no_process_behind(tour, number):
    process = tour.popen("demo")
    assert process.stdout is not None
    output = ""
    for line in process.stdout:
        output += line
        if line.startswith("3. "):
            break
    process.send_signal(number)
    rest, errors = process.communicate(timeout=20)
    assert (process.returncode, errors) == (130, "")
    pids = processes_of(output + rest)
    assert len(pids) >= 3
    assert not any(is_running(pid) for pid in pids)


def test_a_step_that_does_not_come_out_as_promised(tour, processes):
    """A model that never asks for the refund: the tour says so instead of telling a story."""
    (tour.place / "script.json").write_text(json.dumps(["It is on its way.", "I would rather not."]))
    _, url = processes.start("provider", "tenuto.testing.provider", str(tour.place / "script.json"))
    tour.environment |= {"PROVIDER_URL": url, "PROVIDER_MODEL": "reluctant"}
    output = tour("demo", code=1)
    last = output.splitlines()[-1]
    assert last.startswith(
        "tenuto: step 3: instead of waiting for an approval of refund_order, the answer was 200"
    )
    assert "I would rather not." in last
    assert not any(is_running(pid) for pid in processes_of(output))


def test_outside_a_checkout_it_says_what_is_missing(tmp_path):
    shell = Shell(tmp_path, cwd=tmp_path)
    output = shell("demo", code=1)
    assert output == (
        f"tenuto: the demo needs examples/orders, which is not in {tmp_path}: run ./dev demo in a checkout\n"
    )

"""tenuto follow: replay, the boundary, then live, and where to go on."""

import json
import signal


def lines_until(process, text):
    lines = []
    for line in process.stdout:
        lines.append(line)
        if text in line:
            return lines
    raise AssertionError(f"no {text!r} in {lines}")


def test_the_past_the_boundary_and_what_happens(shell):
    row = shell.waiting("send hi")
    thread = row.thread_id
    process = shell.popen("follow", thread[:8])
    past = lines_until(process, "this is the past")
    assert past[0] == f"thread {thread}, agent desk, awaiting_approval\n"
    assert past[-1] == "—— up to event 4 this is the past; from here on it happens now\n"
    shell("inbox", "approve", row.id)
    live = lines_until(process, "thread_completed")
    assert "      ← send sent to ana\n" in live
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 130
    head = len(shell.log(thread))
    assert errors == f"tenuto: left after event {head}; go on with: tenuto follow {thread} --after {head}\n"


def test_json_lines_are_the_events_the_boundary_and_the_end(shell):
    thread = shell.started("slow 0")
    told = [json.loads(line) for line in shell("follow", thread, "--jsonl", "--until", "rest").splitlines()]
    assert told[:-2] == shell.json("show", thread, "--json")
    assert told[-2] == {"type": "replayed", "seq": 6}
    assert (told[-1]["type"], told[-1]["seq"]) == ("rested", 6)
    assert (told[-1]["status"], told[-1]["answer"]) == ("completed", "done: slept")


def test_each_line_is_written_at_once(shell):
    thread = shell.started("send hi")
    process = shell.popen("follow", thread, "--jsonl", "--after", "2")
    assert [json.loads(process.stdout.readline())["seq"] for _ in range(3)] == [3, 4, 4]
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=20)
    assert errors.endswith(f"go on with: tenuto follow {thread} --after 4\n")
    assert process.returncode == 130


def test_a_call_is_named_although_its_reply_is_not_shown(shell):
    thread = shell.started("slow 0")
    output = shell("follow", thread, "--after", "3", "--until", "rest")
    assert "      ← slow slept\n" in output
    assert "model_replied" in output
    assert f"thread {thread}, agent" not in output


def test_a_place_that_the_thread_has_not_reached(shell):
    thread = shell.started("hello")
    output = shell("follow", thread, "--after", "99", code=1)
    assert output == f"tenuto: there is no event 99; the last of thread {thread} is 4\n"


def test_deltas_of_a_server_are_seen_and_the_text_is_printed_once(shell, terminal):
    """At a terminal, with a server that runs the thread: what arrives is drawn, then its event is printed."""
    thread = shell.started("hello")
    with shell.serving() as (_, url):
        del shell.environment["TENUTO_DATABASE"]
        shell.environment["TENUTO_URL"] = url
        person = terminal("follow", thread)
        person.expect("from here on it happens now")
        shell("send", thread, "again")
        person.expect("model_replied")
        person.expect("You said: again")
        person.expect("thread_completed")
        person.press("\x03")
        person.expect("go on with: tenuto follow")
        assert person.wait() == 130

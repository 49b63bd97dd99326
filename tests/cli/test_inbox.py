"""Deciding from a shell: with a server that runs the thread, and with nobody but the command itself."""

import json
import signal
import time

import pytest

PICK_UP_MS = 200


def test_the_list_shows_what_waits(shell):
    row = shell.paused("send hi")
    shell("run", "ask Which colour?")
    lines = shell("inbox").splitlines()
    assert lines[1].split() == ["id", "kind", "tool", "arguments", "thread", "age", "expires", "in"]
    assert lines[3].split()[:5] == [row["id"][:8], "approval", "send", row["arguments"], row["thread_id"][:8]]
    assert lines[3].split()[-2:] == ["23", "h"]
    assert lines[4].split()[1:5] == ["question", "ask_person", "Which", "colour?"]


def test_an_empty_inbox(shell):
    shell("run", "hello")
    assert shell("inbox") == "nothing waits for a person\n"
    assert shell.pending() == []


def test_with_nobody_else_the_command_runs_the_thread(shell):
    row = shell.paused("send hi")
    output = shell("inbox", "approve", row["id"][:6], "--by", "ana")
    thread = row["thread_id"]
    assert output.splitlines() == [
        f"{row['id']} decided; this command runs thread {thread} until it rests",
        "← send sent to ana",
        "done: sent to ana",
        f"thread {thread} is completed",
    ]
    assert shell.lines_sent() == ["ana: hi"]
    (decision,) = shell.events(thread, "interrupt_resolved")
    assert (decision["event"]["by"], decision["event"]["channel"]) == ("ana", "cli")


def test_ctrl_c_hands_the_thread_over_and_the_decision_stands(shell):
    row = shell.paused("ask Which colour?")
    shell.environment["SLOW"] = "30"
    with shell.popen("inbox", "answer", row["id"], "blue") as process:
        ends_at = time.monotonic() + 10
        while not shell.lines_sent():
            assert time.monotonic() < ends_at
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)
    assert process.returncode == 130
    assert f"nothing is lost. Go on with: tenuto run --thread {row['thread_id']}\n" in errors
    del shell.environment["SLOW"]
    assert "done: blue\n" in shell("run", "--thread", row["thread_id"])


def test_a_running_server_picks_a_decision_up_at_once(shell):
    """By the log's own times; the median of five, as the machine may have other things to do in between."""
    waited_ms = []
    with shell.serving() as (server, _):
        for _round in range(5):
            row = shell.paused("send hi")
            output = shell("inbox", "approve", row["id"], "--agent", "not.needed:here")
            assert f"(process {server.pid}) goes on with thread {row['thread_id']}\n" in output
            ends_at = time.monotonic() + 10
            while not shell.events(row["thread_id"], "thread_completed"):
                assert time.monotonic() < ends_at
            (decided,) = shell.events(row["thread_id"], "interrupt_resolved")
            (started,) = shell.events(row["thread_id"], "call_started")
            assert started["event"]["worker"].startswith(f"w{server.pid}-")
            waited_ms.append(started["at_ms"] - decided["at_ms"])
    assert 0 <= sorted(waited_ms)[2] < PICK_UP_MS, waited_ms
    assert shell.lines_sent() == ["ana: hi"] * 5


def test_no_wait_leaves_the_thread_to_the_next_worker(shell):
    row = shell.paused("send hi")
    output = shell("inbox", "approve", row["id"], "--no-wait")
    waits = f"thread {row['thread_id']} goes on when a worker starts, such as: tenuto serve\n"
    assert output == f"{row['id']} decided; {waits}"
    assert shell.lines_sent() == []
    with shell.serving():
        ends_at = time.monotonic() + 10
        while not shell.lines_sent():
            assert time.monotonic() < ends_at
            time.sleep(0.02)


def test_without_an_agent_a_decision_counts_all_the_same(shell):
    row = shell.paused("send hi")
    del shell.environment["TENUTO_AGENT"]
    output = shell("inbox", "reject", row["id"], "--comment", "no")
    assert output == (
        f"{row['id']} decided; agent 'desk' is not known here: "
        f"thread {row['thread_id']} goes on when a worker starts, such as: tenuto serve\n"
    )
    assert shell.pending() == []


def test_a_decision_is_made_once(shell):
    row = shell.paused("send hi")
    shell("inbox", "reject", row["id"], "--by", "ana", "--comment", "too early")
    for command in (["approve", row["id"]], ["reject", row["id"][:8]], ["answer", row["id"], "x"]):
        output = shell("inbox", *command, code=1)
        assert output.startswith(f"tenuto: approval {row['id']} is decided already: rejected by ana, 20")
        assert output.count("\n") == 1
    assert shell.lines_sent() == []
    (finished,) = shell.events(row["thread_id"], "call_finished")
    assert finished["event"]["text"].endswith("They said: too early")


def test_an_agent_that_cannot_be_loaded_decides_nothing(shell):
    row = shell.paused("send hi")
    output = shell("inbox", "approve", row["id"], "--agent", "nowhere:agent", code=1)
    assert "there is no module 'nowhere'" in output
    assert [pending["id"] for pending in shell.pending()] == [row["id"]]


@pytest.mark.parametrize("from_file", [False, True])
def test_editing(shell, from_file):
    row = shell.paused("send hi")
    new = json.dumps({"to": "bo", "text": "hello"})
    if from_file:
        (shell.place / "new.json").write_text(new)
        new = f"@{shell.place}/new.json"
    shell("inbox", "edit", row["id"], "--arguments", new, "--comment", "better so")
    assert shell.lines_sent() == ["bo: hello"]
    (decision,) = shell.events(row["thread_id"], "interrupt_resolved")
    assert decision["event"]["arguments"] == '{"text":"hello","to":"bo"}'


def test_an_edit_that_the_tool_refuses_decides_nothing(shell):
    row = shell.paused("send hi")
    output = shell("inbox", "edit", row["id"], "--arguments", '{"to": "bo"}', code=1)
    assert "text" in output
    del shell.environment["TENUTO_AGENT"]
    output = shell("inbox", "edit", row["id"], "--arguments", '{"to": "bo", "text": "x"}', code=1)
    assert output == "tenuto: new arguments are checked by agent 'desk'; name it with --agent MODULE:AGENT\n"
    assert len(shell.pending()) == 1


def test_answering(shell):
    row = shell.paused("ask Which colour?")
    assert "done: blue\n" in shell("inbox", "answer", row["id"], "blue")


def test_a_digest_of_something_else_is_refused(shell):
    row = shell.paused("send hi")
    assert "another call than the one that was seen" in shell(
        "inbox", "approve", row["id"], "--digest", "0" * 32, code=1
    )
    assert len(shell.pending()) == 1
    shell("inbox", "approve", row["id"], "--digest", row["digest"])
    assert shell.lines_sent() == ["ana: hi"]


def test_the_beginning_of_an_id_has_to_be_unique(shell):
    rows = [shell.paused("twice hi"), *shell.pending()]
    shell("run", "twice hi")
    found = {row["id"] for row in (*rows, *shell.pending())}
    letters = [id[0] for id in found]
    double = next((letter for letter in letters if letters.count(letter) > 1), None)
    while double is None:  # the ids come from random thread ids: soon two begin with the same digit
        shell("run", "twice hi")
        letters = [row["id"][0] for row in shell.pending()]
        double = next((letter for letter in letters if letters.count(letter) > 1), None)
    output = shell("inbox", "approve", double, code=1)
    assert f"interrupts begin with {double}: " in output
    assert shell("inbox", "approve", "ffffffff", code=1) == "tenuto: there is no interrupt ffffffff\n"
    assert shell.lines_sent() == []


def test_the_wrong_word_for_the_kind_is_one_clear_line(shell):
    row = shell.paused("send hi")
    output = shell("inbox", "answer", row["id"], "yes", code=1)
    assert "approve, reject, edit" in output
    assert len(shell.pending()) == 1


def test_options_may_stand_before_or_behind_the_command(shell):
    shell("run", "twice hi")
    database = shell.environment.pop("TENUTO_DATABASE")
    rows = shell.json("inbox", "--database", database, "--json")
    one, two = rows
    shell("inbox", "--database", database, "--by", "bea", "reject", one["id"])
    (decided,) = [entry.event for entry in shell.log(one["thread_id"]) if hasattr(entry.event, "outcome")]
    assert (decided.outcome, decided.by) == ("rejected", "bea")
    shell("inbox", "approve", two["id"], "--database", database)
    assert shell.lines_sent() == ["bo: hi"]


def test_a_server_asked_to_end_ends_well(shell):
    with shell.serving() as (server, _):
        server.send_signal(signal.SIGINT)
        assert server.wait(15) == 0


@pytest.mark.parametrize("wait", [True, False])
def test_a_decision_as_json_is_the_event_as_recorded_and_where_the_thread_stands(shell, wait):
    row = shell.paused("send hi")
    flags = ["--by", "ana", "--comment", "no\nlamp", "--json", *([] if wait else ["--no-wait"])]
    told = shell.json("inbox", "reject", row["id"], *flags)
    (recorded,) = shell.events(row["thread_id"], "interrupt_resolved")
    assert told["resolution"] == recorded
    assert (recorded["event"]["outcome"], recorded["event"]["by"]) == ("rejected", "ana")
    assert (told["thread"], told["interrupts"]) == (row["thread_id"], [])
    assert told["status"] == ("completed" if wait else "running")
    refused = shell("inbox", "approve", row["id"], "--json", code=1)
    assert refused.startswith("tenuto: ")
    assert "rejected by ana" in refused
    words = " ".join(shell("inbox", "--json", "approve", row["id"], code=2).split())
    assert "say it behind the command" in words


def test_what_a_server_recorded_is_the_same_as_json(shell):
    rows = [shell.paused("ask Which colour?"), shell.paused("ask Which size?")]
    with shell.serving(APPROVER_SECRET="s3cret-s3cret-s3cret") as (_, url):
        near = shell.json("inbox", "answer", rows[0]["id"], "blue", "--by", "ana", "--json")
        shell.environment["TENUTO_TOKEN"] = "s3cret-s3cret-s3cret"
        far = shell.json("inbox", "answer", rows[1]["id"], "blue", "--by", "ana", "--url", url, "--json")
    assert sorted(near) == sorted(far)
    for told, row in zip((near, far), rows, strict=True):
        assert [told["resolution"]] == shell.events(row["thread_id"], "interrupt_resolved")

"""tenuto chat --jsonl and --once: a program at the other end of a pipe."""

import json
import select
import signal
import time

import pytest

from tenuto.events import ModelReplied


def told(output):
    return [json.loads(line) for line in output.splitlines()]


def turns(items):
    return [(item["status"], item["answer"]) for item in items if item["type"] == "rested"]


class Talk:
    """`tenuto chat --jsonl`, said something to and read from as it goes."""

    def __init__(self, shell, *arguments):
        self.process = shell.popen("chat", "--jsonl", *arguments, stdin=-1)

    def say(self, line):
        self.process.stdin.write((line if isinstance(line, str) else json.dumps(line)) + "\n")
        self.process.stdin.flush()

    def until(self, kind):
        items = []
        while not items or items[-1]["type"] != kind:
            line = self.process.stdout.readline()
            assert line, f"no {kind} after {items}"
            items.append(json.loads(line))
        return items

    def end(self):
        output, errors = self.process.communicate(timeout=20)
        assert (self.process.returncode, errors) == (0, "")
        return told(output)


def test_each_line_is_a_turn_and_nothing_that_fails_ends_it(shell):
    lines = [
        b"hello \xe6\x97\xa5\xe6\x9c\xac",
        b"",
        b'{"message": "fail no credit left"}',
        b'{"message": "again"',
        b'{"message": 7}',
        b'{"message": "x", "cancel": "y"}',
        b'{"massage": "x"}',
        b"\xff\xfe",
        b'{"resolve": "0000", "verb": "approve"}',
        b'{"extend": {"stepps": 1}}',
        b"x" * 1_048_577,
        b'["no object", "so it is a message"]',
    ]
    process = shell.popen("chat", "--jsonl", stdin=-1, text=False)
    output, errors = process.communicate(b"\n".join(lines), timeout=40)
    assert process.returncode == 0
    assert errors.endswith(b": the model could not be asked: the provider says: no credit left\n")
    assert errors.count(b"\n") == 1
    items = told(output.decode("ascii"))
    assert turns(items) == [
        ("completed", "You said: hello 日本"),
        ("failed", ""),
        ("completed", 'You said: ["no object", "so it is a message"]'),
    ]
    wrong = {item["line"]: item["error"] for item in items if item["type"] == "error"}
    assert sorted(wrong) == [4, 5, 6, 7, 8, 9, 10, 11]
    assert wrong[6] == wrong[7] == "a JSON object has one of message, resolve, extend, cancel"
    assert wrong[9] == "there is no interrupt 0000"
    assert wrong[11] == "a line has at most 1048576 bytes"
    (first,) = [item for item in items if item["type"] == "thread"]
    logged = [
        entry.event.text for entry in shell.log(first["thread"]) if isinstance(entry.event, ModelReplied)
    ]
    assert [item["event"]["text"] for item in items if item["type"] == "model_replied"] == logged
    texts = [item["text"] for item in items if item["type"] == "text_delta"]
    assert texts == logged
    (failed,) = [item for item in items if item["type"] == "rested" and item["status"] == "failed"]
    assert failed["error"] == "the provider says: no credit left"


def test_a_decision_carries_what_was_seen(shell):
    talk = Talk(shell)
    talk.say("send hi")
    *seen, rested = talk.until("rested")
    assert rested["status"] == "awaiting_approval"
    (raised,) = [item["event"] for item in seen if item["type"] == "interrupt_raised"]
    assert raised["arguments"] == '{"text":"hi","to":"ana"}'
    other = shell.waiting("send ho")
    talk.say({"resolve": other.id, "verb": "approve"})
    assert "is of thread" in talk.until("error")[0]["error"]
    talk.say({"resolve": raised["id"], "verb": "approve", "digest": "0" * 32})
    assert "another call than the one that was seen" in talk.until("error")[0]["error"]
    assert shell.lines_sent() == []
    arguments = {"to": "bo", "text": "hello"}
    talk.say({"resolve": raised["id"], "verb": "edit", "digest": raised["digest"], "arguments": arguments})
    items = talk.until("rested")
    assert items[-1]["status"] == "completed"
    assert items[-1]["answer"].endswith("\nsent to bo")
    assert shell.lines_sent() == ["bo: hello"]
    (decided,) = [item["event"] for item in items if item["type"] == "interrupt_resolved"]
    assert (decided["outcome"], decided["channel"]) == ("edited", "chat")
    talk.say({"resolve": raised["id"], "verb": "approve"})
    assert "is decided already: edited by" in talk.until("error")[0]["error"]
    assert talk.end() == []


def test_cancel_does_not_wait_for_its_turn(shell):
    talk = Talk(shell, "slow 30")
    talk.until("model_replied")
    talk.say({"cancel": "too slow"})
    assert talk.until("rested")[-1]["status"] == "cancelled"
    talk.say({"cancel": "again"})
    assert "has ended already: cancelled" in talk.until("error")[0]["error"]
    talk.say("hello")
    assert turns(talk.until("rested")) == [("completed", "You said: hello")]
    talk.end()


def test_a_cancel_that_comes_at_once_is_for_the_turn_of_the_message_before_it(shell):
    for arguments in ((), ("--thread", shell.started("hello"))):
        lines = '{"message": "slow 30"}\n{"cancel": "a mistake"}\n'
        process = shell.popen("chat", "--jsonl", *arguments, stdin=-1)
        items = told(process.communicate(lines, timeout=20)[0])
        assert process.returncode == 0
        assert [item for item in items if item["type"] == "error"] == []
        assert [item["status"] for item in items if item["type"] == "rested"] == ["cancelled"]
        (asked,) = [item for item in items if item["type"] == "cancel_requested"]
        assert asked["event"]["reason"] == "a mistake"


def test_a_cancel_behind_a_line_that_failed_is_a_line_of_its_own(shell):
    output = shell("chat", "--jsonl", stdin='{"extend": {"steps": 1}}\n{"cancel": "no"}\nhello\n')
    items = told(output)
    assert [item["line"] for item in items if item["type"] == "error"] == [1, 2]
    assert turns(items) == [("completed", "You said: hello")]


def test_going_on_with_a_thread_and_giving_it_more(shell):
    shell.environment["TENUTO_AGENT"] = "tests.cli.desk:short"
    talk = Talk(shell)
    talk.say("slow 0")
    first = talk.until("rested")
    assert (first[-1]["status"], first[-1]["limit"]) == ("halted", "steps")
    thread = first[0]["thread"]
    assert talk.end() == []
    talk = Talk(shell, "--thread", thread[:8])
    assert talk.until("thread")[0] == {"type": "thread", "thread": thread}
    talk.say({"extend": {"steps": 3}})
    items = talk.until("rested")
    assert turns(items) == [("completed", "done: slept")]
    assert items[0]["type"] == "limits_extended"
    talk.end()


def test_ctrl_c_leaves_the_thread_to_the_next(shell):
    talk = Talk(shell, "slow 30")
    thread = talk.until("thread")[0]["thread"]
    talk.until("model_replied")
    talk.process.send_signal(signal.SIGINT)
    _, errors = talk.process.communicate(timeout=20)
    assert talk.process.returncode == 130
    assert errors == f"tenuto: stopped; nothing is lost. Go on with: tenuto chat --thread {thread}\n"


@pytest.mark.parametrize(
    ("message", "code", "status"),
    [("hello", 0, "completed"), ("fail it", 1, "failed"), ("send hi", 3, "awaiting_approval")],
)
def test_once_ends_with_the_outcome(shell, message, code, status):
    with shell.popen("chat", "--once", "--jsonl", stdin=-1) as process:
        output, errors = process.communicate(json.dumps({"message": message}) + "\nnever read\n", timeout=30)
    assert process.returncode == code
    assert "Traceback" not in errors
    assert told(output)[-1]["status"] == status
    assert len(turns(told(output))) == 1


def test_once_as_text(shell):
    output = shell("chat", "--once", stdin="from\nstdin\n")
    assert output.startswith("You said: from\nstdin\nthread ")
    output = shell("chat", "--once", "send hi", code=3)
    assert "decide: tenuto inbox approve " in output
    assert "is blank" in shell("chat", "--once", stdin=" \n", code=2)
    assert (
        shell("chat", "--once", "--jsonl", stdin="\n", code=1)
        == "tenuto: there is nothing to say: standard input is empty\n"
    )


def test_without_a_terminal_each_line_is_a_message(shell):
    output = shell("chat", stdin="hello\n\nsend hi\n")
    (row,) = shell.pending()
    lines = output.splitlines()
    assert lines[0] == "You said: hello"
    assert '→ send {"text":"hi","to":"ana"}' in lines
    assert f"decide: tenuto inbox approve {row['id'][:8]}" in lines
    assert lines[-1] == f"go on with: tenuto chat --thread {row['thread_id']}"
    assert "\x1b" not in output


def test_a_reader_that_is_slow_gets_whole_lines_and_nothing_that_a_tool_prints(shell):
    """Far more than a pipe holds, written by two tasks while nobody reads."""
    lines = ["noise", "{", "noise", "{"] * 3
    process = shell.popen("chat", "--jsonl", stdin=-1)
    process.stdin.write("\n".join(lines))
    process.stdin.close()
    process.stdin = None
    select.select([process.stdout], [], [], 30)
    time.sleep(0.5)
    assert process.poll() is None  # it waits for its reader
    output, errors = process.communicate(timeout=30)
    items = told(output)
    assert [len(item["answer"]) for item in items if item["type"] == "rested"] == [120_000] * 6
    assert [item["line"] for item in items if item["type"] == "error"] == [2, 4, 6, 8, 10, 12]
    assert errors == "noise\n" * 6


def test_at_a_server(shell):
    with shell.serving(APPROVER_SECRET="s3cret-s3cret-s3cret") as (_, url):
        del shell.environment["TENUTO_DATABASE"], shell.environment["TENUTO_AGENT"]
        shell.environment |= {"TENUTO_URL": url, "TENUTO_TOKEN": "s3cret-s3cret-s3cret"}
        talk = Talk(shell, "send hi")
        *seen, rested = talk.until("rested")
        assert rested["status"] == "awaiting_approval"
        (raised,) = [item["event"] for item in seen if item["type"] == "interrupt_raised"]
        talk.say({"resolve": raised["id"], "verb": "approve", "digest": "0" * 32})
        assert "another call than the one that was seen" in talk.until("error")[0]["error"]
        talk.say({"resolve": raised["id"], "verb": "approve", "digest": raised["digest"]})
        items = talk.until("rested")
        assert items[-1]["answer"] == "done: sent to ana"
        talk.say("slow 30")
        talk.until("model_replied")
        talk.say({"cancel": "enough"})
        assert talk.until("rested")[-1]["status"] == "cancelled"
        assert talk.end() == []

"""Commands that read: show, threads, verify."""

import asyncio
import json
import re
import signal
import sqlite3

from markdown_it import MarkdownIt
from tests.cli import desk

import tenuto
from tenuto import Runtime


def test_show_tells_the_whole_story(shell):
    row = shell.paused("send hi")
    shell("inbox", "reject", row["id"], "--by", "ana", "--comment", "not today")
    thread = row["thread_id"]
    output = shell("show", thread[:8])
    assert output.startswith(f"thread {thread}, agent desk, completed\n   1  20")
    told = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "TIME", output)
    headings = re.findall(r"^ +(\d)  TIME  (\w+)$", told, re.MULTILINE)
    assert headings == [
        ("1", "thread_started"),
        ("2", "message_received"),
        ("3", "model_replied"),
        ("4", "interrupt_raised"),
        ("5", "interrupt_resolved"),
        ("6", "call_finished"),
        ("7", "model_replied"),
        ("8", "thread_completed"),
    ]
    for part in (
        ": send hi\n",
        '→ send {"text":"hi","to":"ana"}\n',
        f"approval {row['id']}\n",
        "rejected by ana\n      comment: not today\n",
        "← send Error: a person rejected this call; it was not run. They said: not today\n",
        "      done: Error: a person rejected this call",
        "expires TIME\n",
    ):
        assert part in told


def test_show_after_and_as_json(shell):
    thread = shell.json("run", "slow 0", "--json")["thread"]
    events = shell.json("show", thread, "--json")
    assert [entry["seq"] for entry in events] == [1, 2, 3, 4, 5, 6]
    assert events[1]["event"] == {"text": "slow 0", "by": events[0]["event"]["by"]}
    assert events[2]["type"] == "model_replied"
    assert shell.json("show", thread, "--json", "--after", "4") == events[4:]
    assert shell.json("show", thread, "--json", "--after", "6") == []
    for form in ("text", "markdown", "json"):
        output = shell("show", thread, "--format", form, "--after", "7", code=1)
        assert output == f"tenuto: there is no event 7; the last of thread {thread} is 6\n"
    # A call is named although the reply that made it is not shown.
    lines = shell("show", thread, "--after", "3").splitlines()
    assert lines[0].endswith("call_finished")
    assert lines[1] == "      ← slow slept"


def test_show_follows_what_another_process_does(shell):
    row = shell.paused("send hi")
    process = shell.popen("show", "-f", row["thread_id"])
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if "interrupt_raised" in line:
            break
    shell("inbox", "approve", row["id"])
    for line in process.stdout:
        lines.append(line)
        if "thread_completed" in line:
            break
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert (process.returncode, errors) == (130, "")
    assert sum("← send sent to ana" in line for line in lines) == 1


def test_threads_are_listed_and_filtered(shell):
    shell("run", "hello")
    paused = shell.paused("send hi")["thread_id"]
    shell("run", "hello", "--agent", "tests.cli.desk:other")
    rows = shell.json("threads", "--json")
    assert [(row["agent"], row["status"]) for row in rows] == [
        ("other", "completed"),
        ("desk", "awaiting_approval"),
        ("desk", "completed"),
    ]
    assert [row["id"] for row in shell.json("threads", "--json", "--status", "awaiting_approval")] == [paused]
    assert len(shell.json("threads", "--json", "--agent", "desk", "--limit", "1")) == 1
    table = shell("threads", "--agent", "desk")
    assert table.splitlines()[3].split()[:4] == [paused, "desk", "awaiting_approval", "4"]
    assert shell("threads", "--agent", "nobody") == "no threads\n"


def test_verify_names_the_first_event_that_does_not_fit(shell):
    good = shell.json("run", "hello", "--json")["thread"]
    bad = shell.json("run", "hello", "--json")["thread"]
    assert shell("verify", "--all") == "2 of 2 threads are as they were written\n"
    heads = shell("verify", good, "--heads")
    assert re.fullmatch(rf"{good} 4 [0-9a-f]{{64}}\n", heads)
    with sqlite3.connect(shell.database) as database:
        changed = database.execute(
            "UPDATE events SET body = replace(body, 'hello', 'hullo') WHERE seq = 3 AND thread ="
            " (SELECT num FROM threads WHERE id = ?)",
            (bad,),
        )
        assert changed.rowcount == 1
    database.close()
    output = shell("verify", "--all", code=1)
    said = (
        "what it says (body, type, version or time) was changed, or the event before it was replaced; "
        "its hash was not, for the next event fits that"
    )
    assert f"tenuto: thread {bad}: event 3: {said}\n" in output
    assert "1 of 2 threads are as they were written\n" in output
    assert shell("verify", good[:8]) == "1 of 1 threads are as they were written\n"


def test_verify_sees_a_missing_event(shell):
    thread = shell.json("run", "hello", "--json")["thread"]
    with sqlite3.connect(shell.database) as database:
        database.execute("DELETE FROM events WHERE seq = 4")
    database.close()
    assert "event 4" in shell("verify", thread, code=1)


def test_the_version_is_that_of_the_package(shell):
    assert shell("--version") == f"tenuto {tenuto.__version__}\n"


def test_threads_are_found_by_metadata_and_page_by_page(shell):
    async def several():
        async with Runtime([desk.agent], f"sqlite:///{shell.database}") as runtime:
            ids = []
            for customer in ("17", "18", "17", "17"):
                ids.append(await runtime.start("desk", "hello", metadata={"customer": customer, "to": "a=b"}))
                await runtime.wait(ids[-1])
            return ids

    first, other, second, third = asyncio.run(several())
    find = ("threads", "--json", "--metadata", "customer=17", "--limit", "2")
    assert [row["id"] for row in shell.json(*find, "--metadata", "to=a=b")] == [third, second]
    assert [row["id"] for row in shell.json(*find, "--before", second)] == [first]
    assert shell.json(*find, "--metadata", "to=a") == []
    output = shell("threads", "--limit", "3", "--status", "completed")
    assert output.endswith(f"there may be more: --before {other}\n")
    assert shell("threads", "--before", first) == "no more threads\n"


def test_show_as_a_markdown_document(shell):
    thread = shell.waiting("nasty").thread_id
    shell("cancel", thread, "--reason", "no *stars*", "--no-wait")
    output = shell("show", thread, "--format", "markdown")
    assert output.startswith(f"# Thread {thread}\n\nAgent desk, running, 5 events.\n\n")
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", output)
    parsed = MarkdownIt().parse(output)
    headings = [parsed[n + 1].content for n, token in enumerate(parsed) if token.type == "heading_open"]
    assert headings == [f"Thread {thread}", "ana", "The agent"]
    (fence,) = [token for token in parsed if token.type == "fence"]
    assert json.loads(fence.content)["text"] == desk.NASTY  # escaped as JSON has it: nothing is lost
    text = "".join(child.content for token in parsed for child in token.children or ())
    assert "no *stars*" in text  # it is text there, not emphasis
    assert shell("show", thread, "--format", "json") == shell("show", thread, "--json")

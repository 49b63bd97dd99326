"""Telling a thread something from a shell: send, cancel, extend."""

import json


def test_a_message_goes_on_with_a_thread_that_ended(shell):
    thread = shell.started("hello")
    output = shell("send", thread[:8], "again", "--by", "bea")
    assert output.splitlines() == [
        f"message 5 sent; this command runs thread {thread} until it rests",
        "You said: again",
        f"thread {thread} is completed",
    ]
    row = shell.json("send", thread, "-", "--json", stdin="from\nstdin\n")
    assert (row["id"], row["status"], row["head_seq"]) == (thread, "completed", 10)
    said = shell.log(thread)
    assert (said[4].event.text, said[4].event.by, said[4].event.channel) == ("again", "bea", "cli")
    assert said[7].event.text == "from\nstdin"


def test_cancelling_withdraws_what_waits_for_a_person(shell):
    thread = shell.started("send hi")
    output = shell("cancel", thread[:8], "--reason", "a mistake", "--by", "bea")
    assert output.startswith(f"asked to stop; this command runs thread {thread} until it rests\n")
    assert output.endswith(f"thread {thread} is cancelled\n")
    assert shell.lines_sent() == []
    last = shell.log(thread)[-1].event
    assert (last.by, last.reason) == ("bea", "a mistake")
    output = shell("cancel", thread, code=1)
    assert output == f"tenuto: thread {thread} has ended already: cancelled\n"


def test_extending_lets_a_halted_thread_go_on(shell):
    shell.environment["TENUTO_AGENT"] = "tests.cli.desk:short"
    shell("run", "slow 0", code=1)
    (thread,) = [row["id"] for row in shell.json("threads", "--json")]
    output = shell("extend", thread, "--steps", "2", "--by", "bea")
    assert "done: slept" in output
    assert output.endswith(f"thread {thread} is completed\n")
    (extended,) = [entry.event for entry in shell.log(thread) if hasattr(entry.event, "more")]
    assert (extended.more.steps, extended.by) == (2, "bea")
    output = shell("extend", thread, "--steps", "1", code=1)
    assert output == f"tenuto: thread {thread} is completed; send a message to go on\n"


def test_with_nobody_who_goes_on_it_says_so(shell):
    thread = shell.started("send hi")
    output = shell("send", thread, "more", "--no-wait")
    assert output == f"message 5 sent; thread {thread} goes on when a worker starts, such as: tenuto serve\n"
    del shell.environment["TENUTO_AGENT"]
    output = shell("extend", thread, "--steps", "1")
    assert output.startswith(f"extended; agent 'desk' is not known here: thread {thread} goes on when")
    shown = shell.json("cancel", thread, "--json", "--no-wait")
    assert (shown["id"], shown["status"], shown["head_seq"]) == (thread, "running", 7)


def test_an_agent_that_cannot_be_loaded_does_nothing(shell):
    thread = shell.started("send hi")
    before = shell.log(thread)
    assert "there is no module 'nowhere'" in shell("send", thread, "x", "--agent", "nowhere:agent", code=1)
    assert shell.log(thread) == before


def test_a_thread_that_is_not_there(shell):
    shell.started("hello")
    assert shell("send", "00000000", "x", code=1) == "tenuto: there is no thread 00000000\n"


def test_a_worker_or_a_server_goes_on(shell):
    with shell.serving() as (server, url):
        thread = shell.started("send hi")
        output = shell("cancel", thread, "--agent", "not.needed:here")
        assert output.startswith("asked to stop; worker ")
        assert output.endswith(f" (process {server.pid}) goes on with thread {thread}\n")
        shell.environment["TENUTO_URL"] = url
        del shell.environment["TENUTO_DATABASE"], shell.environment["TENUTO_AGENT"]
        output = shell("send", thread, "hello")
        assert output.endswith(f" sent; the server goes on with thread {thread}\n")
        output = shell("follow", thread, "--until", "rest", "--jsonl")
        told = [json.loads(line) for line in output.splitlines()]
        assert "thread_cancelled" in [item["type"] for item in told]
        assert (told[-1]["status"], told[-1]["answer"]) == ("completed", "You said: hello")

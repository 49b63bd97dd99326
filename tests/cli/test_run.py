"""`tenuto run` without a terminal: output for people and programs, pauses, failures, Ctrl-C."""

import json
import re
import signal
import time

import pytest

THREAD = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def test_a_message_is_answered(shell):
    output = shell("run", "hello there")
    assert output.splitlines()[0] == "You said: hello there"
    (row,) = shell.json("threads", "--json")
    assert (row["agent"], row["status"], row["head_seq"]) == ("desk", "completed", 4)
    assert output.splitlines()[1] == f"thread {row['id']} completed"
    assert "\x1b" not in output


def test_the_message_comes_from_stdin(shell):
    assert shell("run", "-", stdin="from\nstdin\n").startswith("You said: from\nstdin\n")
    assert "Usage" in shell("run", "-", stdin=" \n", code=2)


def test_a_pause_without_a_terminal_says_how_to_go_on(shell):
    output = shell("run", "send hi")
    thread = THREAD.search(output).group()
    (row,) = shell.pending()
    assert '→ send {"text":"hi","to":"ana"}' in output
    assert f"decide: tenuto inbox approve {row['id'][:8]}\n" in output
    assert f"go on here: tenuto run --thread {thread}\n" in output
    assert shell.lines_sent() == []
    # The hint names what the environment does not.
    output = shell(
        "run", "send hi", "--database", f"sqlite:///{shell.place}/b.db", "--agent", "tests.cli.desk:other"
    )
    assert f"--agent tests.cli.desk:other --database sqlite:///{shell.place}/b.db\n" in output


def test_json_is_the_final_state_and_nothing_else(shell):
    state = shell.json("run", "hello", "--json")
    assert THREAD.fullmatch(state["thread"])
    assert state | {"thread": ""} == {
        "thread": "",
        "agent": "desk",
        "status": "completed",
        "answer": "You said: hello",
        "error": "",
        "limit": "",
        "steps": 1,
        "head_seq": 4,
        "interrupts": [],
    }
    with shell.popen("run", "noise", "--json") as process:  # what runs here prints into it
        output, errors = process.communicate(timeout=30)
    assert (json.loads(output)["status"], errors) == ("completed", "noise\n")
    paused = shell.json("run", "twice hi", "--json")
    assert paused["status"] == "awaiting_approval"
    assert [raised["arguments"] for raised in paused["interrupts"]] == [
        '{"text":"hi","to":"ana"}',
        '{"text":"hi","to":"bo"}',
    ]


def test_a_thread_goes_on_with_a_message_or_without(shell):
    first = shell.json("run", "hello", "--json")
    output = shell("run", "--thread", first["thread"][:8], "again")
    assert output.splitlines()[0] == "You said: again"
    output = shell("run", "--thread", first["thread"].upper())
    assert output == f"thread {first['thread']} completed\n"
    assert len(shell.json("threads", "--json")) == 1


def test_a_thread_that_is_not_there(shell):
    shell("run", "hello")
    assert shell("run", "--thread", "00000000", code=1) == "tenuto: there is no thread 00000000\n"


def test_a_thread_of_another_agent(shell):
    thread = shell.json("run", "hello", "--json", "--agent", "tests.cli.desk:other")["thread"]
    output = shell("run", "--thread", thread, "again", code=1)
    assert output == f"tenuto: thread {thread} is of agent 'other'; name that with --agent MODULE:AGENT\n"


def test_several_agents_need_a_choice(shell):
    output = shell("run", "hello", "--agent", "tests.cli.desk:agents", code=1)
    assert output == "tenuto: which agent? There are desk, other; name one with --agent MODULE:AGENT\n"


def test_a_model_that_stays_down_is_exit_code_1(shell):
    output = shell("run", "fail no credit left", code=1)
    assert output.splitlines()[-1].endswith(" failed: the provider says: no credit left")
    state = shell("run", "fail it", "--json", code=1)
    assert '"status": "failed"' in state


def test_a_sleeping_thread_is_woken_by_the_next_run(shell):
    output = shell("run", "sleep 1")
    thread = THREAD.search(output).group()
    assert f"thread {thread} sleeps until " in output
    time.sleep(1)
    assert "done: The time has come.\n" in shell("run", "--thread", thread)


@pytest.mark.parametrize("how", ["Ctrl-C", "SIGTERM", "SIGTERM in the background of a script"])
def test_ctrl_c_and_sigterm_hand_over_and_lose_nothing(shell, how):
    ignored = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)} if "script" in how else {}
    process = shell.popen("run", "slow 30", **ignored)
    # A tool that only reads may begin before the reply that calls it is recorded and shown.
    assert process.stdout is not None
    assert "→ slow" in process.stdout.readline()
    while not shell.lines_sent():
        time.sleep(0.02)
    started = time.monotonic()
    process.send_signal(signal.SIGINT if how == "Ctrl-C" else signal.SIGTERM)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 130
    assert time.monotonic() - started < 5
    thread = THREAD.search(errors).group()
    assert errors == f"tenuto: stopped; nothing is lost. Go on with: tenuto run --thread {thread}\n"
    (row,) = shell.json("threads", "--json")
    assert (row["status"], row["lease_owner"]) == ("running", None)
    assert [entry["type"] for entry in shell.events(thread)] == [
        "thread_started",
        "message_received",
        "model_replied",
    ]


@pytest.mark.parametrize("environment", [{}, {"NO_COLOR": "1", "FORCE_COLOR": "1"}])
def test_no_control_character_of_a_model_reaches_the_output(shell, environment):
    shell.environment.update(environment)
    output = shell("run", "nasty")
    (row,) = shell.pending()
    output += shell("inbox") + shell("inbox", "approve", row["id"])
    output += shell("show", row["thread_id"]) + shell("threads")
    output = re.sub(r"\x1b\[[012]?m", "", output)  # bold and dim are ours, where they were forced
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", output)
    # Nothing is lost or taken for markup: what was escaped is still to be read.
    assert output.count("\\u001b]0;owned\\u0007\\u001b[2J[bold red]mark[/] \\u202egpj.exe\\u202c") >= 5
    assert "日本 👩‍👧" in output


def test_a_terminal_that_knows_only_ascii(shell):
    shell.environment |= {
        "LC_ALL": "C",
        "PYTHONUTF8": "0",
        "PYTHONCOERCECLOCALE": "0",
        "PYTHONIOENCODING": "ascii",
    }
    assert "\\x9b31m" not in (output := shell("run", "nasty"))
    assert "\\u009b31m \\u65e5\\u672c" in output

"""tenuto chat as a person has it: a real terminal, seen through another one in memory."""

import re
import signal

import pytest

PROMPT = re.compile(r"\n(?:\r|\x1b\[[0-9;?]*[A-Za-z])*> ")  # what was drawn before it may be taken back first
ASKED = "[a]pprove, [r]eject, [e]dit, [l]ater? "


def below(screen, line):
    """What is shown under the last line that begins so."""
    place = max(n for n, text in enumerate(screen) if text.startswith(line))
    return screen[place + 1 :]


def test_a_conversation(shell, terminal):
    person = terminal("chat")
    person.expect("> ")
    person.type("think it is **bold**\n")
    person.expect(PROMPT)
    shown = below(person.screen(), "> think")
    assert [line.strip() for line in shown[:5]] == ["first this", "then that", "So", "", "it is bold"]
    assert "\x1b[2mfirst this\x1b[0m" in person.output  # dimmed
    assert "it is \x1b[1mbold\x1b[0m" in person.output
    person.type("send hi\n")
    asked = person.expect(ASKED)
    (row,) = shell.pending()
    assert f"digest {row['digest']}" in asked
    assert '{\n  "text": "hi",\n  "to": "ana"\n}' in asked
    person.type("a\n")
    person.expect("done: sent to ana")
    person.expect(PROMPT)
    assert shell.lines_sent() == ["ana: hi"]
    person.type("fail no credit left\n")
    person.expect("failed; say something to go on")
    person.expect(PROMPT)
    person.type("work\n")
    person.expect("done: worked")
    person.expect(PROMPT)
    assert "part 3 75%" in person.output
    # ... and taken back when the call had its result.
    assert below(person.screen(), "> work")[:3] == ["→ work {}", "← work worked", "done: worked"]
    person.type("sleep 1\n")
    person.expect("sleeps until ")
    person.expect("done: The time has come.")
    person.expect(PROMPT)
    person.press("\x04")
    assert person.wait() == 0
    assert f"go on with: tenuto chat --thread {row['thread_id']}" in person.screen()


def test_ctrl_c_stops_the_turn_and_not_the_chat(shell, terminal):
    person = terminal("chat", "slow 30")
    person.expect("→ slow")
    person.press("\x03")
    person.expect("stopping; Ctrl-C again leaves at once")
    person.expect("stopped")
    person.expect(PROMPT)
    person.type("hello\n")
    person.expect("You said: hello")
    person.expect(PROMPT)
    person.type("half a")
    person.press("\x03")  # at the prompt it leaves
    person.expect(re.compile(r"half a\S*\n(\x1b\[2m)?go on with: tenuto chat --thread "))
    assert person.wait() == 130
    (row,) = shell.json("threads", "--json")
    kinds = [str(entry.event.__struct_config__.tag) for entry in shell.log(row["id"])]
    assert kinds.count("thread_cancelled") == 1
    assert kinds[-1] == "thread_completed"


def test_a_kill_in_the_middle_of_a_turn_hands_over_and_shows_the_cursor_again(shell, terminal):
    person = terminal("chat", "sleep 30")
    person.expect("sleeps until ")
    person.terminate()
    person.expect("go on with: tenuto chat --thread ")
    assert person.wait() == 130
    person = terminal("chat", "ask me", SLOW="30")
    person.expect("Your answer")
    person.type("yes\n")
    person.expect("← ask_person")
    person.expect("\x1b[?25l")
    person.terminate()
    person.expect("go on with: tenuto chat --thread ")
    assert person.wait() == 130
    assert person.output.rindex("\x1b[?25h") > person.output.rindex("\x1b[?25l")


def test_ctrl_c_discards_nothing_that_was_printed_and_is_still_on_its_way(shell, terminal):
    words = [f"w{number}." for number in range(4000)]
    person = terminal("chat", f"hello {' '.join(words)}")
    person.expect("w100.")
    person.press("\x03")  # nothing is read before: the terminal's buffer is full
    person.expect(PROMPT)
    person.press("\x04")
    assert person.wait() == 0
    assert [word for word in words if word not in person.output] == []


@pytest.mark.parametrize("command", ["run", "chat"])
def test_a_kill_where_a_person_is_asked_is_no_answer(shell, terminal, command):
    person = terminal(command, "send hi")
    person.expect(ASKED)
    person.terminate()
    person.expect(f"o on with: tenuto {command} --thread ")
    assert person.wait() == 130
    assert len(shell.pending()) == 1


def test_ctrl_c_twice_leaves_a_thread_that_somebody_else_holds(shell, terminal):
    with shell.serving() as (server, url):
        with shell.popen("run", "slow 30", "--url", url, env=without(shell, "TENUTO_DATABASE")) as watching:
            assert "→ slow" in watching.stdout.readline()
            watching.kill()
        server.send_signal(signal.SIGSTOP)
        try:
            (row,) = shell.json("threads", "--json")
            person = terminal("chat", "hello", "--thread", row["id"])
            person.expect("→ slow")
            person.press("\x03")
            person.expect("stopping; Ctrl-C again leaves at once")
            person.press("\x03")
            person.expect(f"go on with: tenuto chat --thread {row['id']}")
            assert person.wait() == 130
        finally:
            server.send_signal(signal.SIGCONT)


def without(shell, name):
    return {key: value for key, value in shell.environment.items() if key != name}


def test_leaving_things_for_later_and_coming_back(shell, terminal):
    person = terminal("chat", "twice hi")
    person.expect(ASKED)
    person.type("l\n")
    person.expect(ASKED)
    person.press("\x03")  # decides nothing
    person.expect("what waits for a person is still there: /inbox")
    person.expect(PROMPT)
    person.type("/inbox\n")
    person.expect(ASKED)
    person.type("r\n")
    person.expect("Why")
    person.type("not today\n")
    person.expect(ASKED)
    person.type("l\n")
    person.expect(PROMPT)
    for command, answer in (("/help", "/thread"), ("/thread", "awaiting_approval, "), ("/nope", "no /nope")):
        person.type(f"{command}\n")
        person.expect(answer)
        person.expect(PROMPT)
    person.type("/quit\n")
    assert person.wait() == 0
    assert shell.lines_sent() == []
    file = shell.place / "state" / "tenuto" / "history"
    assert file.stat().st_mode & 0o777 == 0o600
    assert "not today" not in file.read_text()  # only what was said to the agent is kept
    (row,) = shell.pending()
    person = terminal("chat", "--thread", row["thread_id"][:8])
    person.expect("> ")
    earlier = person.screen()
    assert earlier[0] == f"thread {row['thread_id']}, agent desk, awaiting_approval"
    assert any(line.endswith(": twice hi") for line in earlier)
    assert "comment: not today" in earlier
    person.type("hello\n")
    person.expect(ASKED)
    person.type("a\n")
    person.expect("You said: hello")
    person.expect(PROMPT)
    person.type("\x1b[A\x1b[A\n")  # up, up: /quit, the last line of the chat before this one
    person.expect("go on with: tenuto chat --thread ")
    assert person.wait() == 0
    assert shell.lines_sent() == ["bo: hi"]


def test_what_a_model_says_cannot_steer_the_terminal(terminal):
    person = terminal("chat", "think &#8238;x &#27;[2J \x1b[2J")
    person.expect("So")
    person.expect(PROMPT)
    person.type("nasty\n")
    person.expect(ASKED)
    person.type("a\n")
    person.expect("done: ")
    person.expect(PROMPT)
    person.press("\x04")
    assert person.wait() == 0
    ours = re.sub(r"\x1b\[(?:[0-9;]*[mAK]|\?25[hl]|\?2004[hl])", "", person.output)
    assert not re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e]", ours)
    assert "\\u202ex" in person.output
    assert "\\u001b]0;owned\\u0007" in person.output


def test_a_dumb_terminal_gets_plain_text(terminal):
    person = terminal("chat", "think it is **bold**", TERM="dumb")
    person.expect("it is **bold**")
    person.expect(PROMPT)
    person.press("\x04")
    assert person.wait() == 0
    assert "\x1b[" not in person.output


def test_at_a_server(shell, terminal):
    """Deltas come from the process that runs the thread; decisions and Ctrl-C reach it."""
    with shell.serving(APPROVER_SECRET="s3cret-s3cret-s3cret") as (_, url):
        del shell.environment["TENUTO_DATABASE"], shell.environment["TENUTO_AGENT"]
        shell.environment |= {"TENUTO_URL": url, "TENUTO_TOKEN": "s3cret-s3cret-s3cret"}
        person = terminal("chat", "think it is **bold**")
        person.expect(PROMPT)
        assert "it is \x1b[1mbold\x1b[0m" in person.output
        person.type("send hi\n")
        person.expect(ASKED)
        person.type("a\n")
        person.expect("done: sent to ana")
        person.expect(PROMPT)
        person.type("slow 30\n")
        person.expect("→ slow")
        person.press("\x03")
        person.expect("stopped")
        person.expect(PROMPT)
        person.press("\x04")
        assert person.wait() == 0
    assert shell.lines_sent() == ["ana: hi", "slow"]

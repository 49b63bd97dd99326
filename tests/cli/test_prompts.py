"""Decisions at a terminal: a person types, and sees exactly what will run."""

import shlex
import sys

PROMPT = "[a]pprove, [r]eject, [e]dit, [l]ater? "


def decisions(shell):
    (thread,) = [row["id"] for row in shell.json("threads", "--json")]
    return [entry["event"] for entry in shell.events(thread, "interrupt_resolved")]


def test_approving(shell, terminal):
    person = terminal("run", "send hi")
    shown = person.expect(PROMPT)
    (row,) = shell.pending()
    assert f"approval {row['id']}" in shown
    assert f"digest {row['digest']}" in shown
    assert '{\n  "text": "hi",\n  "to": "ana"\n}' in shown
    person.type("x\n")  # no such key: asked again
    person.expect(PROMPT)
    assert shell.lines_sent() == []
    person.type("a\n")
    person.expect("done: sent to ana")
    assert person.wait() == 0
    assert shell.lines_sent() == ["ana: hi"]
    (decision,) = decisions(shell)
    assert (decision["outcome"], decision["channel"]) == ("approved", "terminal")
    assert decision["by"]


def test_only_a_key_or_its_word_decides(shell, terminal):
    person = terminal("run", "send hi")
    person.expect(PROMPT)
    for line in ("actually no", "are you sure?", "approve?", "arel"):
        person.type(f"{line}\n")
        person.expect(PROMPT)
    assert len(shell.pending()) == 1
    person.type("Approve\n")
    person.expect("done: sent to ana")
    assert person.wait() == 0


def test_what_was_typed_before_it_was_asked_decides_nothing(shell, terminal):
    person = terminal("run", "twice hi", SLOW="1")
    person.expect(PROMPT)
    person.type("a\na\n")  # the second call was not seen yet
    person.expect(PROMPT)
    person.type("r\n")
    person.expect("Why")
    person.type("\n")
    assert person.wait() == 0
    assert shell.lines_sent().count("ana: hi") == 1
    assert "bo: hi" not in shell.lines_sent()


def test_rejecting_with_a_comment_that_the_model_reads(shell, terminal):
    person = terminal("run", "send hi")
    person.expect(PROMPT)
    person.type("r\n")
    person.expect("Why")
    person.type("not on a Sunday\n")
    person.expect("They said: not on a Sunday")
    assert person.wait() == 0
    assert shell.lines_sent() == []


def test_editing_inline_is_checked_by_the_tool(shell, terminal):
    person = terminal("run", "send hi")
    person.expect(PROMPT)
    person.type("e\n")
    person.expect("New arguments as JSON (empty: back): ")
    person.type("\n")
    person.expect(PROMPT)
    person.type("e\n")
    person.expect("back): ")
    person.type('{"to": "ana"}\n')
    person.expect("tenuto: ")  # the tool's own words
    person.expect("text")
    person.expect(PROMPT)
    person.type("e\n")
    person.expect("back): ")
    person.type('{"to": "bo", "text": "hello"}\n')
    person.expect("\nsent to bo")
    assert person.wait() == 0
    assert shell.lines_sent() == ["bo: hello"]
    (decision,) = decisions(shell)
    assert (decision["outcome"], decision["arguments"]) == ("edited", '{"text":"hello","to":"bo"}')


def test_editing_in_an_editor(shell, terminal):
    program = "import sys; p = sys.argv[1]; t = open(p).read(); open(p, 'w').write(t.replace('ana', 'bo'))"
    person = terminal("run", "send hi", EDITOR=shlex.join([sys.executable, "-c", program]))
    person.expect(PROMPT)
    person.type("e\n")
    person.expect("New arguments as JSON (empty: open ")
    person.expect("): ")
    person.type("\n")
    person.expect("\nsent to bo")
    assert person.wait() == 0
    assert shell.lines_sent() == ["bo: hi"]


def test_an_editor_that_changes_nothing_decides_nothing(shell, terminal):
    person = terminal("run", "send hi", VISUAL="true", EDITOR="false")
    person.expect(PROMPT)
    person.type("e\n")
    person.expect("(empty: open true): ")
    person.type("\n")
    person.expect(PROMPT)
    person.type("l\n")
    assert person.wait() == 0
    assert len(shell.pending()) == 1


def test_later_leaves_it_pending(shell, terminal):
    person = terminal("run", "twice hi")
    person.expect(PROMPT)
    person.type("l\n")
    person.expect(PROMPT)
    person.type("a\n")
    person.expect("decide: tenuto inbox approve")
    assert person.wait() == 0
    assert shell.lines_sent() == ["bo: hi"]
    (left,) = shell.pending()
    person = terminal("run", "--thread", left["thread_id"])
    person.expect(PROMPT)
    person.press("\x04")  # the end of input is "later" as well
    assert person.wait() == 0
    assert [row["id"] for row in shell.pending()] == [left["id"]]


def test_answering_a_question(shell, terminal):
    person = terminal("run", "ask Which colour?")
    shown = person.expect("Your answer (empty: later): ")
    assert "Which colour?" in shown
    person.type("blue\n")
    person.expect("done: blue")
    assert person.wait() == 0


def test_somebody_else_was_quicker(shell, terminal):
    person = terminal("run", "send hi")
    person.expect(PROMPT)
    (row,) = shell.pending()
    shell("inbox", "reject", row["id"], "--by", "bea", "--no-wait")
    person.type("a\n")
    person.expect("is decided already: rejected by bea")
    person.expect("done: Error: a person rejected this call")
    assert person.wait() == 0
    assert shell.lines_sent() == []


def test_ctrl_c_at_the_prompt_decides_nothing(shell, terminal):
    person = terminal("run", "send hi")
    person.expect(PROMPT)
    person.press("\x03")
    person.expect("nothing is lost. Go on with: tenuto run --thread ")
    assert person.wait() == 130
    assert len(shell.pending()) == 1


def test_ctrl_c_while_it_runs(shell, terminal):
    person = terminal("run", "slow 30")
    person.expect("→ slow")
    person.type("\x03")
    person.expect("nothing is lost")
    assert person.wait() == 130


def test_a_short_sleep_is_slept_at_a_terminal(terminal):
    person = terminal("run", "sleep 1")
    person.expect("sleeps until ")
    person.expect("done: The time has come.")
    assert person.wait() == 0


def test_what_a_model_says_cannot_steer_the_terminal(terminal):
    person = terminal("run", "nasty")
    shown = person.expect(PROMPT)
    assert "\x1b]0;" not in shown
    assert "\x1b[2J" not in shown
    assert "\u202e" not in shown
    assert "\\u001b]0;owned" in shown
    person.type("a\n")
    rest = person.expect("completed")
    assert "\x1b]0;" not in rest
    assert "\x9b" not in rest
    assert person.wait() == 0

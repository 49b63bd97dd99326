"""tenuto inbox at a terminal: a list that lives, and decisions with the digest that was shown."""

import asyncio
import io
import shlex
import sys

import msgspec
import pytest
from rich.cells import cell_len
from rich.console import Console
from tests.cli import desk

from tenuto import Runtime
from tenuto.cli.inbox_view import CHOICES, KEYS, Choice, InboxView
from tenuto.cli.keys import Field, keys_of
from tenuto.cli.live_inbox import LiveInbox
from tenuto.events import InterruptResolved

LIST = KEYS["list"]
APPROVAL = KEYS["approval"]


def decisions(shell, thread):
    return [entry.event for entry in shell.log(thread) if isinstance(entry.event, InterruptResolved)]


def test_deciding_with_keys(shell, terminal):
    shell.started("hello")
    person = terminal("inbox", "--by", "ana")
    person.expect("nothing waits for a person")
    first, second = shell.waiting("send hi"), shell.waiting("ask Which colour?")
    person.expect("2 wait for a person")  # by itself
    person.expect(LIST)
    person.press("x\n")
    person.expect(APPROVAL)
    shown = person.screen()
    assert f"approval {first.id}" in shown
    assert f"digest {first.digest}" in shown
    place = shown.index("send")
    assert shown[place + 1 : place + 5] == ["{", '  "text": "hi",', '  "to": "ana"', "}"]
    person.press("r")
    person.expect("Why?")
    person.type("not tody")
    person.press("\x1b[Da\x1b[F, Zoë\x7fe\n")
    person.expect(f"thread {first.thread_id} is completed")
    (decided,) = decisions(shell, first.thread_id)
    assert (decided.outcome, decided.by, decided.channel) == ("rejected", "ana", "inbox")
    assert decided.comment == "not today, Zoe"
    assert shell.lines_sent() == []
    person.expect(LIST)
    person.press("\x1b[B\n")  # there is one left, so down changes nothing
    person.expect("Which colour?")
    person.press("a\n")  # an answer cannot be empty
    person.type("blue\n")
    person.expect(f"thread {second.thread_id} is completed")
    person.expect("nothing waits for a person")
    person.press("q")
    assert person.wait() == 0
    assert person.output.endswith("\x1b[?25h\x1b[?1049l\x1b[?2004l")  # the terminal is as it was
    assert shell.log(second.thread_id)[-1].event.answer == "done: blue"


def test_a_paste_decides_nothing(shell, terminal):
    first, second = shell.waiting("send one"), shell.waiting("send two")
    person = terminal("inbox")
    person.expect(LIST)
    person.press("\n")
    person.expect(APPROVAL)
    person.press("r")
    person.expect("Why?")
    person.press("\x1b[200~no good\r\n\raplease")
    person.press(" approve\n\x1b[20")
    person.press("1~")
    person.expect("no good   aplease approve")
    person.press("\n")
    person.expect(f"thread {first.thread_id} is completed")
    (decided,) = decisions(shell, first.thread_id)
    assert decided.comment == "no good   aplease approve"
    person.press("\x1b[200~\na\x1b[201~\n")
    person.expect(second.digest)  # opened by the key behind the paste, and not approved
    person.press("q")
    person.expect(LIST)
    person.press("q")
    assert person.wait() == 0
    assert decisions(shell, second.thread_id) == []


def test_ctrl_z_gives_the_terminal_back_meanwhile(shell, terminal):
    shell.waiting("send hi")
    person = terminal("inbox")
    person.expect(LIST)
    person.press("\x1a")
    person.expect("\x1b[?25h\x1b[?1049l")
    person.expect("\x1b[?2004l")
    person.go_on()
    person.expect("\x1b[?1049h")
    person.expect("1 wait for a person")
    person.press("q")
    assert person.wait() == 0


def test_a_kill_gives_the_terminal_back(shell, terminal):
    row = shell.waiting("send hi")
    person = terminal("inbox")
    person.expect(LIST)
    person.press("\n")
    person.expect(row.digest)
    person.terminate()
    assert person.wait() == 130
    assert person.output.endswith("\x1b[?25h\x1b[?1049l\x1b[?2004l")


@pytest.mark.parametrize(
    ("editor", "why"),
    [
        ("no-such-editor", "the editor cannot be started: "),
        ("'not closed", "the editor cannot be started: No closing quotation"),
        ("false", "the editor ended with 1"),
        ("true", "nothing was changed"),
    ],
)
def test_why_nothing_was_edited(shell, terminal, editor, why):
    row = shell.waiting("send hi")
    person = terminal("inbox", VISUAL=editor)
    person.expect(LIST)
    person.press("\n")
    person.expect(row.digest)
    person.press("e")
    person.expect(why)
    person.press("q")
    person.expect(LIST)
    person.press("q")
    assert person.wait() == 0
    assert shell.pending()


def test_editing_in_an_editor(shell, terminal):
    program = (
        "import sys; p = sys.argv[1]; t = open(p).read(); open(p, 'w').write(t.replace('\"ana\"', '{}'))"
    )
    editor = [sys.executable, "-c", program.replace("{}", "7")]
    row = shell.waiting("send hi")
    person = terminal("inbox", EDITOR=shlex.join(editor))
    person.expect(LIST)
    person.press("\n")
    person.expect(APPROVAL)
    person.press("e")
    person.expect("valid string")  # the tool's own words; nothing is decided, and it is still open
    person.press("\x1b")
    person.expect(LIST)
    assert decisions(shell, row.thread_id) == []
    person.press("\x03")
    assert person.wait() == 130
    assert "\x1b[?1049l" in person.output
    editor[-1] = program.replace("{}", '"bo"')
    person = terminal("inbox", VISUAL=shlex.join(editor), EDITOR="false")
    person.expect(LIST)
    person.press("\n")
    person.expect(APPROVAL)
    person.press("e")
    person.expect("is completed")
    person.press("q")
    assert person.wait() == 0
    assert shell.lines_sent() == ["bo: hi"]
    (decided,) = decisions(shell, row.thread_id)
    assert decided.arguments == '{"text":"hi","to":"bo"}'


def test_anothers_decision_is_shown_and_none_is_made_over_it(shell, terminal):
    row = shell.waiting("nasty")
    person = terminal("inbox")
    person.expect(LIST)
    person.press("\n")
    person.expect(APPROVAL)
    shell("inbox", "reject", row.id, "--by", "bea", "--comment", "no", "--no-wait")
    person.expect("rejected by bea")
    person.expect(KEYS["decided"])
    person.press("a")
    person.press("\x1b")
    person.expect("nothing waits for a person")
    person.press("q")
    assert person.wait() == 0
    (decided,) = decisions(shell, row.thread_id)
    assert (decided.outcome, decided.by) == ("rejected", "bea")
    assert "\x1b]0;" not in person.output
    assert "\\u001b]0;owned" in person.output


def test_at_a_server(shell, terminal):
    with shell.serving(APPROVER_SECRET="s3cret-s3cret-s3cret") as (_, url):
        row = shell.waiting("send hi")
        del shell.environment["TENUTO_DATABASE"], shell.environment["TENUTO_AGENT"]
        shell.environment |= {"TENUTO_URL": url, "TENUTO_TOKEN": "s3cret-s3cret-s3cret"}
        person = terminal("inbox")
        person.expect(LIST)
        person.press("\n")
        person.expect(APPROVAL)
        person.press("a")
        person.expect(f"the server goes on with thread {row.thread_id}")
        person.press("q")
        assert person.wait() == 0
        shell("follow", row.thread_id, "--until", "rest")
    assert shell.lines_sent() == ["ana: hi"]


def test_a_decision_that_comes_too_late_or_names_another_call(shell):
    row = shell.waiting("send hi")

    async def decide():
        async with Runtime([desk.agent], f"sqlite:///{shell.database}") as runtime:
            inbox = LiveInbox(runtime, [desk.agent], "ana", "")
            await inbox._refresh()
            inbox._view.press("enter")
            choice = inbox._view.press("a")
            assert choice == Choice(row, "approve", {"digest": row.digest})
            await inbox._decide(Choice(row, "approve", {"digest": "0" * 32}))
            assert "another call than the one that was seen" in inbox._view.note
            assert inbox._view.opened == row
            await runtime.resolve(row.id, "reject", by="bea")
            await inbox._decide(choice)
            assert "is decided already: rejected by bea, 20" in inbox._view.note
            assert inbox._view.opened.outcome == "rejected"

    asyncio.run(decide())
    assert shell.lines_sent() == []


def rows(shell, count):
    row = shell.waiting("send hi")
    return [msgspec.structs.replace(row, id=f"{number:08}") for number in range(count)]


def shown(view, height=12, width=100):
    console = Console(width=width, height=height, file=io.StringIO())
    console.print(view)
    return console.file.getvalue().splitlines()


def chosen(view):
    (line,) = [line for line in shown(view) if line.startswith(">")]
    return line.split()[1]


def test_the_chosen_one_stays_chosen_and_in_sight(shell):
    every = rows(shell, 40)
    view = InboxView()
    view.refresh(every)
    for _ in range(30):
        view.press("j")
    assert chosen(view) == "00000030"
    assert len(shown(view)) == 12
    view.refresh(every[10:])
    assert chosen(view) == "00000030"
    view.refresh(every[:5])  # it is gone: the last one
    assert chosen(view) == "00000004"
    view.press("g")
    view.press("k")
    view.press("enter")
    assert view.opened == every[0]
    view.refresh([])
    view.press("escape")
    view.press("enter")
    assert (view.opened, view.press("a")) == (None, None)


def test_arguments_that_are_longer_than_the_terminal_can_all_be_seen(shell):
    (row,) = rows(shell, 1)
    long = msgspec.json.encode({"lines": [f"line {n}" for n in range(30)]}).decode()
    view = InboxView()
    view.refresh([msgspec.structs.replace(row, arguments=long)])
    view.press("enter")
    seen = set()
    for _ in range(40):
        page = shown(view)
        assert len(page) == 12
        seen |= {line.strip(' ",') for line in page}
        view.press("down")
    assert {f"line {n}" for n in range(30)} <= seen
    assert f"digest {row.digest}" in seen
    assert not any("more lines" in line for line in shown(view))


def test_a_narrow_terminal_shows_what_matters_and_what_is_typed(shell):
    view = InboxView()
    view.refresh(rows(shell, 1))
    for width, arguments in ((60, '{"text":"hi'), (40, '{"text":')):
        (line,) = [line for line in shown(view, width=width) if line.startswith(">  0000")]
        assert " send " in line
        assert arguments in line
    view.press("enter")
    view.press("r")
    for key in "not on a Sunday, 日本語日本語":
        view.press(key)
    for width in (24, 40, 60, 80):
        (line,) = [line.rstrip() for line in shown(view, width=width) if "日" in line]
        assert line.endswith("nday, 日本語日本語")
        assert cell_len(line) < width


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("aé日", ["a", "é", "日"]),
        ("\x1b[A\x1bOB\x1b[5~", ["up", "down", "page up"]),
        ("\x1b", ["escape"]),
        ("\r\n\x7f\x04", ["enter", "enter", "backspace", "end of input"]),
        ("\x1b[200~x\x07", ["", "x"]),
    ],
)
def test_keys(text, keys):
    assert list(keys_of(text)) == keys


def test_every_kind_names_its_keys():
    for kind, key in CHOICES:
        assert f"{key}: " in KEYS[kind]


def test_typing_a_line():
    field = Field("? ")
    for key in ["a", "b", "left", "c", "home", "delete", "x", "end", "y", "backspace", "\u202e"]:
        field.press(key)
    assert field.text == "xcb\u202e"
    assert field.shown() == ("xcb\\u202e", " ", "")
    field.press("clear")
    assert field.text == ""

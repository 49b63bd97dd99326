"""The same commands on a server: a real one, in a process of its own, reached over HTTP by another."""

import asyncio
import contextlib
import http.server
import json
import re
import socket
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli import conftest
from tests.cli.conftest import ROOT, Shell
from tests.cli.desk import NASTY

from tenuto import Client, ThreadState

TOKEN = "s3cret-of-ana"


class Far(Shell):
    """A shell that has neither the database nor the agents, only the server's URL; `near` has both."""

    def __init__(self, place: Path, near: Shell, url: str) -> None:
        super().__init__(place)
        del self.environment["TENUTO_DATABASE"], self.environment["TENUTO_AGENT"]
        self.near, self.url = near, url
        self.environment |= {"TENUTO_URL": url, "TENUTO_TOKEN": TOKEN}

    def begun(self, *messages: str) -> list[ThreadState]:
        """Threads that rest; started without a process each."""

        async def begin() -> list[ThreadState]:
            async with Client(self.url, token=TOKEN) as client:
                threads = [await client.start("desk", message) for message in messages]
                return [await client.wait(thread, 20) for thread in threads]

        return asyncio.run(begin())

    def paused(self, message: str) -> dict[str, Any]:
        (state,) = self.begun(message)
        (raised,) = state.interrupts
        return {"id": raised.id, "thread_id": state.id, "digest": raised.digest}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Shell, str]]:
    """One server for all tests here, with two agents."""
    near = Shell(tmp_path_factory.mktemp("near"))
    tokens = {"APPROVER_SECRET": TOKEN, "SUBMIT_TOKEN": "token-of-bob"}
    with near.serving("tests.cli.desk:agents", **tokens) as (process, url):
        conftest._started.remove(process)  # it outlives the first test
        yield near, url


@pytest.fixture
def far(served: tuple[Shell, str], tmp_path: Path) -> Far:
    return Far(tmp_path, *served)


# -- working -----------------------------------------------------------------------------------------


def test_a_thread_runs_there_and_is_decided_from_here(far):
    output = far("run", "send grüße 日本 🪔")
    thread = re.search(r"thread (\S+) waits for a person", output)[1]
    assert "grüße 日本 🪔" in output
    (row,) = [row for row in far.pending() if row["thread_id"] == thread]
    assert f"decide: tenuto inbox approve {row['id'][:8]}\n" in output
    decided = far("inbox", "approve", row["id"][:12], "--by", "Zoë", "--digest", row["digest"])
    assert decided.startswith(f"{row['id']} decided; ")
    ended = far("run", "--thread", thread[:12])
    assert ended.splitlines()[-1] == f"thread {thread} completed"
    assert "ana: grüße 日本 🪔" in far.near.lines_sent()
    (decision,) = far.events(thread, "interrupt_resolved")
    assert decision["event"]["by"].startswith("Zoë via ")
    assert far("verify", thread[:12]) == "1 of 1 threads are as they were written\n"
    found = json.loads(far("verify", thread[:12], "--json"))
    report = found["threads"][0]
    assert (found["strays"], report["id"], report["ok"]) == ([], thread, True)
    assert f"{thread} {report['checked']} {report['head_hash']}\n" == far("verify", thread, "--heads")
    assert not far.database.exists()


def test_what_is_shown_is_what_the_database_shows(far):
    _, asking, nasty, _ = far.begun("hello", "ask Which colour?", "nasty", "twice a")
    thread = nasty.id
    for command in (
        ["inbox", "--json"],
        ["threads", "--json", "--status", "awaiting_approval", "--agent", "desk", "--limit", "3"],
        ["show", asking.id[:13], "--after", "3"],
        ["export", thread],
        ["follow", thread, "--jsonl", "--until", "rest"],
        ["verify", "--all", "--heads"],
        ["verify", "--all", "--json"],
    ):
        assert far(*command) == far.near(*command), command
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", far("show", thread))
    (raised,) = far.events(thread, "interrupt_raised")
    assert json.loads(raised["event"]["arguments"]) == {"text": NASTY}


def test_a_conversation_at_a_terminal(far, terminal):
    there = terminal("run", "send hi", TENUTO_URL=far.url, TENUTO_TOKEN=TOKEN, TENUTO_DATABASE="")
    there.expect("approval")
    there.expect("[a]pprove, [r]eject, [e]dit, [l]ater? ")
    there.type("e\n")
    there.expect("New arguments as JSON")
    there.type('{"to": "bo"}\n')
    there.expect("tenuto: ")
    there.expect("[l]ater? ")
    there.type("e\n")
    there.expect("New arguments as JSON")
    there.type('{"to": "bø", "text": "hi"}\n')
    there.expect("← send sent to bø")
    there.expect("done: (A person changed the arguments to")
    there.expect("sent to bø")
    there.expect("completed")
    assert there.wait() == 0
    assert "bø: hi" in far.near.lines_sent()


def test_talking_through_a_pipe_with_an_agent_there(far):
    said = far("chat", "--jsonl", stdin='{"message": "hello 青"}\n{"message": "send hi"}\n')
    lines = [json.loads(line) for line in said.splitlines()]
    rested = [line for line in lines if line["type"] == "rested"]
    assert [(line["status"], line["answer"]) for line in rested] == [
        ("completed", "You said: hello 青"),
        ("awaiting_approval", ""),
    ]
    (raised,) = rested[1]["interrupts"]
    decision = json.dumps({"resolve": raised["id"], "verb": "reject", "comment": "nein – ü"})
    said = far("chat", "--jsonl", "--thread", rested[0]["thread"], stdin=f"{decision}\n")
    (*_, last) = (json.loads(line) for line in said.splitlines())
    assert (last["type"], last["status"]) == ("rested", "completed")
    assert "nein – ü" in last["answer"]


def test_following_what_happens_there(far):
    thread = far.paused("ask Which colour?")["thread_id"]
    with far.popen("show", thread, "--follow") as process:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        assert any("interrupt_raised" in line for line in lines)
        row = next(row for row in far.pending() if row["thread_id"] == thread)
        far("inbox", "answer", row["id"], "blau – 青")
        seen = ""
        for line in lines:
            seen += line
            if "thread_completed" in line:
                break
        process.terminate()
    assert "answer: blau – 青" in seen
    assert "done: blau – 青" in seen


def test_a_message_to_a_thread_there_and_json_of_its_end(far):
    thread = far.begun("hello")[0].id
    state = far.json("run", "again", "--thread", thread[:10], "--json")
    assert (state["thread"], state["status"], state["answer"]) == (thread, "completed", "You said: again")
    failed = far("run", "fail to answer", code=1)
    assert "try again: tenuto run --thread " in failed
    assert "the provider says: to answer" in failed


def test_the_agent_of_the_server_that_is_meant(far):
    assert far.json("run", "hello", "--agent", "other", "--json")["agent"] == "other"
    # What names code for a database names none of the server's agents.
    far.environment["TENUTO_AGENT"] = "tests.cli.desk:nothing"
    assert far.json("run", "hello", "--json")["agent"] == "desk"
    assert far("run", "hello", "--agent", "nobody", code=1).startswith("tenuto: no agent 'nobody' here")
    assert "with --url give the name" in far("run", "hello", "--agent", "a.b:c", code=2)


def test_ctrl_c_leaves_it_running_there_and_says_how_to_go_on(far, terminal):
    options = {"TENUTO_URL": "", "TENUTO_TOKEN": TOKEN, "TENUTO_DATABASE": ""}
    there = terminal("run", "slow 1.5", "--url", far.url, **options)
    there.expect("→ slow")
    there.press("\x03")
    there.expect("stopped; nothing is lost. Go on with: tenuto run --thread ")
    assert there.wait() == 130
    thread = far.json("threads", "--json", "--limit", "1")[0]["id"]
    assert f"--thread {thread} --url {far.url}" in there.output.replace("\n", "")
    assert far.json("run", "--thread", thread, "--json")["answer"] == "done: slept"


def test_a_decision_is_made_once_and_says_by_whom(far):
    row = far.paused("send twice")
    far("inbox", "reject", row["id"], "--by", "ana", "--comment", "no")
    late = far("inbox", "approve", row["id"], "--by", "bo", code=1)
    assert re.fullmatch(
        rf"tenuto: approval {row['id']} is decided already: rejected by ana via .*, \S+ \S+\n", late
    )
    wrong = far("inbox", "edit", far.paused("send x")["id"], "--arguments", '{"to": 1}', code=1)
    assert wrong.count("\n") == 1
    assert "send" in wrong or "to" in wrong


def test_the_beginning_of_an_id(far):
    assert far("show", "00000000", code=1) == "tenuto: there is no thread 00000000\n"
    assert far("inbox", "approve", "00000000", code=1) == "tenuto: there is no interrupt 00000000\n"
    missing = "00000000-0000-4000-8000-000000000000"
    assert far("show", missing, code=1) == f"tenuto: there is no thread {missing}\n"
    firsts = [
        state.id[0] for state in far.begun(*["hello"] * 17)
    ]  # of as many, two begin with the same letter
    twice = max(firsts, key=firsts.count)
    assert re.match(rf"tenuto: \d+ threads begin with {twice}: ", far("show", twice, code=1))


@pytest.mark.parametrize(("old", "new"), [("hello", "hullo"), ('"', "")], ids=["changed", "no JSON"])
def test_verify_there_names_the_event_that_it_names_here(far, old, new):
    thread = far.begun("hello")[0].id

    def change(sql: str, *values: str) -> None:
        with contextlib.closing(sqlite3.connect(far.near.database)) as database, database:
            where = "WHERE seq = 3 AND thread = (SELECT num FROM threads WHERE id = ?)"
            if sql.startswith("SELECT"):
                kept.extend(database.execute(f"{sql} {where}", (thread,)).fetchone())
            else:
                assert database.execute(f"{sql} {where}", (*values, thread)).rowcount == 1

    kept: list[Any] = []
    change("SELECT body FROM events")
    change("UPDATE events SET body = replace(body, ?, ?)", old, new)
    try:
        there, here = far("verify", thread, code=1), far.near("verify", thread, code=1)
    finally:
        change("UPDATE events SET body = ?", *kept)
    assert f"tenuto: thread {thread}: event 3: " in here
    assert f"tenuto: thread {thread}: event 3: " in there
    assert there == here or new == ""
    assert far("verify", thread) == "1 of 1 threads are as they were written\n"


# -- naming it ---------------------------------------------------------------------------------------


def test_an_option_goes_before_the_environment(far, tmp_path):
    far.environment["TENUTO_URL"] = "http://127.0.0.1:1"
    database = f"sqlite:///{far.near.database}"
    far.begun("hello")
    assert far("threads", "--database", database) == (there := far("threads", "--url", f"{far.url}/v1/"))
    del far.environment["TENUTO_URL"]
    far.environment["TENUTO_DATABASE"] = "sqlite:///none.db"
    assert far("threads", "--url", far.url) == there


@pytest.mark.parametrize(
    "arguments",
    [
        ["threads", "--url", "http://127.0.0.1:1", "--database", "sqlite:///x.db"],
        ["inbox", "--database", "sqlite:///x.db", "approve", "ab", "--url", "http://127.0.0.1:1"],
        ["inbox", "--url", "http://127.0.0.1:1", "approve", "ab", "--database", "sqlite:///x.db"],
        ["run", "hello", "--url", "http://127.0.0.1:1", "--database", "sqlite:///x.db"],
    ],
    ids=" ".join,
)
def test_both_is_an_error(far, arguments):
    assert "name a database or a server, not both" in " ".join(far(*arguments, code=2).split())


def test_both_in_the_environment_is_an_error_unless_an_option_says_which(far):
    far.environment["TENUTO_DATABASE"] = "sqlite:///x.db"
    for command in (["inbox", "approve", "ab"], ["run", "hello"]):
        words = " ".join(far(*command, code=2).replace("│", " ").split())
        assert "TENUTO_DATABASE and TENUTO_URL are both set" in words


@pytest.mark.parametrize("command", ["doctor", "serve", "crashtest tests.cli.desk:agent --script x"])
def test_a_command_that_needs_the_database_says_so(far, command):
    output = far(*command.split(), "--url", far.url, code=2)
    assert "does not work on a server but on a database" in " ".join(output.split())


def test_a_url_that_is_none(far):
    assert "is not one such as https://host:8000" in far("threads", "--url", "desk:8000", code=2)
    assert "hunter2" not in far("threads", "--url", "http://ana:hunter2@desk", code=2)


# -- trouble -----------------------------------------------------------------------------------------

COMMANDS = [["run", "hello"], ["inbox", "approve", "ab"]]


def one_line(output: str) -> str:
    assert output.startswith("tenuto: ")
    assert output.count("\n") == 1
    return output


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_server_that_is_not_there(far, command):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    far.environment["TENUTO_URL"] = f"http://127.0.0.1:{port}"
    assert f"http://127.0.0.1:{port} cannot be reached" in one_line(far(*command, code=1))


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_wrong_token(far, command):
    far.environment["TENUTO_TOKEN"] = "wr0ng-t0ken"
    output = one_line(far(*command, code=1))
    assert "refuses: " in output
    assert "token" in output
    assert "wr0ng" not in output


def test_no_token_and_one_that_may_not_decide(far):
    row = far.paused("send hi")
    far.environment["TENUTO_TOKEN"] = "token-of-bob"
    assert far.json("show", row["thread_id"], "--json")
    assert "refuses: " in one_line(far("inbox", "approve", row["id"], code=1))
    del far.environment["TENUTO_TOKEN"]
    assert "no token was sent" in one_line(far("threads", code=1))


@contextlib.contextmanager
def another(status: int, body: bytes) -> Iterator[str]:
    class Says(http.server.BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", 0)))
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    Says.do_GET = Says.do_POST = Says.answer  # type: ignore[attr-defined]  # the names that it looks for
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Says) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (404, b'{"detail":"Not Found"}', "it is another server, or one of an older version"),
        (200, b"<html>Welcome to nginx!", "is no Tenuto server, or one of another version"),
        (500, b"", "says 500"),
    ],
)
def test_a_server_of_something_else_or_of_another_version(far, status, body, words):
    with another(status, body) as url:
        assert words in one_line(far("run", "hello", "--url", url, code=1))


def test_a_server_that_goes_away_and_comes_back_is_waited_for(far, tmp_path):
    near = Shell(tmp_path)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = {"APPROVER_SECRET": TOKEN}
    far.environment["TENUTO_URL"] = f"http://127.0.0.1:{port}"

    @contextlib.contextmanager
    def serving() -> Iterator[Any]:
        process = near.popen("serve", "--port", str(port), env=near.environment | options)
        assert process.stdout is not None
        assert process.stdout.readline().startswith("serving")
        yield process
        process.kill()
        process.communicate()

    with serving():
        following = far.popen("run", "slow 0.2 ", "--json")
        while not near.lines_sent():
            pass
    with serving():
        output, errors = following.communicate(timeout=40)
    assert (following.returncode, errors) == (0, "")
    assert json.loads(output)["answer"] == "done: slept"


def test_the_repository_is_not_needed_there(far):
    far.cwd = far.place
    far.environment["PYTHONPATH"] = str(ROOT / "src")
    assert far.json("run", "hello", "--json")["status"] == "completed"

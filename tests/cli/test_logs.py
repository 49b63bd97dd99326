"""What a real server process logs: valid lines, all that matters, and nothing secret."""

import contextlib
import json
import re
import signal

import httpx2
import pytest
from tests.cli.conftest import SECONDS, Shell

SECRETS = {
    "APPROVER_SECRET": "s3cret-of-ana",
    "SUBMIT_TOKEN": "token-of-bob",
    "PROVIDER_API_KEY": "key-of-the-provider",
}
ANA = {"Authorization": "Bearer s3cret-of-ana"}
PLENTY = {"Prefer": "wait=20"}


def played(shell: Shell, *arguments: str, **environment: str) -> str:
    """What a server has logged that did what servers do."""
    with contextlib.ExitStack() as stack:
        log = stack.enter_context((shell.place / "log").open("w+"))
        everything = shell.environment | SECRETS | {"TENUTO_LOG_LEVEL": "info"} | environment
        process = shell.popen("serve", "--port", "0", *arguments, env=everything, stderr=log)
        assert process.stdout
        url = re.search(r"http://\S+", process.stdout.readline())
        assert url
        client = stack.enter_context(httpx2.Client(base_url=url.group(), timeout=SECONDS))
        assert client.get("/v1/threads", headers={"Authorization": "Bearer guessed"}).status_code == 401
        assert client.get("/v1/threads?token=token-of-bob", headers=ANA).status_code in (200, 422)
        new = {"message": "send the moon"}
        thread = client.post("/v1/threads", json=new, headers=ANA | PLENTY).json()
        interrupt = thread["interrupts"][0]["id"]
        decision = {"outcome": "approve", "comment": "by all means"}
        path = f"/v1/interrupts/{interrupt}/resolve"
        assert client.post(path, json=decision, headers=ANA | PLENTY).json()["status"] == "completed"
        # A provider that repeats what it was sent.
        leak = {"message": "fail key-of-the-provider is wrong"}
        client.post("/v1/threads", json=leak, headers=ANA | PLENTY)
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS) == 0
        log.seek(0)
        return log.read()


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> str:
    return played(Shell(tmp_path_factory.mktemp("json")), "--log-format", "json")


@pytest.fixture(scope="module")
def lines(logged: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in logged.splitlines()]


def test_every_line_is_an_object_with_what_every_line_has(lines: list[dict[str, object]]) -> None:
    assert lines
    for line in lines:
        assert list(line)[:4] == ["time", "level", "logger", "message"]
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", str(line["time"]))
        assert line["level"] in ("info", "warning")


def test_what_matters_is_told_and_by_whom(lines: list[dict[str, object]]) -> None:
    told = {str(line["message"]): line for line in lines if line["logger"] == "tenuto.events"}
    started, raised = told["thread started"], told["approval raised for send"]
    decided = next(line for message, line in told.items() if message.startswith("approval approved by "))
    assert started["agent"] == raised["agent"] == decided["agent"] == "desk"
    assert raised["thread_id"] == decided["thread_id"]
    assert raised["interrupt_id"] == decided["interrupt_id"]
    assert raised["call_id"] == decided["call_id"] == "s0001c000"
    assert str(raised["worker"]).startswith("w")
    assert decided["by"] == "approver"
    assert told["thread completed"]["thread_id"] == raised["thread_id"]
    failed = next(line for message, line in told.items() if message.startswith("thread failed: "))
    assert failed["level"] == "warning"
    order = [line["message"] for line in lines if line["logger"] == "tenuto.server"]
    assert order == ["starting", "stopping", "stopped"]


def test_requests_are_told_in_the_same_form(lines: list[dict[str, object]]) -> None:
    asked = [line for line in lines if line["logger"] == "uvicorn.access"]
    assert [(line["method"], line["status"]) for line in asked[:1]] == [("GET", 401)]
    assert {line["path"] for line in asked} >= {"/v1/threads"}
    assert len(asked) == 5


def test_no_secret_and_no_word_of_a_conversation_is_told(logged: str) -> None:
    for secret in (*SECRETS.values(), "guessed", "moon", "by all means", "Bearer"):
        assert secret not in logged, secret


def test_people_get_one_line_each(shell: Shell) -> None:
    text = played(shell, TENUTO_LOG="text")
    for line in text.splitlines():
        assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (INFO|WARNING) +[\w.]+: \S", line), line
    assert re.search(r"tenuto\.events: thread completed thread_id=[0-9a-f-]{36} agent=desk", text)
    for secret in SECRETS.values():
        assert secret not in text


def test_only_from_a_level_on(shell: Shell) -> None:
    text = played(shell, "--log-format", "json", TENUTO_LOG_LEVEL="warning")
    assert {json.loads(line)["level"] for line in text.splitlines()} == {"warning"}


def test_a_form_that_does_not_exist_is_refused(shell: Shell) -> None:
    assert "'xml' is not one of" in shell("serve", "--log-format", "xml", code=2)

"""How log lines are written: JSON for programs, one line for people, and no secret in either."""

import json
import logging
import sys
from pathlib import Path
from typing import Any

import pytest

from tenuto import Agent, Runtime, tool
from tenuto.models.scripted import ScriptedModel, call
from tenuto.observe import Observe
from tenuto.observe.lines import JSONLines, TextLines, secrets_of

ENVIRONMENT = {
    "APPROVER_SECRET": "s3cret-of-ana",
    "SUBMIT_TOKEN": "token-of-bob",
    "PROVIDER_API_KEY": " key-of-the-provider\n",
    "PROVIDER_URL": "https://example.com/v1?api-version=1&code=c0de%2Bof-azure",
    "TENUTO_DATABASE": "postgresql://app:pa55word@db/tenuto",
    "OTEL_EXPORTER_OTLP_HEADERS": "x-team=collector-secret,other=plainvalue",
    "HOME": "/somewhere/else",
    "TOKEN": "abc",
}


def record(message: str, *args: Any, name: str = "tenuto.x", **more: Any) -> logging.LogRecord:
    made = logging.LogRecord(name, logging.WARNING, "x.py", 1, message, args, more.pop("exc_info", None))
    vars(made).update(more)
    made.created = 1_700_000_000.25
    return made


def lines(formatter: type = JSONLines) -> Any:
    return formatter(secrets_of(ENVIRONMENT))


def test_a_line_is_one_json_object_with_its_fields() -> None:
    line = lines().format(
        record("%s took %.1f s", "it", 2.0, seconds=2.5, thread_id="t1", odd={1, 2}, none=None)
    )
    assert "\n" not in line
    assert json.loads(line) == {
        "time": "2023-11-14T22:13:20.250Z",
        "level": "warning",
        "logger": "tenuto.x",
        "message": "it took 2.0 s",
        "seconds": 2.5,
        "thread_id": "t1",
        "odd": "{1, 2}",
        "none": None,
    }


def test_a_field_cannot_take_the_place_of_what_every_line_has() -> None:
    line = json.loads(lines().format(record("true", level="debug", time="never")))
    assert (line["level"], line["time"]) == ("warning", "2023-11-14T22:13:20.250Z")


def test_an_exception_is_told_with_its_traceback() -> None:
    try:
        int("Authorization: Bearer s3cret-of-ana")
    except ValueError:
        failed = record("failed", exc_info=sys.exc_info())
    line = json.loads(lines().format(failed))
    assert line["error"].startswith("Traceback (most recent call last):\n")
    assert line["error"].endswith("'Authorization: Bearer [redacted]'")
    text = lines(TextLines).format(failed)
    assert all(part.startswith("    ") for part in text.splitlines()[1:])
    assert "s3cret" not in text


@pytest.mark.parametrize("formatter", [JSONLines, TextLines])
@pytest.mark.parametrize(
    "secret",
    [
        "s3cret-of-ana",
        "token-of-bob",
        "key-of-the-provider",
        "c0de%2Bof-azure",
        "c0de+of-azure",
        "pa55word",
        "collector-secret",
    ],
)
def test_no_secret_of_the_environment_is_shown(formatter: type, secret: str) -> None:
    formatted = lines(formatter)
    for made in (
        record("it is %s", secret),
        record(f"it is {secret}"),
        record("x", field=f"<{secret}>"),
        record("x", field=[secret]),
    ):
        line = formatted.format(made)
        assert secret not in line
        assert "[redacted]" in line


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Authorization: Bearer abc.def-123", "Authorization: Bearer [redacted]"),
        ("authorization: basic YW5hOnNlY3JldA==", "authorization: basic [redacted]"),
        ("the token tnt_kQ2b-7Zx_81aVfGh0pLmNw is bad", "the token [redacted] is bad"),
        (
            "Incorrect API key provided: sk-proj-abc123DEF456ghi789.",
            "Incorrect API key provided: [redacted].",
        ),
        ("GET https://ana:word@example.com/x", "GET https://[redacted]@example.com/x"),
        ("the bearer of news, abc", "the bearer of news, abc"),
    ],
)
def test_what_looks_like_credentials_is_not_shown(text: str, shown: str) -> None:
    assert json.loads(lines().format(record(text)))["message"] == shown


def test_short_values_and_other_variables_are_no_secrets() -> None:
    found = secrets_of(ENVIRONMENT)
    assert "abc" not in found
    assert "/somewhere/else" not in found
    assert not [one for one in found if "example.com" in one]


def test_no_part_of_a_secret_is_left_where_a_long_line_is_cut() -> None:
    long = "x" * (16_384 - 5) + "s3cret-of-ana" + "y" * 100
    message = json.loads(lines().format(record(long)))["message"]
    assert "s3c" not in message
    assert message.endswith("…")
    assert len(message) == 16_385


def test_text_that_no_file_can_hold_is_escaped() -> None:
    line = lines().format(record("lone \ud800 and \x00"))
    line.encode()
    assert json.loads(line)["message"] == "lone \\ud800 and \x00"


def test_a_message_cannot_pass_for_another_line() -> None:
    text = lines(TextLines).format(record("one\n2023-11-14 INFO two\x1b[31m", field="a\r\nb"))
    assert len(text.splitlines()) == 1
    assert "\x1b" not in text
    assert text.startswith("2023-11-14T22:13:20.250Z WARNING tenuto.x: one\\n2023")


def test_a_request_is_told_without_its_query() -> None:
    made = record(
        '%s - "%s %s HTTP/%s" %d',
        "127.0.0.1:5000",
        "GET",
        "/v1/threads?status=running&token=abc",
        "1.1",
        200,
        name="uvicorn.access",
    )
    line = json.loads(lines().format(made))
    del line["time"], line["level"], line["logger"]
    assert line == {
        "message": "GET /v1/threads 200",
        "client": "127.0.0.1:5000",
        "method": "GET",
        "path": "/v1/threads",
        "status": 200,
    }


async def test_a_line_knows_where_it_was_written(tmp_path: Path) -> None:
    user = logging.getLogger("a.tool.of.the.user")
    told: list[dict[str, Any]] = []
    formatter = lines()

    class Collects(logging.Handler):
        def emit(self, made: logging.LogRecord) -> None:
            told.append(json.loads(formatter.format(made)))

    @tool(effect="read")
    def in_a_thread(n: int) -> str:
        user.warning("looking")
        return str(n)

    handler = Collects(logging.DEBUG)
    logging.getLogger().addHandler(handler)
    try:
        model = ScriptedModel([call("in_a_thread", n=1), "done"])
        agent = Agent("ops", tools=[in_a_thread])
        observe = Observe()
        database = f"sqlite:///{tmp_path}/t.db"
        async with Runtime([agent], database, model=model, observe=observe) as runtime:
            thread = await runtime.start("ops", "the moon is a secret", by="ana")
            await runtime.wait(thread)
            worker = runtime.owner
        user.warning("elsewhere")
    finally:
        logging.getLogger().removeHandler(handler)
    inside, outside = [line for line in told if line["logger"] == "a.tool.of.the.user"]
    assert inside["thread_id"] == thread
    assert (inside["agent"], inside["worker"], inside["call_id"]) == ("ops", worker, "s0001c000")
    assert not {"thread_id", "agent", "worker", "call_id"}.intersection(outside)
    assert "moon" not in json.dumps(told)

"""How a line of the process's log is written: for people, or as one JSON object for programs.

A line knows where it was written, without having been told: thread, agent, step, call, worker and trace. What
is secret in the environment and what looks like credentials is taken out of every line, whoever wrote it.
"""

import logging
import os
import re
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, Literal
from urllib.parse import unquote, urlsplit

import msgspec

from tenuto.limits import MAX_LOGGED_CHARACTERS
from tenuto.observe.hold import calling, holding

Form = Literal["text", "json"]
Level = Literal["debug", "info", "warning", "error"]

# They tell of each request, and at DEBUG of what is in it.
_TALKATIVE: Final = ("httpx2", "httpcore2", "httpx", "httpcore", "openai", "urllib3", "asyncio")
_SECRET_NAME = re.compile(r"SECRET|TOKEN|PASSWORD|PASSWD|CREDENTIAL|API_?KEY|_KEY$|HEADERS$", re.IGNORECASE)
_CREDENTIALS = re.compile(r"\b(bearer|basic)\s+[\w.~+/=-]{4,}", re.IGNORECASE)
# By their prefixes: a token of this server's own, and the form that most providers' keys have.
_TOKENS = re.compile(r"\b(?:tnt_|sk-)[\w-]{16,}")
_USER_IN_URL = re.compile(r"(?<=://)[^/\s@]+@")
_SHORTEST_SECRET: Final = 6
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message", "taskName"}
_CONTROL = {code: f"\\x{code:02x}" for code in (*range(32), 127)} | {10: "\\n", 13: "\\r", 9: "\\t"}


def log_to_stderr(form: Form, level: Level, environment: Mapping[str, str] | None = None) -> None:
    """Write what this process logs to stderr from now on; once per process."""
    handler = logging.StreamHandler(sys.stderr)
    secrets = secrets_of(os.environ if environment is None else environment)
    handler.setFormatter(JSONLines(secrets) if form == "json" else TextLines(secrets))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(level.upper())
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(logging.WARNING)


def secrets_of(environment: Mapping[str, str]) -> tuple[str, ...]:
    """What must not be shown, the longest first, so that none is shown in part."""
    found = set()
    for name, value in environment.items():
        if _SECRET_NAME.search(name):
            found |= {value, value.strip(), *value.replace(",", "=").split("=")}
        elif "://" in value:
            found |= _secrets_of_url(value)
    return tuple(sorted((one for one in found if len(one) >= _SHORTEST_SECRET), key=len, reverse=True))


def _secrets_of_url(url: str) -> set[str]:
    try:
        parts = urlsplit(url)
    except ValueError:
        return set()
    found = {part.partition("=")[2] for part in parts.query.split("&")} | {parts.password or ""}
    return found | {unquote(one) for one in found}


class _Lines(logging.Formatter):
    def __init__(self, secrets: tuple[str, ...]) -> None:
        super().__init__()
        self._secrets = secrets

    def parts(self, record: logging.LogRecord) -> tuple[dict[str, str], dict[str, object], str]:
        """What every line has, the fields beside that, and a traceback; bounded and without secrets."""
        fields = _where()
        message = record.getMessage()
        if record.name == "uvicorn.access" and isinstance(record.args, tuple) and len(record.args) == 5:
            message, asked = _access(record.args)
            fields |= asked
        given = {name: value for name, value in vars(record).items() if name not in _STANDARD}
        fields |= {name: value for name, value in given.items() if not name.startswith("_")}
        if record.exc_info and not record.exc_text:
            record.exc_text = self.formatException(record.exc_info)
        head = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")[:23] + "Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": self._shown(message),
        }
        shown = {name: self._value(value) for name, value in fields.items()}
        return head, shown, self._shown(record.exc_text or "")

    def _value(self, value: object) -> object:
        if value is None or isinstance(value, bool | int | float):
            return value
        return self._shown(str(value))

    def _shown(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "[redacted]")
        text = _CREDENTIALS.sub(r"\1 [redacted]", text)
        text = _TOKENS.sub("[redacted]", text)
        text = _USER_IN_URL.sub("[redacted]@", text)
        # Cut after that, so that no part of a secret is left at the end.
        text = text.encode("utf-8", "backslashreplace").decode()
        return text if len(text) <= MAX_LOGGED_CHARACTERS else f"{text[:MAX_LOGGED_CHARACTERS]}…"


class JSONLines(_Lines):
    """One object a line: `time`, `level`, `logger`, `message`, the fields beside them, `error` last."""

    def format(self, record: logging.LogRecord) -> str:
        head, fields, error = self.parts(record)
        told = head | {name: value for name, value in fields.items() if name not in head}
        return msgspec.json.encode(told | ({"error": error} if error else {})).decode()


class TextLines(_Lines):
    """One line for people, its fields at the end; a traceback follows, indented."""

    def format(self, record: logging.LogRecord) -> str:
        head, fields, error = self.parts(record)
        beside = "".join(f" {name}={value}" for name, value in fields.items() if value is not None)
        # A message cannot pass for a line of its own.
        text = f"{head['message']}{beside}".translate(_CONTROL)
        below = "".join(f"\n    {part}" for part in error.splitlines())
        return f"{head['time']} {head['level'].upper():7} {head['logger']}: {text}{below}"


def _where() -> dict[str, Any]:
    """Where the line is written."""
    hold = holding.get()
    where: dict[str, Any] = {}
    if hold is not None:
        where = {"thread_id": hold.thread_id, "agent": hold.agent.name, "step": hold.step}
        where |= {"call_id": calling.get(), "worker": hold.worker}
        where["trace_id"] = hold.trace.trace_id if hold.trace is not None else ""
    elif tracing := sys.modules.get("opentelemetry.trace"):
        here = tracing.get_current_span().get_span_context()
        where["trace_id"] = f"{here.trace_id:032x}" if here.is_valid else ""
    return {name: value for name, value in where.items() if value}


def _access(args: tuple[Any, ...]) -> tuple[str, dict[str, Any]]:
    """Uvicorn's line about a request, without the query."""
    client, method, path, _, status = args
    place = str(path).partition("?")[0]
    return f"{method} {place} {status}", {
        "client": client,
        "method": method,
        "path": place,
        "status": status,
    }

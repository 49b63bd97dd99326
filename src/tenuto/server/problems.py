"""What goes wrong over HTTP, as RFC 9457 problem details. Nothing internal reaches a client.

An expected refusal is a `Problem` or one of Tenuto's own errors; what is neither is logged with its
traceback and answered 500 without a word of it.
"""

import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any

import msgspec
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from tenuto.errors import (
    PROBLEM_TYPES,
    AlreadyDecided,
    Conflict,
    InvalidInput,
    NotFound,
    StoreError,
    TenutoError,
    Undecodable,
    UnknownAgent,
)
from tenuto.server.heads import allowed

logger = logging.getLogger("tenuto.server")

_STATUS: tuple[tuple[type[TenutoError], int], ...] = (
    (NotFound, 404),
    (Conflict, 409),
    (InvalidInput, 422),
    (UnknownAgent, 422),
)


_PLAIN = "about:blank"  # the status says it all


class Problem(Exception):
    """This request is refused with `status`; `detail` is for the person who sent it, `facts` for programs."""

    def __init__(
        self, status: int, detail: str, *, facts: Mapping[str, Any] | None = None, **headers: str
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.facts = facts or {}
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


class ProblemDetails(msgspec.Struct):
    """What went wrong; `detail` is for people, `type` names the kind of error where the status does not."""

    type: str
    title: str
    status: int
    detail: str


class RoleProblem(ProblemDetails):
    """... because a role is missing: any of `needs` would do, `roles` are there."""

    needs: list[str]
    roles: list[str]


class UnreadProblem(ProblemDetails):
    """... because a stored event cannot be read. `seq`: which one; `after` it the others can be had."""

    seq: int = 0


class DecidedProblem(ProblemDetails):
    """... because somebody has decided already: what, by whom and when."""

    interrupt_id: str
    outcome: str
    by: str
    at: str | None


def iso(at_ms: int | None) -> str | None:
    """A time as it is written in answers: RFC 3339, UTC, milliseconds. 0 and None are no time."""
    if not at_ms:
        return None
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def encoded(status: int, body: Any, headers: dict[str, str] | None = None) -> Response:
    """A JSON answer, encoded by msgspec: compact, fields in their order."""
    return Response(msgspec.json.encode(body), status, headers, "application/json")


def problem(status: int, detail: str, headers: dict[str, str] | None = None, **more: Any) -> Response:
    """An `application/problem+json` answer; `more` are its extension members, and its type if it has one."""
    body = {"type": _PLAIN, "title": HTTPStatus(status).phrase, "status": status, "detail": detail}
    return Response(msgspec.json.encode(body | more), status, headers, "application/problem+json")


def of_error(error: TenutoError, doubt: str = "") -> Response:
    """The answer to one of Tenuto's own errors. A database's own words stay inside. `doubt`: what to do
    about a change that may have been made.
    """
    named: dict[str, Any] = {
        "type": next((name for name, kind in PROBLEM_TYPES.items() if isinstance(error, kind)), _PLAIN)
    }
    if isinstance(error, AlreadyDecided):
        named |= {"interrupt_id": error.interrupt_id, "outcome": error.outcome, "by": error.by}
        return problem(409, str(error), **named, at=iso(error.at_ms))
    for kind, status in _STATUS:
        if isinstance(error, kind):
            return problem(status, str(error), **named)
    logger.error("a request failed", exc_info=error)
    if isinstance(error, StoreError):
        return problem(503, f"the store does not answer{doubt}", **named)
    if isinstance(error, Undecodable):
        which = f"event {error.seq}" if error.seq else "an event"
        if error.seq:
            named["seq"] = error.seq
        why = "a newer version than this server's wrote it" if error.newer else "it is damaged or erased"
        return problem(500, f"{which} cannot be read: {why}", **named)
    return unexpected()


def unexpected() -> Response:
    """The answer to what the log has the traceback of."""
    return problem(500, "the server could not do this; its log says why")


def add_handlers(app: FastAPI) -> None:
    """Every error that an endpoint is known to raise becomes a problem; the rest is `Guard`'s."""

    @app.exception_handler(Problem)
    async def refused(request: Request, error: Problem) -> Response:
        return problem(error.status, error.detail, error.headers, **error.facts)

    @app.exception_handler(TenutoError)
    async def known(request: Request, error: TenutoError) -> Response:
        return of_error(error)

    @app.exception_handler(HTTPException)
    async def routing(request: Request, error: HTTPException) -> Response:
        headers = dict(error.headers or {})
        if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
            headers["Allow"] = allowed(request)  # the framework names those of one route of the path
        return problem(error.status_code, str(error.detail), headers)

    @app.exception_handler(RequestValidationError)
    async def parameters(request: Request, error: RequestValidationError) -> Response:
        wrong = [f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()]
        return problem(422, "; ".join(wrong))

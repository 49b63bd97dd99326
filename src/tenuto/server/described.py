"""The OpenAPI description: the routes as FastAPI sees them, every body as msgspec reads and writes it, and
every status with what it means.
"""

from collections.abc import Awaitable, Callable, Sequence
from http import HTTPStatus
from typing import Any, Final, Literal, NamedTuple, get_args

import msgspec
from fastapi import FastAPI
from starlette.responses import Response

from tenuto import limits
from tenuto.messages import Live
from tenuto.server import shapes
from tenuto.server.access import Role
from tenuto.server.contract_shapes import CONTRACT, MEANS, Answer, Approval, ContractProblem, NewTask
from tenuto.server.events import EVENT_STREAM, JSON_LINES, EventPage, StoredLine, add_places
from tenuto.server.posts import KEY_PATTERN
from tenuto.server.problems import DecidedProblem, ProblemDetails, RoleProblem, UnreadProblem
from tenuto.server.tokens import NewToken

Described = dict[str, Any]
PROBLEM: Final = "application/problem+json"


class Route(NamedTuple):
    """One operation of /v1. `needs`: any of these roles will do. `name`: its operationId, by default the
    endpoint's own.
    """

    method: Literal["GET", "POST", "DELETE"]
    path: str
    endpoint: Callable[..., Awaitable[Response]]
    needs: tuple[Role, ...]
    answer: type
    takes: type | None = None
    status: int = 200
    name: str = ""

    @property
    def operation(self) -> str:
        return self.name or self.endpoint.__name__


# Those that no route of /v1 takes or answers.
_SHAPES: Final = (
    *(ProblemDetails, DecidedProblem, RoleProblem, UnreadProblem, *get_args(Live)),
    *(NewTask, Approval, Answer, ContractProblem),
)

_EXAMPLES: Final[dict[type, Any]] = {
    shapes.NewThread: {"message": "Refund order 17, it arrived damaged.", "metadata": {"customer": "c-42"}},
    shapes.NewMessage: {"text": "It was order 18."},
    shapes.Cancellation: {"reason": "The customer called back."},
    shapes.Extension: {"steps": 10},
    shapes.Resolution: {"verb": "approve", "comment": "The photo shows it."},
    NewToken: {"name": "ci", "roles": ["submit", "read"], "agents": ["ops"], "expires_seconds": 2_592_000},
    NewTask: {"task": "Refund order 17, it arrived damaged."},
    Approval: {"task_id": "0b54a1fe-3a1f-4c53-9f43-3d2a7d2f1c55", "approved": True},
}

_MEANS: Final = {
    400: "The body, the key or the cursor is not of this form",
    401: "The bearer token is missing, unknown, revoked or expired",
    403: "The role is missing, the agent is not in the token's scope, or the page is of another origin",
    404: "There is none of that id in the caller's scope",
    408: "The body did not arrive in time",
    409: "The state has moved on; nothing was done",
    413: "The body is too large",
    415: "The body is compressed",
    422: "A parameter or field is unknown or not of its form, or the key was used with another body",
    500: "The server's fault; its log says why",
    503: "The store does not answer, or too many streams are open",
}
_PROBLEMS: Final = {
    403: (ProblemDetails, RoleProblem),
    409: (ProblemDetails, DecidedProblem),
    500: (ProblemDetails, UnreadProblem),
}


def schema(*kinds: type) -> Described:
    """The schema of a body; it is among the components, made by msgspec."""
    refs: list[Described] = [{"$ref": f"#/components/schemas/{kind.__name__}"} for kind in kinds]
    return refs[0] if len(refs) == 1 else {"anyOf": refs}


def content(*kinds: type, media: str = "application/json") -> Described:
    """The content of a body of one of these kinds."""
    made: Described = {media: {"schema": schema(*kinds)}}
    if example := _EXAMPLES.get(kinds[0]):
        made[media]["example"] = example
    return made


def problems(*statuses: int) -> dict[int | str, Described]:
    """Refusals, as they are described."""
    return {
        status: {
            "description": _MEANS[status],
            "content": content(*_PROBLEMS.get(status, (ProblemDetails,)), media=PROBLEM),
        }
        for status in statuses
    }


def described(route: Route) -> Described:
    """What FastAPI is told of a route."""
    extra: Described = {"parameters": _parameters(route)}
    if route.needs[0] in ("approve", "admin"):
        extra["security"] = [{"bearer": []}]
    if route.takes is not None:
        extra["requestBody"] = {"required": True, "content": content(route.takes)}
    refusals = {401, 403, 422, 500, 503}
    if "{" in route.path:
        refusals |= {404}
    if route.method == "POST":
        refusals |= {400, 408, 409, 413, 415}
    elif route.operation in ("list_threads", "list_events", "list_interrupts"):
        refusals |= {400, 404}
    doc = " ".join((route.endpoint.__doc__ or "").split())
    return {
        "operation_id": route.operation,
        "tags": [route.path.split("/")[1]],
        "summary": doc.partition(". ")[0].removesuffix("."),
        "description": f"{doc}\n\nRole: {' or '.join(route.needs)}.",
        "status_code": route.status,
        "responses": _answers(route) | problems(*sorted(refusals)),
        "openapi_extra": extra,
    }


def _answers(route: Route) -> dict[int | str, Described]:
    answer: Described = {"description": " ".join((route.answer.__doc__ or "").split())}
    answer["content"] = content(route.answer)
    found: dict[int | str, Described] = {route.status: answer}
    if route.answer is EventPage:
        answer["content"][EVENT_STREAM] = {"schema": {"type": "string"}, "example": _FRAMES}
        answer["description"] += _STREAM
        found[204] = {"description": "With until=rest: the thread rests, and there is nothing to add"}
    elif route.answer is StoredLine:
        answer["content"] = {JSON_LINES: {"schema": {"type": "string"}}}
        answer["description"] = "Lines, each a StoredLine: " + answer["description"]
    elif route.takes is not None and issubclass(route.answer, shapes.State):
        answer["headers"] = dict(_HEADERS)
        if route.status == HTTPStatus.CREATED:
            answer["headers"]["Location"] = _text_header("Where the thread is")
            answer["links"] = {
                name: {"operationId": name, "parameters": {"thread_id": "$response.body#/id"}}
                for name in ("get_thread", "list_events", "send_message", "cancel_thread", "extend_thread")
            }
    return found


_FRAMES: Final = (
    'id: 5\nevent: model_replied\ndata: {"seq":5,"at":"2026-01-01T00:00:00.000Z","type":"model_replied"}\n\n'
    'event: replayed\ndata: {"seq":5}\n\nevent: text_delta\ndata: {"type":"text_delta","text":"Ref"}\n\n'
)
_STREAM: Final = (
    " As a stream (WHATWG server-sent events): events of the log with their seq as id, and as data the "
    "object that a page has; `replayed` where the past ends; what is seen live and not kept without an id ("
    + ", ".join(kind.__name__ for kind in get_args(Live))
    + "), superseded by the next event; with until=rest, `rested` last."
)


def _text_header(description: str) -> Described:
    return {"description": description, "schema": {"type": "string"}}


_HEADERS: Final = {
    "Preference-Applied": _text_header("wait=SECONDS, when Prefer asked for it"),
    "Idempotent-Replayed": _text_header("true, when this is the kept answer of an earlier request"),
}
_KEY: Final = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": "The same request again with the same key gets the first answer, for a day.",
    "schema": {
        "type": "string",
        "maxLength": limits.MAX_KEY_CHARACTERS,
        "pattern": KEY_PATTERN,
    },
}
_PREFER: Final = {
    "name": "Prefer",
    "in": "header",
    "description": "wait=SECONDS: answer when the thread rests, or after so long (RFC 7240).",
    "schema": {"type": "string"},
    "example": "wait=60",
}
_METADATA: Final = {
    "name": "metadata",
    "in": "query",
    "style": "deepObject",
    "explode": True,
    "description": "metadata[key]=text: only threads whose metadata has this text under this key.",
    "schema": {
        "type": "object",
        "additionalProperties": {"type": "string"},
        "maxProperties": limits.MAX_METADATA_FILTERS,
    },
}


def _parameters(route: Route) -> list[Described]:
    """Those that endpoints read themselves; FastAPI knows the others."""
    if route.operation == "list_threads":
        return [_METADATA]
    if route.takes is not None and issubclass(route.answer, shapes.State):
        return [_KEY, _PREFER]
    return []


class DescribedApp(FastAPI):
    """An application that tells all of this at /openapi.json. `shapes`: what its routes take and answer."""

    shapes: Sequence[type] = ()

    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            made = super().openapi()
            _, found = msgspec.json.schema_components(
                (*self.shapes, *_SHAPES), ref_template="#/components/schemas/{name}"
            )
            add_places(found)
            components = made.setdefault("components", {})
            for operations in made["paths"].values():
                for operation in operations.values():
                    _drop_assumed(operation["responses"])
            for name in ("HTTPValidationError", "ValidationError"):
                components.get("schemas", {}).pop(name, None)
            components["schemas"] = components.get("schemas", {}) | found
            components["securitySchemes"] = {
                "bearer": {"type": "http", "scheme": "bearer", "description": "A stored token or a secret"}
            }
            # One of the two names of a decision, not both; a Struct cannot say that.
            found["Resolution"]["oneOf"] = [{"required": ["verb"]}, {"required": ["outcome"]}]
            made["security"] = [{}, {"bearer": []}]
            made["paths"] |= {path: {"post": _contract(*told)} for path, told in CONTRACT.items()}
        return self.openapi_schema or {}


def _drop_assumed(answers: Described) -> None:
    """FastAPI assumes that every parameter can be wrong, also those that any text is right for."""
    for status in [status for status, told in answers.items() if "HTTPValidationError" in str(told)]:
        del answers[status]


def _contract(name: str, summary: str, takes: type) -> Described:
    answers: dict[str, Described] = {}
    for status, meaning in (_MEANS | MEANS).items():
        if status == HTTPStatus.NOT_FOUND and takes is NewTask:
            continue
        bodies = content(Answer if status in (200, 202, 502) else ContractProblem)
        if status == HTTPStatus.UNAUTHORIZED:
            bodies = {"text/plain": {"schema": {"type": "string"}}}
        elif status == HTTPStatus.FORBIDDEN:
            bodies |= content(ProblemDetails, media=PROBLEM)
        answers[str(status)] = {"description": meaning, "content": bodies}
    answers |= {str(status): told for status, told in problems(500, 503).items()}
    return {
        "tags": ["contract"],
        "operationId": name,
        "summary": summary,
        "parameters": [_KEY],
        "requestBody": {"required": True, "content": content(takes)},
        "responses": answers,
        **({"security": [{"bearer": []}]} if takes is Approval else {}),
    }

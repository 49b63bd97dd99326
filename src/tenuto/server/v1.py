"""The /v1 API: which path leads where, who may take it, and how it is described.

Errors are RFC 9457 problem details. Every POST answers the thread's state; `Prefer: wait=SECONDS` (RFC 7240)
puts the answer off until the thread rests or that time has passed.
"""

from typing import Any

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from tenuto.runtime import Runtime
from tenuto.server.access import Access
from tenuto.server.events import EVENT_STREAM, JSON_LINES, EventPage, Events, StoredLine
from tenuto.server.interrupts import Interrupts
from tenuto.server.problems import PROBLEMS, Problem, ProblemDetails
from tenuto.server.shapes import (
    Cancellation,
    Extension,
    Interrupt,
    InterruptPage,
    NewMessage,
    NewThread,
    Resolution,
    State,
    Thread,
    ThreadPage,
)
from tenuto.server.streaming import Streams
from tenuto.server.threads import Threads
from tenuto.server.waiting import Waiting


class V1:
    """The endpoints, as a router."""

    def __init__(self, runtime: Runtime, access: Access, waiting: Waiting, agent: str) -> None:
        self._access = access
        self.router = APIRouter(prefix="/v1", tags=["v1"])
        reads, decides = [Depends(self._submitter)], [Depends(self._approver)]
        threads = Threads(runtime, access, waiting, agent)
        self._post("/threads", threads.start_thread, NewThread, reads, 201)
        self._get("/threads", threads.list_threads, ThreadPage, reads)
        self._get("/threads/{thread_id}", threads.get_thread, Thread, reads)
        events = Events(runtime, Streams(waiting.stopping, runtime.observe))
        self._get("/threads/{thread_id}/events", events.events, EventPage, reads)
        self._get("/threads/{thread_id}/export", events.export, StoredLine, reads)
        self._post("/threads/{thread_id}/messages", threads.send_message, NewMessage, reads)
        self._post("/threads/{thread_id}/cancel", threads.cancel_thread, Cancellation, reads)
        self._post("/threads/{thread_id}/extend", threads.extend_thread, Extension, reads)
        interrupts = Interrupts(runtime, access, waiting)
        self._get("/interrupts", interrupts.list_interrupts, InterruptPage, reads)
        self._get("/interrupts/{interrupt_id}", interrupts.get_interrupt, Interrupt, reads)
        resolve = interrupts.resolve_interrupt
        self._post("/interrupts/{interrupt_id}/resolve", resolve, Resolution, decides)

    # Coroutines, though they await nothing: FastAPI would run plain functions on a thread each.
    async def _submitter(self, request: Request) -> None:
        if not self._access.may_submit(request.headers.raw):
            raise Problem(401, "a bearer token is needed here", WWW_Authenticate="Bearer")

    async def _approver(self, request: Request) -> None:
        if not self._access.may_decide(request.headers.raw):
            raise Problem(401, "the approver's bearer token is needed here", WWW_Authenticate="Bearer")

    def _get(self, path: str, endpoint: Any, shape: type, dependencies: list[Any]) -> None:
        answers = PROBLEMS | {200: answer_schema(shape, "The answer")}
        if shape is EventPage:
            answers[200]["content"][EVENT_STREAM] = {"schema": {"type": "string"}}
            answers[204] = {"description": "With until=rest: the thread rests, and there is nothing to add"}
        elif shape is StoredLine:
            answers[200]["content"] = {JSON_LINES: {"schema": {"type": "string"}}}
        self.router.add_api_route(
            path,
            endpoint,
            methods=["GET"],
            response_class=Response,  # FastAPI would describe a JSON body besides
            response_model=None,
            responses=answers,
            dependencies=dependencies,
        )

    def _post(
        self, path: str, endpoint: Any, shape: type, dependencies: list[Any], status: int = 200
    ) -> None:
        self.router.add_api_route(
            path,
            endpoint,
            methods=["POST"],
            response_model=None,
            status_code=status,
            responses=PROBLEMS | {status: answer_schema(State, "The thread's state")},
            dependencies=dependencies,
            openapi_extra={"requestBody": {"required": True, **answer_schema(shape, "")}},
        )


def answer_schema(shape: type, description: str) -> dict[str, Any]:
    """The OpenAPI form of a body; its schema is among the components, made by msgspec."""
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{shape.__name__}"}}}
    return {"description": description, "content": content}


SHAPES = (
    ProblemDetails,
    ThreadPage,
    Thread,
    NewThread,
    NewMessage,
    Cancellation,
    Extension,
    Resolution,
    State,
    EventPage,
    InterruptPage,
    Interrupt,
)

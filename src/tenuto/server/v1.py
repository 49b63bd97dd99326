"""The /v1 API: threads, their events, and the inbox. Errors are RFC 9457 problem details.

Every POST answers the thread's state; `Prefer: wait=SECONDS` (RFC 7240) puts the answer off until the thread
rests or that time has passed. Times are RFC 3339 in UTC. Bodies are msgspec Structs, read strictly: nothing
is coerced and an unknown field is refused, so that a misspelt one is not silently without effect.
"""

import base64
import re
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import Response

from tenuto import limits
from tenuto.events import InterruptId, InterruptRaised, ThreadId
from tenuto.runtime import Runtime
from tenuto.server.access import Access
from tenuto.server.bodies import read
from tenuto.server.events import EVENT_STREAM, JSON_LINES, MOST, EventPage, Events, StoredLine
from tenuto.server.problems import PROBLEMS, Problem, ProblemDetails, encoded, iso
from tenuto.server.streaming import Streams
from tenuto.server.waiting import Waiting, preferred_wait
from tenuto.store.base import InterruptRow, ThreadRow, ThreadStatus
from tenuto.thread import ThreadState

Count = Annotated[int, msgspec.Meta(ge=0, le=MOST)]


class NewThread(msgspec.Struct, forbid_unknown_fields=True):
    """`agent`: by default the server's first. With a `thread_id` (UUID) of your own it is idempotent."""

    message: str
    agent: str | None = None
    metadata: dict[str, Any] = {}
    thread_id: str | None = None


class NewMessage(msgspec.Struct, forbid_unknown_fields=True):
    text: str


class Cancellation(msgspec.Struct, forbid_unknown_fields=True):
    reason: str = ""


class Extension(msgspec.Struct, forbid_unknown_fields=True):
    """What the turn gets more; nothing at all lets a failed thread go on as it is."""

    steps: Count = 0
    tokens: Count = 0
    cost: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    seconds: Annotated[float, msgspec.Meta(ge=0)] = 0.0


class Resolution(msgspec.Struct, forbid_unknown_fields=True):
    """`outcome` is the verb: approve, reject, edit; answer; happened, did_not_happen, drop. `digest` is that
    of the call that was seen.
    """

    outcome: str
    comment: str = ""
    arguments: dict[str, Any] | None = None
    answer: str = ""
    digest: str | None = None


class PendingInterrupt(msgspec.Struct):
    """A pause that needs a person. `arguments` are the exact ones that will run; null without a call."""

    id: str
    kind: Literal["approval", "question", "review"]
    call_id: str
    name: str
    arguments: msgspec.Raw | None
    prompt: str
    digest: str
    options: tuple[str, ...]
    expires_at: str | None


class Interrupt(PendingInterrupt):
    """... and what became of it: `outcome` is null while it is pending."""

    thread_id: str
    agent: str
    raised_at: str | None
    outcome: str | None
    by: str
    comment: str
    resolved_at: str | None


class InterruptPage(msgspec.Struct):
    """Oldest first. `next`: the `after` of the next page, null on the last."""

    interrupts: list[Interrupt]
    next: str | None


class State(msgspec.Struct):
    """What is true of a thread now. `answer`, `error` and `limit` only where it ended so."""

    id: str
    agent: str
    status: str
    steps: int
    head_seq: int
    answer: str | None
    error: str | None
    limit: str | None
    interrupts: list[PendingInterrupt]


class ThreadSummary(msgspec.Struct):
    """A thread at a glance. `ready_at`: when it goes on by itself; null when somebody has to move it."""

    id: str
    agent: str
    status: ThreadStatus
    head_seq: int
    created_at: str | None
    updated_at: str | None
    ready_at: str | None
    metadata: dict[str, Any]


class ThreadPage(msgspec.Struct):
    """Newest first. `next`: the `cursor` of the next page, null on the last."""

    threads: list[ThreadSummary]
    next: str | None


class V1:
    """The endpoints, as a router."""

    def __init__(self, runtime: Runtime, access: Access, waiting: Waiting, agent: str) -> None:
        self._runtime = runtime
        self._access = access
        self._waiting = waiting
        self._agent = agent
        self.router = APIRouter(prefix="/v1", tags=["v1"])
        reads, decides = [Depends(self._submitter)], [Depends(self._approver)]
        self._post("/threads", self.start, NewThread, reads, 201)
        self._get("/threads", self.threads, ThreadPage, reads)
        self._get("/threads/{thread_id}", self.thread, State, reads)
        events = Events(runtime, Streams(waiting.stopping))
        self._get("/threads/{thread_id}/events", events.events, EventPage, reads)
        self._get("/threads/{thread_id}/export", events.export, StoredLine, reads)
        self._post("/threads/{thread_id}/messages", self.send, NewMessage, reads)
        self._post("/threads/{thread_id}/cancel", self.cancel, Cancellation, reads)
        self._post("/threads/{thread_id}/extend", self.extend, Extension, reads)
        self._get("/interrupts", self.interrupts, InterruptPage, reads)
        self._get("/interrupts/{interrupt_id}", self.interrupt, Interrupt, reads)
        self._post("/interrupts/{interrupt_id}/resolve", self.resolve, Resolution, decides)

    # -- threads -----------------------------------------------------------------------------------------

    async def start(self, request: Request) -> Response:
        """Start a thread with a first message."""
        body = await read(request, NewThread)
        thread_id = await self._runtime.start(
            body.agent or self._agent, body.message, metadata=body.metadata, thread_id=body.thread_id
        )
        return await self._state(request, thread_id, 201, Location=f"/v1/threads/{thread_id}")

    async def threads(
        self,
        status: ThreadStatus | None = None,
        agent: str | None = None,
        cursor: str | None = None,
        limit: Annotated[int, Query(ge=1, le=limits.MAX_LISTED_THREADS)] = 100,
    ) -> Response:
        """Threads, newest first. A cursor stays good: threads that start later shift nothing."""
        rows = await self._runtime.threads(
            status=status, agent=agent, before=None if cursor is None else _place(cursor), limit=limit + 1
        )
        page = rows[:limit]
        more = _cursor(page[-1]) if len(rows) > limit else None
        return encoded(200, ThreadPage([summary(row) for row in page], more))

    async def thread(self, thread_id: str) -> Response:
        """The state of a thread."""
        return encoded(200, state_body(await self._runtime.state(thread_id)))

    async def send(self, request: Request, thread_id: str) -> Response:
        """Add a message; a thread that ended goes on."""
        body = await read(request, NewMessage)
        await self._runtime.send(thread_id, body.text, by=self._who(request), channel="http")
        return await self._state(request, thread_id)

    async def cancel(self, request: Request, thread_id: str) -> Response:
        """Ask for a thread to stop; whoever runs it does so within a second."""
        body = await read(request, Cancellation)
        await self._runtime.cancel(thread_id, by=self._who(request), reason=body.reason)
        return await self._state(request, thread_id)

    async def extend(self, request: Request, thread_id: str) -> Response:
        """Give this turn more; a halted or failed thread goes on."""
        more = await read(request, Extension)
        await self._runtime.extend(
            thread_id,
            by=self._who(request),
            steps=more.steps,
            tokens=more.tokens,
            cost=more.cost,
            seconds=more.seconds,
        )
        return await self._state(request, thread_id)

    # -- interrupts --------------------------------------------------------------------------------------

    async def interrupts(
        self,
        status: Literal["pending", "all"] = "pending",
        thread_id: str | None = None,
        after: str | None = None,
        limit: Annotated[int, Query(ge=1, le=limits.MAX_LISTED_INTERRUPTS)] = 100,
    ) -> Response:
        """The inbox, oldest first; `after` is the id of the last interrupt of the page before."""
        if after is not None:
            await self._runtime.store.interrupt(InterruptId(after))  # an unknown place is 404, not page one
        rows = await self._runtime.interrupts(
            pending=True if status == "pending" else None,
            thread_id=ThreadId(thread_id) if thread_id else None,
            after=InterruptId(after) if after is not None else None,
            limit=limit + 1,
        )
        page = [interrupt_body(row) for row in rows[:limit]]
        return encoded(200, InterruptPage(page, page[-1].id if len(rows) > limit else None))

    async def interrupt(self, interrupt_id: str) -> Response:
        """One interrupt, pending or decided."""
        return encoded(200, interrupt_body(await self._runtime.store.interrupt(InterruptId(interrupt_id))))

    async def resolve(self, request: Request, interrupt_id: str) -> Response:
        """Decide a pending interrupt, once. 409 says by whom, what and when it was decided before."""
        body = await read(request, Resolution)
        row = await self._runtime.store.interrupt(InterruptId(interrupt_id))
        await self._runtime.resolve(
            interrupt_id,
            body.outcome,
            by="approver",
            channel="http",
            comment=body.comment,
            arguments=body.arguments,
            answer=body.answer,
            digest=body.digest,
        )
        return await self._state(request, row.thread_id)

    # -- inside ------------------------------------------------------------------------------------------

    async def _state(self, request: Request, thread_id: str, status: int = 200, **headers: str) -> Response:
        seconds = preferred_wait(request)
        if seconds is None:
            state = await self._runtime.state(thread_id)
        else:
            state = await self._waiting.rest(request, thread_id, seconds)
            headers["Preference-Applied"] = f"wait={seconds}"
        return encoded(status, state_body(state), headers)

    def _who(self, request: Request) -> str:
        return self._access.who(request.headers.raw)

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


def summary(row: ThreadRow) -> ThreadSummary:
    """A thread of a list as it is shown."""
    return ThreadSummary(
        id=row.id,
        agent=row.agent,
        status=row.status,
        head_seq=row.head_seq,
        created_at=iso(row.created_at_ms),
        updated_at=iso(row.updated_at_ms),
        ready_at=iso(row.ready_at_ms),
        metadata=row.metadata,
    )


def _cursor(row: ThreadRow) -> str:
    return base64.urlsafe_b64encode(f"{row.created_at_ms} {row.id}".encode()).decode().rstrip("=")


def _place(cursor: str) -> tuple[int, ThreadId]:
    """The row that a cursor names. Raises `Problem` 400 for what `_cursor` never made."""
    try:
        text = base64.b64decode(cursor + "=" * (-len(cursor) % 4), b"-_", validate=True).decode()
    except ValueError:
        text = ""
    found = re.fullmatch(r"([0-9]{1,16}) ([0-9a-f-]{36})", text)
    if found is None:
        raise Problem(400, "this cursor is none of a list of threads")
    return int(found[1]), ThreadId(found[2])


def state_body(state: ThreadState) -> State:
    """A state as it is shown."""
    return State(
        id=state.id,
        agent=state.agent,
        status=state.status,
        steps=state.step,
        head_seq=state.head_seq,
        answer=state.answer if state.ended == "completed" else None,
        error=state.error if state.ended in ("failed", "cancelled") else None,
        limit=state.limit or None,
        interrupts=[PendingInterrupt(**_shown(raised)) for raised in state.interrupts],
    )


def interrupt_body(row: InterruptRow) -> Interrupt:
    """An interrupt as it is shown."""
    return Interrupt(
        **_shown(row),
        thread_id=row.thread_id,
        agent=row.agent,
        raised_at=iso(row.raised_at_ms),
        outcome=row.outcome,
        by=row.by,
        comment=row.comment,
        resolved_at=iso(row.resolved_at_ms),
    )


def _shown(raised: InterruptRaised | InterruptRow) -> dict[str, Any]:
    return {
        "id": raised.id,
        "kind": raised.kind,
        "call_id": raised.call_id,
        "name": raised.name,
        "arguments": msgspec.Raw(raised.arguments.encode()) if raised.arguments else None,
        "prompt": raised.prompt,
        "digest": raised.digest,
        "options": raised.options,
        "expires_at": iso(raised.expires_at_ms),
    }

"""The endpoints of threads. Every POST answers the thread's state, put off as `Prefer: wait=SECONDS` says."""

import base64
import re
from typing import Annotated

from fastapi import Query, Request
from starlette.responses import Response

from tenuto import limits
from tenuto.errors import ThreadNotFound
from tenuto.events import ThreadId
from tenuto.rows import ThreadRow, ThreadStatus
from tenuto.runtime import Runtime
from tenuto.server import shapes
from tenuto.server.callers import caller_of, check_agent
from tenuto.server.listed import Listed, in_scope
from tenuto.server.posts import Post, Posts
from tenuto.server.problems import Problem, encoded, iso
from tenuto.server.shapes import Cancellation, Extension, NewMessage, NewThread
from tenuto.server.waiting import Waiting

Place = tuple[int, ThreadId]
_FILTER = re.compile(r"metadata\[(.*)\]", re.DOTALL)


class Threads:
    """`agent` is who gets the threads that name none."""

    def __init__(self, runtime: Runtime, posts: Posts, waiting: Waiting, agent: str) -> None:
        self._runtime = runtime
        self._posts = posts
        self._waiting = waiting
        self._agent = agent

    async def start_thread(self, request: Request) -> Response:
        """Start a thread with a first message."""

        async def work(post: Post[NewThread]) -> Response:
            body, agent = post.body, post.body.agent or self._agent
            check_agent(post.caller, agent)

            async def start(thread_id: str | None) -> ThreadId:
                by = post.caller.by(body.by)
                return await self._runtime.start(
                    agent, body.message, by=by, metadata=body.metadata, thread_id=thread_id
                )

            # With an id of its own it is the same start with a key and without.
            own = body.thread_id
            thread_id = await (self._posts.start(post.append_id, start) if own is None else start(own))
            return await self._waiting.state(request, thread_id, 201, Location=f"/v1/threads/{thread_id}")

        return await self._posts.once(request, NewThread, work)

    async def list_threads(
        self,
        request: Request,
        status: ThreadStatus | None = None,
        agent: str | None = None,
        cursor: str | None = None,
        limit: Annotated[int, Query(ge=1, le=limits.MAX_LISTED_THREADS)] = 100,
        id: str | None = None,
    ) -> Response:
        """Threads, newest first, as far as they are in the caller's scope. A cursor stays good: threads that
        start later shift nothing. `metadata[key]=text`: only those whose metadata has this text there. `id`:
        this one alone or 404, without a look at its events.
        """
        caller, metadata = caller_of(request), _metadata(request)
        if id is not None:
            row = await self._runtime.thread(id)
            if not caller.sees(row.agent):
                raise ThreadNotFound(f"there is no thread {id}")
            return encoded(200, shapes.ThreadPage([_summary(row)], None))

        async def fetch(agent: str | None, place: Place | None, count: int) -> list[ThreadRow]:
            return await self._runtime.threads(
                status=status, agent=agent, metadata=metadata, before=place, limit=count
            )

        start = None if cursor is None else _place(cursor)
        page = await in_scope(caller, Listed(fetch, _place_of, agent, limit), start)
        more = None if page.next is None else _cursor(page.next)
        return encoded(200, shapes.ThreadPage([_summary(row) for row in page.rows], more))

    async def list_workers(self, request: Request) -> Response:
        """The workers that live now, and which of the caller's agents they serve."""
        caller = caller_of(request)
        workers = [
            shapes.body(shapes.Worker, row, agents=agents)
            for row in await self._runtime.workers()
            if (agents := tuple(agent for agent in row.agents if caller.sees(agent)))
        ]
        return encoded(200, shapes.WorkerList(workers))

    async def get_fleet(self, request: Request) -> Response:
        """Who works and what waits, in all processes on this database; not for a token of some agents."""
        if caller_of(request).agents:
            raise Problem(403, "the fleet is of all agents, and this token is for some")
        fleet = await self._runtime.fleet()
        waiting = {
            what: shapes.Waits(count, iso(since_ms)) for what, (count, since_ms) in fleet.waiting.items()
        }
        workers = [shapes.body(shapes.Worker, row) for row in fleet.workers]
        return encoded(200, shapes.FleetNow(iso(fleet.at_ms), workers, waiting))

    async def get_thread(self, thread_id: str) -> Response:
        """The state of a thread."""
        row = await self._runtime.store.thread(ThreadId(thread_id))
        state = await self._runtime.state(thread_id)
        # The thread may have grown since: the hash is that of the event that the state ends with.
        (last,) = await self._runtime.store.stored(ThreadId(thread_id), state.head_seq - 1, 1)
        doubts = await self._runtime.in_doubt(thread_id)
        return encoded(200, shapes.thread_body(state, row, last.hash.hex(), doubts))

    async def send_message(self, request: Request, thread_id: str) -> Response:
        """Add a message; a thread that ended goes on."""

        async def work(post: Post[NewMessage]) -> Response:
            before = await self._runtime.state(
                thread_id
            )  # of a thread that cannot be read nothing is changed
            seq = await self._runtime.send(
                thread_id,
                post.body.text,
                by=post.caller.by(post.body.by),
                channel="http",
                append_id=post.append_id,
            )
            return await self._waiting.state(request, thread_id, added=seq, before=before)

        return await self._posts.once(request, NewMessage, work)

    async def cancel_thread(self, request: Request, thread_id: str) -> Response:
        """Ask for a thread to stop; whoever runs it does so within a second."""

        async def work(post: Post[Cancellation]) -> Response:
            before = await self._runtime.state(thread_id)
            by, reason = post.caller.by(post.body.by), post.body.reason
            cancel = self._runtime.cancel(thread_id, by=by, reason=reason, append_id=post.append_id)
            await self._posts.change(thread_id, post.append_id, cancel)
            return await self._waiting.state(request, thread_id, before=before)

        return await self._posts.once(request, Cancellation, work)

    async def extend_thread(self, request: Request, thread_id: str) -> Response:
        """Give this turn more; a halted or failed thread goes on."""

        async def work(post: Post[Extension]) -> Response:
            more, before = post.body, await self._runtime.state(thread_id)
            extend = self._runtime.extend(
                thread_id,
                by=post.caller.by(more.by),
                append_id=post.append_id,
                steps=more.steps,
                tokens=more.tokens,
                cost=more.cost,
                seconds=more.seconds,
            )
            await self._posts.change(thread_id, post.append_id, extend)
            return await self._waiting.state(request, thread_id, before=before)

        return await self._posts.once(request, Extension, work)


def _metadata(request: Request) -> dict[str, str] | None:
    """What `metadata[key]=text` asks for. Raises `Problem` 422."""
    asked: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        if name == "metadata" or name.startswith("metadata["):
            found = _FILTER.fullmatch(name)
            if found is None or found[1] in asked:
                raise Problem(422, f"query: {name[:100]!r} is not of the form metadata[key], each key once")
            asked[found[1]] = value
    return asked or None


def _summary(row: ThreadRow) -> shapes.ThreadSummary:
    return shapes.body(shapes.ThreadSummary, row)


def _place_of(row: ThreadRow) -> Place:
    return row.created_at_ms, row.id


def _cursor(place: Place) -> str:
    return base64.urlsafe_b64encode(f"{place[0]} {place[1]}".encode()).decode().rstrip("=")


def _place(cursor: str) -> Place:
    """The row that a cursor names. Raises `Problem` 400 for what `_cursor` never made."""
    try:
        text = base64.b64decode(cursor + "=" * (-len(cursor) % 4), b"-_", validate=True).decode()
    except ValueError:
        text = ""
    found = re.fullmatch(r"([0-9]{1,16}) ([0-9a-f-]{36})", text)
    if found is None:
        raise Problem(400, "this cursor is none of a list of threads")
    return int(found[1]), ThreadId(found[2])

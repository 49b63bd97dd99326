"""The small contract under /api/agent/: submit a task and wait, decide an action and wait.

    POST /api/agent/tasks    {"task": "…"}                               a token only if SUBMIT_TOKEN is set
    POST /api/agent/approve  {"task_id", "approved": true|false, "action_id"?}   always the approver's token

Where there are stored tokens, one with role submit or approve will do as well, and something has to.

Both answer when the thread rests; a task id is a thread id. 200 unless said otherwise:

    {"task_id","status":"completed","answer","steps"}
    {"task_id","status":"awaiting_approval","action":{"name","args","action_id"},"actions":[…]}   oldest first
    {"task_id","status":"step_limit","steps"}
    {"task_id","status":"failed","error":"the task could not continue"}                                   502

and, beyond the first users of this contract:

    {"task_id","status":"awaiting_review"|"awaiting_answer","action","actions"}
                         actions that are no approvals also have "kind" and "prompt", and are decided under
                         /v1/interrupts
    {"task_id","status":"halted","limit","steps"}          at another limit than that of steps
    {"task_id","status":"cancelled"|"sleeping","steps"}
    {"task_id","status":"running"}                         not at rest after MAX_WAIT_SECONDS; 202

Refusals, in the order in which they are looked for: 405, 404 for the path, 401, each as plain text; then as
{"error"} 403 for a stored token without the role or for other agents, 415, 413, 400, 404 when nothing is
pending, and 409 for what cannot be told apart or was decided already. `Idempotency-Key` is as in `posts`.
Without `action_id` an action is decided only if it is the thread's only pending one and nothing in the thread
was ever decided: a request that is sent twice cannot decide an action that nobody saw.
"""

import re
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tenuto import limits
from tenuto.errors import AlreadyDecided, Conflict, InterruptNotFound, InvalidInput
from tenuto.events import InterruptId, InterruptRaised, ThreadId
from tenuto.rows import InterruptRow
from tenuto.runtime import Runtime
from tenuto.server.access import Caller, Role
from tenuto.server.bodies import read_object
from tenuto.server.callers import Callers, check_agent, lacking
from tenuto.server.posts import Posts
from tenuto.server.problems import Problem, encoded, iso
from tenuto.server.waiting import Waiting
from tenuto.thread import ThreadState

Endpoint = Callable[[Request], Awaitable[Response]]

NOTHING_PENDING = "no pending action for this task"
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)


class Contract:
    """The endpoints; `agent` is who gets the tasks."""

    def __init__(
        self, runtime: Runtime, callers: Callers, posts: Posts, waiting: Waiting, agent: str
    ) -> None:
        self._runtime = runtime
        self._callers = callers
        self._posts = posts
        self._waiting = waiting
        self._agent = agent
        self._endpoints: dict[str, Endpoint] = {"tasks": self.tasks, "approve": self.approve}

    async def serve(self, request: Request) -> Response:
        """Any request below /api/agent/: the method is looked at before the path."""
        if request.method != "POST":
            return Response("Method not allowed", 405, {"Allow": "POST"}, "text/plain")
        endpoint = self._endpoints.get(request.path_params["rest"])
        if endpoint is None:
            return Response("Not found", 404, media_type="text/plain")
        return await _told(lambda: endpoint(request))

    async def tasks(self, request: Request) -> Response:
        """Start a thread with this task. Whether the client stays to hear of it changes nothing."""
        caller = await self._caller(request, "submit")
        if caller is None:
            return _unauthorized()
        check_agent(caller, self._agent)
        body = await read_object(request)
        task = body.get("task")
        if not isinstance(task, str) or not task.strip():
            raise Problem(400, "task is required")

        async def start(thread_id: str | None) -> ThreadId:
            return await self._runtime.start(self._agent, task, by=caller.name, thread_id=thread_id)

        async def work(append_id: str) -> Response:
            thread_id = await self._posts.start(append_id, start)
            return await self._rested(request, thread_id)

        return await self._posts.answer(request, caller, body, lambda key: _told(lambda: work(key)))

    async def approve(self, request: Request) -> Response:
        """Decide an action, once. Whatever is refused has decided nothing."""
        caller = await self._caller(request, "approve")
        if caller is None:
            return _unauthorized()
        body = await read_object(request)
        task_id, approved, action_id = body.get("task_id"), body.get("approved"), body.get("action_id")
        if not isinstance(task_id, str) or not _UUID.fullmatch(task_id):
            raise Problem(400, "task_id is not a task ID")
        if not isinstance(approved, bool):
            raise Problem(400, "approved is neither true nor false")
        if action_id is not None and not isinstance(action_id, str):
            raise Problem(400, "action_id is not an action ID")
        verb = "approve" if approved else "reject"

        async def work(append_id: str) -> Response:
            if action_id is None:
                row = await self._only_action(task_id.lower(), caller)
            else:
                row = await self._action(task_id.lower(), action_id.lower(), caller)
            if isinstance(row, Response):
                return row
            if row.kind != "approval":
                place = f"/v1/interrupts/{row.id}/resolve"
                return encoded(409, {"error": f"this is no approval but a {row.kind}; decide it at {place}"})
            await self._runtime.state(row.thread_id)  # of one that cannot be read nothing is decided
            resolve = self._runtime.resolve(row.id, verb, by=caller.name, channel="http", append_id=append_id)
            await self._posts.change(row.thread_id, append_id, resolve)
            return await self._rested(request, row.thread_id)

        return await self._posts.answer(request, caller, body, lambda key: _told(lambda: work(key)))

    async def _caller(self, request: Request, needs: Role) -> Caller | None:
        """Who sends this; None when it is to hear of no more than 401. Raises `Problem` 403."""
        caller = await self._callers.of(request.headers.raw)
        if caller is not None and not caller.may(needs):
            if caller.stored:
                raise lacking(caller, needs)
            return None
        return caller

    async def _only_action(self, task_id: str, caller: Caller) -> InterruptRow | Response:
        """What a request without `action_id` can only mean, or the refusal.

        The decided ones are asked for after the pending ones: if the first pending one was decided between
        these, and a second raised, the decision is seen here.
        """
        pending = await self._runtime.interrupts(thread_id=task_id)
        if pending and not caller.sees(pending[0].agent):
            raise Problem(404, NOTHING_PENDING)
        if len(pending) == 1 and not await self._runtime.interrupts(
            thread_id=task_id, pending=False, limit=1
        ):
            return pending[0]
        pending = await self._runtime.interrupts(thread_id=task_id, limit=limits.MAX_PAGE_ROWS)
        if not pending:
            raise Problem(404, NOTHING_PENDING)
        error = "say with action_id which action is meant: several are pending, or one was decided before"
        return encoded(409, {"error": error, "actions": [_action(row) for row in pending]})

    async def _action(self, task_id: str, action_id: str, caller: Caller) -> InterruptRow:
        try:
            row = await self._runtime.store.interrupt(InterruptId(action_id))
        except InterruptNotFound:
            raise Problem(404, NOTHING_PENDING) from None
        if row.thread_id != task_id or not caller.sees(row.agent):
            raise Problem(404, NOTHING_PENDING)
        return row

    async def _rested(self, request: Request, thread_id: str) -> Response:
        return answer(await self._waiting.rest(request, thread_id, limits.MAX_WAIT_SECONDS))


async def _told(work: Callable[[], Awaitable[Response]]) -> Response:
    """The answer, or the refusal as this contract tells it."""
    try:
        return await work()
    except Problem as refusal:
        return encoded(refusal.status, {"error": refusal.detail, **refusal.facts}, refusal.headers)
    except InvalidInput as error:
        return encoded(400, {"error": str(error)})
    except AlreadyDecided as error:
        return _decided(error)
    except Conflict as error:
        return encoded(409, {"error": str(error)})


def answer(state: ThreadState) -> Response:
    """What the contract says of a thread in this state."""
    body: dict[str, Any] = {"task_id": state.id, "status": state.status}
    match state.status:
        case "completed":
            return encoded(200, body | {"answer": state.answer, "steps": state.step})
        case "failed":
            return encoded(502, body | {"error": "the task could not continue"})
        case "halted" if state.limit == "steps":
            return encoded(200, body | {"status": "step_limit", "steps": state.step})
        case "halted":
            return encoded(200, body | {"limit": state.limit, "steps": state.step})
        case "running":
            return encoded(202, body)
        case "cancelled" | "sleeping":
            return encoded(200, body | {"steps": state.step})
        case _:
            actions = [_action(raised) for raised in state.interrupts]
            return encoded(200, body | {"action": actions[0], "actions": actions})


def _action(raised: InterruptRaised | InterruptRow) -> dict[str, Any]:
    """`args` are the exact arguments that will run, byte for byte."""
    args = msgspec.Raw(raised.arguments.encode() or b"{}")
    action = {"name": raised.name, "args": args, "action_id": raised.id}
    return action if raised.kind == "approval" else action | {"kind": raised.kind, "prompt": raised.prompt}


def _decided(error: AlreadyDecided) -> Response:
    facts = {"outcome": error.outcome, "by": error.by, "at": iso(error.at_ms)}
    if error.outcome == "expired":
        said = f"this action expired at {facts['at']}: nobody decided it in time"
    else:
        said = f"this action was decided already: {error.outcome} by {error.by or 'unknown'} at {facts['at']}"
    return encoded(409, {"error": said} | facts)


def _unauthorized() -> Response:
    return Response("Unauthorized", 401, {"WWW-Authenticate": "Bearer"}, "text/plain")

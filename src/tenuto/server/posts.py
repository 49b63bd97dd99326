"""Requests that change something, and doing each of them once (`Idempotency-Key`).

The same key from the same caller on the same path, with the same body, gets the first answer, byte for byte
and with `Idempotent-Replayed: true`; with another body it is 422. While the first is still being answered,
the second waits for its answer.
Answers are kept for a day in the store, so that any server of it knows them. What was refused for its form
(400, 401, 403, 413, 415, 422) has changed nothing and is not kept, nor is what failed (5xx), which may have.

A process that dies between the change and the keeping of its answer doubles nothing: the id of the append is
derived from key and body, so the same request again finds its first append, and is answered from there.
"""

import asyncio
import hashlib
import json
import re
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tenuto import limits
from tenuto.errors import Conflict, InvalidInput, Stale, TenutoError
from tenuto.events import MessageReceived, ThreadId
from tenuto.server.access import Caller
from tenuto.server.bodies import converted, read_object
from tenuto.server.callers import caller_of
from tenuto.server.problems import Problem, logger, of_error
from tenuto.store import Store

T = TypeVar("T")
KIND: Final = "request"
REPLAYED: Final = "Idempotent-Replayed"
KEPT_STATUSES: Final = frozenset({200, 201, 404, 409})
# A string of RFC 8941, as the draft on Idempotency-Key has it, or the same without quotes, as most send it.
_OTHER_BODY: Final = "this Idempotency-Key was used for a request with another body"
_WITH_KEY: Final = "; with the same Idempotency-Key it can be sent again and is done once"
_WITHOUT_KEY: Final = "; this may have been done: look before it is sent again, or give it an Idempotency-Key"
_QUOTED = re.compile(r'"((?:[ !#-\[\]-~]|\\["\\])+)"')
_BARE = re.compile(r"[!#-~][!-~]*")
KEY_PATTERN: Final = f"^({_BARE.pattern}|{_QUOTED.pattern})$"


@dataclass(frozen=True)
class Post(Generic[T]):
    """A request that changes something, read. `append_id`: for its one append; "" without a key."""

    caller: Caller
    body: T
    append_id: str


class _Kept(msgspec.Struct, frozen=True):
    """An answer, for those who ask again."""

    body_hash: str
    status: int
    headers: dict[str, str]
    body: bytes


class _Running(NamedTuple):
    """A request that is being answered."""

    body_hash: str
    answered: asyncio.Event


class Posts:
    """Those that are being answered in this process, and the answers that the store keeps."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._running: dict[str, _Running] = {}

    async def once(
        self, request: Request, shape: type[T], work: Callable[[Post[T]], Awaitable[Response]]
    ) -> Response:
        """Read the body as a `shape`, then do the work and answer as it does, once per key.

        Raises `Problem` 400, 408, 413, 415 or 422.
        """
        raw = await read_object(request)
        body, caller = converted(raw, shape), caller_of(request)

        async def answer(append_id: str) -> Response:
            try:
                return await work(Post(caller, body, append_id))
            except TenutoError as error:
                return of_error(error, _WITH_KEY if append_id else _WITHOUT_KEY)

        return await self.answer(request, caller, raw, answer)

    async def answer(
        self,
        request: Request,
        caller: Caller,
        raw: dict[str, Any],
        work: Callable[[str], Awaitable[Response]],
    ) -> Response:
        """The answer of `work`, which gets an append id, or "" when the request has no key."""
        key = _key(request)
        if key is None:
            return await work("")
        name = _digest(caller.name, request.method, request.url.path, key)
        body_hash = _digest(json.dumps(raw, sort_keys=True))
        while running := self._running.get(name):
            if running.body_hash != body_hash:
                raise Problem(422, _OTHER_BODY)
            await running.answered.wait()
        self._running[name] = running = _Running(body_hash, asyncio.Event())
        try:
            kept = await self._store.record(KIND, name)
            if kept is not None:
                return _again(kept, body_hash)
            response = await work(f"key {_digest(name, body_hash)}")
            if response.status_code in KEPT_STATUSES:
                await self._keep(name, body_hash, response)
            return response
        finally:
            del self._running[name]
            running.answered.set()

    async def start(self, append_id: str, start: Callable[[str | None], Awaitable[ThreadId]]) -> ThreadId:
        """Start a thread, with a key one whose id is derived from it: the same again is the same thread."""
        if not append_id:
            return await start(None)
        thread_id = str(uuid.uuid5(uuid.NAMESPACE_OID, append_id))
        try:
            return await start(thread_id)
        except Conflict:
            # Nobody else has this id: this request began the thread, under an earlier version of its agent.
            return ThreadId(thread_id)

    async def change(self, thread_id: str, append_id: str, change: Awaitable[object]) -> None:
        """Make a change that says `Conflict` where it was made before, also when it was made by this very
        request, whose answer was lost: then it is none.
        """
        try:
            await change
        except Conflict:
            if not append_id or not await self._is_made(ThreadId(thread_id), append_id):
                raise

    async def _is_made(self, thread_id: ThreadId, append_id: str) -> bool:
        try:
            # On a condition that never holds: all it can do is to find the append.
            await self._store.append(thread_id, (MessageReceived("-"),), append_id=append_id, head_seq=0)
        except Stale:
            return False
        return True

    async def _keep(self, name: str, body_hash: str, response: Response) -> None:
        """Without this the request was still done, and is told of: what asks again finds its append."""
        headers = {key: value for key, value in response.headers.items() if key != "content-length"}
        kept = _Kept(body_hash, response.status_code, headers, bytes(response.body))
        expires_at_ms = self._store.now_ms() + round(limits.KEY_SECONDS * 1000)
        try:
            await self._store.put_record(
                KIND, name, msgspec.msgpack.encode(kept), expires_at_ms=expires_at_ms
            )
        except InvalidInput:
            logger.info("an answer is too large to be kept for its Idempotency-Key")
        except TenutoError as error:
            logger.error("an answer could not be kept for its Idempotency-Key", exc_info=error)


def _again(kept: bytes, body_hash: str) -> Response:
    first = msgspec.msgpack.decode(kept, type=_Kept)
    if first.body_hash != body_hash:
        raise Problem(422, _OTHER_BODY)
    return Response(first.body, first.status, first.headers | {REPLAYED: "true"})


def _key(request: Request) -> str | None:
    """The key; None without the header. Raises `Problem` 400."""
    given = request.headers.getlist("idempotency-key")
    if not given:
        return None
    value = given[0].strip() if len(given) == 1 else ""
    quoted = _QUOTED.fullmatch(value)
    key = re.sub(r"\\(.)", r"\1", quoted[1]) if quoted else value if _BARE.fullmatch(value) else ""
    if not 0 < len(key) <= limits.MAX_KEY_CHARACTERS:
        raise Problem(
            400, f"Idempotency-Key is one text of 1 to {limits.MAX_KEY_CHARACTERS} visible ASCII characters"
        )
    return key


def _digest(*parts: str) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

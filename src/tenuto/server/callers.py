"""Finding out who sends a request, and refusing what their role or scope does not cover.

Stored tokens are read again at most every TOKEN_SECONDS: one that is made, revoked or has expired is noticed
by then, and a busy server asks its store no more often.
"""

import asyncio
import math
from typing import Any

from fastapi import Depends, Request

from tenuto import limits
from tenuto.errors import InterruptNotFound, ThreadNotFound
from tenuto.events import InterruptId, ThreadId
from tenuto.server.access import ANYBODY, Access, Caller, Headers, Role, bearer
from tenuto.server.problems import Problem
from tenuto.server.tokens import Token, digest, stored_tokens
from tenuto.store import Store


class Callers:
    """Those of one store and one environment. Each method may raise `StoreError`: then nobody is let in."""

    def __init__(self, store: Store, access: Access) -> None:
        self._store = store
        self._access = access
        self._tokens: dict[str, Token] = {}
        self._read_at = -math.inf
        self._reading = asyncio.Lock()

    async def of(self, headers: Headers) -> Caller | None:
        """Who sends this; None for an unknown, revoked or expired token, and for none where it takes one."""
        given = bearer(headers)
        if given and (caller := self._access.caller(given)):
            return caller
        tokens = await self._known()
        # Found by its digest, which tells nothing of the token, whatever the time that takes tells of it.
        token = tokens.get(digest(given)) if given else None
        if token is not None and token.works(self._store.now_ms()):
            return token.caller()
        return ANYBODY if await self.anonymous() else None

    async def anonymous(self) -> bool:
        """May those without a token start and read? Not once there is a stored one: also a revoked or expired
        one keeps the door shut, so that to revoke the last of them opens nothing.
        """
        return self._access.anonymous and not self._access.submit and not await self._known()

    async def permitted(self, request: Request, *needs: Role) -> Caller:
        """Who sends this, having one of these roles, and the thread or interrupt of the path in its scope.

        Raises `Problem` 401 or 403; `ThreadNotFound`, `InterruptNotFound` for what is not in its scope, as
        for what is not there at all.
        """
        caller = await self.of(request.headers.raw)
        if caller is None or (caller is ANYBODY and not caller.may(*needs)):
            wanted, given = " or ".join(needs), bearer(request.headers.raw)
            if given:
                why = (
                    f"this bearer token is unknown, revoked or expired; one with role {wanted} is needed here"
                )
                raise Problem(401, why, WWW_Authenticate='Bearer error="invalid_token"')
            raise Problem(401, f"a bearer token with role {wanted} is needed here", WWW_Authenticate="Bearer")
        if not caller.may(*needs):
            raise lacking(caller, *needs)
        if caller.agents:
            await self._check_scope(caller, request.path_params)
        return caller

    def needing(self, *needs: Role) -> Any:
        """A dependency of an endpoint; `caller_of` then tells who it is."""

        async def check(request: Request) -> None:
            request.state.caller = await self.permitted(request, *needs)

        return Depends(check)

    def forget(self) -> None:
        """Stored tokens have changed: the next request reads them again."""
        self._read_at = -math.inf

    async def _known(self) -> dict[str, Token]:
        loop = asyncio.get_running_loop()
        if loop.time() - self._read_at >= limits.TOKEN_SECONDS:
            async with self._reading:
                if (now := loop.time()) - self._read_at >= limits.TOKEN_SECONDS:
                    self._tokens = {token.hash: token for token in await stored_tokens(self._store)}
                    self._read_at = now
        return self._tokens

    async def _check_scope(self, caller: Caller, path: dict[str, Any]) -> None:
        if (thread_id := path.get("thread_id")) is not None:
            await self.check_thread(caller, thread_id)
        elif (interrupt_id := path.get("interrupt_id")) is not None:
            interrupt = await self._store.interrupt(InterruptId(interrupt_id))
            if not caller.sees(interrupt.agent):
                raise InterruptNotFound(f"there is no interrupt {interrupt_id}")

    async def check_thread(self, caller: Caller, thread_id: str) -> None:
        """Raises `ThreadNotFound` when there is none in the caller's scope."""
        if not caller.sees((await self._store.thread(ThreadId(thread_id))).agent):
            raise ThreadNotFound(f"there is no thread {thread_id}")


def caller_of(request: Request) -> Caller:
    """Who sends this, as its endpoint's dependency has found out."""
    caller: Caller = request.state.caller
    return caller


def check_agent(caller: Caller, agent: str) -> None:
    """Raises `Problem` 403 for an agent that the caller has named and that is not in its scope."""
    if not caller.sees(agent):
        scope = ", ".join(caller.agents)
        raise Problem(403, f"{caller.known_as} is for agents {scope} alone", facts={"agents": caller.agents})


def lacking(caller: Caller, *needs: Role) -> Problem:
    """The refusal that names the role that is missing."""
    return Problem(
        403,
        f"this needs role {' or '.join(needs)}; {caller.known_as} has {', '.join(caller.roles)}",
        facts={"needs": needs, "roles": caller.roles},
        WWW_Authenticate='Bearer error="insufficient_scope"',
    )

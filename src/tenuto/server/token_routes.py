"""The endpoints of stored tokens, for admins."""

from typing import Annotated

import msgspec
from fastapi import Request
from starlette.responses import Response

from tenuto import limits
from tenuto.runtime import Runtime
from tenuto.server.access import Role
from tenuto.server.bodies import converted, read_object
from tenuto.server.callers import Callers, caller_of
from tenuto.server.problems import encoded
from tenuto.server.shapes import Time, body
from tenuto.server.tokens import Token, Wanted, create_token, revoke_token, stored_tokens

AgentName = Annotated[str, msgspec.Meta(min_length=1, max_length=limits.MAX_NAME_CHARACTERS)]


class NewToken(msgspec.Struct, forbid_unknown_fields=True):
    """A token for a person or program. `agents`: those whose threads it has to do with; none named means all.
    An admin's is for all. `expires_seconds`: it works for so long; null for until it is revoked.
    """

    name: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$")]
    roles: Annotated[list[Role], msgspec.Meta(min_length=1)]
    agents: Annotated[list[AgentName], msgspec.Meta(max_length=limits.MAX_TOKEN_AGENTS)] = []
    expires_seconds: Annotated[float, msgspec.Meta(gt=0, le=limits.MAX_TOKEN_SECONDS)] | None = None


class ShownToken(msgspec.Struct):
    """What is known of a token. `works`: neither revoked nor expired."""

    name: str
    roles: tuple[Role, ...]
    agents: tuple[str, ...]
    works: bool
    created_at: Time | None
    created_by: str
    expires_at: Time | None
    revoked_at: Time | None


class CreatedToken(ShownToken):
    """... and `token` itself, this once: it is kept nowhere."""

    token: str


class TokenList(msgspec.Struct):
    """All tokens by name, also those that work no more."""

    tokens: list[ShownToken]


class Tokens:
    """Whoever makes a token is recorded in it."""

    def __init__(self, runtime: Runtime, callers: Callers) -> None:
        self._store = runtime.store
        self._callers = callers

    async def list_tokens(self) -> Response:
        """All tokens by name; none of them is shown itself."""
        now_ms = self._store.now_ms()
        found = [shown_token(token, now_ms) for token in await stored_tokens(self._store)]
        return encoded(200, TokenList(found))

    async def create_token(self, request: Request) -> Response:
        """Make a token and show it, this once. Its name is its key: made a second time it is 409."""
        asked = converted(await read_object(request), NewToken)
        wanted = Wanted(asked.name, asked.roles, asked.agents, asked.expires_seconds or 0.0)
        token, secret = await create_token(self._store, wanted, by=caller_of(request).name)
        self._callers.forget()
        return encoded(201, created_token(token, secret))

    async def revoke_token(self, name: str) -> Response:
        """Let a token work no more; every server of this database knows it within a second."""
        token = await revoke_token(self._store, name)
        self._callers.forget()
        return encoded(200, shown_token(token, self._store.now_ms()))


def shown_token(token: Token, now_ms: int) -> ShownToken:
    """A token as it is shown."""
    return body(ShownToken, token, works=token.works(now_ms))


def created_token(token: Token, secret: str) -> CreatedToken:
    """... and itself, to the one who made it."""
    return body(CreatedToken, token, works=token.works(token.created_at_ms), token=secret)

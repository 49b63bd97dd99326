"""The endpoints of stored tokens, for admins."""

import msgspec
from fastapi import Request
from starlette.responses import Response

from tenuto.runtime import Runtime
from tenuto.server.access import Role
from tenuto.server.bodies import converted, read_object
from tenuto.server.callers import Callers, caller_of
from tenuto.server.problems import encoded
from tenuto.server.shapes import Time, body
from tenuto.server.tokens import NewToken, Token, create_token, revoke_token, stored_tokens


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
        wanted = converted(await read_object(request), NewToken)
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

"""Stored tokens: made once, shown once, kept as a hash.

A token is 32 random bytes behind a prefix by which scanners and people recognise it. What is kept is its
SHA-256: of so much randomness nobody guesses the token from it, so it needs no slow hash.
"""

import hashlib
import re
import secrets
from collections.abc import Sequence
from typing import Annotated, Final

import msgspec

from tenuto import limits
from tenuto.errors import Conflict, InvalidInput, NotFound
from tenuto.server.access import APPROVER, ROLES, USER, Caller, Role
from tenuto.store import Store

PREFIX: Final = "tnt_"
KIND: Final = "token"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")


class Token(msgspec.Struct, frozen=True):
    """What is kept of a token. `agents`: those whose threads it has to do with; none named means all.
    `expires_at_ms` and `revoked_at_ms`: 0 for never.
    """

    name: str
    hash: str
    roles: tuple[Role, ...]
    agents: tuple[str, ...] = ()
    created_at_ms: int = 0
    created_by: str = ""
    expires_at_ms: int = 0
    revoked_at_ms: int = 0

    def works(self, now_ms: int) -> bool:
        """Neither revoked nor expired."""
        return not self.revoked_at_ms and not 0 < self.expires_at_ms <= now_ms

    def caller(self) -> Caller:
        """Whoever shows this token."""
        return Caller(self.name, f"token {self.name}", self.roles, self.agents, stored=True)


AgentName = Annotated[str, msgspec.Meta(min_length=1, max_length=limits.MAX_NAME_CHARACTERS)]


class NewToken(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A token for a person or program. `agents`: those whose threads it has to do with; none named means all.
    An admin's is for all. `expires_seconds`: it works for so long; null for until it is revoked.
    """

    name: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$")]
    roles: Annotated[Sequence[Role], msgspec.Meta(min_length=1)]
    agents: Annotated[Sequence[AgentName], msgspec.Meta(max_length=limits.MAX_TOKEN_AGENTS)] = ()
    expires_seconds: Annotated[float, msgspec.Meta(gt=0, le=limits.MAX_TOKEN_SECONDS)] | None = None


def digest(token: bytes) -> str:
    """What is kept of a token."""
    return hashlib.sha256(token).hexdigest()


async def stored_tokens(store: Store) -> list[Token]:
    """All of them by name, also those that work no more."""
    found: list[Token] = []
    while page := await store.records(
        KIND, after=found[-1].name if found else "", limit=limits.MAX_PAGE_ROWS
    ):
        found += [msgspec.json.decode(body, type=Token) for body in page.values()]
    return found


async def create_token(store: Store, wanted: NewToken, *, by: str) -> tuple[Token, str]:
    """Make a token; what is kept of it, and the token itself, which nobody can be shown again.

    Raises `InvalidInput`, and `Conflict` when one of this name works. The name of one that works no more is
    taken over.
    """
    _check(wanted)
    known = await stored_tokens(store)
    now_ms = store.now_ms()
    if any(token.name == wanted.name and token.works(now_ms) for token in known):
        raise Conflict(f"there is a token {wanted.name} already; revoke it first, or choose another name")
    if len(known) >= limits.MAX_TOKENS and wanted.name not in {token.name for token in known}:
        raise Conflict(f"there are {len(known)} tokens already; take over the name of one that works no more")
    secret = PREFIX + secrets.token_urlsafe(32)
    token = Token(
        wanted.name,
        digest(secret.encode()),
        tuple(role for role in ROLES if role in wanted.roles),
        tuple(dict.fromkeys(wanted.agents)),
        created_at_ms=now_ms,
        created_by=by,
        expires_at_ms=now_ms + round(wanted.expires_seconds * 1000) if wanted.expires_seconds else 0,
    )
    replace = wanted.name in {token.name for token in known}
    body = msgspec.json.encode(token)
    if await store.put_record(KIND, wanted.name, body, replace=replace) != body:
        raise Conflict(f"a token {wanted.name} was made just now by somebody else")
    return token, secret


async def revoke_token(store: Store, name: str) -> Token:
    """Let it work no more; idempotent. It stays in the list. Raises `NotFound`."""
    kept = await store.record(KIND, name)
    if kept is None:
        raise NotFound(f"there is no token {name}")
    token = msgspec.json.decode(kept, type=Token)
    if token.revoked_at_ms:
        return token
    token = msgspec.structs.replace(token, revoked_at_ms=store.now_ms())
    await store.put_record(KIND, name, msgspec.json.encode(token), replace=True)
    return token


def _check(wanted: NewToken) -> None:
    if not _NAME.fullmatch(wanted.name):
        raise InvalidInput(
            f"{wanted.name[:80]!r} is no name for a token: up to 64 letters, digits and any of . _ @ -, the "
            "first a letter or digit"
        )
    if wanted.name in (APPROVER.name, USER.name):
        raise InvalidInput(f"{wanted.name} is the name of a secret of the environment; choose another")
    if not wanted.roles:
        raise InvalidInput(f"a token needs a role; the roles are {', '.join(ROLES)}")
    if unknown := [role for role in wanted.roles if role not in ROLES]:
        raise InvalidInput(f"{unknown[0]!r} is no role; the roles are {', '.join(ROLES)}")
    if len(wanted.agents) > limits.MAX_TOKEN_AGENTS or any(
        not 0 < len(agent) <= limits.MAX_NAME_CHARACTERS for agent in wanted.agents
    ):
        raise InvalidInput(f"a token can be for up to {limits.MAX_TOKEN_AGENTS} agents, each by its name")
    if not 0 <= (wanted.expires_seconds or 0) <= limits.MAX_TOKEN_SECONDS:
        days = limits.MAX_TOKEN_SECONDS / 86_400
        raise InvalidInput(f"a token can work for up to {days:g} days, or until it is revoked")
    if "admin" in wanted.roles and wanted.agents:
        raise InvalidInput("an admin makes tokens for every agent, and so cannot be held to some")

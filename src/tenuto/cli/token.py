"""Making, listing and revoking the tokens of a server's users, in its database or at the server."""

import re
import sys
from typing import Any, Final

import msgspec

from tenuto.cli.find import opened
from tenuto.cli.look import new_table
from tenuto.cli.target import Target
from tenuto.cli.terminal import console, moment, print_json, safe, user
from tenuto.client import Client
from tenuto.client.bodies import TokenBody, at_ms
from tenuto.server.token_routes import CreatedToken, ShownToken, created_token, shown_token
from tenuto.server.tokens import NewToken, create_token, revoke_token, stored_tokens

Shown = TokenBody | ShownToken
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def seconds_of(text: str) -> float:
    """A length of time such as 12h; 0 for "". Raises `ValueError`."""
    found = re.fullmatch(r"([0-9]{1,9})([smhdw])", text)
    if text and (found is None or not int(found[1])):
        raise ValueError(f"{text[:60]!r} is no length of time such as 90s, 30m, 12h, 30d or 8w")
    return float(int(found[1]) * _SECONDS[found[2]]) if found else 0.0


async def create(target: Target, wanted: NewToken, as_json: bool) -> None:
    """Make a token and print it; nothing else where a program reads."""
    made: TokenBody | CreatedToken
    async with opened(target, must_exist=False) as runtime:
        if isinstance(runtime, Client):
            made = await runtime.create_token(
                wanted.name,
                wanted.roles,
                agents=wanted.agents,
                expires_seconds=wanted.expires_seconds or None,
            )
        else:
            made = created_token(*await create_token(runtime.store, wanted, by=user()))
    if as_json:
        return print_json(made)
    print(made.token)  # no line break or colour shall come into it
    if sys.stdout.isatty():
        until = f"until {_moment(made.expires_at)}" if made.expires_at else "until it is revoked"
        scope = f" for {', '.join(map(safe, made.agents))}" if made.agents else ""
        console(errors=True).print(
            f"token {made.name}: {', '.join(made.roles)}{scope}, {until}. It is shown this once.", style="dim"
        )
    return None


async def show(target: Target, as_json: bool) -> None:
    """All tokens by name."""
    tokens: list[Shown] = []
    async with opened(target) as runtime:
        if isinstance(runtime, Client):
            tokens += await runtime.tokens()
        else:
            now_ms = runtime.store.now_ms()
            tokens += [shown_token(token, now_ms) for token in await stored_tokens(runtime.store)]
    if as_json:
        return print_json([_told(token) for token in tokens])
    if not tokens:
        return console().print("no tokens; make one with: tenuto token create NAME --role ROLE")
    listed = new_table("name", "roles", "agents", "created", "by", "works")
    for token in tokens:
        agents, roles = safe(", ".join(token.agents)) or "all", ", ".join(token.roles)
        made = _moment(token.created_at), safe(token.created_by)
        listed.add_row(safe(token.name), safe(roles), agents, *made, _works(token))
    return console().print(listed, soft_wrap=False)


async def revoke(target: Target, name: str, as_json: bool) -> None:
    """Let a token work no more."""
    async with opened(target) as runtime:
        token: Shown
        if isinstance(runtime, Client):
            token = await runtime.revoke_token(name)
        else:
            kept = await revoke_token(runtime.store, name)
            token = shown_token(kept, runtime.store.now_ms())
    if as_json:
        return print_json(_told(token))
    return console().print(f"token {safe(token.name)} works no more")


def _works(token: Shown) -> str:
    if token.revoked_at:
        return f"revoked {_moment(token.revoked_at)}"
    if not token.expires_at:
        return "until it is revoked"
    return f"{'until' if token.works else 'expired'} {_moment(token.expires_at)}"


def _moment(time: str | None) -> str:
    return moment(at_ms(time))


def _told(token: Shown) -> dict[str, Any]:
    told: dict[str, Any] = msgspec.to_builtins(token)
    told.pop("token", None)  # of one that was not made just now nobody knows it
    return told

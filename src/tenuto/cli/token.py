"""Making, listing and revoking the tokens of a server's users, in its database."""

import re
import sys
from typing import Final

from tenuto.cli.find import opened
from tenuto.cli.look import new_table
from tenuto.cli.run import user
from tenuto.cli.target import Target
from tenuto.cli.terminal import console, moment, print_json, safe
from tenuto.runtime import Runtime
from tenuto.server.token_routes import created_token, shown_token
from tenuto.server.tokens import Token, Wanted, create_token, revoke_token, stored_tokens

_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def seconds_of(text: str) -> float:
    """A length of time such as 12h; 0 for "". Raises `ValueError`."""
    found = re.fullmatch(r"([0-9]{1,9})([smhdw])", text)
    if text and (found is None or not int(found[1])):
        raise ValueError(f"{text[:60]!r} is no length of time such as 90s, 30m, 12h, 30d or 8w")
    return float(int(found[1]) * _SECONDS[found[2]]) if found else 0.0


async def create(database: str, wanted: Wanted, as_json: bool) -> None:
    """Make a token and print it; nothing else where a program reads."""
    async with _runtime(database, must_exist=False) as runtime:
        token, secret = await create_token(runtime.store, wanted, by=user())
    if as_json:
        return print_json(created_token(token, secret))
    print(secret)  # no line break or colour shall come into it
    if sys.stdout.isatty():
        until = f"until {moment(token.expires_at_ms)}" if token.expires_at_ms else "until it is revoked"
        scope = f" for {', '.join(map(safe, token.agents))}" if token.agents else ""
        console(errors=True).print(
            f"token {token.name}: {', '.join(token.roles)}{scope}, {until}. It is shown this once.",
            style="dim",
        )
    return None


async def show(database: str, as_json: bool) -> None:
    """All tokens by name."""
    async with _runtime(database) as runtime:
        tokens, now_ms = await stored_tokens(runtime.store), runtime.store.now_ms()
    if as_json:
        return print_json([shown_token(token, now_ms) for token in tokens])
    if not tokens:
        return console().print("no tokens; make one with: tenuto token create NAME --role ROLE")
    listed = new_table("name", "roles", "agents", "created", "by", "works")
    for token in tokens:
        agents = ", ".join(token.agents) or "all"
        made = moment(token.created_at_ms)
        listed.add_row(
            token.name,
            ", ".join(token.roles),
            safe(agents),
            made,
            safe(token.created_by),
            _works(token, now_ms),
        )
    return console().print(listed, soft_wrap=False)


async def revoke(database: str, name: str, as_json: bool) -> None:
    """Let a token work no more."""
    async with _runtime(database) as runtime:
        token = await revoke_token(runtime.store, name)
        now_ms = runtime.store.now_ms()
    if as_json:
        return print_json(shown_token(token, now_ms))
    return console().print(f"token {token.name} works no more")


def _works(token: Token, now_ms: int) -> str:
    if token.revoked_at_ms:
        return f"revoked {moment(token.revoked_at_ms)}"
    if not token.expires_at_ms:
        return "until it is revoked"
    return f"{'until' if token.works(now_ms) else 'expired'} {moment(token.expires_at_ms)}"


def _runtime(database: str, *, must_exist: bool = True) -> Runtime:
    made = opened(Target(database), must_exist=must_exist)
    assert isinstance(made, Runtime)
    return made

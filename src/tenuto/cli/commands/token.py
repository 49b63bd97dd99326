"""Tokens of a server's users: create, list, revoke."""

import asyncio
from typing import Annotated

import typer

from tenuto.cli.options import DATABASE, AsJson, Database, SameDatabase, SameUrl, Url, reading
from tenuto.cli.target import target_of

commands = typer.Typer()
token_app = typer.Typer(
    help="Who may use the HTTP server of this database, and for what.",
    epilog="Example: tenuto token create ci --role submit --role read, then: tenuto token list",
    no_args_is_help=True,
)
commands.add_typer(token_app, name="token")

Name = Annotated[
    str, typer.Argument(metavar="NAME", help="Whose it is; the log names it so. Letters, digits, . _ @ -")
]


@token_app.callback()
def token(database: Database = DATABASE, url: Url = None) -> None:
    pass


@reading
def _roles(given: list[str]) -> list[str]:
    from tenuto.server.access import ROLES

    if unknown := [role for role in given if role not in ROLES]:
        raise ValueError(f"{unknown[0][:60]!r} is not one of {', '.join(ROLES)}")
    return given


@reading
def _expires(text: str) -> str:
    from tenuto.cli.token import seconds_of

    seconds_of(text)
    return text


@token_app.command(epilog="Example: tenuto token create ana --role approve --agent ops --expires 30d")
def create(
    context: typer.Context,
    name: Name,
    role: Annotated[
        list[str],
        typer.Option(
            callback=_roles,
            metavar="ROLE",
            help="submit (start, send, cancel, extend), read, approve (decide), or admin (all). Repeatable.",
        ),
    ],
    agent: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only threads of this agent; default all. Repeatable."),
    ] = None,
    expires: Annotated[
        str, typer.Option(callback=_expires, metavar="TIME", help="It works for so long: 90s, 12h, 30d, 8w.")
    ] = "",
    database: SameDatabase = None,
    url: SameUrl = None,
    as_json: AsJson = False,
) -> None:
    """Make a token and print it, this once: it is kept nowhere.

    Servers of this database take it within a second. Once there is a token, none of them serves anybody
    without one.
    """
    from tenuto.cli.token import create as create_token
    from tenuto.cli.token import seconds_of
    from tenuto.server.tokens import NewToken

    wanted = NewToken(name, role, agent or (), seconds_of(expires))  # type: ignore[arg-type]  # checked in _roles
    asyncio.run(create_token(target_of(context), wanted, as_json))


@token_app.command("list", epilog="Example: tenuto token list --json")
def list_(
    context: typer.Context, database: SameDatabase = None, url: SameUrl = None, as_json: AsJson = False
) -> None:
    """List the tokens: names, roles and until when; never a token itself."""
    from tenuto.cli.token import show

    asyncio.run(show(target_of(context), as_json))


@token_app.command(epilog="Example: tenuto token revoke ci")
def revoke(
    context: typer.Context,
    name: Name,
    database: SameDatabase = None,
    url: SameUrl = None,
    as_json: AsJson = False,
) -> None:
    """Let a token work no more; every server of this database knows it within a second."""
    from tenuto.cli.token import revoke as revoke_token

    asyncio.run(revoke_token(target_of(context), name, as_json))

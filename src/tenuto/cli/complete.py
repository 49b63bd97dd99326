"""Ids for the shell's TAB key, out of the local database: read only, quickly, and in silence.

A shell calls this with each TAB: nothing is opened for writing, migrated, or asked of a server, and what is
wrong (no database, one of another version, a locked file) only means that there is nothing to offer.
"""

import contextlib
import os
from typing import Any, Final

from tenuto.cli.terminal import safe
from tenuto.store import open_store

MOST: Final = 50
_ANY: Final = "SELECT id, agent, status FROM threads ORDER BY created_at DESC, id DESC LIMIT ?3"
_THREADS: Final = "SELECT id, agent, status FROM threads WHERE id >= ?1 AND id < ?2 ORDER BY id LIMIT ?3"
_INTERRUPTS: Final = (
    "SELECT id, kind, 'pending' FROM interrupts WHERE outcome IS NULL AND id >= ?1 AND id < ?2"
    " ORDER BY num LIMIT ?3"
)


def thread_ids(ctx: Any, incomplete: str) -> list[tuple[str, str]]:
    """Ids of threads that begin so, each with its agent and status; without a beginning the newest."""
    return _ids(ctx, _THREADS if incomplete else _ANY, incomplete)


def interrupt_ids(ctx: Any, incomplete: str) -> list[tuple[str, str]]:
    """Ids of what waits for a person and begins so, each with its kind."""
    return _ids(ctx, _INTERRUPTS, incomplete)


def _ids(context: Any, query: str, beginning: str) -> list[tuple[str, str]]:
    from tenuto.cli.options import DATABASE
    from tenuto.store.sqlite_file import look_at

    # Whatever is wrong, a completion must not print it into the line that is being typed.
    with contextlib.suppress(Exception):
        if _named(context, "url") or os.environ.get("TENUTO_URL"):
            return []
        database = _named(context, "database") or os.environ.get("TENUTO_DATABASE") or DATABASE
        path = getattr(open_store(database), "path", "")
        if not os.path.isfile(path):
            return []
        with contextlib.closing(look_at(path)) as connection:
            # "g" comes after every digit of an id.
            rows = connection.execute(query, (beginning, f"{beginning}g", MOST)).fetchall()
        return [(safe(id), safe(f"{what} {state}")) for id, what, state in rows]
    return []


def _named(context: Any, name: str) -> str:
    """What an option of the line so far says, of this command or of one around it."""
    while context is not None:
        if value := context.params.get(name):
            return str(value)
        context = context.parent
    return ""

"""Where the log lives: one contract (`base.Store`), one implementation per database.

Events flow in through `create`, `append` and `resolve`; each of these is one transaction that checks,
inserts and keeps the projections (`threads`, `interrupts`) in step. Nothing here knows what an agent or
a tool is, and nothing here decides what happens next. Database drivers are imported only below this
package.
"""

from tenuto.errors import ConfigurationError
from tenuto.store.base import Store

__all__ = ["Store", "open_store"]


def open_store(url: str, *, inline: bool = False) -> Store:
    """The store for a URL: `sqlite:///relative.db`, `sqlite:////absolute.db`, `sqlite://:memory:`,
    `postgresql://user@host/database` (more in `tenuto.store.postgres`).

    `inline` runs SQLite's writer on the caller's own task, for simulations. Raises `ConfigurationError`.
    Nothing is opened yet.
    """
    scheme, separator, rest = url.partition("://")
    if scheme == "sqlite" and separator:
        from tenuto.store.sqlite import SQLiteStore

        return SQLiteStore(rest.removeprefix("/") or ":memory:", inline=inline)
    if scheme in ("postgresql", "postgres") and separator:
        from tenuto.store.postgres import PostgresStore

        return PostgresStore(url)
    raise ConfigurationError(
        f"database URL {scheme!r}://... is not supported; use sqlite:///file.db, sqlite://:memory: or "
        "postgresql://user@host/database"
    )

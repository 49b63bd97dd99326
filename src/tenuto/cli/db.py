"""`tenuto db`: which schema a database has, and bringing it up to date."""

import msgspec

from tenuto.cli.terminal import console, print_json, safe
from tenuto.store import Store, open_store


class Schema(msgspec.Struct, frozen=True):
    """`version` 0: there is none yet. `newest`: the one that this Tenuto makes."""

    database: str
    version: int
    newest: int
    upgraded_from: int | None = None


async def status(database: str, as_json: bool) -> None:
    """Print it. Raises `StoreError`, `NewerSchema`."""
    _print(await _schema(open_store(database)), as_json)


async def upgrade(database: str, as_json: bool) -> None:
    """Open the database, which does it, and print from what to what. Raises as `status` does."""
    store = open_store(database)
    before = await _schema(store)
    await store.open()
    await store.close()
    after = await _schema(store)
    _print(msgspec.structs.replace(after, upgraded_from=before.version), as_json)


async def _schema(store: Store) -> Schema:
    return Schema(store.place, *await store.schema())


def _print(schema: Schema, as_json: bool) -> None:
    if as_json:
        print_json(schema)
        return
    if schema.version == schema.newest:
        came = schema.upgraded_from
        done = "up to date" if came in (None, schema.version) else f"upgraded from schema {came}"
        text = f"schema {schema.version}, {done}"
    elif schema.version == 0:
        text = f"no schema yet; tenuto db upgrade makes schema {schema.newest}"
    else:
        text = f"schema {schema.version}; tenuto db upgrade brings it to {schema.newest}"
    console().print(f"{safe(schema.database)}: {text}")

"""`tenuto db`: which schema a database has, and bringing it up to date."""

from tenuto.cli.terminal import console, print_json, safe
from tenuto.store import open_store


async def schema(database: str, as_json: bool, *, upgrade: bool = False) -> None:
    """Print which schema the database has and which one this Tenuto makes; with `upgrade`, open it before,
    which makes that one, and print from what to what. Raises `StoreError`, `NewerSchema`.
    """
    store = open_store(database)
    version, newest = await store.schema()
    before = version
    if upgrade:
        await store.open()
        await store.close()
        version, newest = await store.schema()
    if as_json:
        told = {"database": store.place, "version": version, "newest": newest}
        return print_json(told | {"upgraded_from": before if upgrade else None})
    if version == newest:
        done = "up to date" if version == before else f"upgraded from schema {before}"
        text = f"schema {version}, {done}"
    elif version == 0:
        text = f"no schema yet; tenuto db upgrade makes schema {newest}"
    else:
        text = f"schema {version}; tenuto db upgrade brings it to {newest}"
    return console().print(f"{safe(store.place)}: {text}")

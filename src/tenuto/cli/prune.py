"""`tenuto db prune`: threads that ended long ago go, exported and checked before, where a folder is named.

What is exported is at least what is deleted: meanwhile a thread can only leave the set of the old ones.
"""

from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import quote

from tenuto.chain import ChainReport, verify_chain
from tenuto.cli.export import line_of, whole_file
from tenuto.cli.terminal import console, print_json, progress, safe
from tenuto.errors import StoreError
from tenuto.rows import ENDED, ThreadRow
from tenuto.store import Store, open_store

DAY_MS = 86_400_000
PAGE = 500


async def prune(database: str, days: float, folder: Path | None, as_json: bool) -> None:
    """Delete whole threads that ended longer ago. Raises `StoreError`: then nothing more is deleted."""
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)  # noqa: ASYNC240 - nothing else runs here
    store = open_store(database)
    await store.open()
    try:
        before_ms = store.now_ms() - round(days * DAY_MS)
        exported = deleted = 0
        with progress() as tell:
            if folder is not None:
                async for row in _old(store, before_ms):
                    await _export(store, row, folder)
                    exported += 1
                    tell(f"exported {exported}")
            while count := await store.prune(ended_before_ms=before_ms, limit=PAGE):
                deleted += count
                tell(f"deleted {deleted}")
    finally:
        await store.close()
    if as_json:
        print_json({"database": store.place, "deleted": deleted, "exported": exported})
    else:
        told = f", {exported} exported to {folder} before" if folder else ""
        console().print(f"{safe(store.place)}: {deleted} threads deleted{safe(told)}")


async def _old(store: Store, before_ms: int) -> AsyncIterator[ThreadRow]:
    for status in sorted(ENDED):
        last = (before_ms, "")
        while rows := await store.threads(status=status, before=last, limit=PAGE):  # type: ignore[arg-type]  # one of those
            for row in rows:
                if row.updated_at_ms < before_ms:
                    yield row
            last = (rows[-1].created_at_ms, rows[-1].id)


async def _export(store: Store, row: ThreadRow, folder: Path) -> None:
    """One file for the thread, whole and with a sound chain. Raises `StoreError`."""
    report = ChainReport()
    with whole_file(folder / f"{quote(row.id, safe='')}.jsonl", force=True) as out:
        after = 0
        while page := await store.stored(row.id, after):
            report = verify_chain(row.id, page, report)
            if not report.ok:
                break
            out.writelines(map(line_of, page))
            after = page[-1].seq
        if not report.ok or (after, report.head_hash.hex()) != (row.head_seq, row.head_hash):
            said = report.reason or "its end is not what its row says"
            raise StoreError(f"{store.place}: thread {row.id} is damaged: {said}; nothing was deleted")

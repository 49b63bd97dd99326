"""Calls that may have happened while nobody knows: started, without a result, run by no live worker.

After a crash such a call becomes an item of the inbox, or is asked about or run again, once a worker looks at
its thread. Until then it is found here, so that a person sees it at once.
"""

from collections.abc import Iterable

import msgspec

from tenuto.errors import StoreError, Undecodable
from tenuto.events import CallId, ThreadId
from tenuto.steps import said_of
from tenuto.store.base import Store
from tenuto.thread import ThreadState, fold


class InDoubt(msgspec.Struct, frozen=True):
    """One such call. `worker` is who began it; `text` says it for people."""

    thread_id: ThreadId
    agent: str
    call_id: CallId
    name: str
    arguments: str
    started_at_ms: int
    worker: str
    text: str


async def calls_in_doubt(store: Store, thread_id: ThreadId | None = None) -> list[InDoubt]:
    """Those of one thread, or of up to `MAX_DOUBTFUL_THREADS` threads, the oldest first."""
    found: list[InDoubt] = []
    for one in await store.doubtful(thread_id):
        try:
            found += in_doubt(fold(await store.read(one), one))
        except (StoreError, Undecodable):
            continue  # `verify` tells of a thread that cannot be read
    return found


def in_doubt(state: ThreadState) -> Iterable[InDoubt]:
    """The calls of a thread that nobody holds which have started and have no result and no item yet."""
    for call in state.open:
        if call.phase == "started" and not call.until_ms and call.interrupt is None:
            text = f"{said_of(call)} and has no result: it may have happened"
            worker, name = call.worker, call.call.name
            yield InDoubt(
                *(state.id, state.agent, call.id, name, call.arguments, call.started_at_ms, worker, text)
            )

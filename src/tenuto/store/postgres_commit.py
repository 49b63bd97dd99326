"""Group commit: what waits at the same time goes to the server in one round trip, one transaction, one fsync.

While `MAX_BATCHES_IN_FLIGHT` are on their way, the next one collects. A refusal is the outcome of one op and
touches no other. When the statement fails, each op of the batch is sent again alone, so that only the one at
fault hears of it; when the connection is lost, the outcome of all is unknown.
"""

import asyncio
import copy
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from tenuto import limits
from tenuto.errors import StoreError, TenutoError


class Op(NamedTuple):
    """One verb of one caller: what the server is given, the bodies of its events, and who waits."""

    given: dict[str, Any]
    bodies: list[bytes]
    outcome: asyncio.Future[Any]


class GroupCommit:
    """`send` performs a batch, announces what grew, and gives an outcome for each op, in order."""

    def __init__(self, place: str, send: Callable[[list[Op]], Awaitable[list[Any]]]) -> None:
        self._place = place
        self._send = send
        self._waiting: deque[Op] = deque()
        self._flights: set[Any] = set()

    async def write(self, given: dict[str, Any], bodies: list[bytes]) -> Any:
        """Its outcome, once it is on disk. Cancelling the caller undoes nothing. Raises `StoreError`."""
        if len(self._waiting) >= limits.MAX_WAITING_APPENDS:
            raise StoreError(f"{self._place}: too many waiting writes; try again later")
        op = Op(given, bodies, asyncio.get_running_loop().create_future())
        self._waiting.append(op)
        if len(self._flights) < limits.MAX_BATCHES_IN_FLIGHT:
            # A task starts when all that is ready in this iteration of the loop has had its turn, and joined.
            self._flights.add(asyncio.create_task(self._fly()))
        outcome = await op.outcome
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def close(self) -> None:
        """Until nothing waits."""
        while self._flights:
            await asyncio.wait(self._flights)

    async def _fly(self) -> None:
        try:
            while self._waiting:
                batch, size, most = [self._waiting.popleft()], 0, limits.MAX_BATCH_APPENDS
                while self._waiting and len(batch) < most and size < limits.MAX_BATCH_BYTES:
                    batch.append(self._waiting.popleft())
                    size += sum(map(len, batch[-1].bodies))
                await self._commit(batch)
        finally:
            # In the step that finds nothing waiting: after it, who writes next would wait for ever.
            self._flights.discard(asyncio.current_task())

    async def _commit(self, batch: list[Op]) -> None:
        try:
            outcomes = await self._send(batch)
        except Exception as error:  # noqa: BLE001 - whatever it is, those who wait must hear of it
            if isinstance(error, TenutoError) and error.facts.get("alone") and len(batch) > 1:
                for op in batch:
                    await self._commit([op])
                return
            # One error each: an exception that several tasks raise would gather all their tracebacks.
            outcomes = [copy.copy(error) for _ in batch]
        for op, outcome in zip(batch, outcomes, strict=True):
            if not op.outcome.done():
                op.outcome.set_result(outcome)

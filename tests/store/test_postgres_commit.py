"""The group commit around PostgreSQL, with a server that answers when the test says so."""

import asyncio
from typing import Any

from tenuto import limits
from tenuto.store.postgres_commit import GroupCommit, Op


async def test_who_writes_again_as_soon_as_all_flights_have_landed_does_not_wait_for_ever() -> None:
    landed, flying = asyncio.Event(), 0

    async def send(batch: list[Op]) -> list[Any]:
        nonlocal flying
        flying += 1
        await landed.wait()
        return [op.given["n"] for op in batch]

    commits = GroupCommit("here", send)

    async def twice() -> list[Any]:
        return [await commits.write({"n": 1}, []), await commits.write({"n": 2}, [])]

    writers = [asyncio.create_task(twice())]
    for number in range(1, limits.MAX_BATCHES_IN_FLIGHT + 1):
        while flying < number:  # noqa: ASYNC110 - a few turns of this loop
            await asyncio.sleep(0)
        if number < limits.MAX_BATCHES_IN_FLIGHT:
            writers.append(asyncio.create_task(commits.write({"n": 3}, [])))
    landed.set()
    async with asyncio.timeout(5):
        assert await asyncio.gather(*writers) == [[1, 2], *(3 for _ in writers[1:])]
    await commits.close()

"""The floor of a durable step on PostgreSQL: two rows in one statement, which is one commit, by asyncpg.

In a crowd 50 connections take a thread each.
"""

import asyncio
from typing import Any

import asyncpg

from floor import CALL
from measuring import Peer, main, tool_result

INSERT = "INSERT INTO events VALUES ($1, $2, $3), ($1, $4, $5)"


class RawPostgres(Peer):
    async def open(self) -> None:
        self.free: asyncio.Queue[Any] = asyncio.Queue()
        count = self.options.concurrency if self.options.workload == "crowd" else 1
        self.connections = [await asyncpg.connect(self.path) for _ in range(count)]
        await self.connections[0].execute(
            "CREATE TABLE events (thread TEXT, seq INTEGER, body TEXT, PRIMARY KEY (thread, seq))"
        )
        for connection in self.connections:
            self.free.put_nowait((connection, await connection.prepare(INSERT)))

    async def run(self, key: str) -> None:
        connection, insert = await self.free.get()
        for step in range(self.script.n):
            await insert.fetch(key, 2 * step, CALL, 2 * step + 1, tool_result(step))
            self.counts["lookup"] += 1
        self.free.put_nowait((connection, insert))

    async def close(self) -> None:
        for connection in self.connections:
            await connection.close()


if __name__ == "__main__":
    main(RawPostgres)

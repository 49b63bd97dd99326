"""The floor of a durable step: two rows, one commit, one fsync, in SQLite's WAL with synchronous=FULL."""

import json
import sqlite3

from measuring import Peer, main, tool_result

CALL = json.dumps({"role": "assistant", "tool": "lookup", "args": {"i": 1}, "id": "call_1", "pad": "x" * 30})


class RawSQLite(Peer):
    async def open(self) -> None:
        self.connection = sqlite3.connect(self.path, isolation_level=None)
        self.connection.execute("PRAGMA journal_mode=WAL")
        self.connection.execute("PRAGMA synchronous=FULL")
        self.connection.execute(
            "CREATE TABLE events (thread TEXT, seq INTEGER, body TEXT, PRIMARY KEY (thread, seq))"
        )

    async def run(self, key: str) -> None:
        for step in range(self.script.n):
            rows = [(key, 2 * step, CALL), (key, 2 * step + 1, tool_result(step))]
            self.connection.execute("BEGIN IMMEDIATE")
            self.connection.executemany("INSERT INTO events VALUES (?, ?, ?)", rows)
            self.connection.execute("COMMIT")
            self.counts["lookup"] += 1

    async def close(self) -> None:
        self.connection.close()


if __name__ == "__main__":
    main(RawSQLite)

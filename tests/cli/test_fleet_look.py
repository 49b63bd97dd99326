"""`tenuto fleet`: who works and what waits, from a database, a server and a terminal."""

import asyncio
import json
import time

from tests.cli.conftest import SECONDS, Shell

from tenuto import Runtime, Settings


def test_where_nobody_works_it_says_so_and_how_to_begin(shell: Shell):
    assert "there is no database" in shell("fleet", code=1)
    shell.started("hello")
    assert shell("fleet").splitlines() == [
        "no worker takes threads; start one: tenuto worker MODULE:AGENT",
        "nothing waits",
    ]


def test_it_shows_workers_and_what_waits(shell: Shell):
    shell.started("send hello")
    shell.started("ask Which one?")

    async def leave() -> None:
        """Two threads that nobody runs, one of them with a worker that died."""
        from tests.cli import desk

        database = f"sqlite:///{shell.database}"
        async with Runtime([desk.other], database, settings=Settings(worker=False)) as runtime:
            for _ in range(2):
                thread = await runtime.start("other", "hello")
            assert await runtime.store.take("dead", thread, lease_seconds=0.001)
        await asyncio.sleep(0.01)

    asyncio.run(leave())
    with shell.serving() as (process, url):
        text = shell("fleet")
        for part in (
            f"w{process.pid}-",
            " desk ",
            "2 threads wait for a worker",
            "1 of them had a worker, whose lease ended",
            "1 approval waits for a person",
            "1 question waits for a person",
        ):
            assert part in text, part
        assert "no worker" not in text
        here, there = shell.json("fleet", "--json"), shell.json("fleet", "--json", "--url", url)
        assert here.keys() == there.keys() == {"at_ms", "workers", "waiting"}
        assert (here["workers"], here["waiting"]) == (there["workers"], there["waiting"])
        (worker,) = here["workers"]
        assert (worker["pid"], worker["agents"], worker["leases"]) == (process.pid, ["desk"], 0)
        assert here["waiting"]["runnable"][0] == 2
        assert "not with --json" in shell("fleet", "--json", "--watch", code=2)


def test_watching_it_sees_a_worker_come_and_ctrl_c_leaves(shell: Shell, terminal):
    shell.started("hello")
    watching = terminal("fleet", "--watch")
    watching.expect("no worker takes threads")
    worker = shell.popen("worker")
    watching.expect(f"w{worker.pid}-")
    watching.expect("nothing waits")
    watching.press("\x03")
    assert watching.wait() == 0
    worker.terminate()
    assert worker.wait(SECONDS) == 0


def test_workers_of_a_fleet_tell_their_host(shell: Shell, postgres_url: str):
    shell.environment["TENUTO_DATABASE"] = postgres_url
    worker = shell.popen("worker", "--limit", "desk=3")
    assert worker.stdout is not None
    assert worker.stdout.readline().startswith("worker ")
    (row,) = json.loads(shell("fleet", "--json"))["workers"]
    assert row["host"]
    assert row["owner"].startswith(f"{row['host']}-{worker.pid}-")
    assert abs(row["seen_at_ms"] - time.time() * 1000) < 60_000
    assert f" {row['host']} " in shell("fleet")
    worker.terminate()
    assert worker.wait(SECONDS) == 0
    assert "no worker takes threads" in shell("fleet")


def test_a_limit_that_is_none_is_refused(shell: Shell):
    for given, why in (("desk", "AGENT=N"), ("desk=x", "AGENT=N"), ("=3", "AGENT=N")):
        assert why in shell("worker", "--limit", given, code=2)
    for given in ("desk=0", "nobody=3"):
        assert "a limit is of an agent here" in shell("worker", "--limit", given, code=1)

"""How much is open at a time, and streams on a server whose connections cannot be closed from here."""

import asyncio
import resource
import subprocess
import sys

import pytest

from tenuto import limits
from tenuto.server.streaming import Stream, Streams

ROOM = """
import logging, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), int(sys.argv[2])))
from tenuto.server import files
files.make_room_for_connections()
print(*resource.getrlimit(resource.RLIMIT_NOFILE), files.room_for_connections(), files.most_streams())
"""
ALL = limits.MAX_HTTP_CONNECTIONS + limits.SPARE_FILES


@pytest.mark.skipif(
    resource.getrlimit(resource.RLIMIT_NOFILE)[1] < ALL, reason="the hard limit of open files is low here"
)
@pytest.mark.parametrize(
    ("soft", "hard", "then", "connections", "streams"),
    [
        (256, ALL + 1, ALL, limits.MAX_HTTP_CONNECTIONS, limits.MAX_STREAMS),
        (ALL + 1, ALL + 1, ALL + 1, limits.MAX_HTTP_CONNECTIONS, limits.MAX_STREAMS),
        (256, 1_112, 1_112, 600, 500),
        (100, 100, 100, 16, 13),
    ],
)
def test_the_limit_of_open_files_is_raised_and_what_fits_is_said(soft, hard, then, connections, streams):
    command = (sys.executable, "-c", ROOM, str(soft), str(hard))
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(number) for number in (then, hard, connections, streams)]
    if connections == limits.MAX_HTTP_CONNECTIONS:
        assert done.stderr == ""
    else:
        assert done.stderr == (
            f"this process may open {then} files: room for {connections} connections, {streams} of them "
            f"streams, instead of {limits.MAX_HTTP_CONNECTIONS}; `ulimit -n {ALL}` before the start makes "
            "room for all\n"
        )


class Counted:
    """A source that says the numbers from 1 on."""

    ended = closed = False
    number = 0

    async def take(self):
        self.number += 1
        return b"%d\n" % self.number

    def nudge(self):
        pass

    def end(self):
        self.ended = True

    def close(self):
        self.closed = True


async def never():
    await asyncio.Event().wait()


@pytest.mark.parametrize("takes", [1, 3])
async def test_a_stuck_reader_is_dropped_on_any_server(monkeypatch, takes):
    monkeypatch.setattr(limits, "STREAM_WRITE_SECONDS", 0.05)
    said = []

    async def send(message):
        said.append(message)
        if len(said) > takes:
            await never()

    streams, source = Streams(asyncio.Event()), Counted()
    await asyncio.wait_for(
        Stream(streams, source, "text/plain")({"type": "http", "method": "GET"}, never, send), 10
    )
    assert source.closed
    assert len(streams) == 0
    assert [message.get("body") for message in said[1:]] == [b"%d\n" % n for n in range(1, takes + 1)]
    assert all(message["more_body"] for message in said[1:])
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()


async def test_a_request_that_is_cancelled_stays_cancelled(monkeypatch):
    source, streams = Counted(), Streams(asyncio.Event())
    serving = asyncio.create_task(
        Stream(streams, source, "text/plain")(
            {"type": "http", "method": "GET"}, never, lambda message: never()
        )
    )
    await asyncio.sleep(0.01)
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    assert source.closed
    assert len(streams) == 0

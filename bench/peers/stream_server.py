"""An OpenAI-compatible endpoint that streams one reply of so many deltas, pre-rendered.

Below /v1 they are written at once, so that a client is as fast as it can be; below /trickle/v1 one at a time,
as a model makes them, so that each is a read of its own. A process of its own, so that its work is not
counted. Prints its port; ends with its standard input.
"""

import asyncio
import json
import os
import sys
from typing import Any

DELTAS = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def frame(**fields: Any) -> bytes:
    common = {"id": "c1", "object": "chat.completion.chunk", "created": 1700000000, "model": "scripted"}
    return b"data: " + json.dumps(common | fields).encode() + b"\n\n"


def choice(delta: dict[str, str], finish: str | None = None) -> bytes:
    return frame(choices=[{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}])


def frames() -> list[bytes]:
    usage = {"prompt_tokens": 1, "completion_tokens": DELTAS, "total_tokens": DELTAS + 1}
    first = choice({"role": "assistant", "content": ""})
    deltas = [choice({"content": f"tok{i} "}) for i in range(DELTAS)]
    last = [choice({}, "stop"), frame(choices=[], usage=usage), b"data: [DONE]\n\n"]
    return [b"%x\r\n%s\r\n" % (len(one), one) for one in (first, *deltas, *last)] + [b"0\r\n\r\n"]


FRAMES = frames()
ANSWER = HEAD + b"".join(FRAMES)
PAUSE_SECONDS = 0.0003


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            lines = [line.lower() for line in head.split(b"\r\n")]
            lengths = [int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length")]
            await reader.readexactly(lengths[0] if lengths else 0)
            if head.startswith(b"POST /trickle/"):
                await trickle(writer)
            else:
                writer.write(ANSWER)
                await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    writer.close()


async def trickle(writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD)
    for one in FRAMES:
        writer.write(one)
        await writer.drain()
        await asyncio.sleep(PAUSE_SECONDS)


async def main() -> None:
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    os._exit(0)  # whoever still reads is cut off; nobody asks for anything better


if __name__ == "__main__":
    asyncio.run(main())

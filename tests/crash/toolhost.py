"""The outside world: a process that carries calls out, and writes each down, fsynced, before it answers.

    python -m tests.crash.toolhost LEDGER

It knows no idempotency: the same key again is a second effect and a second line, which is what the ledger
is there to show. Prints its URL.

    POST /call {key, tool, arguments}   carry out; waits with the answer while the tool is held
    GET  /ledger?key=                   the lines of this call
    POST /hold?tool=, /release          keep the answers of a tool back, after their effect
    GET  /compare                       BFCL: the tasks whose state is not that of the ground truth
"""

import json
import os
import sys
import threading
import time
from collections import defaultdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.crash.workload import BfclWorld, bfcl, end_with_parent, is_write, place_of, retail_tasks

HOLD_SECONDS = 60.0
# Every other effect is answered late: a kill is then likely to come between an effect and its result.
LATE_SECONDS = 0.3


class Host:
    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._lock = threading.Lock()
        self._lines: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
        self._steps: dict[str, int] = {}  # of a key: the gold step that it stands for
        self._taken: defaultdict[int, set[int]] = defaultdict(set)
        self._worlds: dict[int, BfclWorld] = {}
        self._held: dict[str, threading.Event] = {}

    def call(self, request: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            line = request | self._effect(**request)
            os.write(self._file, json.dumps(line).encode() + b"\n")
            self._lines[request["key"]].append(line)
            held = self._held.get(request["tool"])
        os.fsync(self._file)  # side by side with others: in a queue they would outlast the tools' timeouts
        time.sleep(LATE_SECONDS if line.get("late") else 0)
        if held is not None:
            held.wait(HOLD_SECONDS)
        return {"result": line["result"]}

    def _effect(self, key: str, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        workload, index = place_of(key.partition(":")[0])
        if workload in ("desk", "fleet"):
            late = workload == "fleet" and len(self._lines) % 2
            return {"result": f"{tool} {arguments['order_id']}: done", "late": late}
        if workload == "bfcl":
            if index not in self._worlds:
                self._worlds[index] = BfclWorld(bfcl()[index])
            return {"result": self._worlds[index].act(arguments["code"]), "late": len(self._lines) % 2}
        steps, taken = retail_tasks()[index]["steps"], self._taken[index]
        if key not in self._steps:
            fits = (n for n, s in enumerate(steps) if (s["name"], s["kwargs"]) == (tool, arguments))
            self._steps[key] = next(n for n in fits if n not in taken)
            taken.add(self._steps[key])
        step = self._steps[key]
        gold = steps[step]
        late = is_write(gold) and len(self._lines) % 2
        return {"step": step, "result": gold["observation"], "patch": gold["patch"], "late": late}

    def ledger(self, key: str) -> list[dict[str, Any]]:
        with self._lock:
            return self._lines[key]

    def hold(self, tool: str) -> None:
        with self._lock:
            self._held[tool] = threading.Event()

    def release(self) -> None:
        with self._lock:
            held, self._held = self._held, {}
        for event in held.values():
            event.set()

    def compare(self) -> list[int]:
        wrong = []
        with self._lock:
            for index, world in self._worlds.items():
                truth = BfclWorld(bfcl()[index])
                for code in bfcl()[index]["calls"]:
                    truth.act(code)
                if world.state() != truth.state():
                    wrong.append(index)
        return wrong


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    host: Host

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        place = urlsplit(self.path)
        match place.path:
            case "/call":
                self._answer(self.host.call(json.loads(body)))
            case "/hold":
                self._answer(self.host.hold(parse_qs(place.query)["tool"][0]))
            case "/release":
                self._answer(self.host.release())

    def do_GET(self) -> None:
        place = urlsplit(self.path)
        self._answer(
            self.host.ledger(parse_qs(place.query)["key"][0])
            if place.path == "/ledger"
            else self.host.compare()
        )

    def _answer(self, value: Any) -> None:
        body = json.dumps(value).encode()
        head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        try:
            self.wfile.write(head.encode() + body)
        except OSError:  # who asked was killed
            self.close_connection = True

    def log_message(self, *_: Any) -> None:
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 1024

    def handle_error(self, *_: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(*_)


def main() -> None:
    end_with_parent()
    if place := os.environ.get("TENUTO_BFCL"):
        sys.path.append(place)
    Handler.host = Host(sys.argv[1])
    server = Server(("127.0.0.1", 0), Handler)
    print(f"http://127.0.0.1:{server.server_port}", flush=True)  # noqa: T201 - who started it reads this
    server.serve_forever()


if __name__ == "__main__":
    main()

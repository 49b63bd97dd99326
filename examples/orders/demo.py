"""The guided tour, told while it really happens: an order desk with an approval, a kill -9 and a recovery.

Order service, model and runtime are processes of their own that talk over HTTP, as in production. Whatever
does not come out as promised ends the tour with exit code 1 and one line that says what.
"""

import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.request import ProxyHandler, Request, build_opener

from examples.processes import Processes, ProcessFailed
from tenuto.cli.ask import confirm
from tenuto.cli.terminal import console, is_interactive, pretty, safe
from tenuto.errors import TenutoError

QUESTION: Final = "Where is order 17?"
REFUND: Final = "Refund order 17, it arrived damaged."
HISTORY: Final = "SELECT event, steps FROM task_events WHERE task_id = '{}' ORDER BY rowid;"
REQUEST_SECONDS: Final = 300.0
# Without Tenuto: what is in the file is the user's, in plain SQL.
_PLAIN_SQL: Final = """
import sqlite3, sys
for row in sqlite3.connect(sys.argv[1]).execute(sys.argv[2]): print(*row, sep="|")
"""
# Loopback is no business of a proxy; ours are told so as well, by NO_PROXY.
_opener = build_opener(ProxyHandler({}))


class NotAsPromised(TenutoError):
    """A step of the tour came out in another way than Tenuto promises."""


def demo() -> int:
    """Tell the story; the exit code. Raises `NotAsPromised`."""
    started = time.monotonic()
    place = Path(tempfile.mkdtemp(prefix="tenuto-demo-"))
    tour = Tour(place)
    tour.say(f"Everything below is in {place}, and stays there.")
    try:
        with Processes(place, tour.environment) as processes:
            tour.set_up(processes)
            tour.ask_for_status()
            tour.ask_for_refund()
            tour.kill_the_runtime(processes)
            approved = tour.decide()
            tour.decide_again()
            tour.read_the_history(approved)
    except (NotAsPromised, ProcessFailed, URLError, TimeoutError) as error:
        raise NotAsPromised(f"{error} (the processes' logs are in {place})") from error
    tour.say(f"\nDone in {time.monotonic() - started:.0f} s. Look around:", "bold")
    database = f"--database sqlite:///{place}/tenuto.db"
    tour.say(f"  tenuto show {tour.task_id[:8]} {database}\n  tenuto verify --all {database}")
    return 0


class Tour:
    """The steps, in order, and what one leaves for the next."""

    def __init__(self, place: Path) -> None:
        self._out = console()
        self._step = 0
        self._ledger = place / "ledger.jsonl"
        self._database = place / "tenuto.db"
        self._secret = secrets.token_urlsafe(16)
        self._url = self._action_id = ""
        self._refunds = 0
        self.task_id = ""
        dropped = ("TENUTO_AGENT", "TENUTO_DATABASE", "SUBMIT_TOKEN")
        self.environment = {name: value for name, value in os.environ.items() if name not in dropped}
        self.environment |= {
            "BACKEND_API_TOKEN": secrets.token_urlsafe(16),
            "APPROVER_SECRET": self._secret,
            "NO_PROXY": "127.0.0.1,localhost",
            "no_proxy": "127.0.0.1,localhost",
        }

    # -- the story -----------------------------------------------------------------------------------

    def set_up(self, processes: Processes) -> None:
        self._heading("An order service, a model and the runtime start, each as a process of its own")
        service, url = processes.start("service", "examples.orders.service", "--ledger", str(self._ledger))
        processes.environment["ORDERS_API_BASE"] = url
        self.say(f"order service   {url}  (process {service.pid})")
        if processes.environment.get("PROVIDER_URL"):
            self.say(f"model           {safe(os.environ.get('PROVIDER_MODEL', ''))} of your PROVIDER_URL")
        else:
            script = ("tenuto.testing.provider", "examples.orders.provider:answer")
            provider, url = processes.start("provider", *script)
            processes.environment |= {"PROVIDER_URL": url, "PROVIDER_MODEL": "offline"}
            self.say(f"model           {url}  (process {provider.pid}; a script, so no key is needed)")
        self._start_runtime(processes, port="0")

    def _start_runtime(self, processes: Processes, port: str) -> None:
        database = f"sqlite:///{self._database}"
        command = ("serve", "examples.orders.agent:agent", "--port", port, "--database", database)
        self._runtime, self._url = processes.start("runtime", "tenuto", *command)
        self.say(f"runtime         {self._url}  (process {self._runtime.pid}): tenuto {' '.join(command)}")

    def ask_for_status(self) -> None:
        self._heading("A question that only reads: the agent answers by itself")
        status, body = self._post("/api/agent/tasks", {"task": QUESTION})
        self._expect(status == 200 and body.get("status") == "completed", f"the answer was {status} {body}")

    def ask_for_refund(self) -> None:
        self._heading("A refund moves money: the agent stops before the tool, and a person is asked")
        status, body = self._post("/api/agent/tasks", {"task": REFUND})
        action = body.get("action") or {}
        self._expect(
            status == 200
            and body.get("status") == "awaiting_approval"
            and action.get("name") == "refund_order",
            f"instead of waiting for an approval of refund_order, the answer was {status} {body}",
        )
        self.task_id, self._action_id = body["task_id"], action["action_id"]
        self._show_ledger(0)

    def kill_the_runtime(self, processes: Processes) -> None:
        self._heading("While it waits, the runtime is killed with kill -9, and another one is started")
        processes.kill(self._runtime)
        self.say(f"process {self._runtime.pid} is dead. What waits is a row in the database, not a process.")
        self._start_runtime(processes, port=self._url.rpartition(":")[2])
        status, body = self._send("GET", "/v1/interrupts?status=pending")
        still = status == 200 and self._action_id in json.dumps(body)
        self._expect(still, f"the action does not wait any more: {status} {body}")
        self.say(f"The same action {self._action_id} still waits.")
        self._show_ledger(0)

    def decide(self) -> bool:
        self._heading("You decide, over HTTP")
        approved = True
        if is_interactive():
            approved = confirm("Approve this refund? [y/n] ")
        else:
            self.say("There is no terminal to ask at, so the tour approves by itself.")
        status, body = self._post("/api/agent/approve", {"task_id": self.task_id, "approved": approved})
        self._expect(status == 200 and body.get("status") == "completed", f"the answer was {status} {body}")
        self._show_ledger(1 if approved else 0)
        return approved

    def decide_again(self) -> None:
        self._heading("The same decision once more, as a retry or a double click would send it")
        again = {"task_id": self.task_id, "approved": True}
        for request in (again, again | {"action_id": self._action_id}):
            status, body = self._post("/api/agent/approve", request)
            self._expect(status in (404, 409), f"a second decision was not refused: {status} {body}")
        self._show_ledger(self._refunds)

    def read_the_history(self, approved: bool) -> None:
        self._heading("The history, in plain SQL, without Tenuto")
        query = HISTORY.format(self.task_id)
        self.say(query, "cyan")
        command = [sys.executable, "-c", _PLAIN_SQL, str(self._database), query]
        rows = subprocess.run(command, capture_output=True, text=True, check=True).stdout  # noqa: S603 - as above
        self.say(rows.rstrip())
        events = [row.partition("|")[0] for row in rows.splitlines()]
        decision = "approved" if approved else "rejected"
        expected = ["started", "awaiting_approval", decision, "completed"]
        self._expect(events == expected, f"the history is {events} instead of {expected}")

    # -- the means -----------------------------------------------------------------------------------

    def say(self, text: str, style: str = "") -> None:
        self._out.print(text, style=style)

    def _heading(self, text: str) -> None:
        self._step += 1
        self.say(f"\n{self._step}. {text}", "bold magenta")

    def _expect(self, met: bool, otherwise: str) -> None:
        if not met:
            raise NotAsPromised(f"step {self._step}: {otherwise}")

    def _show_ledger(self, expected: int) -> None:
        """The order service's own file: what really happened."""
        text = self._ledger.read_text(encoding="utf-8") if self._ledger.exists() else ""
        self._refunds = len(text.splitlines())
        self.say(
            f"the order service's ledger: {safe(text.strip()) or 'empty, nothing was refunded'}", "yellow"
        )
        self._expect(
            self._refunds == expected, f"{self._refunds} refunds in the ledger instead of {expected}"
        )

    def _post(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        self.say(f"POST {path}  {json.dumps(body)}", "cyan")
        status, answer = self._send("POST", path, body)
        self.say(f"{status}  {pretty(json.dumps(answer))}", "green" if status < 300 else "yellow")
        return status, answer

    def _send(self, method: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {self._secret}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        request = Request(self._url + path, data, headers, method=method)  # noqa: S310 - our own server
        try:
            with _opener.open(request, timeout=REQUEST_SECONDS) as response:
                return response.status, json.load(response)
        except HTTPError as error:
            text = error.read().decode(errors="replace")
            try:
                return error.code, json.loads(text)
            except ValueError:
                return error.code, {"error": text}

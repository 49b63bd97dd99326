"""The examples as they are meant to be run: services and models as processes, spoken to over HTTP."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from tests.cli.conftest import Shell, nothing_is_left_running

__all__ = ["nothing_is_left_running"]  # a fixture for these tests as well

from examples.processes import Processes

TOKEN = "order-desk"


class Orders:
    """The order service, its ledger, and the file that makes it hold its answers back."""

    def __init__(self, url: str, place: Path) -> None:
        self.url = url
        self.hold = place / "hold"
        self._ledger = place / "ledger.jsonl"

    def ledger(self) -> list[dict[str, Any]]:
        if not self._ledger.exists():
            return []
        return [json.loads(line) for line in self._ledger.read_text(encoding="utf-8").splitlines()]

    def __call__(
        self, method: str, path: str, body: Any = None, *, token: str = TOKEN, key: str | None = None
    ) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        if key is not None:
            headers["Idempotency-Key"] = key
        data = None if body is None else json.dumps(body).encode()
        try:
            with urlopen(Request(self.url + path, data, headers, method=method), timeout=10) as response:
                return response.status, json.load(response)
        except HTTPError as error:
            with error:
                return error.code, json.load(error)


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    with Processes(tmp_path, os.environ | {"BACKEND_API_TOKEN": TOKEN}) as started:
        yield started


@pytest.fixture
def orders(tmp_path: Path, processes: Processes) -> Orders:
    place = ("--ledger", str(tmp_path / "ledger.jsonl"), "--hold", str(tmp_path / "hold"))
    _, url = processes.start("service", "examples.orders.service", *place)
    return Orders(url, tmp_path)


@pytest.fixture
def desk(tmp_path: Path, processes: Processes, orders: Orders) -> Shell:
    """A shell for the order desk's agent, with its service and its offline model."""
    _, url = processes.start("provider", "tenuto.testing.provider", "examples.orders.provider:answer")
    shell = Shell(tmp_path)
    shell.environment |= {
        "TENUTO_AGENT": "examples.orders.agent:agent",
        "ORDERS_API_BASE": orders.url,
        "BACKEND_API_TOKEN": TOKEN,
        "PROVIDER_URL": url,
        "PROVIDER_MODEL": "offline",
    }
    return shell

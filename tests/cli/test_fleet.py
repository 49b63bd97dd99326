"""Processes with different parts: servers that only serve, workers that only work."""

import signal
import time

import httpx2
import pytest
from tests.cli.conftest import SECONDS, Shell

TOKEN = {"Authorization": "Bearer s3cret"}


@pytest.fixture
def worker(shell: Shell):
    """`tenuto worker`, started when called; its process and the line that it began with."""
    started = []

    def start(*arguments: str):
        process = shell.popen("worker", *arguments)
        started.append(process)
        return process, process.stdout.readline()

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=SECONDS)


def test_a_server_without_a_worker_leaves_threads_to_a_worker_elsewhere(shell: Shell, worker):
    serving = shell.serving("--no-worker", APPROVER_SECRET="s3cret")
    with serving as (_, url), httpx2.Client(base_url=url, timeout=SECONDS) as client:
        made = client.post("/v1/threads", json={"message": "send hello"}).json()
        assert client.get(f"/v1/threads/{made['id']}").json()["status"] == "running"
        process, line = worker("--port", "0", "--concurrency", "5")
        assert line.startswith(f"worker w{process.pid}-")
        probes = line.rpartition(" ")[2].strip()
        for path, code in (("/healthz", 200), ("/readyz", 200), ("/v1/threads", 404), ("/docs", 404)):
            assert httpx2.get(probes + path).status_code == code, path
        assert "tenuto_leases_held 0.0" in httpx2.get(f"{probes}/metrics").text
        raised = _until(lambda: client.get("/v1/interrupts").json()["interrupts"])[0]
        decided = client.post(
            f"/v1/interrupts/{raised['id']}/resolve", json={"outcome": "approve"}, headers=TOKEN
        )
        assert decided.status_code == 200, decided.text
        state = _until(
            lambda: (
                (found := client.get(f"/v1/threads/{made['id']}").json())["status"] == "completed" and found
            )
        )
        assert state["answer"] == "done: sent to ana"
    assert shell.lines_sent() == ["ana: hello"]


def test_a_worker_that_is_asked_to_end_hands_over_what_does_not_come_to_rest(shell: Shell, worker):
    first, _ = worker("--grace", "0.2")
    with shell.serving("--no-worker") as (_, url), httpx2.Client(base_url=url, timeout=SECONDS) as client:
        made = client.post("/v1/threads", json={"message": "slow 2"}).json()
        path = f"/v1/threads/{made['id']}"
        _until(lambda: client.get(path).json()["steps"] == 1)
        first.send_signal(signal.SIGTERM)
        assert first.wait(SECONDS) == 0
        second, line = worker()
        assert line.endswith("runs desk\n")
        assert _until(lambda: client.get(path).json()["answer"]).startswith("done: ")
        second.send_signal(signal.SIGINT)
        assert second.wait(SECONDS) == 0


def _until(found):
    ends_at = time.monotonic() + SECONDS
    while not (result := found()):
        assert time.monotonic() < ends_at
        time.sleep(0.05)
    return result

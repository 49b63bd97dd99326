"""A server process against a provider process, driven by curl; and how it stops."""

import asyncio
import contextlib
import os
import shlex
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys

import httpx2
import msgspec
import pytest

from tenuto import Agent, ConfigurationError, Runtime
from tenuto.server import serve, work
from tenuto.testing import ScriptedProvider, call

AGENT = """
import asyncio, os, sys
from tenuto import Agent, Runtime, Settings, tool
from tenuto.server import serve

@tool(effect="read")
async def get_order(order_id: str) -> str:
    return "paid"

@tool(effect="once", approval=True)
async def refund_order(order_id: str, reason: str) -> str:
    with open("refunds", "a") as file:
        file.write(order_id + chr(10))
    return "refunded"

@tool(effect="read")
async def rest_a_while(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "rested"

ops = Agent("ops", tools=[get_order, refund_order, rest_a_while], max_steps=6)
settings = Settings(grace_seconds=float(os.environ.get("grace", 10)))
runtime = Runtime([ops], "sqlite:///tenuto.db", settings=settings)
serve(runtime, host=sys.argv[1], port=0, ready=lambda url: print(url, flush=True))
"""
QUESTION, REFUND = "Where is order 17?", "Refund order 17, it arrived damaged."


def script(body):
    task = [message["content"] for message in body["messages"] if message["role"] == "user"][-1]
    results = [message["content"] for message in body["messages"] if message["role"] == "tool"]
    if task == REFUND and not results:
        return call("refund_order", order_id="17", reason="damaged")
    if task == QUESTION and not results:
        return call("get_order", order_id="17")
    if task.startswith("rest ") and not results:
        return call("rest_a_while", seconds=float(task.removeprefix("rest ")))
    return " ".join(results)


@contextlib.asynccontextmanager
async def process(tmp_path, host="127.0.0.1", preamble="", **environment):
    """A server in `tmp_path`; yields its URL and the process. `preamble` is run in it before anything."""
    async with ScriptedProvider(script) as provider:
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            preamble + AGENT,
            host,
            cwd=tmp_path,
            env={"PATH": os.environ["PATH"], "PROVIDER_URL": provider.url, "PROVIDER_MODEL": "scripted"}
            | {"APPROVER_SECRET": "s3cret-of-ana"}
            | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        try:
            url = (await asyncio.wait_for(child.stdout.readline(), 20)).decode().strip()
            assert url, (await child.stderr.read()).decode()
            yield url, child
        finally:
            if child.returncode is None:
                child.kill()
            await child.communicate()


async def shell(command):
    child = await asyncio.create_subprocess_exec(*shlex.split(command), stdout=subprocess.PIPE)
    output, _ = await asyncio.wait_for(child.communicate(), 30)
    assert child.returncode == 0
    return msgspec.json.decode(output)


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl here")
async def test_the_three_requests_and_the_query_of_the_contract(tmp_path):
    async with process(tmp_path) as (url, child):
        first = await shell(f"""
            curl -s {url}/api/agent/tasks -d '{{"task": "{QUESTION}"}}'""")
        assert first == {"task_id": first["task_id"], "status": "completed", "answer": "paid", "steps": 2}
        second = await shell(f"""
            curl -s -X POST {url}/api/agent/tasks -H 'Content-Type: application/json'
                -d '{{"task": "{REFUND}"}}'""")
        task_id = second["task_id"]
        assert second["status"] == "awaiting_approval"
        assert second["action"]["args"] == {"order_id": "17", "reason": "damaged"}
        assert not (tmp_path / "refunds").exists()

        child.kill()
        await child.wait()
    async with process(tmp_path) as (url, child):
        third = await shell(f"""
            curl -s -X POST {url}/api/agent/approve -H 'Authorization: Bearer s3cret-of-ana'
                -d '{{"task_id": "{task_id}", "approved": true}}'""")
        assert third == {"task_id": task_id, "status": "completed", "answer": "refunded", "steps": 2}
        assert (tmp_path / "refunds").read_text() == "17\n"
        child.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(child.wait(), 20) == 0
    with contextlib.closing(sqlite3.connect(tmp_path / "tenuto.db")) as database:
        query = "SELECT event, steps FROM task_events WHERE task_id = '<task-id>' ORDER BY rowid;"
        rows = database.execute(query.replace("<task-id>", task_id)).fetchall()
    assert [event for event, _ in rows] == ["started", "awaiting_approval", "approved", "completed"]
    assert [steps for _, steps in rows] == [0, 1, 1, 2]


async def test_what_runs_comes_to_rest_and_is_answered_before_the_process_ends(tmp_path):
    async with process(tmp_path) as (url, child), httpx2.AsyncClient(base_url=url, timeout=30) as client:
        waiting = asyncio.create_task(client.post("/api/agent/tasks", json={"task": "rest 1"}))
        await asyncio.sleep(0.4)
        child.send_signal(signal.SIGTERM)
        response = await waiting
        assert (response.status_code, response.json()["answer"]) == (200, "rested")
        assert await asyncio.wait_for(child.wait(), 20) == 0
        with pytest.raises(httpx2.ConnectError):
            await client.get("/healthz")
        assert (await child.stderr.read()).decode() == ""


async def test_what_does_not_come_to_rest_is_handed_over(tmp_path):
    async with process(tmp_path, grace="0.3") as (url, child):
        async with httpx2.AsyncClient(base_url=url, timeout=30) as client:
            waiting = asyncio.create_task(client.post("/api/agent/tasks", json={"task": "rest 2"}))
            await asyncio.sleep(0.4)
            child.send_signal(signal.SIGINT)
            response = await waiting
        assert (response.status_code, response.json()["status"]) == (202, "running")
        assert await asyncio.wait_for(child.wait(), 20) == 0
    # A read is simply run again, by whoever comes next.
    async with process(tmp_path) as (url, child):
        async with httpx2.AsyncClient(base_url=url, timeout=30) as client:
            path = f"/v1/threads/{response.json()['task_id']}"
            headers = {"Prefer": "wait=20"}
            state = (await client.post(f"{path}/extend", json={"steps": 1}, headers=headers)).json()
        assert (state["status"], state["answer"]) == ("completed", "rested")


async def test_a_second_signal_ends_it_at_once(tmp_path):
    async with process(tmp_path) as (url, child):
        async with httpx2.AsyncClient(base_url=url, timeout=30) as client:
            waiting = asyncio.create_task(client.post("/api/agent/tasks", json={"task": "rest 30"}))
            await asyncio.sleep(0.4)
            child.send_signal(signal.SIGTERM)
            await asyncio.sleep(0.3)
            child.send_signal(signal.SIGTERM)
            returncode = await asyncio.wait_for(child.wait(), 5)
            await asyncio.gather(waiting, return_exceptions=True)
        assert returncode != 0
        assert "CancelledError" not in (await child.stderr.read()).decode()


TALKATIVE = """
import logging
from tenuto import Runtime

logging.basicConfig(level=1)

async def fail(self, *arguments, **more):
    raise RuntimeError(f"with {arguments} and {more}")

Runtime.start = fail
"""


async def test_whatever_is_logged_no_token_is_in_it(tmp_path):
    """Every logger at its lowest level, and a failure with its traceback."""
    secrets = {"APPROVER_SECRET": "s3cret-of-ana", "SUBMIT_TOKEN": "token-of-bob"}
    async with process(tmp_path, preamble=TALKATIVE, **secrets) as (url, child):
        async with httpx2.AsyncClient(base_url=url, timeout=30) as client:
            root = {"Authorization": f"Bearer {secrets['APPROVER_SECRET']}"}
            given = [*secrets.values(), "tnt_" + "x" * 43]
            for token in given:
                headers = {"Authorization": f"Bearer {token}", "Idempotency-Key": "k"}
                for path, body in (
                    ("/v1/threads", {"message": "x"}),
                    ("/api/agent/tasks", {"task": "x"}),
                    ("/v1/interrupts/x/resolve", {"verb": "approve"}),
                    ("/v1/tokens", {"name": "ci", "roles": ["read"]}),
                ):
                    response = await client.post(path, json=body, headers=headers)
                    assert response.status_code in (401, 403, 404, 500)
                    assert not [secret for secret in given if secret in response.text + str(response.headers)]
            assert (await client.get("/v1/threads", headers=root)).status_code == 200
        child.send_signal(signal.SIGTERM)
        output, errors = await child.communicate()
        said = (output + errors).decode()
    assert said.count("RuntimeError: with ('ops', 'x')") == 4
    assert "DEBUG" in said
    assert not [secret for secret in given if secret in said]


async def test_a_name_and_ipv6_are_listened_to(tmp_path):
    for host, shown in (("localhost", "http://localhost:"), ("::1", "http://[::1]:")):
        async with process(tmp_path, host) as (url, _):
            assert url.startswith(shown)
            async with httpx2.AsyncClient() as client:
                assert (await client.get(f"{url}/healthz")).json() == {"status": "ok"}


def test_it_does_not_listen_where_strangers_could_connect(monkeypatch, tmp_path):
    monkeypatch.delenv("APPROVER_SECRET", raising=False)
    monkeypatch.setenv("SUBMIT_TOKEN", "token")

    def runtime(*agents):
        return Runtime(agents, f"sqlite:///{tmp_path}/x.db")

    ops = Agent("ops")
    with pytest.raises(ConfigurationError, match=r"Set APPROVER_SECRET, or make tokens .*, or listen on 127"):
        serve(runtime(ops), host="0.0.0.0", port=0)
    with pytest.raises(ConfigurationError, match="no agent"):
        serve(runtime(), host="127.0.0.1", port=0)
    with pytest.raises(ConfigurationError, match="no agent"):
        work(runtime())
    with pytest.raises(ConfigurationError, match="no agent 'other' here; there are: ops"):
        serve(runtime(ops), host="127.0.0.1", port=0, agent="other")
    with pytest.raises(ConfigurationError, match="there is no port 70000"):
        serve(runtime(ops), host="127.0.0.1", port=70000)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError, match=f"cannot listen on 127.0.0.1 port {port}: "):
            serve(runtime(ops), host="127.0.0.1", port=port)
    assert not (tmp_path / "x.db").exists()

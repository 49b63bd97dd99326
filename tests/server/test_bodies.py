"""Bodies: what is no JSON object is 400, and nothing that anybody sends is the server's fault."""

import asyncio
import gzip
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.server.conftest import APPROVER

from tenuto import limits
from tenuto.server.bodies import parse_object
from tenuto.server.problems import Problem

BAD = [
    b"",
    b" ",
    b"{",
    b"[]",
    b'"x"',
    b"1",
    b"null",
    b"true",
    b'{"task":"x"} x',
    b'{"task":"x"}{"task":"x"}',
    b'{"task":"x",}',
    b"{'task':'x'}",
    b'{"task":"x","task":"y"}',
    b'{"task":"x","more":{"a":1,"a":1}}',
    b'{"task":"x","more":NaN}',
    b'{"task":"x","more":Infinity}',
    b'{"task":"x","more":-Infinity}',
    b'{"task":"x","more":1e999}',
    b'{"task":"x","more":12345678901234567.89}',
    b'{"task":"x","more":' + b"9" * 5000 + b"}",
    b'{"task":"\xff"}',
    b'{"task":"\xed\xa0\x80"}',
    b'{"task":"\\ud800"}',
    b'{"\\udfff":"x"}',
    b'\xef\xbb\xbf{"task":"x"}',
    '{"task":"x"}'.encode("utf-16"),
    '{"task":"x"}'.encode("utf-16-le"),
    b'{"task":"a\nb"}',
    b'{"task":' * 100_000,
    b'{"task":"x","more":' + b"[" * 65 + b"]" * 65 + b"}",
    b'{"task":"x","more":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
]


@pytest.mark.parametrize(
    "path", ["api/agent/tasks", "api/agent/approve", "v1/threads", "v1/interrupts/x/resolve"]
)
async def test_a_compressed_body_is_refused_as_that(place, path):
    for coding in ("gzip", "br", "identity, GZIP"):
        headers = APPROVER | {"Content-Encoding": coding}
        content = gzip.compress(b'{"task":"x"}')
        response = await place.client.post(f"/{path}", content=content, headers=headers)
        assert response.status_code == 415
        assert response.headers["accept-encoding"] == "identity"
        said = response.json()["detail" if path.startswith("v1") else "error"]
        assert said == f"the body is sent as {coding}, and bodies are not decompressed here: send it as it is"
    plain = await place.client.post(
        f"/{path}", content=b"[]", headers=APPROVER | {"Content-Encoding": "Identity"}
    )
    assert plain.status_code == 400
    assert await place.runtime.threads() == []


@pytest.mark.parametrize("body", BAD, ids=lambda body: repr(body[:40]))
async def test_what_is_no_json_object_is_400_everywhere(place, body):
    for path in ("/api/agent/tasks", "/api/agent/approve", "/v1/threads", "/v1/interrupts/x/resolve"):
        response = await place.client.post(path, content=body, headers=APPROVER)
        assert response.status_code == 400
        detail = response.json()["error" if path.startswith("/api") else "detail"]
        assert detail.startswith("the body is not a JSON object: ")
    assert await place.runtime.threads() == []


def test_what_is_one_is_read_as_it_is():
    whole = {"a": [1, 2.5, True, None, "é🎉", {"": {}}], "big": 2**80, "b": {"c": "\x00\u2028"}}
    assert parse_object(json.dumps(whole).encode()) == whole
    assert parse_object(json.dumps(whole, ensure_ascii=False).encode()) == whole
    deep = {"a": None}
    for _ in range(limits.MAX_ARGUMENT_DEPTH - 1):
        deep = {"a": deep}
    assert parse_object(json.dumps(deep).encode()) == deep
    with pytest.raises(Problem, match="nested too deeply"):
        parse_object(json.dumps({"a": deep}).encode())


async def test_a_body_that_does_not_come_is_408(place, monkeypatch):
    monkeypatch.setattr(limits, "BODY_SECONDS", 0.1)
    host, port = place.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"POST /api/agent/tasks HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n{")
    answer = await asyncio.wait_for(reader.read(4096), 10)
    assert answer.startswith(b"HTTP/1.1 408 ")
    writer.close()
    await writer.wait_closed()


async def test_a_body_that_breaks_off_starts_nothing(place, caplog):
    host, port = place.url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(
        b'POST /api/agent/tasks HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n{"task":"hello"}'
    )
    await writer.drain()
    await asyncio.sleep(0.05)
    writer.close()
    await writer.wait_closed()
    await asyncio.sleep(0.1)
    assert await place.runtime.threads() == []
    assert caplog.text == ""


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=10,
)
WORDS = st.sampled_from(["approve", "reject", "edit", "answer", "happened", "drop", "Hello.", ""])
CONTRACT = ["task", "task_id", "approved", "action_id"]
V1 = [
    *("message", "agent", "metadata", "thread_id", "text", "reason", "steps", "cost", "seconds"),
    *("outcome", "comment", "arguments", "answer", "digest"),
]


def bodies(fields, ids):
    """Bytes, JSON, and objects of the right fields with values that may be right."""
    values = JSON | WORDS | st.booleans() | st.sampled_from(ids) | st.uuids().map(str)
    objects = st.dictionaries(st.sampled_from(fields), values, max_size=4)
    return st.binary(max_size=200) | (JSON | objects | objects).map(json.dumps).map(str.encode)


@pytest.mark.parametrize("what", ["contract", "v1"])
async def test_no_body_is_the_server_s_fault(place, what):
    """Against a thread with a pending approval, and one that has ended."""
    pending = (await place.task("refund")).json()
    ended = (await place.task("hello")).json()
    place.runtime.store.claim = nothing_more  # what is fuzzed is the server, not the agent
    action_id = pending["action"]["action_id"]
    paths, fields = ["/api/agent/tasks", "/api/agent/approve"], CONTRACT
    if what == "v1":
        fields, verbs = V1, ["messages", "cancel", "extend"]
        threads = [pending["task_id"], ended["task_id"]]
        paths = ["/v1/threads", f"/v1/interrupts/{action_id}/resolve"]
        paths += [f"/v1/threads/{thread_id}/{verb}" for thread_id in threads for verb in verbs]
    loop = asyncio.get_running_loop()
    statuses = set()

    @settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(
        path=st.sampled_from(paths), body=bodies(fields, [pending["task_id"], ended["task_id"], action_id])
    )
    def fuzz(path, body):
        post = place.client.post(path, content=body, headers=APPROVER | {"Prefer": "wait=0"})
        response = asyncio.run_coroutine_threadsafe(post, loop).result(20)
        statuses.add(response.status_code)
        assert response.status_code < 500, (path, body, response.text)
        response.json()

    limit, limits.MAX_WAIT_SECONDS = limits.MAX_WAIT_SECONDS, 0.01
    try:
        await asyncio.to_thread(fuzz)
    finally:
        limits.MAX_WAIT_SECONDS = limit
    assert 400 in statuses


async def nothing_more(*args, **more):
    from tenuto.rows import Claimed

    return Claimed((), None)

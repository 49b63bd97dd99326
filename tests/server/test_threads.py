"""Lists of threads, and a thread as it is stored."""

import asyncio
import hashlib
import json
from datetime import datetime

import msgspec
import pytest
from tests.server.test_v1 import is_problem, started

from tenuto import limits

# -- lists -------------------------------------------------------------------------------------------


async def listed(place, **query):
    """The pages of a list, to its end."""
    pages, cursor = [], {}
    while True:
        response = await place.client.get("/v1/threads", params=query | cursor)
        assert response.status_code == 200
        page = response.json()
        pages.append(page["threads"])
        if page["next"] is None:
            return pages
        cursor = {"cursor": page["next"]}


async def test_threads_are_listed_newest_first(place):
    assert await listed(place) == [[]]
    first = await started(place, "hello", metadata={"order": 17})
    await asyncio.sleep(0.002)
    second = await started(place, "refund")
    ((newer, older),) = await listed(place)
    assert [newer["id"], older["id"]] == [second["id"], first["id"]]
    assert list(older) == [
        *("id", "agent", "status", "head_seq"),
        *("created_at", "updated_at", "ready_at", "lease_owner", "metadata", "head_hash"),
    ]
    assert (older["agent"], older["status"], older["head_seq"]) == ("ops", "completed", first["head_seq"])
    assert (older["ready_at"], older["metadata"]) == (None, {"order": 17})
    row = await place.runtime.store.thread(first["id"])
    assert (older["lease_owner"], older["head_hash"]) == (None, row.head_hash)
    # What waits for a person wakes when their time is over.
    interrupt = (await place.client.get("/v1/interrupts")).json()["interrupts"][0]
    assert newer["ready_at"] == interrupt["expires_at"]
    assert datetime.fromisoformat(older["created_at"]) <= datetime.fromisoformat(older["updated_at"])
    assert datetime.fromisoformat(older["created_at"]).utcoffset().total_seconds() == 0


async def test_one_thread_shows_what_a_list_does_and_its_state(place):
    state = await started(place, "refund", metadata={"order": 17})
    (interrupt,) = (await place.client.get("/v1/interrupts")).json()["interrupts"]
    (row,) = (await place.client.get("/v1/threads")).json()["threads"]
    thread = (await place.client.get(f"/v1/threads/{state['id']}")).json()
    assert thread == row | state | {"in_doubt": []}
    stored = await place.runtime.store.stored(state["id"])
    assert thread["head_hash"] == stored[-1].hash.hex()
    raised = [event.seq for event in stored if event.type == "interrupt_raised"]
    assert raised == [interrupt["raised_seq"]]


async def test_lists_of_threads_are_filtered(place):
    done = await started(place, "hello")
    asks = await started(place, "refund")
    frugal = await started(place, "costly", agent="frugal")

    async def ids(**query):
        return {row["id"] for page in await listed(place, **query) for row in page}

    assert await ids(status="completed") == {done["id"]}
    assert await ids(status="awaiting_approval") == {asks["id"]}
    assert await ids(agent="frugal") == {frugal["id"]}
    assert await ids(agent="ops") == {done["id"], asks["id"]}
    assert await ids(agent="ops", status="halted") == set()
    assert await ids(agent="nobody") == set()


async def test_threads_are_found_by_the_texts_of_their_metadata(place):
    metadata = {"order": "17", "shop": "a b&c=ü", "count": 1, "é[]": "x"}
    both = await started(place, "hello", metadata=metadata)
    one = await started(place, "hello", metadata={"order": "17"})
    await started(place, "hello", metadata={"order": "18"})

    async def ids(**query):
        return {row["id"] for page in await listed(place, limit=1, **query) for row in page}

    assert await ids(**{"metadata[order]": "17"}) == {both["id"], one["id"]}
    assert await ids(**{"metadata[order]": "17", "metadata[shop]": "a b&c=ü"}) == {both["id"]}
    assert await ids(**{"metadata[é[]]": "x"}) == {both["id"]}
    assert await ids(**{"metadata[order]": "1"}) == set()
    assert await ids(**{"metadata[order]": "17", "status": "failed"}) == set()
    # Only texts are found.
    assert await ids(**{"metadata[count]": "1"}) == set()


@pytest.mark.parametrize(
    "query",
    [
        "metadata=x",
        "metadata[a=x",
        "metadata[a]x=y",
        "metadata[a]=1&metadata[a]=2",
        "&".join(f"metadata[{n}]=x" for n in range(17)),
    ],
)
async def test_metadata_that_cannot_be_asked_for_is_422(place, query):
    is_problem(await place.client.get(f"/v1/threads?{query}"), 422)


async def test_a_cursor_stays_good_while_threads_start(place):
    before = [(await started(place, "hello"))["id"] for _ in range(5)]
    page = (await place.client.get("/v1/threads?limit=2")).json()
    for _ in range(3):
        await started(place, "hello")
    seen = [row["id"] for row in page["threads"]]
    while page["next"]:
        page = (await place.client.get("/v1/threads", params={"limit": 2, "cursor": page["next"]})).json()
        assert len(page["threads"]) <= 2
        seen += [row["id"] for row in page["threads"]]
    assert len(seen) == 5
    assert set(seen) == set(before)


@pytest.mark.parametrize("cursor", ["", "x", "17", "%ff", "MTcgeA", "ä", "MTcgeA==", "A" * 5000])
async def test_a_cursor_that_nobody_gave_is_400(place, cursor):
    is_problem(await place.client.get(f"/v1/threads?cursor={cursor}"), 400)


@pytest.mark.parametrize("query", ["limit=0", "limit=501", "limit=x", "status=done"])
async def test_a_list_that_is_none_is_422(place, query):
    is_problem(await place.client.get(f"/v1/threads?{query}"), 422)


# -- export ------------------------------------------------------------------------------------------


async def test_an_export_is_what_is_stored(place, monkeypatch):
    monkeypatch.setattr(limits, "MAX_PAGE_ROWS", 4)  # several pages
    state = await started(place, "for ever")
    response = await place.client.get(f"/v1/threads/{state['id']}/export")
    assert (response.status_code, response.headers["content-type"]) == (200, "application/x-ndjson")
    assert response.text.endswith("\n")
    lines = [json.loads(line) for line in response.text.splitlines()]
    monkeypatch.undo()
    stored = await place.runtime.store.stored(state["id"])
    assert len(lines) == len(stored) == state["head_seq"] > 8
    for line, event in zip(lines, stored, strict=True):
        assert list(line) == ["seq", "v", "at", "type", "hash", "body_hash", "salt", "body"]
        assert (line["seq"], line["type"], line["hash"]) == (event.seq, event.type, event.hash.hex())
        assert (line["v"], line["salt"]) == (event.version, event.salt.hex())
        assert line["body"] == json.loads(event.body)
    assert len({line["hash"] for line in lines}) == len(lines)
    shown = (await place.client.get(f"/v1/threads/{state['id']}/events")).json()["events"]
    assert [{"seq": line["seq"], "at": line["at"]} | line["body"] for line in lines] == shown


async def test_an_export_says_null_for_what_was_erased(place, monkeypatch):
    state = await started(place, "hello")
    stored = place.runtime.store.stored

    async def erased(*args, **more):
        return [msgspec.structs.replace(event, body=None, salt=None) for event in await stored(*args, **more)]

    monkeypatch.setattr(place.runtime.store, "stored", erased)
    response = await place.client.get(f"/v1/threads/{state['id']}/export")
    lines = [json.loads(line) for line in response.text.splitlines()]
    assert {(line["body"], line["salt"]) for line in lines} == {(None, None)}


async def test_a_part_of_an_export_begins_and_ends_where_it_was_asked_to(place, monkeypatch):
    monkeypatch.setattr(limits, "MAX_PAGE_ROWS", 4)
    state = await started(place, "for ever")
    path = f"/v1/threads/{state['id']}/export"
    whole = (await place.client.get(path)).text.splitlines()
    for after, limit in ((0, 3), (2, 4), (2, 9), (len(whole) - 1, 5), (len(whole), 5)):
        part = await place.client.get(path, params={"after": after, "limit": limit})
        assert part.text.splitlines() == whole[after : after + limit]
    is_problem(await place.client.get(path, params={"limit": 0}), 422)


async def test_an_export_has_what_a_check_of_its_chain_needs(place):
    """By the formula of the design: the previous hash, the place, and SHA-256 of salt and body."""
    state = await started(place, "refund")
    previous = bytes(32)
    for text in (await place.client.get(f"/v1/threads/{state['id']}/export")).text.splitlines():
        line = json.loads(text)
        body = text[text.index('"body":') + len('"body":') : -1].encode()
        hashed = hashlib.sha256(bytes.fromhex(line["salt"]) + body).digest()
        assert hashed.hex() == line["body_hash"]
        at_ms = round(datetime.fromisoformat(line["at"]).timestamp() * 1000)
        place_of_it = f"\n{state['id']}\n{line['seq']}\n{line['v']}\n{line['type']}\n{at_ms}\n".encode()
        previous = hashlib.sha256(previous + place_of_it + hashed).digest()
        assert previous.hex() == line["hash"]

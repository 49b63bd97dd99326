"""An event that cannot be read hides none of the others."""

import json

import pytest
from tests.faults.test_damage import Desk, desk, execute, three
from tests.server.conftest import APPROVER, Place, place, serving

from tenuto.cli.look import show
from tenuto.cli.target import Target
from tenuto.client import Client
from tenuto.errors import Undecodable

__all__ = ["desk", "place", "serving"]  # fixtures


async def test_the_events_around_one_that_cannot_be_read_are_shown(
    place: Place,
) -> None:
    thread = (await three(place))[1]
    execute(place, "UPDATE events SET body = '{}' WHERE thread = 2 AND seq = 3")
    path = f"/v1/threads/{thread}/events"
    page = (await place.client.get(path, headers=APPROVER)).json()
    assert ([event["seq"] for event in page["events"]], page["next"]) == ([1, 2], 2)
    for asked in ({"after": 2}, {"after": 2, "stream": "true"}):
        bad = await place.client.get(path, params=asked, headers=APPROVER)
        assert (bad.status_code, bad.json()["type"], bad.json()["seq"]) == (500, "urn:tenuto:undecodable", 3)
        assert bad.json()["detail"] == "event 3 cannot be read: it is damaged or erased"
    page = (await place.client.get(path, params={"after": 3}, headers=APPROVER)).json()
    assert ([event["seq"] for event in page["events"]], page["next"]) == ([4], None)
    async with Client(place.url, token="s3cret-of-ana") as client:
        for runtime in (client, place.runtime):
            assert [entry.seq for entry in await runtime.events(thread)] == [1, 2]
            assert [entry.seq for entry in await runtime.events(thread, 3)] == [4]
            following = aiter(runtime.follow(thread))
            assert [(await anext(following)).seq for _ in range(2)] == [1, 2]
            with pytest.raises(Undecodable) as caught:
                await anext(following)
            assert caught.value.seq == 3
            with pytest.raises(Undecodable):
                await runtime.state(thread)
    execute(place, "UPDATE events SET version = 99 WHERE thread = 2 AND seq = 3")
    bad = await place.client.get(path, params={"after": 2}, headers=APPROVER)
    assert bad.json()["detail"] == "event 3 cannot be read: a newer version than this server's wrote it"


@pytest.mark.parametrize("form", ["text", "markdown", "json"])
async def test_show_shows_the_events_around_one_that_cannot_be_read(
    desk: Desk, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    desk.execute("UPDATE events SET body = '{}' WHERE thread = 2 AND seq = 3")
    with pytest.raises(Undecodable, match=f"event 3 of thread .*tenuto verify {desk.threads[1]}"):
        await show(Target(f"sqlite:///{desk.path}"), desk.threads[1], 0, form, False)
    said = capsys.readouterr().out
    if form == "json":
        events = json.loads(said)
        assert [event["seq"] for event in events] == [1, 2, 3, 4]
        assert events[2]["event"] is None
        assert "event 3 of thread" in events[2]["fault"]
    else:
        assert "model_replied cannot be read" in said
        assert "approval" in said.partition("cannot be read")[2]

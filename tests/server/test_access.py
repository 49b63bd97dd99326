"""Tokens, hosts, and the pages of other origins."""

import pytest
from tests.server.conftest import APPROVER as ANA
from tests.server.conftest import SUBMITTER as BOB
from tests.server.test_v1 import is_problem, started

from tenuto import ConfigurationError
from tenuto.server import Access
from tenuto.server.access import APPROVER, ROLES, USER, Caller, bearer, is_loopback

BOTH = Access("s3cret", "token")


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.8.9.1", "::1", "[::1]", "localhost", "LOCALHOST", "localhost.", "a.localhost"]
)
def test_loopback(host):
    assert is_loopback(host)
    Access().check_host(host)


@pytest.mark.parametrize(
    "host",
    ["", "0.0.0.0", "::", "[::]", "10.0.0.1", "example.com", "localhost.example.com", "127.0.0.1.nip.io"],
)
def test_beyond_loopback_both_tokens_are_needed(host):
    assert not is_loopback(host)
    BOTH.check_host(host)
    for access, missing in (
        (Access(), "Set APPROVER_SECRET and SUBMIT_TOKEN, "),
        (Access("s3cret"), "Set SUBMIT_TOKEN, or make tokens"),
        (Access(submit="token"), "Set APPROVER_SECRET, "),
    ):
        with pytest.raises(ConfigurationError, match=missing):
            access.check_host(host)
        access.check_host(host, tokens=True)


def test_the_environment_names_the_tokens():
    assert Access.from_environment({}) == Access()
    assert Access.from_environment({"APPROVER_SECRET": " \n", "SUBMIT_TOKEN": ""}) == Access()
    environment = {"APPROVER_SECRET": "s3cret\n", "SUBMIT_TOKEN": "token"}
    assert Access.from_environment(environment) == BOTH


def test_no_token_is_shown():
    assert "s3cret" not in repr(BOTH)
    assert "token" not in repr(BOTH).replace("tenuto", "")


@pytest.mark.parametrize(
    ("header", "caller"),
    [
        (b"Bearer s3cret", APPROVER),
        (b"bearer   s3cret ", APPROVER),
        (b"Bearer token", USER),
        (b"Bearer s3cre", None),
        (b"Bearer s3cret2", None),
        (b"Bearer", None),
        (b"Bearer ", None),
        (b"", None),
        (b"Bearer \xff", None),
    ],
)
def test_whose_secret_it_is(header, caller):
    given = bearer([(b"authorization", header)])
    assert BOTH.caller(given) is caller
    assert Access().caller(given) is None


def test_two_authorizations_are_none():
    assert bearer([(b"authorization", b"Bearer s3cret")] * 2) == b""


def test_what_the_two_secrets_may():
    assert [role for role in ROLES if APPROVER.may(role)] == ["submit", "read", "approve"]
    assert [role for role in ROLES if USER.may(role)] == ["submit", "read"]
    assert [role for role in ROLES if Caller("x", "x", ("admin",)).may(role)] == list(ROLES)


def test_a_secret_of_any_letters_is_compared_as_bytes():
    access = Access("schlüssel-ключ")
    assert access.caller("schlüssel-ключ".encode()) is APPROVER
    assert access.caller("schlüssel-ключ".encode("utf-16")) is None


@pytest.mark.parametrize(
    ("access", "host", "origin", "refused"),
    [
        (Access(), "127.0.0.1:8000", None, False),
        (Access(), "127.0.0.1:8000", "http://127.0.0.1:8000", False),
        (Access(), "localhost:8000", "http://LOCALHOST:8000", False),
        (Access(), "[::1]:8000", "http://[::1]:8000", False),
        (Access(), "127.0.0.1:8000", "http://127.0.0.1:9000", True),
        (Access(), "127.0.0.1:8000", "https://evil.example", True),
        (Access(), "127.0.0.1:8000", "null", True),
        (Access(), "127.0.0.1:8000", "http://[", True),
        # A name that was made to resolve to this machine.
        (Access(), "evil.example:8000", "http://evil.example:8000", True),
        (Access(), "evil.example:8000", None, True),
        (Access("s3cret"), "evil.example:8000", None, True),
        # Behind a proxy, where everything needs a token.
        (BOTH, "agents.example", "https://agents.example", False),
        (BOTH, "agents.example", None, False),
        (BOTH, "agents.example", "https://evil.example", True),
    ],
)
async def test_pages_of_other_origins_are_refused(serving, access, host, origin, refused):
    async with serving(access) as place:
        headers = {"Host": host, "Authorization": "Bearer token"} | ({"Origin": origin} if origin else {})
        response = await place.client.post("/api/agent/tasks", json={"task": "hello"}, headers=headers)
        assert response.status_code == (403 if refused else 200)
        assert response.headers["x-content-type-options"] == "nosniff"
        assert len(await place.runtime.threads()) == (0 if refused else 1)


READS = ["/v1/threads", "/v1/threads/x", "/v1/threads/x/events", "/v1/threads/x/events?stream=true"]
READS += ["/v1/threads/x/export", "/v1/interrupts", "/v1/interrupts/x"]
WRITES = ["/v1/threads", "/v1/threads/x/messages", "/v1/threads/x/cancel", "/v1/threads/x/extend"]


async def test_with_a_submit_token_everything_needs_one_and_only_the_approver_decides(serving):
    async with serving(Access("s3cret-of-ana", "token-of-bob")) as place:
        for path in READS:
            response = await place.client.get(path)
            is_problem(response, 401)
            assert response.headers["www-authenticate"] == "Bearer"
            for headers in (ANA, BOB):
                assert (await place.client.get(path, headers=headers)).status_code in (200, 404)
        for path in WRITES:
            is_problem(await place.client.post(path, content=b"{"), 401)
            assert (await place.client.post(path, json={}, headers=BOB)).status_code in (404, 422)
        is_problem(await place.client.post("/v1/interrupts/x/resolve", json={}), 401)
        refused = await place.client.post("/v1/interrupts/x/resolve", json={}, headers=BOB)
        detail = "this needs role approve; SUBMIT_TOKEN has submit, read"
        is_problem(refused, 403, detail=detail, needs=["approve"], roles=["submit", "read"])
        assert (await place.client.get("/healthz")).status_code == 200


async def test_without_an_approver_secret_nobody_decides(serving):
    async with serving(Access()) as place:
        state = await started(place, "refund")
        path = f"/v1/interrupts/{state['interrupts'][0]['id']}/resolve"
        for headers in ({}, {"Authorization": "Bearer"}, ANA):
            is_problem(
                await place.client.post(path, json={"outcome": "approve"}, headers=headers),
                401,
            )

"""Tokens are made, listed and revoked at the command line, and a running server knows it."""

import json
import re
import time

import httpx2
import pytest

TOKEN = re.compile(r"tnt_[A-Za-z0-9_-]{43}")


def bearer(token):
    return {"Authorization": f"Bearer {token.strip()}"}


def until(check, seconds=20.0):
    ends_at = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < ends_at
        time.sleep(0.05)


def test_a_token_is_printed_alone_for_programs_and_kept_as_a_hash(shell):
    printed = shell("token", "create", "ci", "--role", "read", "--role", "submit", "--agent", "desk")
    assert TOKEN.fullmatch(printed.removesuffix("\n"))
    assert printed.strip().encode() not in shell.database.read_bytes()
    assert printed.strip()[4:].encode() not in b"".join(
        path.read_bytes() for path in shell.place.glob("tenuto.db*")
    )
    (listed,) = shell.json("token", "list", "--json")
    assert (listed["name"], listed["roles"], listed["agents"]) == ("ci", ["submit", "read"], ["desk"])
    assert (listed["works"], listed["expires_at"], listed["revoked_at"]) == (True, None, None)
    made = shell.json("token", "create", "ana", "--role", "approve", "--expires", "30d", "--json")
    assert TOKEN.fullmatch(made["token"])
    assert made["expires_at"][:4] >= "2025"
    table = shell("token", "list")
    assert [row.split()[0] for row in table.splitlines() if " read" in row or "approve" in row] == [
        "ana",
        "ci",
    ]
    assert TOKEN.search(table) is None


def test_at_a_terminal_it_says_what_the_token_is_for(terminal):
    made = terminal("token", "create", "ci", "--role", "read", "--agent", "desk")
    made.expect("token ci: read for desk, until it is revoked. It is shown this once.")
    assert made.wait() == 0
    assert TOKEN.search(made.output)


def test_names_are_taken_once_and_free_after_a_revocation(shell):
    first = shell("token", "create", "ci", "--role", "read")
    assert "there is a token ci already" in shell("token", "create", "ci", "--role", "read", code=1)
    assert shell("token", "revoke", "ci") == "token ci works no more\n"
    assert shell.json("token", "revoke", "ci", "--json")["works"] is False
    assert "revoked" in shell("token", "list")
    assert shell("token", "create", "ci", "--role", "read") != first
    assert "there is no token nobody" in shell("token", "revoke", "nobody", code=1)


def test_without_a_database_nothing_is_made_but_by_create(shell):
    for arguments in (["token", "list"], ["token", "revoke", "ci"]):
        assert "there is no database" in shell(*arguments, code=1)
    assert not shell.database.exists()
    shell("token", "create", "ci", "--role", "read")
    assert shell.database.exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["create"],
        ["create", "ci"],
        ["create", "ci", "--role", "root"],
        ["create", "ci", "--role", "read", "--expires", "soon"],
        ["create", "ci", "--role", "read", "--expires", "0d"],
        ["create", "ci", "--role", "read", "--expires", "1y"],
        ["revoke"],
        ["nope"],
    ],
)
def test_wrong_usage_touches_nothing(shell, arguments):
    assert "Usage: tenuto token" in shell("token", *arguments, code=2)
    assert not shell.database.exists()


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["a b", "--role", "read"], "is no name for a token"),
        (["approver", "--role", "read"], "is the name of a secret"),
        (["ci", "--role", "admin", "--agent", "desk"], "an admin makes tokens for every agent"),
        (["ci", "--role", "read", "--expires", "5000w"], "up to 3650 days"),
    ],
)
def test_a_token_that_cannot_be_is_refused(shell, arguments, why):
    assert why in shell("token", "create", *arguments, code=1)
    assert shell.json("token", "list", "--json") == []


def test_a_running_server_learns_of_a_token_and_of_its_end(shell):
    with shell.serving() as (_, url), httpx2.Client(base_url=url) as client:
        assert client.get("/v1/threads").status_code == 200
        token = shell("token", "create", "ci", "--role", "read")
        until(lambda: client.get("/v1/threads").status_code == 401)
        assert client.get("/v1/threads", headers=bearer(token)).status_code == 200
        refused = client.post("/v1/threads", json={"message": "x"}, headers=bearer(token))
        assert refused.json()["detail"] == "this needs role submit; token ci has read"
        shell("token", "revoke", "ci")
        until(lambda: client.get("/v1/threads", headers=bearer(token)).status_code == 401)


def test_with_a_token_a_server_listens_beyond_loopback_and_serves_nobody_without_one(shell):
    serve = ["serve", "--port", "0", "--host", "0.0.0.0"]
    assert "or make tokens (tenuto token create)" in shell(*serve, code=1)
    assert not shell.database.exists()
    shell("run", "hello")
    assert "or make tokens (tenuto token create)" in shell(*serve, code=1)
    token = shell("token", "create", "ci", "--role", "read")
    with shell.serving("--host", "0.0.0.0") as (process, url):
        with httpx2.Client(base_url=url.replace("0.0.0.0", "127.0.0.1")) as client:
            assert client.get("/v1/threads").status_code == 401
            (thread,) = client.get("/v1/threads", headers=bearer(token)).json()["threads"]
            assert thread["agent"] == "desk"
        process.terminate()
        output, errors = process.communicate(timeout=40)
    assert TOKEN.search(output + errors) is None


def test_an_admin_s_token_makes_others_at_a_server(shell):
    admin = shell("token", "create", "root", "--role", "admin").strip()
    with shell.serving() as (_, url):
        del shell.environment["TENUTO_DATABASE"]
        shell.environment |= {"TENUTO_URL": url, "TENUTO_TOKEN": admin}
        token = shell("token", "create", "ci", "--role", "read", "--agent", "desk", "--expires", "1h").strip()
        assert TOKEN.fullmatch(token)
        assert shell("token", "create", "ana", "--role", "approve", "--json").count(TOKEN.pattern[:4]) == 1
        tokens = shell.json("token", "list", "--json")
        assert [(each["name"], each["created_by"]) for each in tokens][:2] == [
            ("ana", "root"),
            ("ci", "root"),
        ]
        assert tokens[1]["agents"] == ["desk"]
        assert "there is a token ci already" in shell("token", "create", "ci", "--role", "read", code=1)
        shell.environment["TENUTO_TOKEN"] = token
        refused = shell("token", "list", code=1)
        assert "this needs role admin; token ci has read" in refused
        assert token not in refused
        shell.environment["TENUTO_TOKEN"] = admin
        assert shell("token", "revoke", "ci") == "token ci works no more\n"
        assert "revoked" in shell("token", "list")
        assert "there is no token nobody" in shell("token", "revoke", "nobody", code=1)


def test_json_names_what_a_program_needs(shell):
    shell("token", "create", "ci", "--role", "read")
    (listed,) = json.loads(shell("token", "list", "--json"))
    names = "name roles agents works created_at created_by expires_at revoked_at"
    assert list(listed) == names.split()

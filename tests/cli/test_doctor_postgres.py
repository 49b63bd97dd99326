"""`tenuto doctor` on PostgreSQL: what it finds, what it says to do, and that it makes nothing."""

import json
from collections.abc import Iterator
from urllib.parse import quote

import pytest
from tests.cli.conftest import Shell
from tests.store.test_postgres_pooler import bouncer, urls

from tenuto.store.postgres_schema import MIGRATIONS
from tenuto.testing.postgres import PostgresServer, execute, find_programs

__all__ = ["bouncer", "urls"]
Found = dict[str, list[tuple[str, str]]]


LONELY = """
INSERT INTO threads (id, agent, status, ready_at, created_at, updated_at, metadata)
VALUES ('t', 'lonely', 'running', 1, 1, 1, '{{}}')
"""


@pytest.fixture
def doctor(shell: Shell):
    def examine(url: str, code: int = 0) -> Found:
        told = json.loads(shell("doctor", "--json", "--database", url, code=code))
        found: Found = {}
        for one in told["findings"]:
            found.setdefault(one["check"], []).append((one["level"], f"{one['text']} → {one['advice']}"))
        return found

    return examine


@pytest.fixture
def made(shell: Shell, postgres_url: str) -> str:
    shell("db", "upgrade", "--database", postgres_url)
    return postgres_url


def levels(found: Found) -> set[str]:
    around = {"agents", "provider", "tokens", "durability"}  # the tests' server has no fsync
    return {level for check, all_of_it in found.items() if check not in around for level, _ in all_of_it}


def test_a_sound_server(doctor, made):
    found = doctor(made)
    assert levels(found) == {"ok"}
    checks = {"database", "schema", "permissions", "connections", "clock", "sessions", "listen", "workers"}
    assert checks <= set(found)
    assert "PostgreSQL" in found["database"][0][1]


def test_it_makes_no_schema(doctor, postgres_url):
    ((level, text),) = doctor(postgres_url)["schema"]
    assert level == "ok"
    assert f"this Tenuto makes it {len(MIGRATIONS)}" in text
    assert execute(postgres_url, "SELECT to_regclass('tenuto_schema')") == [(None,)]


def test_a_newer_schema(doctor, made):
    execute(made, "INSERT INTO tenuto_schema VALUES (99)")
    (level, text), *_ = doctor(made, code=1)["schema"]
    assert level == "problem"
    assert "written by a later version" in text


def test_a_search_path_that_leads_nowhere(doctor, shell, postgres_server):
    url = f"{postgres_server}{'&' if '?' in postgres_server else '?'}search_path=nowhere"
    ((level, text),) = doctor(url, code=1)["schema"]
    assert level == "problem"
    assert "CREATE SCHEMA" in text
    assert "names no schema that there is" in shell("db", "status", "--database", url, code=1)


@pytest.mark.parametrize(
    ("change", "check", "level", "said"),
    [
        ("ALTER ROLE {role} SET default_transaction_read_only = on", "writes", "problem", "read_only is on"),
        (
            "REVOKE UPDATE ON threads FROM {role}",
            "permissions",
            "problem",
            "may not UPDATE in threads → GRANT",
        ),
        ("DELETE FROM tenuto_schema WHERE version > 1", "schema", "problem", "→ GRANT CREATE ON SCHEMA"),
        ("ALTER ROLE {role} CONNECTION LIMIT 5", "connections", "warning", "a process takes up to 11"),
        (
            LONELY,
            "leases",
            "warning",
            "no worker takes the 1 threads of agent lonely",
        ),
    ],
)
def test_what_a_user_may_not(doctor, made, change, check, level, said):
    (schema,) = execute(made, "SELECT current_schema()")[0]
    role = f"role_{schema}"
    execute(made, f"CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA {schema} TO {role}")
    execute(made, f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {role}")
    try:
        url = made.replace("postgresql://postgres@", f"postgresql://{role}@")
        if url == made:
            pytest.skip("the server is another's: its users are not ours")
        assert levels(doctor(url)) == {"ok"}
        execute(made, change.format(role=role))
        found = doctor(url, code=int(level == "problem"))[check]
        assert any(one == level and said in text for one, text in found), found
    finally:
        execute(made, f"DROP OWNED BY {role}; DROP ROLE {role}")


@pytest.mark.parametrize(
    ("old", "new", "advice"),
    [
        ("/postgres?", "/nothing_there?", "→ make it: createdb"),
        ("postgres@", "nobody_there@", "→ look at user"),
    ],
)
def test_no_way_in(doctor, postgres_server, old, new, advice):
    if old not in postgres_server:
        pytest.skip("the server is another's: its names are not ours")
    ((level, text),) = doctor(postgres_server.replace(old, new), code=1)["database"]
    assert level == "problem"
    assert advice in text


@pytest.fixture
def crowded() -> Iterator[str]:
    if find_programs() is None:
        pytest.skip("there is no PostgreSQL here that may be set up")
    with PostgresServer(max_connections="12", superuser_reserved_connections="1") as server:
        yield server.url


def test_few_connections_and_no_fsync(doctor, crowded):
    found = doctor(crowded)
    assert found["durability"][0][0] == "warning"
    assert found["connections"][0][0] == "warning"
    assert "of 12 are free" in found["connections"][0][1]
    assert "PgBouncer" not in str(found)


def test_through_a_pooler(doctor, shell, urls):
    """In transaction mode LISTEN hears nothing, unless it has a way of its own."""
    pooled, direct = urls
    shell("db", "upgrade", "--database", direct)
    found = doctor(pooled)
    assert "a pooler lends them" in found["sessions"][0][1]
    ((level, text),) = found["listen"]
    assert level == "warning"
    assert "listen=URL" in text
    assert doctor(f"{pooled}&listen={quote(direct, safe='')}")["listen"][0][0] == "ok"
    unprepared = str(doctor(pooled.replace("&prepared=off", ""), code=1))
    assert "put prepared=off into the URL" in unprepared
    off = doctor(f"{pooled}&listen=off")["listen"]
    assert off[0][0] == "warning"

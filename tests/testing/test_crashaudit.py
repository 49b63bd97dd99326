"""What a crash test checks: a run's log and ledger, changed as each fault would leave them."""

import asyncio
import contextlib
import json
import shutil
import sqlite3
from pathlib import Path

import pytest
from tests.testing.shop import Shop
from tests.testing.test_crashtest import PAY, shop

from tenuto.testing.crashaudit import Case, Outcome, audit
from tenuto.testing.crashtest import Subject

__all__ = ["shop"]  # a fixture


@pytest.mark.parametrize(
    ("sql", "found"),
    [
        ("DELETE FROM events WHERE seq = 9", "is missing"),
        ("UPDATE events SET body = replace(body, 'done', 'gone')", "the hash chain breaks at event"),
    ],
)
def test_a_log_that_was_tampered_with_is_found(shop: Shop, sql: str, found: str) -> None:
    script = shop.script(PAY, "done")
    run = shop.runs("shop:agent", "--script", script, "--only", "decide twice", "--keep")["decide twice"]
    with contextlib.closing(sqlite3.connect(f"{run['folder']}/tenuto.db")) as database:
        database.execute(sql)
        database.commit()
    outcome = Outcome(Case("decide twice"), run["folder"], broken=[])
    asyncio.run(audit(Subject("", "").thread_id, outcome))
    assert any(found in line for line in outcome.broken), outcome.broken


def test_what_was_confirmed_and_is_not_there_is_found(shop: Shop) -> None:
    script = shop.script(PAY, "done")
    run = shop.runs("shop:agent", "--script", script, "--only", "decide twice", "--keep")["decide twice"]
    with (Path(run["folder"]) / "ledger.jsonl").open("a") as ledger:
        ledger.write('{"kind":"append","labels":["thread_completed"],"first_seq":99,"digests":["00"]}\n')
    outcome = Outcome(Case("decide twice"), run["folder"], broken=[])
    asyncio.run(audit(Subject("", "").thread_id, outcome))
    assert outcome.broken == ["event 99, thread_completed, was confirmed and is not in the log"]


def test_what_the_ledger_says_of_a_call_is_held_against_the_log(shop: Shop, tmp_path: Path) -> None:
    """One run's ledger, changed as each fault of a runtime or a tool would leave it."""
    script = shop.script(PAY, "done")
    run = shop.runs("shop:agent", "--script", script, "--only", "decide twice", "--keep")["decide twice"]
    sound = [json.loads(line) for line in (Path(run["folder"]) / "ledger.jsonl").read_text().splitlines()]
    (start,) = [line for line in sound if line["kind"] == "start"]
    without_end = [line for line in sound if line["kind"] != "end"]
    never_ran = [line for line in without_end if line["kind"] != "start"]
    happened = {name: start[name] for name in ("tool", "effect", "call", "key", "pid")}
    ledgers = {
        "pay ran under different keys for one call": [*sound, {**start, "key": "another"}],
        "pay ran with different arguments for one call": [*sound, {**start, "arguments": "{}"}],
        "pay is recorded as done, and never came to its end": without_end,
        "pay never ran, and its verify said that it happened": [
            *never_ran,
            {**happened, "kind": "verify", "said": "Happened"},
        ],
    }
    for place, (found, lines) in enumerate(ledgers.items()):
        folder = tmp_path / f"audited-{place}"
        shutil.copytree(run["folder"], folder)
        (folder / "ledger.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        outcome = Outcome(Case("decide twice"), str(folder), broken=[])
        asyncio.run(audit(Subject("", "").thread_id, outcome))
        assert found in outcome.broken

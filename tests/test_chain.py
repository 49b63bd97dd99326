"""What the hash chain notices, and what it forgives."""

import pytest

from tenuto.chain import ChainReport, verify_chain
from tenuto.events import ThreadId, body_hash, chain_hash
from tenuto.rows import StoredEvent

THREAD = ThreadId("t")


def chain(length: int = 5) -> list[StoredEvent]:
    rows: list[StoredEvent] = []
    previous = bytes(32)
    for seq in range(1, length + 1):
        salt, body = bytes([seq]) * 16, b'{"type":"message_received","text":"%d"}' % seq
        hashed = body_hash(salt, body)
        previous = chain_hash(previous, THREAD, seq, 1, "message_received", 1000 + seq, hashed)
        rows.append(StoredEvent(seq, 1, "message_received", 1000 + seq, salt, body, hashed, previous))
    return rows


def changed(row: StoredEvent, **fields: object) -> StoredEvent:
    values = {name: getattr(row, name) for name in row.__struct_fields__}
    return StoredEvent(**values | fields)


def test_a_whole_chain() -> None:
    rows = chain()
    assert verify_chain(THREAD, rows) == ChainReport(True, 5, 0, rows[-1].hash)
    assert verify_chain(THREAD, []) == ChainReport(True, 0, 0, bytes(32))
    assert verify_chain(THREAD, iter(rows[:2])).head_hash == rows[1].hash


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"body": b"{}"}, "body"),
        ({"salt": bytes(16)}, "body"),
        ({"body": b"{}", "body_hash": body_hash(bytes([3]) * 16, b"{}")}, "hash"),
        ({"at_ms": 1}, "its hash was not"),
        ({"type": "thread_completed"}, "its hash was not"),
        ({"version": 2}, "its hash was not"),
        ({"hash": bytes(32)}, "its hash was changed"),
        ({"salt": None}, "only one"),
        ({"body": None}, "only one"),
        ({"salt": None, "body": None, "body_hash": bytes(32)}, "hash"),
    ],
)
def test_an_edit_is_noticed_where_it_is(fields: dict[str, object], reason: str) -> None:
    rows = chain()
    rows[2] = changed(rows[2], **fields)
    report = verify_chain(THREAD, rows)
    assert (report.ok, report.first_bad_seq, report.checked) == (False, 3, 2)
    assert report.head_hash == rows[1].hash
    assert reason in report.reason


def test_a_removed_event_is_noticed() -> None:
    rows = chain()
    del rows[2]
    assert verify_chain(THREAD, rows).first_bad_seq == 3
    renumbered = [changed(row, seq=seq) for seq, row in enumerate(rows, 1)]
    assert verify_chain(THREAD, renumbered).first_bad_seq == 3


def test_swapped_events_are_noticed() -> None:
    rows = chain()
    rows[1], rows[2] = rows[2], rows[1]
    assert verify_chain(THREAD, rows).first_bad_seq == 2
    renumbered = [changed(row, seq=seq) for seq, row in enumerate(rows, 1)]
    assert verify_chain(THREAD, renumbered).first_bad_seq == 2


def test_a_chain_belongs_to_its_thread() -> None:
    assert verify_chain(ThreadId("another"), chain()).first_bad_seq == 1


@pytest.mark.parametrize(
    ("fields", "last", "said", "not_said"),
    [
        ({"hash": bytes(32)}, False, "its hash was changed", "or the event"),
        ({"at_ms": 1}, False, "its hash was not", "does not fit either"),
        ({"at_ms": 1}, True, "or its hash was changed, or the event before it was replaced", "next"),
        ({"hash": bytes(32)}, True, "or its hash was changed, or the event before it was replaced", "next"),
        ({"at_ms": 1, "hash": bytes(32)}, False, "the next event does not fit either", "its hash"),
    ],
)
def test_what_was_changed_is_said_as_far_as_it_can_be_told(
    fields: dict[str, object], last: bool, said: str, not_said: str
) -> None:
    """As the store hands rows out: the hash of a body that is there is made of that body."""
    rows = chain(3 if last else 5)
    rows[2] = changed(rows[2], **fields)
    report = verify_chain(THREAD, rows)
    assert report.first_bad_seq == 3
    assert said in report.reason
    assert not_said not in report.reason


def test_the_event_before_may_be_the_one_that_was_replaced() -> None:
    rows = chain()
    hashed = body_hash(bytes(16), b"{}")
    forged = chain_hash(rows[0].hash, THREAD, 2, 1, "message_received", 1002, hashed)
    rows[1] = changed(rows[1], salt=bytes(16), body=b"{}", body_hash=hashed, hash=forged)
    report = verify_chain(THREAD, rows)
    assert (report.first_bad_seq, "the event before it was replaced" in report.reason) == (3, True)


def test_it_goes_on_from_where_it_was() -> None:
    rows = chain()
    rows[0] = changed(rows[0], salt=None, body=None)
    for cut in range(6):
        first = verify_chain(THREAD, rows[:cut])
        assert verify_chain(THREAD, rows[cut:], first) == ChainReport(True, 5, 1, rows[-1].hash)


def test_erased_events_still_verify() -> None:
    rows = chain()
    rows[1:3] = [changed(row, salt=None, body=None) for row in rows[1:3]]
    assert verify_chain(THREAD, rows) == ChainReport(True, 5, 2, rows[-1].hash)

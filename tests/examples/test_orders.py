"""The order desk: its service's manners, the agent's work, and a refund that is cut off in the middle."""

import json
import re
import socket
import time
from typing import Any

import pytest

REFUND = "Refund order 17, it arrived damaged."
RESULT = '{"id": "R1", "order_id": "17", "amount": "42.00"}'


def asked(desk: Any) -> dict[str, Any]:
    """What a new thread asks before it refunds."""
    desk("run", REFUND)
    return desk.pending()[-1]


def test_the_service_wants_its_token(orders):
    assert orders("GET", "/orders/17", token="wrong")[0] == 401
    assert orders("POST", "/orders/17/refunds", {"reason": "x"}, token="", key="k")[0] == 401
    assert orders("GET", "/orders/17") == (
        200,
        {"id": "17", "item": "desk lamp", "total": "42.00", "status": "delivered", "refunded": False},
    )
    assert orders("GET", "/orders/99") == (404, {"error": "there is no order 99"})
    assert orders.ledger() == []


def test_the_service_refunds_once_per_order_and_per_key(orders):
    assert orders("POST", "/orders/17/refunds", {"reason": "x"})[0] == 400
    assert orders("POST", "/orders/99/refunds", {"reason": "x"}, key="k0")[0] == 404
    refund = {"id": "R1", "order_id": "17", "amount": "42.00", "reason": "x", "key": "k1"}
    assert orders("POST", "/orders/17/refunds", {"reason": "x"}, key="k1") == (201, refund)
    assert orders("POST", "/orders/17/refunds", {"reason": "x"}, key="k1") == (200, refund)
    assert orders("POST", "/orders/17/refunds", {"reason": "x"}, key="k2")[0] == 409
    assert orders("POST", "/orders/16/refunds", {"reason": "x"}, key="k1")[0] == 409
    assert orders("GET", "/refunds?key=k1") == (200, [refund])
    assert orders("GET", "/refunds?key=k2") == (200, [])
    assert orders("GET", "/orders/17")[1]["refunded"] is True
    assert orders.ledger() == [refund]


def test_a_question_about_an_order(desk, orders):
    assert desk("run", "Where is order 17?").splitlines()[-2] == "Order 17 (desk lamp, 42.00) is delivered."
    assert "there is no order 99" in desk("run", "Where is order 99?").splitlines()[-2]
    assert orders.ledger() == []


def test_a_refund_waits_for_a_person_and_happens_once(desk, orders):
    row = asked(desk)
    assert row["arguments"] == '{"order_id":"17","reason":"it arrived damaged"}'
    assert orders.ledger() == []
    output = desk("inbox", "approve", row["id"])
    assert "Order 17 is refunded: 42.00, refund R1.\n" in output
    (refund,) = orders.ledger()
    assert (refund["order_id"], refund["reason"]) == ("17", "it arrived damaged")
    (started,) = desk.events(row["thread_id"], "call_started")
    assert refund["key"] == started["event"]["key"]
    # Another refund of the same order is refused by the service, and the model is told so.
    again = asked(desk)
    assert "order 17 is refunded already" in desk("inbox", "approve", again["id"])
    assert len(orders.ledger()) == 1


def test_a_rejected_refund(desk, orders):
    row = asked(desk)
    output = desk("inbox", "reject", row["id"], "--comment", "it was used for a year")
    assert "Order 17 was not refunded." in output
    assert "it was used for a year" in output
    assert orders.ledger() == []


def test_an_edited_refund(desk, orders):
    row = asked(desk)
    output = desk("inbox", "edit", row["id"], "--arguments", '{"order_id": "16", "reason": "broken"}')
    assert "Order 16 is refunded: 28.50, refund R1.\n" in output
    assert [(refund["order_id"], refund["reason"]) for refund in orders.ledger()] == [("16", "broken")]


def killed_inside_the_refund(desk: Any, orders: Any) -> str:
    """A thread whose worker died by kill -9 after the refund and before its result; its id."""
    row = asked(desk)
    orders.hold.touch()
    with desk.popen("inbox", "approve", row["id"]) as process:
        ends_at = time.monotonic() + 10
        while not orders.ledger():
            assert time.monotonic() < ends_at
            time.sleep(0.02)
        process.kill()
        process.communicate()
    orders.hold.unlink()
    assert desk.events(row["thread_id"])[-1]["type"] == "call_started"
    return row["thread_id"]


@pytest.mark.parametrize(
    ("decision", "outcome", "answer"),
    [
        (
            ["happened", "--result", '{"id": "R1", "order_id": "17", "amount": "42.00"}'],
            "happened",
            "refund R1.",
        ),
        (["did_not_happen"], "did_not_happen", "Order 17 is refunded: 42.00, refund R1."),
        (["drop", "--comment", "I shall call the bank"], "dropped", "I shall call the bank"),
    ],
)
def test_killed_inside_the_refund_a_person_reviews_it(desk, orders, decision, outcome, answer):
    desk.environment["TENUTO_AGENT"] = "tests.examples.unverified:agent"
    thread = killed_inside_the_refund(desk, orders)
    # No worker has looked yet: the inbox has no item to decide, and says what may have happened.
    may_have = re.compile(
        rf"thread {thread}, call s\d+c\d+: refund_order\({{.*}}\)"
        r" was started \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC"
        r" by worker w\S+ and has no result: it may have happened"
    )
    with desk.popen("inbox", "--json") as process:
        output, errors = process.communicate(timeout=40)
    assert may_have.search(errors)
    assert json.loads(output) == []
    listed = " ".join(desk("inbox").split())
    assert may_have.search(listed)
    assert "1 thread is ready and no worker takes them. Start one" in listed
    assert "nothing waits" not in listed
    assert may_have.search(" ".join(desk("show", thread).split()))
    assert may_have.search(" ".join(desk("doctor", code=0).split()))
    output = desk("run", "--thread", thread)
    assert "decide: tenuto inbox review " in output
    (row,) = desk.pending()
    assert (row["kind"], row["name"]) == ("review", "refund_order")
    assert "its outcome is unknown" in " ".join(desk("inbox").split())
    assert desk.json("threads", "--json")[0]["status"] == "awaiting_review"
    assert answer in desk("inbox", "review", row["id"], *decision)
    assert [entry["event"]["outcome"] for entry in desk.events(thread, "interrupt_resolved")] == [
        "approved",
        outcome,
    ]
    # Whatever was said: the money moved once, as the second attempt carries the same key.
    (refund,) = orders.ledger()
    starts = [entry["event"] for entry in desk.events(thread, "call_started")]
    assert [start["key"] for start in starts] == [refund["key"]] * (2 if outcome == "did_not_happen" else 1)
    (finished,) = [entry["event"] for entry in desk.events(thread, "call_finished")[1:]]
    assert finished.get("ok", True) is (outcome != "dropped")
    assert desk("verify", "--all") == "1 of 1 threads are as they were written\n"


def test_killed_inside_the_refund_the_service_is_asked(desk, orders):
    desk.environment["TENUTO_AGENT"] = "tests.examples.unverified:quick"
    thread = killed_inside_the_refund(desk, orders)
    output = desk("run", "--thread", thread)
    assert "Order 17 is refunded: 42.00, refund R1.\n" in output
    assert len(desk.events(thread, "call_started")) == 1
    assert len(orders.ledger()) == 1


def test_killed_before_the_service_saw_it_the_refund_is_made_after_all(desk, orders, processes):
    """The other side of the window: the service does not know the key, so the call runs again."""
    desk.environment["TENUTO_AGENT"] = "tests.examples.unverified:quick"
    row = asked(desk)
    silent = socket.create_server(("127.0.0.1", 0))  # takes connections, and says nothing
    desk.environment["ORDERS_API_BASE"] = f"http://127.0.0.1:{silent.getsockname()[1]}"
    with silent, desk.popen("inbox", "approve", row["id"]) as process:
        ends_at = time.monotonic() + 10
        while not desk.events(row["thread_id"], "call_started"):
            assert time.monotonic() < ends_at
        process.kill()
        process.communicate()
    desk.environment["ORDERS_API_BASE"] = orders.url
    assert "Order 17 is refunded: 42.00, refund R1.\n" in desk("run", "--thread", row["thread_id"])
    assert len(desk.events(row["thread_id"], "call_started")) == 2
    assert len(orders.ledger()) == 1

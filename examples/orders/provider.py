"""Plays the model for the order desk, offline.

    python -m tenuto.testing.provider examples.orders.provider:answer --port 8011

It follows rules instead of thinking, but sees exactly what a model would be sent, and nothing else.
"""

import json
import re
from typing import Any

from tenuto.messages import CallRequest
from tenuto.testing import call


def answer(body: dict[str, Any]) -> str | CallRequest:
    """The next reply to a chat-completions request."""
    messages = body["messages"]
    asked = max(place for place, message in enumerate(messages) if message["role"] == "user")
    question = str(messages[asked]["content"])
    results = results_of(messages[asked:])
    number = re.search(r"\d+", question)
    if number is None:
        return "Which order is it about? Please tell me its number."
    order_id = number.group()
    if "get_order" not in results:
        return call("get_order", order_id=order_id)
    found = results["get_order"]
    if found.startswith("Error"):
        return f"I could not find order {order_id}. {found}"
    order = json.loads(found)
    if "refund" not in question.lower():
        refunded = " and was refunded" if order["refunded"] else ""
        return f"Order {order_id} ({order['item']}, {order['total']}) is {order['status']}{refunded}."
    if "refund_order" not in results:
        return call("refund_order", order_id=order_id, reason=reason_in(question))
    outcome = results["refund_order"]
    if outcome.startswith("Error"):
        return f"Order {order_id} was not refunded. {outcome}"
    try:
        # A person may have changed the arguments: a note about that then comes before the result.
        refund = json.loads(outcome.splitlines()[-1])
        return f"Order {refund['order_id']} is refunded: {refund['amount']}, refund {refund['id']}."
    except (ValueError, KeyError, TypeError):
        return f"Order {order_id} is refunded. {outcome}"


def results_of(messages: list[dict[str, Any]]) -> dict[str, str]:
    """What the tools have returned in these messages, by name; the last result counts."""
    names = {}
    results = {}
    for message in messages:
        for made in message.get("tool_calls") or ():
            names[made["id"]] = made["function"]["name"]
        if message["role"] == "tool":
            results[names[message["tool_call_id"]]] = str(message["content"])
    return results


def reason_in(question: str) -> str:
    """What the customer says behind the number: "Refund order 17, it broke." -> it broke"""
    behind = re.split(r"\d+", question, maxsplit=1)[-1].strip(" ,.:;!-")
    return behind or "no reason given"

"""The order desk through the crash matrix: what is said in it, and tools that need no order service.

    tenuto crashtest examples.orders.agent:agent \
        --script examples.orders.crash:script --fakes examples.orders.crash:fakes
"""

from typing import Any

from tenuto import ToolContext
from tenuto.testing import call


def script() -> dict[str, Any]:
    """A customer, the model's replies, and a person who approves."""
    return {
        "message": "Refund order 17, it arrived damaged.",
        "replies": [
            call("get_order", order_id="17"),
            call("refund_order", order_id="17", reason="it arrived damaged"),
            "Order 17 is refunded.",
        ],
        "decisions": {"refund_order": "approve"},
    }


def get_order(order_id: str) -> dict[str, Any]:
    return {"id": order_id, "item": "desk lamp", "total": "42.00"}


def refund_order(order_id: str, reason: str, context: ToolContext) -> dict[str, Any]:
    return {"id": "R1", "order_id": order_id, "reason": reason, "key": context.idempotency_key}


# Whether a refund happened is asked of the crash test's own ledger, as no `verify` is given here.
fakes = {"get_order": get_order, "refund_order": refund_order}

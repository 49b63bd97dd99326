"""The order desk's agent: it looks orders up by itself, and refunds only what a person has approved."""

import os
from typing import Any

from tenuto import Agent, DidNotHappen, Happened, NotDone, ToolContext, tool

# Below the tools' own timeout: when the deadline has passed, no request of ours is still on its way.
REQUEST_SECONDS = 10.0
TOOL_SECONDS = 15.0


async def ask_service(method: str, path: str, **request: Any) -> Any:
    """One request to the order service. Raises `NotDone` when it is certain that nothing happened: the
    service was not reached, or refused.
    """
    import httpx2

    base, token = os.environ.get("ORDERS_API_BASE"), os.environ.get("BACKEND_API_TOKEN")
    if not base or not token:
        raise NotDone("the order service is not known: set ORDERS_API_BASE and BACKEND_API_TOKEN")
    headers = {"Authorization": f"Bearer {token}"} | request.pop("headers", {})
    async with httpx2.AsyncClient(base_url=base, timeout=REQUEST_SECONDS) as client:
        try:
            response = await client.request(method, path, headers=headers, **request)
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            raise NotDone(f"the order service cannot be reached: {error}") from error
    if 400 <= response.status_code < 500:
        raise NotDone(f"the order service refused ({response.status_code}): {response.json()['error']}")
    response.raise_for_status()
    return response.json()


async def what_became_of(arguments: dict[str, Any], key: str) -> Happened | DidNotHappen:
    """After a crash in the middle of a refund: the service knows which keys it has seen."""
    found = await ask_service("GET", "/refunds", params={"key": key})
    return Happened(found[0]) if found else DidNotHappen()


@tool(effect="read", timeout=TOOL_SECONDS)
async def get_order(order_id: str) -> dict[str, Any]:
    """Look an order up: what was bought, for how much, and where it is.

    Args:
        order_id: The number of the order, such as 17.
    """
    order: dict[str, Any] = await ask_service("GET", f"/orders/{order_id}")
    return order


@tool(effect="once", approval=True, timeout=TOOL_SECONDS, verify=what_became_of)
async def refund_order(order_id: str, reason: str, context: ToolContext) -> dict[str, Any]:
    """Refund an order in full. A person has to approve each refund.

    Args:
        order_id: The number of the order.
        reason: Why, in the customer's words.
    """
    refund: dict[str, Any] = await ask_service(
        "POST",
        f"/orders/{order_id}/refunds",
        json={"reason": reason},
        headers={"Idempotency-Key": context.idempotency_key},
    )
    return refund


agent = Agent(
    "orders",
    instructions=(
        "You work at the order desk of a shop. Look an order up before you say or do anything about it. When "
        "a customer asks for a refund and the order exists, call refund_order; a person decides about it, so "
        "do not ask the customer for confirmation. If the refund is rejected, say so and do not try again. "
        "Answer in one or two plain sentences."
    ),
    tools=[get_order, refund_order],
    max_steps=6,
)

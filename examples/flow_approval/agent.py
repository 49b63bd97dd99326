"""The durable part: an agent that may refund an order only when a person has said so."""

import os

from tenuto import Agent, tool
from tenuto.messages import CallRequest, Request, ToolMessage
from tenuto.testing import ScriptedModel, call


@tool(effect="once", approval=True)
async def refund_order(order_id: str) -> str:
    """Refund an order in full. A person has to approve it.

    Args:
        order_id: The number of the order.
    """
    return f"refund R-{order_id}"


def script(request: Request) -> str | CallRequest:
    """Plays the model: ask for the refund, then say what became of it."""
    last = request.messages[-1]
    if not isinstance(last, ToolMessage):
        order_id = "".join(character for character in getattr(last, "text", "") if character.isdigit())
        return call("refund_order", order_id=order_id)
    if last.text.startswith("refund "):
        return f"The order is refunded ({last.text})."
    return "The order is not refunded."


agent = Agent(
    "refunds",
    instructions="Refund the order that you are asked to, once, and say in one sentence what became of it.",
    tools=[refund_order],
    model=None if os.environ.get("PROVIDER_URL") else ScriptedModel(script, record=False),
)

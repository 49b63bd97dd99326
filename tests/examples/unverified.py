"""The order desk's agent, but its refund cannot be asked what became of it: a person has to say."""

import dataclasses

from examples.orders.agent import agent as original
from examples.orders.agent import get_order, refund_order

unverified = dataclasses.replace(refund_order, verifier=None, timeout_ms=2000)
agent = dataclasses.replace(original, tools=[get_order, unverified])
quick = dataclasses.replace(original, tools=[get_order, dataclasses.replace(refund_order, timeout_ms=2000)])

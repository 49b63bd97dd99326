"""An agent of a fleet, with a tool that tells how far it is: `tests.server.working:agent`."""

import asyncio

from tenuto import Agent, ToolContext, tool


@tool(effect="read")
async def work(context: ToolContext) -> str:
    """Take a while, and say so."""
    for n in range(1, 5):
        context.progress(f"part {n}", n / 4)
        await asyncio.sleep(0.2)
    return "worked"


agent = Agent("talker", tools=[work])

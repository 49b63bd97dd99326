"""The agent whose steps are counted: it looks something up `steps` times, 490 bytes each, and is done."""

from typing import Any

RESULT = "x" * 490


def agent_of(steps: int, effect: Any = "read") -> Any:
    """Its model and its tool are functions in the process. `effect` is the tool's."""
    from tenuto import Agent, tool
    from tenuto.messages import CallRequest, Reply

    @tool(effect=effect)
    async def lookup(i: int) -> str:
        """Look something up."""
        return RESULT

    class Model:
        name = "scripted"

        async def reply(self, request, emit=None):
            step = len(request.messages) // 2
            if step <= steps:
                call = CallRequest("lookup", f'{{"i":{step}}}', provider_id=f"call_{step}")
                return Reply(calls=(call,), model="scripted", finish="tool_calls")
            return Reply(text="done", model="scripted", finish="stop")

    return Agent("bench", "Look things up.", [lookup], model=Model(), max_steps=0)

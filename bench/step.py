"""The agent whose steps are counted: it looks something up `steps` times, 490 bytes each, and is done."""

import asyncio
import time
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


async def measured(runtime: Any, threads: int, steps: int, least: int) -> dict[str, float]:
    """What a step costs: `threads` threads of `steps` steps, at most 50 at a time; of a single thread as many
    turns, one after another, as make `least` steps. A few turns before that warm up what would be cold; their
    steps count in `all_steps` too.
    """
    turn = asyncio.Semaphore(1 if threads == 1 else 50)

    async def one() -> None:
        async with turn:
            state = await runtime.wait(await runtime.start("bench", "go"))
            assert (state.status, state.step) == ("completed", steps + 1), state

    warm_up, turns = max(1, 100 // steps), max(threads, least // steps)
    for _ in range(warm_up):
        await one()
    began = now()
    await asyncio.gather(*(one() for _ in range(turns)))
    return since(began, turns * steps) | {"all_steps": (turns + warm_up) * steps}


def now() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def since(began: tuple[float, float], steps: int) -> dict[str, float]:
    wall, cpu = time.perf_counter() - began[0], time.process_time() - began[1]
    return {"cpu_ms": cpu * 1000 / steps, "wall_ms": wall * 1000 / steps, "rate": steps / wall}

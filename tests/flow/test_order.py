"""The order of everything: the same as under agere 0.2.0, for random programs.

The digest is of what agere 0.2.0 told when it ran the same sixty programs.
"""

import asyncio
import hashlib
import json
import random
from typing import Any

import pytest

from tenuto.flow import (
    PASS_WORD,
    Callback,
    Commander,
    HandlerCoroutine,
    Job,
    get_null_logger,
    handler,
    tasker,
)

MOMENTS = ["job_start", "handler_start", "exception", "terminate", "handler_end", "job_end", "commander_end"]
TOLD_BY_AGERE = "4e56093e11b2171b2c16867d1dc3ed94caed8dea5622d653b3448dec04583769"


def plan(chance: random.Random, number: list[int], depth: int) -> dict[str, Any]:
    number[0] += 1
    return {
        "id": number[0],
        "kind": chance.choice("jh"),
        "raises": chance.random() < 0.15,
        "returns": chance.random() < 0.5,
        "pauses": chance.choice([0, 0, 0, 1]),
        "children": [plan(chance, number, depth - 1) for _ in range(chance.randint(0, 3) if depth else 0)],
    }


class Planned(Job):
    def __init__(self, node: dict[str, Any], log: list[str]) -> None:
        super().__init__(callback=told(f"j{node['id']}", log))
        self.node = node
        self.log = log

    @tasker(PASS_WORD)
    async def task(self) -> Any:
        return await act(self, self.node, self.log)


@handler(PASS_WORD)
async def planned(
    self_handler: HandlerCoroutine[Any], node: dict[str, Any], log: list[str], callback: Callback
) -> None:
    await act(self_handler, node, log)


def told(name: str, log: list[str]) -> Callback:
    return Callback(
        *([{"function": log.append, "params": {"args": (f"{name}_{moment}",)}}] for moment in MOMENTS)
    )


async def act(node: Any, now: dict[str, Any], log: list[str]) -> HandlerCoroutine[Any] | None:
    log.append(f"work{now['id']}")
    returned = None
    for child in now["children"]:
        if child["kind"] == "j":
            await node.put_job(Planned(child, log))
        else:
            call = planned(child, log, told(f"h{child['id']}", log))
            if isinstance(node, Job) and now["returns"] and returned is None:
                returned = call
            else:
                node.call_handler(call)
        if now["pauses"]:
            await asyncio.sleep(0)
    if now["raises"]:
        raise ValueError(now["id"])
    return returned


@pytest.mark.timeout(20)
def test_everything_happens_in_the_order_of_agere() -> None:
    logs: list[list[str]] = []
    for seed in range(60):
        log: list[str] = []
        chance, number = random.Random(seed), [0]
        tops = [plan(chance, number, 3) for _ in range(2)]
        Commander[None](get_null_logger()).run([Planned(top, log) for top in tops], auto_exit=True)
        logs.append(log)
    assert sum(map(len, logs)) == 3948
    assert hashlib.sha256(json.dumps(logs).encode()).hexdigest() == TOLD_BY_AGERE

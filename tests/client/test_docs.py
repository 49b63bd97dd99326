"""The example of docs/client.md runs as it stands, and with its one line changed."""

import asyncio
import re
import sys
from pathlib import Path

from tests.client.conftest import TOKEN

from tenuto.testing import ScriptedModel, call

TEXT = (Path(__file__).parents[2] / "docs" / "client.md").read_text(encoding="utf-8")
EMBEDDED = """
from tenuto import Agent, Runtime, tool
from tenuto.testing import ScriptedModel, call

@tool(effect="once", approval=True)
async def refund_order(order_id: str, reason: str) -> str:
    return f"refunded {order_id}"

refund_17 = call("refund_order", order_id="17", reason="damaged")
ops = Agent("ops", tools=[refund_order], model=ScriptedModel([refund_17, "Order 17 is refunded."]))
"""
SAID = 'refund_order {"order_id":"17","reason":"damaged"}\nOrder 17 is refunded.\n'


def example() -> str:
    (found,) = re.findall(r"^```python\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)
    return found


async def output_of(program: str, place: Path, **environment: str) -> str:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        program,
        cwd=place,
        env={"PATH": "/usr/bin:/bin", "PYTHONUTF8": "1", **environment},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, errors = await asyncio.wait_for(process.communicate(), 50)
    assert errors.decode() == ""
    return output.decode()


async def test_the_example_works_on_a_server(serving, tmp_path):
    model = ScriptedModel([call("refund_order", order_id="17", reason="damaged"), "Order 17 is refunded."])
    async with serving(model=model) as place:
        assert await output_of(example(), tmp_path, TENUTO_URL=place.url, TENUTO_TOKEN=TOKEN) == SAID
        assert place.shop.refunds == ["17"]


async def test_the_example_works_here_with_one_line_changed(tmp_path):
    (there,) = [line for line in example().splitlines() if "async with Client(" in line]
    (here,) = re.findall(r"`(async with Runtime\(.*?:)`", TEXT)
    program = EMBEDDED + example().replace(there.strip(), here)
    assert await output_of(program, tmp_path) == SAID


def test_every_verb_is_named():
    from tests.client.test_same import VERBS

    assert [verb for verb in VERBS.split() if f"`{verb}`" not in TEXT] == []

"""The README's example runs as it stands, against a provider over real HTTP."""

import re
import subprocess
import sys
from pathlib import Path

import msgspec

from tenuto.testing import ScriptedProvider

ROOT = Path(__file__).parents[1]

ANSWERS = [
    {"calls": [{"name": "get_order", "arguments": {"order_id": "17"}}]},
    {"calls": [{"name": "refund_order", "arguments": {"order_id": "17", "reason": "it arrived damaged"}}]},
    {"text": "Order 17 is refunded."},
]


def blocks(language: str) -> list[str]:
    return re.findall(
        rf"^```{language}\n(.*?)^```", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE
    )


async def test_the_example_works_as_it_stands(tmp_path, monkeypatch):
    (example,) = blocks("python")
    async with ScriptedProvider(ANSWERS) as provider:
        environment = {
            "PATH": "/usr/bin:/bin",
            "PROVIDER_URL": provider.url,
            "PROVIDER_MODEL": "scripted",
        }
        import asyncio

        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            example,
            cwd=tmp_path,
            env=environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        output, errors = await asyncio.wait_for(process.communicate(), 50)
    assert errors.decode() == ""
    assert output.decode() == "Order 17 is refunded.\n"
    # The second request carries what the first tool really returned.
    second = provider.requests[1].body["messages"][-1]
    assert second["role"] == "tool"
    assert msgspec.json.decode(second["content"])["total"] == "42.00"


def test_the_example_is_at_most_twenty_lines():
    (example,) = blocks("python")
    assert len([line for line in example.splitlines() if line.strip()]) <= 20


def test_every_command_that_it_names_exists():
    named = {match for block in blocks("sh") for match in re.findall(r"^tenuto (\w+)", block, re.MULTILINE)}
    help_text = subprocess.run(
        [sys.executable, "-m", "tenuto", "--help"], capture_output=True, text=True, check=True
    ).stdout
    assert named
    assert [name for name in named if not re.search(rf"\b{name}\b", help_text)] == []

"""The tutorial does what it shows: its blocks run in order, and print the text below them."""

import contextlib
import io
import re
from pathlib import Path

import pytest

from tenuto import flow

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "flow.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.timeout(30)
def test_every_block_prints_what_is_shown() -> None:
    namespace: dict[str, object] = {"__name__": "tutorial"}
    printed = ""
    ran = 0
    for language, text in BLOCK.findall(PAGE):
        if language == "python":
            assert printed == "", f"what a block prints is not shown:\n{printed}"
            output = io.StringIO()
            with contextlib.redirect_stdout(output):
                exec(compile(text, "docs/flow.md", "exec"), namespace)
            printed = output.getvalue()
            ran += 1
        elif language == "text":
            assert printed == text
            printed = ""
    assert printed == ""
    assert ran >= 9


def test_every_public_name_that_a_program_uses_is_in_the_page() -> None:
    for name in ("Commander", "Job", "handler", "tasker", "PASS_WORD", "add_edge", "add_conditional_edge"):
        assert name in flow.__all__
        assert name in PAGE
    for moment in flow.CallbackType.__args__:
        assert f"`{moment}`" in PAGE

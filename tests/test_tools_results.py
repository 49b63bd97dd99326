"""What a model reads of a value or an error, whatever it is."""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from tenuto.errors import NotDone
from tenuto.limits import MAX_ERROR_CHARACTERS, MAX_RESULT_CHARACTERS
from tenuto.tools import ToolContext, error_text, result_text, tool


class Order(BaseModel):
    id: int
    total: Decimal


@dataclass
class Point:
    x: float
    order: Any = None


class Color(StrEnum):
    RED = "red"


class Opaque:
    def __repr__(self) -> str:
        return "<opaque>"


class Hostile:
    def __repr__(self) -> str:
        raise RuntimeError("no")

    __str__ = __repr__

    @property
    def __class__(self) -> Any:  # type: ignore[override]  # as a proxy does
        raise RuntimeError("no")


class Struct(msgspec.Struct):
    a: int = 1


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("as it is\x00", "as it is\x00"),
        (Color.RED, "red"),
        (None, "null"),
        (True, "true"),
        ({"é": [1, 2.5, None]}, '{"é":[1,2.5,null]}'),
        (Order(id=1, total=Decimal("1.50")), '{"id":1,"total":"1.50"}'),
        ([Point(0.5, Order(id=1, total=Decimal(2)))], '[{"x":0.5,"order":{"id":1,"total":"2"}}]'),
        (Struct(), '{"a":1}'),
        ({"at": datetime(2030, 1, 2, tzinfo=UTC), "id": UUID(int=1)},
         '{"at":"2030-01-02T00:00:00Z","id":"00000000-0000-0000-0000-000000000001"}'),
        ({1}, "[1]"),
        (b"text", "text"),
        (b"\xff\x00", "/wA="),
        ([b"text"], '["dGV4dA=="]'),
        (math.nan, "null"),
        ([math.inf, {"a": -math.inf}], '[null,{"a":null}]'),
        (2**70, str(2**70)),
        ("lone \ud800.", "lone \ufffd."),
        ("pair \ud83d\ude00", "pair 😀"),
        ({"a\udc00": ["\ud800", math.nan, 2**70, Point(math.nan)]},
         '{"a\ufffd":["\ufffd",null,1180591620717411303424,{"x":null,"order":null}]}'),
        ({(1, 2): 3}, '{"(1, 2)":3}'),
        (Opaque(), "<opaque>"),
        ([Opaque(), "\ud800"], '["<opaque>","\ufffd"]'),
    ],
)  # fmt: skip
def test_result_text(value: object, text: str) -> None:
    assert result_text(value) == text


def test_result_text_never_raises() -> None:
    cycle: list[Any] = []
    cycle += [cycle] * 10
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    hostile = {"a": Hostile(), "b": [1, "\ud800"]}
    for value in (Hostile(), cycle, deep, hostile, [Hostile], lambda: 1, Hostile.__repr__, iter([1])):
        text = result_text(value)
        assert 0 < len(text.encode()) <= 4 * MAX_RESULT_CHARACTERS
    while deep:
        deep = deep.pop()


def test_long_results_are_cut_with_a_mark() -> None:
    whole = "x" * (MAX_RESULT_CHARACTERS + 1)
    text = result_text(whole)
    kept = text.count("x")
    assert text == "x" * kept + f"\n[cut: {len(whole) - kept} of {len(whole)} characters left out]"
    assert MAX_RESULT_CHARACTERS - 10 < len(text) <= MAX_RESULT_CHARACTERS
    assert result_text(whole[1:]) == whole[1:]


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.integers() | st.binary() | st.text(st.characters()),
        lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner),
    )
)
def test_results_are_valid_json_and_valid_text(value: object) -> None:
    text = result_text(value)
    text.encode()
    if not isinstance(value, str | bytes):
        json.loads(text, parse_constant=lambda name: pytest.fail(name))


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


def raised(work: Callable[[], object]) -> BaseException:
    try:
        work()
    except Exception as error:  # noqa: BLE001 - it is what is looked at
        return error
    raise AssertionError("nothing was raised")


def test_error_text() -> None:
    assert error_text(ValueError("bad")) == "ValueError: bad"
    assert error_text(ValueError()) == "ValueError"
    assert error_text(NotDone("card declined")) == "NotDone: card declined"
    assert error_text(ValueError("\ud800")) == "ValueError: \ufffd"
    assert error_text(Mute()).startswith(("<", "Mute"))
    group = ExceptionGroup("many", [ValueError("a"), KeyError("b")])
    assert error_text(group) == "ExceptionGroup: many (2 sub-exceptions): ValueError: a; KeyError: 'b'"
    text = error_text(raised(lambda: json.loads("{")))
    assert text.startswith("JSONDecodeError: ")
    assert "(test_tools_results.py:" in text
    long = error_text(ValueError("x" * 100_000))
    assert len(long) <= MAX_ERROR_CHARACTERS
    assert long.endswith("of 100012 characters left out]")


async def test_an_error_is_placed_in_the_tool_not_in_its_thread() -> None:
    @tool(effect="read")
    def divide(n: int) -> float:
        return 1 / n

    with pytest.raises(ZeroDivisionError) as caught:
        await divide.run('{"n":0}', ToolContext())
    caught.value.__traceback__ = caught.value.__traceback__.tb_next  # type: ignore[union-attr]  # this test's frame
    line = divide.function.__code__.co_firstlineno + 2
    assert (
        error_text(caught.value)
        == f"ZeroDivisionError: division by zero (test_tools_results.py:{line} in divide)"
    )

"""What becomes a tool and what is refused, its schema, its digest, and who must approve its calls."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from pydantic import BaseModel, Field, SecretStr
from typing_extensions import TypedDict

from tenuto.errors import ConfigurationError
from tenuto.tools import InvalidArguments, Tool, ToolContext, tool


class Color(Enum):
    RED = "red"
    BLUE = "blue"


class Line(BaseModel):
    """One line of an order."""

    title: str
    count: int = Field(1, ge=1)


@dataclass
class Address:
    city: str


class Extra(TypedDict):
    note: str


@tool(effect="once", approval=True)
async def refund_order(order_id: str, reason: str = "damaged") -> dict[str, Any]:
    """Refund an order.

    Args:
        order_id: The order's number.
        reason: Why,
            in a few words.
    """
    return {"order_id": order_id, "reason": reason}


async def test_a_tool_is_still_its_function() -> None:
    assert await refund_order("17", reason="lost") == {"order_id": "17", "reason": "lost"}
    assert repr(refund_order) == "<Tool refund_order: once>"
    assert (refund_order.timeout_ms, refund_order.expires_ms, refund_order.verifiable) == (
        60_000,
        86_400_000,
        False,
    )
    with pytest.raises(AttributeError):
        refund_order.effect = "read"  # type: ignore[misc]  # frozen


# -- what is refused ---------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"effect": "write"}, {"effect": ""}])
def test_the_effect_must_be_declared(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=r"\"read\".*\"idempotent\".*\"once\""):
        tool(**options)


def test_a_bare_decorator_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="declare what a call does"):

        @tool
        def bare(a: int) -> int:
            return a


def generator(a: int) -> Iterator[int]:
    yield a


async def async_generator(a: int) -> AsyncIterator[int]:
    yield a


def unannotated(a: int, b) -> None: ...  # type: ignore[no-untyped-def]  # refused


def positional(a: int, /) -> None: ...


def starred(*a: int) -> None: ...


class Shop:
    """A shop."""

    def __init__(self, city: str = "Rome") -> None:
        self.city = city

    def find(self, order_id: str) -> str:
        """Find an order."""
        return f"{order_id} in {self.city}"

    async def __call__(self, order_id: str) -> str:
        return f"called {order_id} in {self.city}"


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (generator, "generator"),
        (async_generator, "generator"),
        (unannotated, "'b' has no type annotation"),
        (Shop.find, "'self' has no type annotation; for a method"),
        (positional, "cannot be given by name"),
        (starred, "cannot be given by name"),
        (lambda: 1, "tool name '<lambda>'"),
        (refund_order, "not a function"),
        (17, "not a function"),
        (dict.get, "cannot be given by name"),
    ],
)
def test_what_cannot_be_a_tool_is_refused_at_once(function: Any, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        tool(effect="read")(function)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"name": "bad name"}, "tool name"),
        ({"name": "x" * 65}, "tool name"),
        ({"timeout": 0}, "timeout=0"),
        ({"timeout": float("inf")}, "timeout=inf"),
        ({"expires_after": -1}, "expires_after=-1"),
        ({"verify": lambda arguments, key: None}, "verify is for effect='once'"),
        ({"effect": "once", "verify": lambda arguments: None}, r"verify\(arguments, idempotency_key\)"),
        ({"effect": "once", "verify": 3}, r"verify\(arguments, idempotency_key\)"),
        ({"approval": "yes"}, "approval is True, False or"),
        ({"approval": lambda amount: True}, "approval takes amount"),
        ({"approval": lambda *a: True}, r"approval takes \*a"),
        ({"approval": Shop().__call__}, "approval is True, False or"),
    ],
)
def test_options_that_cannot_work_are_refused_at_once(options: dict[str, Any], words: str) -> None:
    def look(order_id: str) -> str:
        return order_id

    with pytest.raises(ConfigurationError, match=words):
        tool(**{"effect": "read", **options})(look)


def test_what_needs_pydantic_is_refused_by_check() -> None:
    def missing(a: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821 - that is the point

    def odd(a: Shop) -> None: ...

    def bad_default(a: int = None) -> None: ...  # type: ignore[assignment]  # noqa: RUF013 - refused

    def secret(a: SecretStr) -> None: ...

    def decided(context: ToolContext, a: int) -> None: ...

    for function, words in [
        (missing, "Nowhere"),
        (odd, "Shop"),
        (bad_default, "a default does not fit its annotation: a: "),
        (secret, "a secret cannot be an argument"),
    ]:
        made = tool(effect="read")(function)
        with pytest.raises(ConfigurationError, match=words):
            made.check()
    with pytest.raises(ConfigurationError, match="approval cannot take 'context'"):
        tool(effect="read", approval=lambda context: True)(decided).check()


def test_making_tools_does_not_import_pydantic() -> None:
    program = (
        "import sys\nfrom tenuto.tools import tool\n"
        "@tool(effect='read')\ndef look(a: int) -> int: return a\n"
        "assert not {'pydantic', 'openai', 'fastapi', 'typer'} & set(sys.modules), 'heavy'\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, env={"PYTHONPATH": ":".join(sys.path)})


# -- schemas -----------------------------------------------------------------------------------------


def test_the_schema_of_a_plain_tool() -> None:
    schema = refund_order.schema
    assert (schema.name, schema.description) == ("refund_order", "Refund an order.")
    assert schema.parameters == {
        "type": "object",
        "properties": {
            "order_id": {"type": "string", "description": "The order's number."},
            "reason": {"type": "string", "default": "damaged", "description": "Why, in a few words."},
        },
        "required": ["order_id"],
        "additionalProperties": False,
    }
    assert refund_order.schema is schema


def test_the_schema_of_every_kind_of_parameter() -> None:
    @tool(effect="read", description="Everything.")
    def everything(
        context: ToolContext,
        line: Line,
        address: Address,
        extra: Extra,
        color: Color,
        size: Literal["s", "m"],
        amount: Decimal,
        at: datetime,
        id: UUID,
        title: Annotated[str, Field(description="Its own words.", max_length=5)],
        lines: list[Line],
        either: int | str = 3,
        maybe: float | None = None,
        schema: dict[str, int] = {},  # noqa: B006 - a default like any other
        model_dump: bool = Field(True, description="Named like a method."),
    ) -> None: ...

    parameters = everything.schema.parameters
    properties = parameters["properties"]
    assert "context" not in properties
    assert properties["line"] == {"$ref": "#/$defs/Line"}
    assert parameters["$defs"]["Line"]["properties"] == {
        "title": {"type": "string"},
        "count": {"type": "integer", "default": 1, "minimum": 1},
    }
    assert parameters["$defs"]["Color"] == {"enum": ["red", "blue"], "type": "string"}
    assert properties["size"] == {"enum": ["s", "m"], "type": "string"}
    assert properties["at"] == {"type": "string", "format": "date-time"}
    assert properties["id"] == {"type": "string", "format": "uuid"}
    assert properties["title"] == {"type": "string", "maxLength": 5, "description": "Its own words."}
    assert properties["either"] == {"anyOf": [{"type": "integer"}, {"type": "string"}], "default": 3}
    assert properties["maybe"] == {"anyOf": [{"type": "number"}, {"type": "null"}], "default": None}
    assert properties["model_dump"]["description"] == "Named like a method."
    assert set(parameters["required"]) == set(properties) - {"either", "maybe", "schema", "model_dump"}
    assert everything.schema.description == "Everything."


def test_names_local_to_a_function_are_found() -> None:
    class Local(BaseModel):
        n: int

    @tool(effect="read")
    def look(local: Local) -> None: ...

    assert look.validate('{"local": {"n": "3"}}') == '{"local":{"n":3}}'


async def test_methods_partials_and_callable_objects() -> None:
    method = tool(effect="read")(Shop("Oslo").find)
    assert (method.name, method.schema.description) == ("find", "Find an order.")
    assert await method.run('{"order_id":"1"}', ToolContext()) == "1 in Oslo"

    def look(tenant: str, order_id: str, **rest: Any) -> str:
        return f"{tenant}/{order_id}/{rest}"

    bound = tool(effect="read")(functools.partial(look, tenant="ours"))
    assert (bound.name, list(bound.schema.parameters["properties"])) == ("look", ["order_id"])
    assert await bound.run('{"order_id":"1"}', ToolContext()) == "ours/1/{}"
    with pytest.raises(InvalidArguments, match="there is no argument 'tenant'"):
        bound.validate('{"order_id":"1","tenant":"x"}')

    thing = tool(effect="read")(Shop("Bonn"))
    assert thing.name == "Shop"
    assert await thing.run('{"order_id":"1"}', ToolContext()) == "called 1 in Bonn"
    later = tool(effect="read", name="later")(functools.partial(Shop("Bonn"), order_id="9"))
    assert await later.run("{}", ToolContext()) == "called 9 in Bonn"


# -- digest and gate ---------------------------------------------------------------------------------


def variant(annotation: Any = str, docstring: str = "Look.", **options: Any) -> Tool:
    def look(order_id: str) -> str:
        return order_id

    look.__annotations__["order_id"], look.__doc__ = annotation, docstring
    return tool(**{"effect": "read", **options})(look)


def over(order_id: str) -> bool:
    return True


def test_the_digest_names_schema_effect_policy_and_version() -> None:
    digests = [
        variant().digest,
        variant(annotation=int).digest,
        variant(docstring="Look well.").digest,
        variant(effect="once").digest,
        variant(approval=True).digest,
        variant(approval=over).digest,
        variant(version="2").digest,
        variant(name="other").digest,
    ]
    assert len(set(digests)) == len(digests)
    assert all(len(digest) == 32 and set(digest) <= set("0123456789abcdef") for digest in digests)
    assert variant().digest == digests[0] == variant(timeout=3, expires_after=9).digest


def failing(amount: Decimal) -> bool:
    raise LookupError("no rates")


@pytest.mark.parametrize(
    ("approval", "expected"),
    [
        (False, None),
        (True, ""),
        (lambda amount: amount > 100, ""),
        (lambda amount: amount > 1000, None),
        (lambda order_id, amount: f"refund {amount + 1} for {order_id}?", "refund 251.50 for 17?"),
        (lambda **arguments: str(sorted(arguments)), "['amount', 'order_id']"),
        (lambda amount, limit=5: amount > limit, ""),
        (lambda: False, None),
        (lambda: None, "The approval policy returned NoneType, which is neither bool nor str."),
        (lambda: "", ""),
        (lambda: 0, "The approval policy returned int, which is neither bool nor str."),
    ],
)
def test_a_policy_decides_by_the_typed_arguments(approval: Any, expected: str | None) -> None:
    @tool(effect="once", approval=approval)
    def refund(order_id: str, amount: Decimal) -> None: ...

    refund.check()
    assert refund.gate(refund.validate('{"order_id": "17", "amount": "250.50"}')) == expected


def test_a_policy_that_fails_asks_a_person() -> None:
    @tool(effect="once", approval=failing)
    def refund(amount: Decimal) -> None: ...

    prompt = refund.gate('{"amount":"1"}')
    assert prompt is not None
    assert prompt.startswith("The approval policy failed: LookupError: no rates (test_tools.py:")

"""A model's argument text: what is read, what is refused, and the canonical JSON that would run."""

import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import AfterValidator, BaseModel

from tenuto.limits import MAX_ERROR_CHARACTERS
from tenuto.tools import InvalidArguments, ToolContext, tool


@tool(effect="read")
async def t(n: int | None = None) -> int | None:
    return n


@tool(effect="read")
async def anything(x: Any = None, **rest: Any) -> Any:
    return x


@tool(effect="once")
async def refund(order_id: str, amount: float, tags: list[str] | None = None) -> None: ...


@pytest.mark.parametrize("raw", [None, "", "  ", "\n\t", "null", " null ", "{}", '"{}"', '""', '"null"'])
def test_absent_arguments_are_the_empty_object(raw: str | None) -> None:
    assert t.validate(raw) == '{"n":null}'
    assert anything.validate(raw) == '{"x":null}'


def test_an_object_encoded_twice_is_decoded_once() -> None:
    assert t.validate(r'"{\"n\": 2}"') == '{"n":2}'
    with pytest.raises(InvalidArguments, match="not a string"):
        t.validate(json.dumps(json.dumps(json.dumps({"n": 2}))))


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ("[1]", "must be one JSON object.*not an array"),
        ("17", "not a number"),
        ("true", "not a boolean"),
        ('{"x": 1', "not valid JSON"),
        ('{"x": 1}{"x": 2}', "Extra data"),
        ('{"x": 1} x', "Extra data"),
        ('{"x": 1, "x": 2}', "the key 'x' is there twice"),
        ('{"x": {"a": [{"b": 1, "b": 1}]}}', "the key 'b' is there twice"),
        (r'"{\"x\": 1, \"x\": 2}"', "the key 'x' is there twice"),
        ('{"x": NaN}', "NaN is not JSON"),
        ('{"x": -Infinity}', "-Infinity is not JSON"),
        ('{"x": 1e400}', "1e400 cannot be held exactly"),
        ('{"x": 1e-400}', "1e-400 cannot be held exactly"),
        ('{"x": 9007199254740993.0}', "cannot be held exactly"),
        ('{"x": 0.1234567890123456789}', "cannot be held exactly"),
        ('{"x": ' + "9" * 5000 + "}", "a number that cannot be read"),
        ('{"x": "\\ud800"}', "surrogates not allowed"),
        ('{"x": {"\\udfff": 1}}', "surrogates not allowed"),
        ('{"x": "\ud800"}', "surrogates not allowed"),
        ("[" * 10_000, "nested more than 64"),
        ("[" * 10_000 + "]" * 10_000, "nested more than 64"),
        ('{"x": ' + "[" * 10_000 + "]" * 10_000 + "}", "nested more than 64"),
        ('{"x": ' + "[" * 64 + "]" * 64 + "}", "nested more than 64"),
        ("{'x': 1}", "not valid JSON"),
        ('{"x": "\n"}', "not valid JSON: Invalid control character"),
    ],
)
def test_what_has_no_single_meaning_is_refused(raw: str, words: str) -> None:
    with pytest.raises(InvalidArguments, match=words) as caught:
        anything.validate(raw)
    message = str(caught.value)
    assert message.startswith("Invalid arguments for anything; it was not run. ")
    assert message.endswith(" Arguments it takes: x (…).")
    assert len(message.encode()) <= MAX_ERROR_CHARACTERS


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("17", "17"),
        (str(2**64 + 1), str(2**64 + 1)),
        ("-" + "9" * 300, "-" + "9" * 300),
        ("1.50", "1.5"),
        ("1E5", "100000.0"),
        ("-0.0", "-0.0"),
        ("0.10000000000000001", "0.1"),  # how %.17g writes 0.1
        ("1e22", "1e22"),
        ('"\\u00e9\\ud83d\\ude00\\u0000"', '"é😀\\u0000"'),
        ('{"b": 1, "a": [true, null]}', '{"a":[true,null],"b":1}'),
        ("[" * 62 + "]" * 62, "[" * 62 + "]" * 62),
    ],
)
def test_values_come_through_exactly(value: str, text: str) -> None:
    canonical = anything.validate(f'{{"x": {value}}}')
    assert canonical == f'{{"x":{text}}}'
    assert json.loads(canonical) == {"x": json.loads(value)}
    assert anything.validate(canonical) == canonical


def test_a_number_is_exact_in_its_declared_type_or_refused() -> None:
    assert refund.validate('{"order_id":"1","amount":9007199254740992}').startswith(
        '{"amount":9007199254740992.0,'
    )
    for amount in (2**53 + 1, 10**25, 10**400):
        with pytest.raises(InvalidArguments):
            refund.validate(f'{{"order_id":"1","amount":{amount}}}')

    @tool(effect="read")
    def pay(amount: Decimal) -> None: ...

    assert pay.validate('{"amount": 19.99}') == '{"amount":"19.99"}'
    assert pay.validate(f'{{"amount": {10**25 + 1}}}') == f'{{"amount":"{10**25 + 1}"}}'
    assert pay.validate('{"amount": "0.1234567890123456789"}') == '{"amount":"0.1234567890123456789"}'


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (
            '{"order_id":"1"}',
            "amount: required, and missing. Arguments it takes: order_id (string, required), ",
        ),
        (
            '{"order_id":"1","amount":"much"}',
            "amount: Input should be a valid number, unable to parse string as a ",
        ),
        (
            '{"order_id":"1","amount":1,"x":2}',
            "x: there is no such argument. Arguments it takes: order_id (string",
        ),
        (
            '{"order_id":"1","amount":1,"tags":["a",7]}',
            "tags[1]: Input should be a valid string, not 7. Arguments",
        ),
        ('{"order_id":"1","amount":"inf"}', 'amount: Input should be a finite number, not "inf". '),
        ('{"order_id":"1","amount":1,"argument_0":2}', ": there is no such argument"),
        (json.dumps({"order_id": "1", "amount": 1, "tags": list(range(50))}), "; and 40 more. Arguments"),
        (json.dumps({"order_id": "1", "amount": "x" * 100_000}), "xxx…"),
    ],
)
def test_an_error_says_what_where_and_what_would_be_right(raw: str, words: str) -> None:
    with pytest.raises(InvalidArguments) as caught:
        refund.validate(raw)
    assert words in str(caught.value)
    assert len(str(caught.value)) <= MAX_ERROR_CHARACTERS


def test_coercion_shows_in_the_canonical_text() -> None:
    assert t.validate('{"n": "17"}') == t.validate('{"n": 17.0}') == '{"n":17}'
    assert (
        refund.validate('{"amount": "2.50", "order_id": "1"}') == '{"amount":2.5,"order_id":"1","tags":null}'
    )


async def test_the_call_is_built_from_the_canonical_text() -> None:
    @tool(effect="read")
    async def see(at: datetime, sizes: set[int], id: UUID, where: Path, _odd: Decimal, **rest: int) -> Any:
        return at, sizes, id, where, _odd, rest

    raw = {"at": "2030-01-02T03:04:05+02:00", "sizes": ["3", 20, 1, 3], "id": "0" * 32, "where": "a/b"}
    canonical = see.validate(json.dumps({**raw, "_odd": 1, "more": "7"}))
    assert json.loads(canonical)["sizes"] == [1, 20, 3]
    assert await see.run(canonical, ToolContext()) == (
        datetime.fromisoformat(str(raw["at"])),
        {1, 3, 20},
        UUID(int=0),
        Path("a/b"),
        Decimal(1),
        {"more": 7},
    )


def test_open_arguments_cannot_reach_what_is_filled_in() -> None:
    @tool(effect="read")
    def look(context: ToolContext, **rest: Any) -> None: ...

    assert look.validate('{"a": 1}') == '{"a":1}'
    with pytest.raises(InvalidArguments, match="there is no argument 'context'"):
        look.validate('{"context": 1}')


def test_types_that_do_not_read_back_what_they_write_are_refused() -> None:
    class Inner(BaseModel):
        share: float | None

    @tool(effect="read")
    def grow(n: Annotated[int, AfterValidator(lambda n: n + 1)]) -> None: ...

    @tool(effect="read")
    def inner(inner: Inner) -> None: ...

    @tool(effect="read")
    def broken(n: Annotated[int, AfterValidator(lambda n: {}[n])]) -> None: ...

    with pytest.raises(InvalidArguments, match="do not read back what they wrote"):
        grow.validate('{"n": 1}')
    with pytest.raises(InvalidArguments):
        inner.validate('{"inner": {"share": "nan"}}')
    with pytest.raises(InvalidArguments, match="KeyError: 1"):
        broken.validate('{"n": 1}')


class Color(Enum):
    RED = "red"
    BLUE = 2


class Item(BaseModel):
    name: str
    count: int = 1
    price: Decimal | None = None


@dataclass
class Place:
    city: str
    since: datetime | None = None


@tool(effect="read")
async def rich(
    item: Item,
    place: Place | None = None,
    color: Color = Color.RED,
    size: Literal["s", "m"] | int = "s",
    tags: set[str] | None = None,
    delays: dict[str, timedelta] | None = None,
    either: bool | float | str | list[Any] | None = None,
    **rest: Any,
) -> None: ...


def texts() -> st.SearchStrategy[str]:
    return st.text(max_size=8)


RICH = st.fixed_dictionaries(
    {
        "item": st.fixed_dictionaries(
            {"name": texts()}, optional={"count": st.integers(), "price": st.floats()}
        )
    },
    optional={
        "place": st.fixed_dictionaries({"city": texts()}, optional={"since": st.datetimes().map(str)}),
        "color": st.sampled_from(["red", 2]),
        "size": st.sampled_from(["s", "m", "7", 7]),
        "tags": st.lists(texts()),
        "delays": st.dictionaries(texts(), st.floats(-1e6, 1e6) | st.integers(-1000, 1000)),
        "either": st.booleans() | st.floats() | st.integers() | texts() | st.lists(st.integers()),
        "more": st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | texts(),
            lambda children: st.lists(children, max_size=3) | st.dictionaries(texts(), children, max_size=3),
            max_leaves=8,
        ),
    },
)


@given(RICH)
@settings(deadline=None)
def test_validating_is_idempotent(arguments: dict[str, Any]) -> None:
    try:
        canonical = rich.validate(json.dumps(arguments))
    except InvalidArguments as error:
        str(error).encode()
        return
    assert rich.validate(canonical) == canonical
    assert rich.validate(json.dumps(json.loads(canonical), indent=1, sort_keys=False)) == canonical


@given(st.text() | st.binary().map(lambda body: body.decode("utf-8", "surrogateescape")))
def test_any_text_is_read_or_refused(raw: str) -> None:
    try:
        canonical = anything.validate(raw)
    except InvalidArguments as error:
        str(error).encode()
    else:
        assert anything.validate(canonical) == canonical

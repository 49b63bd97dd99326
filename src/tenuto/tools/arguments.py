"""A model's argument text, read strictly: one JSON object, or an error that the model can act on.

Refused rather than read in one of several ways: duplicate keys, NaN and infinity, numbers that a double
cannot hold as they are written, text after the object, lone surrogates, nesting without end. Absent
arguments ("", blanks, null) are the empty object, and an object that was encoded twice is decoded twice:
providers send both.
"""

import json
import math
import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, NoReturn

import msgspec

from tenuto.errors import InvalidInput
from tenuto.limits import MAX_ARGUMENT_DEPTH


class InvalidArguments(InvalidInput):
    """The arguments do not fit the tool; the message tells the model what would."""


def parse(raw: str | None) -> dict[str, Any]:
    """The argument object. Raises `InvalidArguments`."""
    value = _load(raw)
    if isinstance(value, str):
        value = _load(value)
    if value is None:
        return {}
    if not isinstance(value, dict):
        kind = {list: "an array", str: "a string", bool: "a boolean"}.get(type(value), "a number")
        raise InvalidArguments(
            f'the arguments must be one JSON object such as {{"name": "value"}}, not {kind}'
        )
    return value


def encode(value: Any) -> str:
    """Canonical JSON: sorted keys, compact; the same value, the same text. Raises ValueError or TypeError."""
    text = _encode(value).decode()
    # msgspec writes NaN and infinity as null, so a null is looked at again.
    if "null" in text and any(type(leaf) is float and not math.isfinite(leaf) for leaf in _leaves(value)):
        raise ValueError("NaN and infinity are not JSON")
    return text


def altered_numbers(before: Any, after: Any) -> list[int]:
    """Integers beyond the exact range of a double that are in `before` and not, to the digit, in `after`."""
    kept = set(_leaves(after))
    return [
        leaf
        for leaf in _leaves(before)
        if type(leaf) is int and abs(leaf) > 2**53 and leaf not in kept and str(leaf) not in kept
    ]


def has_long_number(text: str) -> bool:
    """Whether `altered_numbers` could find anything: cheap, and almost always false."""
    return _LONG_NUMBER.search(text) is not None


_LONG_NUMBER = re.compile(r"[0-9]{16}")


def _load(text: str | None) -> Any:
    if text is None or not text.strip():
        return None
    try:
        value = _decode(text)
        if text.count("[") + text.count("{") > MAX_ARGUMENT_DEPTH:
            _check_depth(value)
    except json.JSONDecodeError as error:
        near = text[max(0, error.pos - 20) : error.pos + 20]
        raise InvalidArguments(
            f"the arguments are not valid JSON: {error.msg} at character {error.pos}, near {near!r}. "
            "Send exactly one complete JSON object"
        ) from error
    except RecursionError as error:
        raise _too_deep() from error
    except ValueError as error:  # an integer of more digits than Python is willing to read
        raise InvalidArguments(f"the arguments hold a number that cannot be read: {error}") from error
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        keys = [key for key, _ in pairs]
        double = next(key for key in keys if keys.count(key) > 1)
        raise InvalidArguments(f"the key {double!r} is there twice in one object; send it once")
    return result


def _float(text: str) -> float:
    value = float(text)
    if repr(value) == text:
        return value
    if math.isfinite(value):
        exact = Decimal(text)
        # Either form is how programs write a double so that it comes back the same.
        if exact in (Decimal(repr(value)), Decimal(format(value, ".17g"))):
            return value
    raise InvalidArguments(
        f"the number {text[:60]} cannot be held exactly; use at most 15 digits, or a string if allowed"
    )


def _constant(text: str) -> NoReturn:
    raise InvalidArguments(f"{text} is not JSON; send a finite number or leave it out")


def _too_deep() -> InvalidArguments:
    return InvalidArguments(f"the arguments are nested more than {MAX_ARGUMENT_DEPTH} levels deep")


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MAX_ARGUMENT_DEPTH):
        level = [child for parent in level for child in _children(parent)]
        if not level:
            return
    raise _too_deep()


def _children(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list):
        yield from value


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from value
    if isinstance(value, dict | list):
        for child in _children(value):
            yield from _leaves(child)
    else:
        yield value


_decode = json.JSONDecoder(object_pairs_hook=_object, parse_float=_float, parse_constant=_constant).decode
_encode = msgspec.json.Encoder(order="sorted").encode

"""JSON in and JSON out: reading what a model wrote, writing what it reads.

In: one JSON object, read strictly, or an error that the model can act on.

Refused rather than read in one of several ways: duplicate keys, NaN and infinity, numbers that a double
cannot hold as they are written, text after the object, lone surrogates, nesting without end. Absent
arguments ("", blanks, null) are the empty object, and an object that was encoded twice is decoded twice:
providers send both.

Out: What a model reads of a tool's value or error. Nothing here raises, whatever it is given.

One policy for what JSON and UTF-8 cannot carry: NaN and infinity become null, lone surrogates become
U+FFFD, NUL stays. Bytes are text where they are UTF-8 and the whole result, else base64.
"""

import base64
import dataclasses
import json
import math
import re
import traceback
from collections.abc import Iterator
from decimal import Decimal
from pathlib import PurePath
from typing import Any, NoReturn
from uuid import UUID

import msgspec

from tenuto import limits
from tenuto.errors import InvalidInput
from tenuto.events import clean
from tenuto.limits import MAX_ARGUMENT_DEPTH, MAX_ERROR_CHARACTERS, MAX_RESULT_CHARACTERS


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


def exact_float(text: str) -> float:
    """A number as it is written. Raises `InvalidArguments` for one that a double cannot hold."""
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


_decode = json.JSONDecoder(
    object_pairs_hook=_object, parse_float=exact_float, parse_constant=_constant
).decode
_encode = msgspec.json.Encoder(order="sorted").encode


_REPR_CHARACTERS = 1_000
_dumps = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def result_text(value: object) -> str:
    """Exactly what the model reads: a string as it is, anything else as compact JSON, None as null.

    pydantic models, dataclasses, msgspec Structs, Decimal, datetime, UUID, Enum, sets and bytes are written
    as their JSON forms; what has none, as its repr. Cut at `MAX_RESULT_CHARACTERS` with a mark that says so.
    """
    try:
        return _cut(clean(_text(value)), MAX_RESULT_CHARACTERS)
    except Exception:  # noqa: BLE001 - a value may have any method, and each may raise
        return _shown(value)


def error_text(error: BaseException) -> str:
    """What the model reads of an exception: its type, its message, and where in the tool it arose."""
    try:
        return _cut(clean(_told(error) + _place(error)), MAX_ERROR_CHARACTERS)
    except Exception:  # noqa: BLE001 - an exception may have any __str__
        return _shown(error)


def _cut(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    mark = f"\n[cut: {{}} of {len(text)} characters left out]"
    kept = limit - len(mark) - len(str(len(text)))
    return text[:kept] + mark.format(len(text) - kept)


def _text(value: object) -> str:
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, bytes | bytearray | memoryview):
        body = bytes(value)
        try:
            return body.decode()
        except UnicodeDecodeError:
            return base64.b64encode(body).decode()
    try:
        return msgspec.json.encode(value, enc_hook=_hook).decode()
    except Exception:  # noqa: BLE001 - surrogates, odd keys, cycles: written piece by piece instead
        plain = _plain(value, MAX_ARGUMENT_DEPTH, [MAX_RESULT_CHARACTERS])
        return plain if isinstance(plain, str) else _dumps(plain)


def _hook(value: Any) -> Any:
    """Called by msgspec for types it does not know. pydantic is recognised by its method, not imported."""
    dump = getattr(type(value), "model_dump", None)
    if dump is not None:
        return dump(value, mode="json")
    raise NotImplementedError


def _plain(value: Any, depth: int, budget: list[int]) -> Any:
    """The value as JSON types, bounded in depth and in the number of values."""
    budget[0] -= 1
    if depth == 0 or budget[0] <= 0:
        return "[cut]"
    if isinstance(value, str):
        return clean(str.__str__(value))
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, int):
        return int(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        items = list(value.items())[: budget[0]]
        return {_key(key): _plain(item, depth - 1, budget) for key, item in items}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item, depth - 1, budget) for item in list(value)[: budget[0]]]
    try:
        known = msgspec.to_builtins(value, enc_hook=_hook)
    except Exception:  # noqa: BLE001 - one value without a JSON form does not spoil the others
        return _shown(value)
    return _plain(known, depth - 1, budget)


def _key(key: Any) -> str:
    return clean(str.__str__(key)) if isinstance(key, str) else _shown(key)


def _shown(value: object) -> str:
    for show in (repr, object.__repr__):
        try:
            return _cut(clean(show(value)), _REPR_CHARACTERS)
        except Exception:  # noqa: BLE001, S112 - repr is the last resort and may raise as well
            continue
    return "a value that cannot be shown"


def _told(error: BaseException) -> str:
    name = type(error).__qualname__
    message = str(error)
    if isinstance(error, BaseExceptionGroup):
        message += ": " + "; ".join(_told(part) for part in error.exceptions[:3])
    return f"{name}: {message}" if message else name


def _place(error: BaseException) -> str:
    """The first line of the traceback that is not Tenuto's own: the tool's."""
    for frame, line in traceback.walk_tb(error.__traceback__):
        module = str(frame.f_globals.get("__name__", ""))
        if module.partition(".")[0] not in ("tenuto", "asyncio", "threading"):
            code = frame.f_code
            return f" ({PurePath(code.co_filename).name}:{line} in {code.co_name})"
    return ""


# -- what callers send ------------------------------------------------------------------------------


def bounded(name: str, text: object, most: int) -> str:
    """The text, if it is text that can be stored and not too long. Raises `InvalidInput`; so do these all."""
    if not isinstance(text, str):
        raise InvalidInput(f"{name} is not a string")
    if len(text) > most:
        raise InvalidInput(f"{name} has {len(text)} characters; at most {most}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(f"{name} has a lone surrogate at {error.start}; it is not text") from error
    return text


def message_text(name: str, text: str) -> str:
    """What somebody says: not blank."""
    if not bounded(name, text, limits.MAX_MESSAGE_CHARACTERS).strip():
        raise InvalidInput(f"{name} is blank; it needs some text")
    return text


def long_text(name: str, text: str) -> str:
    """A comment, a reason, an answer."""
    return bounded(name, text, limits.MAX_COMMENT_CHARACTERS)


def short_text(name: str, text: str) -> str:
    """A name."""
    return bounded(name, text, limits.MAX_NAME_CHARACTERS)


def uuid_text(text: str) -> str:
    """A thread's id, as it is written everywhere."""
    try:
        return str(UUID(text))
    except (ValueError, AttributeError, TypeError) as error:
        raise InvalidInput(f"thread_id {str(text)[:100]!r} is not a UUID") from error

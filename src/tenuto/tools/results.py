"""What a model reads of a tool's value or error. Nothing here raises, whatever it is given.

One policy for what JSON and UTF-8 cannot carry: NaN and infinity become null, lone surrogates become
U+FFFD, NUL stays. Bytes are text where they are UTF-8 and the whole result, else base64.
"""

import base64
import dataclasses
import json
import math
import traceback
from pathlib import PurePath
from typing import Any

import msgspec

from tenuto.limits import MAX_ARGUMENT_DEPTH, MAX_ERROR_CHARACTERS, MAX_RESULT_CHARACTERS

_REPR_CHARACTERS = 1_000
_dumps = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def clean(text: str) -> str:
    """The text with lone surrogates replaced, so that it can be stored and sent."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


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

"""Request bodies: bounded in bytes, time and depth, and read as exactly one JSON object.

What JSON leaves open is refused rather than guessed at: duplicate keys, NaN and infinities, numbers that a
double cannot hold as they are written, invalid UTF-8, a byte order mark, lone surrogates. FastAPI's own
parsing is not used: it would read a body of any size, and before it asks who sends it.
"""

import asyncio
import json
from typing import Any, NoReturn, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request

from tenuto import limits
from tenuto.errors import InvalidInput
from tenuto.server.problems import Problem
from tenuto.tools.text import exact_float

T = TypeVar("T")


async def read_object(request: Request) -> dict[str, Any]:
    """The body as a JSON object, whatever its Content-Type says. Raises `Problem` 400, 408, 413 or 415."""
    return parse_object(await _read(request))


def converted(body: dict[str, Any], shape: type[T]) -> T:
    """The body as a `shape`, a msgspec Struct; nothing is coerced. Raises `Problem` 422."""
    try:
        return msgspec.convert(body, shape)
    except msgspec.ValidationError as error:
        raise Problem(422, str(error)) from error


async def _read(request: Request) -> bytes:
    """The bytes; what is over the bound is left unread, and the connection closed by the server."""
    coded = ", ".join(request.headers.getlist("content-encoding")).strip()
    if coded.lower() not in ("", "identity"):
        why = f"the body is sent as {coded[:100]}, and bodies are not decompressed here: send it as it is"
        raise Problem(415, why, Accept_Encoding="identity", Connection="close")
    length = request.headers.get("content-length", "0")
    if length.isdecimal() and int(length[:20]) > limits.MAX_BODY_BYTES:
        raise _too_large()
    body = bytearray()
    try:
        async with asyncio.timeout(limits.BODY_SECONDS):
            async for chunk in request.stream():
                body += chunk
                if len(body) > limits.MAX_BODY_BYTES:
                    raise _too_large()
    except TimeoutError:
        raise Problem(408, f"the body did not arrive within {limits.BODY_SECONDS:g} seconds") from None
    except ClientDisconnect:
        raise Problem(400, "the body broke off") from None
    return bytes(body)


def _too_large() -> Problem:
    return Problem(413, f"the body is larger than {limits.MAX_BODY_BYTES} bytes", Connection="close")


def parse_object(raw: bytes) -> dict[str, Any]:
    """Exactly one JSON object (RFC 8259). Raises `Problem` 400 that says what is wrong."""
    try:
        return _object(raw)
    except UnicodeDecodeError:
        why = "it is not valid UTF-8"
    except UnicodeEncodeError:
        why = "a lone surrogate is not text"
    except RecursionError:
        why = "it is nested too deeply"
    except (ValueError, InvalidInput) as error:
        why = str(error)
    raise Problem(400, f"the body is not a JSON object: {why}")


def _object(raw: bytes) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(
        raw.decode(), object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=exact_float
    )
    if kind := _KINDS.get(type(value)):
        raise ValueError(f"it is a {kind}")
    _check(value, limits.MAX_ARGUMENT_DEPTH)
    return value


_KINDS: dict[type, str] = {
    list: "list",
    str: "string",
    int: "number",
    float: "number",
    bool: "boolean",
    type(None): "null",
}


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ValueError("a key occurs twice in one object")
    return made


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _check(value: Any, depth: int) -> None:
    """Nesting within `depth`, and text that can be stored."""
    if isinstance(value, str):
        if not value.isascii():
            value.encode()
    elif isinstance(value, dict | list):
        if not depth:
            raise RecursionError
        if isinstance(value, dict):
            for key in value:
                _check(key, depth)
        for item in value.values() if isinstance(value, dict) else value:
            _check(item, depth - 1)

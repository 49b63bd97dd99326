"""What a provider said instead of an answer: its own words, and whether asking again may help.

The code inside a body counts as an HTTP status does: many gateways report the failure of the provider
behind them with a status of 200, some of them in the middle of a stream.
"""

import re
from typing import Any, Final

import msgspec

from tenuto.errors import ModelError
from tenuto.limits import MAX_PROVIDER_ERROR_CHARACTERS

# Asking again does not fill an account. Rate limits speak of quotas and of billing, too, hence so narrow.
_NO_MONEY: Final = re.compile(
    r"insufficient[ _](balance|quota|funds|credit)|credit balance is too low", re.IGNORECASE
)
_AGAIN: Final = frozenset({408, 409, 429})
# The model wrote a call that the provider could not read: another sample may be right, whatever the status.
_SAMPLE_AGAIN: Final = frozenset({"tool_use_failed"})
_RATE_LIMITED: Final = frozenset({"rate_limit_exceeded", "rate_limit_error", "RESOURCE_EXHAUSTED"})
_FINAL: Final = frozenset(
    {
        "authentication_error",
        "context_length_exceeded",
        "invalid_api_key",
        "invalid_request_error",
        "model_not_found",
        "not_found_error",
        "permission_error",
    }
)


def retryable_status(status: int) -> bool:
    """Whether a request that was answered with this HTTP status may be sent again."""
    return status in _AGAIN or status >= 500


def provider_failure(said: Any, status: int | None = None) -> ModelError:
    """The error for what a provider said: an `error` field, a whole decoded body, or text.

    `status` is the HTTP status if that reports the failure; without one the code inside is taken. An
    error that says nothing of its kind is worth another attempt.
    """
    error = _innermost(said)
    codes = _codes(error)
    words = _words(error)
    if status is None:
        status = next((code for code in codes if isinstance(code, int)), None)
    if status is None and _RATE_LIMITED.intersection(codes):
        status = 429
    if status == 402 or _NO_MONEY.search(words) or "insufficient_quota" in codes:
        retryable = False
    elif _SAMPLE_AGAIN.intersection(codes):
        retryable = True
    elif status is not None:
        retryable = retryable_status(status)
    else:
        retryable = not _FINAL.intersection(codes)
    message = f"{status}: {words}" if status else words
    return ModelError(message, retryable=retryable, status=status, retry_after_seconds=None)


def body_failure(body: bytes, status: int | None = None, said_error: bool = False) -> ModelError:
    """The error for a body that is no answer: JSON of some kind, HTML, or nothing.

    `said_error`: the provider named it an error, so that its words need no explanation.
    """
    text = body.decode("utf-8", "replace").strip()
    try:
        said: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        said = text
    if not said:
        said = text or "the provider sent an empty body"
    elif not (status or said_error or _innermost(said) is not said):
        said = f"the provider sent no answer: {text}"
    return provider_failure(said, status)


def bounded(text: str) -> str:
    """`text` cut to what an error may carry, and fit to be stored (no lone surrogates)."""
    text = text.encode("utf-8", "replace").decode()
    if len(text) <= MAX_PROVIDER_ERROR_CHARACTERS:
        return text
    return text[:MAX_PROVIDER_ERROR_CHARACTERS] + "…"


def _innermost(said: Any) -> Any:
    """Google sends a list around the object; most send the error as a field, some the object itself."""
    first = said[0] if isinstance(said, list) and said else said
    if isinstance(first, dict) and first.get("error"):
        return first["error"]
    return said


def _codes(error: Any) -> list[int | str]:
    if not isinstance(error, dict):
        return []
    codes: list[int | str] = []
    for field in ("code", "status_code", "status", "type"):
        value = error.get(field)
        if isinstance(value, str) and value.isascii() and value.isdigit():
            value = int(value[:6])
        if isinstance(value, int) and not isinstance(value, bool):
            if 400 <= value < 600:
                codes.append(value)
        elif isinstance(value, str):
            codes.append(value)
    return codes


def _words(error: Any) -> str:
    """What is written for people, with the text of the provider behind a gateway; else all of it, as JSON."""
    if isinstance(error, str):
        return error
    if isinstance(error, dict):
        message = error.get("message") or error.get("detail")
        metadata = error.get("metadata")
        raw = metadata.get("raw") if isinstance(metadata, dict) else None
        found = [text for text in (message, raw) if isinstance(text, str) and text]
        code = error.get("code")
        if found and isinstance(code, str) and not code.isdigit():
            found.append(f"({code})")
        if found:
            return " ".join(found)
    return msgspec.json.encode(error).decode()

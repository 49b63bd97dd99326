"""What may be asked again: by status, by the code inside, and by words where there is no code."""

from typing import Any

import msgspec
import pytest

from tenuto.models.failure import body_failure, bounded, provider_failure, retryable_status

QUOTA = {
    "message": "You exceeded your current quota",
    "type": "insufficient_quota",
    "code": "insufficient_quota",
}
BUSY = "Rate limit reached. Add a payment method: https://platform.openai.com/account/billing"


@pytest.mark.parametrize(
    ("statuses", "again"),
    [((301, 400, 401, 403, 404, 413, 422, 425), False), ((408, 409, 429, 500, 502, 503, 529), True)],
)
def test_by_http_status(statuses: tuple[int, ...], again: bool) -> None:
    for status in statuses:
        assert retryable_status(status) is again
        error = body_failure(b"", status)
        assert (error.retryable, error.status) == (again, status)


@pytest.mark.parametrize(
    ("said", "status", "again"),
    [
        ({"error": QUOTA}, 429, False),
        ({"error": {"message": BUSY, "code": "rate_limit_exceeded"}}, 429, True),
        ({"error": {"message": "x", "code": "tool_use_failed"}}, 400, True),
        ({"error": {"message": "Insufficient Balance"}}, None, False),
        ({"error": {"message": "pay", "code": 402}}, None, False),
        ({"error": {"message": "x", "code": "503"}}, None, True),
        ({"error": {"message": "x", "code": "400"}}, None, False),
        ({"error": {"message": "x", "code": "rate_limit_exceeded"}}, None, True),
        ({"error": {"message": "x", "type": "invalid_request_error"}}, None, False),
        ({"error": {"message": "x", "type": "overloaded_error"}}, None, True),
        ({"error": "Insufficient balance"}, None, False),
        ({"error": "something"}, None, True),
        ([{"error": {"code": 400, "message": "x", "status": "INVALID_ARGUMENT"}}], None, False),
    ],
)
def test_by_what_is_inside(said: Any, status: int | None, again: bool) -> None:
    assert provider_failure(said, status).retryable is again


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"error": {"message": "no", "metadata": {"raw": "because"}}}, "no because"),
        ({"error": {"message": "no", "code": "bad_thing"}}, "no (bad_thing)"),
        ({"error": {"message": "no", "code": 404}}, "404: no"),
        ({"error": {"odd": 1}}, '{"odd":1}'),
        ({"detail": "no"}, "no"),
        ("no", "no"),
    ],
)
def test_the_words_are_the_providers_own(said: Any, words: str) -> None:
    assert str(provider_failure(said)) == words


def test_an_error_is_bounded_and_can_be_stored() -> None:
    assert len(bounded("x" * 10_000)) == 2_001
    assert msgspec.json.encode(bounded("\ud83d"))

"""The oath of everybody who writes a task or a handler; the watchdog checks that it is kept."""

from typing import Final

PASS_WORD: Final = "I assure all time-consuming tasks are delegated externally."  # noqa: S105 - an oath


def require_oath(password: str) -> None:
    """AssertionError unless the password is the oath; `python -O` does not release from it."""
    if password != PASS_WORD:
        raise AssertionError(
            "The password is wrong. Tasks and handlers share one thread: what takes long must be delegated, "
            f"for example to asyncio.to_thread. Whoever keeps to that says: {PASS_WORD!r}"
        )

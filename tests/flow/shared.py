"""Jobs and handlers that more than one test file needs."""

import asyncio
from collections.abc import Callable
from typing import Any

from tenuto.flow import PASS_WORD, Commander, HandlerCoroutine, Job, get_null_logger, handler, tasker


def silent(**options: Any) -> Commander[Any]:
    return Commander(logger=get_null_logger(), **options)


class Note(Job):
    """Writes its name down, and runs what it is given."""

    def __init__(self, name: str, notes: list[str], then: Callable[["Note"], Any] | None = None) -> None:
        super().__init__()
        self.name = name
        self.notes = notes
        self.then = then

    @tasker(PASS_WORD)
    async def task(self) -> Any:
        self.notes.append(self.name)
        outcome = self.then(self) if self.then is not None else None
        return await outcome if asyncio.iscoroutine(outcome) else outcome


@handler(PASS_WORD)
async def nothing(self_handler: HandlerCoroutine[Any]) -> str:
    return "done"

"""The adapter: a blocking iterable, read without blocking."""

import asyncio
import contextvars
import gc
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from tenuto.flow import LLMAsyncAdapter, get_null_logger

pytestmark = pytest.mark.timeout(10)


def noting(log: list[str], word: str) -> Any:
    return {"function": lambda extra: log.append(word + extra), "params": {"args": ("!",)}}


def adapter(log: list[str]) -> LLMAsyncAdapter:
    return LLMAsyncAdapter([noting(log, "start")], [noting(log, "end")], logger=get_null_logger())


async def note(items: AsyncIterator[object], log: list[str]) -> None:
    async for item in items:
        log.append(str(item))  # noqa: PERF401 - what came before an error is wanted too


async def test_items_callbacks_and_what_was_received() -> None:
    log: list[str] = []
    reader = adapter(log)
    await note(reader.llm_to_async_iterable(["a", None, "b", None]), log)
    assert log == ["start!", "a", "None", "b", "None", "end!"]
    assert reader.received_message == ["a", None, "b", None]


async def test_an_empty_stream_starts_and_ends() -> None:
    log: list[str] = []
    assert [item async for item in adapter(log).llm_to_async_iterable([])] == []
    assert log == ["start!", "end!"]


@pytest.mark.parametrize("after", [0, 2])
async def test_an_error_is_raised_after_the_end_callbacks(after: int) -> None:
    log: list[str] = []

    def broken() -> Iterator[int]:
        yield from range(after)
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        await note(adapter(log).llm_to_async_iterable(broken()), log)
    assert log == ["start!", *map(str, range(after)), "end!"]


async def test_the_loop_goes_on_and_the_context_is_the_readers() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable")
    variable.set("mine")
    threads: set[int] = set()

    def slow() -> Iterator[str]:
        for _ in range(3):
            time.sleep(0.03)
            threads.add(threading.get_ident())
            yield variable.get()

    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.005)
            ticks += 1

    ticking = asyncio.create_task(tick())
    assert [item async for item in LLMAsyncAdapter().llm_to_async_iterable(slow())] == ["mine"] * 3
    ticking.cancel()
    assert ticks >= 5
    assert len(threads) == 1
    assert threading.get_ident() not in threads


async def test_leaving_early_calls_the_end_and_reads_no_further() -> None:
    log: list[str] = []
    read: list[int] = []

    def numbers() -> Iterator[int]:
        for number in range(100):
            read.append(number)
            yield number

    items = adapter(log).llm_to_async_iterable(numbers())
    assert await anext(items) == 0
    await items.aclose()
    assert log == ["start!", "end!"]
    assert read == [0]


async def test_an_abandoned_reader_is_cleaned_up() -> None:
    log: list[str] = []
    items = adapter(log).llm_to_async_iterable(iter("abc"))
    assert await anext(items) == "a"
    del items
    gc.collect()
    for _ in range(5):
        await asyncio.sleep(0)
    assert log == ["start!", "end!"]


async def test_a_stream_that_hangs_does_not_hold_a_cancelled_reader() -> None:
    log: list[str] = []
    release = threading.Event()

    def hangs() -> Iterator[int]:
        yield 1
        release.wait(8)

    async def read() -> None:
        async for _ in adapter(log).llm_to_async_iterable(hangs()):
            pass

    reading = asyncio.create_task(read())
    await asyncio.sleep(0.05)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(reading, 2)
    assert log == ["start!", "end!"]
    release.set()


async def test_methods_can_be_overridden_and_callbacks_given_late() -> None:
    log: list[str] = []

    class Mine(LLMAsyncAdapter):
        async def at_receiving_start(self) -> None:
            log.append("mine")

    async def at_end() -> None:
        log.append("late end")

    reader = Mine()
    stream = reader.llm_to_async_iterable("ab", at_receiving_end=[{"function": at_end}])
    assert [item async for item in stream] == ["a", "b"]
    assert log == ["mine", "late end"]


async def test_more_readers_than_a_thread_pool_has_threads() -> None:
    """Each stream waits for the next one to have begun: none may be kept waiting for a thread."""
    count = 40
    begun = [threading.Event() for _ in range(count + 1)]
    begun[count].set()

    def waits(number: int) -> Iterator[int]:
        begun[number].set()
        assert begun[number + 1].wait(8)
        yield number

    async def read(number: int) -> list[int]:
        return [item async for item in LLMAsyncAdapter().llm_to_async_iterable(waits(number))]

    assert await asyncio.gather(*map(read, range(count))) == [[number] for number in range(count)]

"""From a blocking iterable, such as the stream of a synchronous client, to an asynchronous one."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import queue
import threading
from collections.abc import AsyncGenerator, Iterable, Iterator
from typing import Any

from tenuto.flow.callbacks import CallbackDict, call_entry

_END = object()


class LLMAsyncAdapter:
    """Reads a blocking iterable in a thread of its own, one item whenever one is asked for.

    The callbacks at the start run when the first item, the end or an error has come; those at the end run
    once, after the last item, on an error and when the reader leaves early. For more than callbacks,
    override `at_receiving_start` and `at_receiving_end`. `received_message` holds the items so far.
    """

    def __init__(
        self,
        at_receiving_start: list[CallbackDict] | None = None,
        at_receiving_end: list[CallbackDict] | None = None,
        logger: logging.Logger | None = None,
    ) -> None:
        self.received_message: list[Any] = []
        self._at_receiving_start = at_receiving_start
        self._at_receiving_end = at_receiving_end
        self.logger = logger or logging.getLogger("tenuto.flow")

    async def at_receiving_start(self) -> None:
        await self._do_callback(self._at_receiving_start or [])

    async def at_receiving_end(self) -> None:
        await self._do_callback(self._at_receiving_end or [])

    async def _do_callback(self, callback_list: list[CallbackDict]) -> None:
        for entry in callback_list:
            outcome = call_entry(entry)
            if inspect.isawaitable(outcome):
                await outcome

    async def llm_to_async_iterable(
        self,
        response: Iterable[Any],
        at_receiving_start: list[CallbackDict] | None = None,
        at_receiving_end: list[CallbackDict] | None = None,
    ) -> AsyncGenerator[Any, None]:
        """Yield what the iterable yields, None included; raise what it raises, after the end callbacks.

        Leaving early does not wait for the iterable: its thread ends with the item that it waits for.
        """
        if at_receiving_start is not None:
            self._at_receiving_start = at_receiving_start
        if at_receiving_end is not None:
            self._at_receiving_end = at_receiving_end
        self.received_message = received = []
        thread = _Thread(iter(response))
        try:
            try:
                item = await thread.next()
            finally:
                await self.at_receiving_start()
            while item is not _END:
                received.append(item)
                yield item
                item = await thread.next()
        except BaseException:
            thread.stop()
            try:
                await self.at_receiving_end()
            except Exception:
                self.logger.exception("at_receiving_end failed")
            raise
        thread.stop()
        await self.at_receiving_end()


class _Thread:
    """Waits in the event loop's place. A daemon: a stream that hangs does not hold the exit."""

    def __init__(self, iterator: Iterator[Any]) -> None:
        self._iterator = iterator
        self._asked: queue.SimpleQueue[asyncio.Future[Any] | None] = queue.SimpleQueue()
        self._started = False

    async def next(self) -> Any:
        """The next item, or `_END`."""
        if not self._started:
            self._started = True
            arguments = (_serve, self._iterator, self._asked)
            run = contextvars.copy_context().run
            threading.Thread(target=run, args=arguments, name="tenuto-flow-stream", daemon=True).start()
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._asked.put(future)
        return await future

    def stop(self) -> None:
        self._asked.put(None)

    __del__ = stop


def _serve(iterator: Iterator[Any], asked: queue.SimpleQueue[asyncio.Future[Any] | None]) -> None:
    while (future := asked.get()) is not None:
        item: Any = None
        error: BaseException | None = None
        try:
            item = next(iterator, _END)
        except BaseException as raised:  # noqa: BLE001 - it is raised at the reader
            error = raised
        try:
            future.get_loop().call_soon_threadsafe(_deliver, future, item, error)
        except RuntimeError:
            return  # the loop is closed: nobody reads any more
        del item, error, future


def _deliver(future: asyncio.Future[Any], item: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(item)
    else:
        future.set_exception(error)

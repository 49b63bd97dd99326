"""What a runtime is given so that somebody looks on. All its methods are called by the runtime alone."""

import logging
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, cast

from tenuto.agent import Agent
from tenuto.errors import ConfigurationError, NotDone
from tenuto.events import ThreadId
from tenuto.messages import AttemptFailed, Live, Model, Reply, Request
from tenuto.observe.hold import Hold, calling, holding
from tenuto.observe.store import WatchedStore
from tenuto.store.base import Store
from tenuto.thread import CallState

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider
    from prometheus_client import CollectorRegistry

    from tenuto.observe.metrics import Metrics
    from tenuto.observe.traces import Traces

logger = logging.getLogger("tenuto.observe")
Watch = Callable[[ThreadId], Callable[[Live], None]]


class Observe:
    """Give it to one `Runtime`: `Runtime([agent], observe=Observe(metrics=True, traces=True))`.

    `metrics`: counted in a registry of its own, or in the one given. `traces`: OpenTelemetry spans by the
    program's own (global) tracer provider, or by the one given; without a configured provider no span is
    made. `content`: spans record what was said as well, up to a bound: prompts, replies, arguments, results.
    With neither, log lines still know their thread, step and call. Raises `ImportError` for `traces` where
    the OpenTelemetry API is not installed.
    """

    def __init__(
        self,
        *,
        metrics: "bool | CollectorRegistry" = False,
        traces: "bool | TracerProvider" = False,
        content: bool = False,
    ) -> None:
        self.worker = ""
        self.held: dict[ThreadId, Hold] = {}
        self.metrics: Metrics | None = None
        self.traces: Traces | None = None
        if metrics is not False:
            from tenuto.observe import metrics as counted

            self.metrics = counted.Metrics(None if metrics is True else metrics, lambda: len(self.held))
        if traces is not False:
            from tenuto.observe import traces as traced

            self.traces = traced.Traces(None if traces is True else traces, content)

    def store(self, store: Store, worker: str) -> Store:
        """The store as it is to be used, by this worker. Raises `ConfigurationError` the second time."""
        if self.worker:
            raise ConfigurationError("an Observe looks on at one runtime; make another one")
        self.worker = worker
        return cast(Store, WatchedStore(store, self))

    def watch(self, watch: Watch) -> Watch:
        """Where a worker pushes deltas: failed attempts are noted on the way."""

        def watched(thread_id: ThreadId) -> Callable[[Live], None]:
            emit = watch(thread_id)

            def heard(item: Live) -> None:
                if type(item) is AttemptFailed:
                    self._attempt_failed(item)
                emit(item)

            return heard

        return watched

    async def turn(self, thread_id: ThreadId, agent: Agent, work: Coroutine[Any, Any, None]) -> None:
        """Advance a thread under one lease. On a task of its own: what is set here is not set back."""
        trace = self.traces.turn(thread_id, agent, self.worker) if self.traces else None
        hold = Hold(thread_id, agent, self.worker, trace)
        holding.set(hold)
        self.held[thread_id] = hold
        try:
            await work
        except BaseException as error:
            if trace:
                trace.broke(error)
            raise
        finally:
            if trace:
                trace.close("released")
            if self.held.get(thread_id) is hold:
                del self.held[thread_id]

    async def model(self, model: Model, request: Request, work: Coroutine[Any, Any, Reply]) -> Reply:
        """One question to a model, with the retries inside."""
        hold = holding.get()
        if hold is None:
            return await work
        hold.model = model.name
        if hold.trace is None:
            return await work
        return await hold.trace.chat(model, request, work)

    async def tool(self, call: CallState, work: Coroutine[Any, Any, Any]) -> Any:
        """One attempt of one call, on its own task."""
        calling.set(call.id)
        hold = holding.get()
        try:
            if hold is None or hold.trace is None:
                return await work
            return await hold.trace.call(call, work)
        except NotDone:
            raise
        except BaseException as error:
            if call.call.effect == "once":
                logger.warning("call %s is in doubt: %s", call.id, type(error).__name__)
                if self.metrics:
                    self.metrics.in_doubt.labels(call.call.name).inc()
            raise

    async def verify(self, call: CallState, work: Coroutine[Any, Any, Any]) -> Any:
        """A tool is asked what became of a call in doubt."""
        calling.set(call.id)
        hold = holding.get()
        if hold is None or hold.trace is None:
            return await work
        return await hold.trace.verify(call, work)

    def _attempt_failed(self, failed: AttemptFailed) -> None:
        hold = holding.get()
        logger.warning("the model is asked again in %.1f s: %s", failed.wait_seconds, failed.error)
        if self.metrics and hold:
            self.metrics.retries.labels(hold.agent.name).inc()
        if self.traces:
            self.traces.attempt_failed(failed)

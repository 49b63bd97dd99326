"""Counters and histograms for Prometheus, and what is counted in the store when it asks.

No label holds an id, and none a word that a model or a client chose: agents, models and tools are those that
run here, routes those of the server. What this process did is counted as it happens; what all processes on
the database have in common (pauses, runnable threads) is asked for at a scrape, at most once a second.
"""

import copy
import logging
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tenuto.errors import StoreError
from tenuto.events import (
    ENDED_AS,
    CallFinished,
    Event,
    InterruptRaised,
    InterruptResolved,
    ModelFailed,
    ModelReplied,
    ThreadStarted,
)
from tenuto.limits import SCRAPE_SECONDS
from tenuto.observe.hold import OTHER, Hold
from tenuto.rows import InterruptRow
from tenuto.store.base import Store

logger = logging.getLogger("tenuto.observe")

MODEL_BUCKETS: Final = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640)
TOOL_BUCKETS: Final = (0.001, 0.005, 0.025, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
APPEND_BUCKETS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5, 30)
PERSON_BUCKETS: Final = (1, 10, 60, 300, 1_800, 3_600, 14_400, 43_200, 86_400, 259_200, 604_800)
KINDS: Final = ("approval", "question", "review")


class Metrics:
    """One per runtime. `registry`: None for one of its own, with the process's memory, CPU and files. `held`
    says how many threads are advanced here now.
    """

    def __init__(self, registry: CollectorRegistry | None, held: Callable[[], int]) -> None:
        self.registry = registry or CollectorRegistry()
        if registry is None:
            ProcessCollector(registry=self.registry)
        self._waiting = _Waiting()
        self.registry.register(self._waiting)
        self._threads()
        self._people()
        self._store_and_server()
        self._held.set_function(held)

    def _threads(self) -> None:
        self._started = self._counter("threads_started", "Threads that were started.", "agent")
        self._ended = self._counter("threads_ended", "Turns that came to their end.", "agent", "outcome")
        self._steps = self._counter("steps", "Model replies that were recorded.", "agent")
        self._step_seconds = self._histogram(
            "step_seconds", "From the fact before it to a reply's place in the log.", MODEL_BUCKETS, "agent"
        )
        self._model_seconds = self._histogram(
            "model_seconds", "From a question to its whole reply, retries included.", MODEL_BUCKETS, "model"
        )
        self._model_failures = self._counter(
            "model_failures", "Questions that stayed without a reply after all retries.", "agent"
        )
        self.retries = self._counter("model_retries", "Attempts that failed and were made again.", "agent")
        self._tokens = self._counter(
            "tokens",
            "As the provider counts them; cached are also input, reasoning also output.",
            "model",
            "kind",
        )
        self._cost = self._counter("cost", "In the provider's currency, where it says so.", "model")
        self._calls = self._counter(
            "tool_calls", "Calls that got their result.", "tool", "effect", "outcome", "settled_by"
        )
        self._tool_seconds = self._histogram("tool_seconds", "How long a tool ran.", TOOL_BUCKETS, "tool")
        self.in_doubt = self._counter(
            "tool_calls_in_doubt", "Attempts of once calls of which nobody knows what they did.", "tool"
        )

    def _people(self) -> None:
        self._raised = self._counter("interrupts_raised", "Pauses that need a person.", "kind")
        self._decided = self._counter("interrupts_decided", "Pauses that ended.", "kind", "outcome")
        self._waited = self._histogram(
            "interrupt_wait_seconds", "How long a pause lasted.", PERSON_BUCKETS, "kind"
        )

    def _store_and_server(self) -> None:
        self.append_seconds = self._histogram(
            "append_seconds", "From an append to its place on the disk.", APPEND_BUCKETS
        )
        self.refusals = self._counter("append_refusals", "Appends that came too late.", "reason")
        self.append_failures = self._counter("append_failures", "Appends that the database failed.")
        self.leases_lost = self._counter("leases_lost", "Leases that another worker took over.")
        self.failovers = self._counter("failovers", "Threads taken over from a worker that died.")
        self._held = self._gauge("leases_held", "Threads that this process advances now.")
        self.subscribers = self._gauge("stream_subscribers", "Who follows a thread in this process now.")
        self.streams_dropped = self._counter(
            "streams_dropped", "Streams that were broken off because their reader took nothing."
        )
        self._requests = self._counter("http_requests", "Answers sent.", "method", "route", "status")

    def _counter(self, name: str, about: str, *labels: str) -> Counter:
        return Counter(f"tenuto_{name}", about, labels, registry=self.registry)

    def _gauge(self, name: str, about: str) -> Gauge:
        return Gauge(f"tenuto_{name}", about, registry=self.registry)

    def _histogram(self, name: str, about: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        return Histogram(f"tenuto_{name}", about, labels, buckets=buckets, registry=self.registry)

    # -- as it happens -------------------------------------------------------------------------------

    def recorded(self, event: Event, agent: str, hold: Hold | None, row: InterruptRow | None) -> None:
        """An event was appended by this process. `row`: that of a decided interrupt."""
        model = (hold.model if hold is not None else "") or OTHER
        match event:
            case ModelReplied():
                self._steps.labels(agent).inc()
                if hold is not None:
                    self._step_seconds.labels(agent).observe(time.perf_counter() - hold.fact_at)
                self._model_seconds.labels(model).observe(event.duration_ms / 1000)
                usage = event.usage
                for kind in ("input", "output", "cached", "reasoning"):
                    if count := getattr(usage, kind):
                        self._tokens.labels(model, kind).inc(count)
                if usage.cost > 0:
                    self._cost.labels(model).inc(usage.cost)
            case CallFinished():
                tool, effect = hold.tool(event.call_id) if hold is not None else (OTHER, OTHER)
                outcome = "unknown" if event.unknown else "ok" if event.ok else "error"
                self._calls.labels(tool, effect, outcome, event.by).inc()
                if event.by == "tool":
                    self._tool_seconds.labels(tool).observe(event.duration_ms / 1000)
            case ModelFailed():
                self._model_failures.labels(agent).inc()
            case InterruptRaised():
                self._raised.labels(event.kind).inc()
            case InterruptResolved() if row is not None:
                self._decided.labels(row.kind, event.outcome).inc()
                ended_at_ms = row.resolved_at_ms or row.raised_at_ms
                self._waited.labels(row.kind).observe(max(0, ended_at_ms - row.raised_at_ms) / 1000)
            case ThreadStarted():
                self._started.labels(agent).inc()
            case _:
                if ended := ENDED_AS.get(type(event)):
                    self._ended.labels(agent, ended).inc()

    def request(self, method: str, route: str, status: int) -> None:
        """An HTTP request was answered. `route` is a template of ours, "" where none fits."""
        known = method in ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS")
        self._requests.labels(method if known else OTHER, route or OTHER, str(status)).inc()

    # -- when it is asked ----------------------------------------------------------------------------

    async def render(self, store: Store, accept: str) -> tuple[bytes, str]:
        """All of it and its content type: OpenMetrics where `accept` asks for that, else Prometheus text.

        When the store does not answer, what would be asked of it is left out.
        """
        await self._waiting.ask(store)
        encode: Callable[[Collector], bytes]
        try:
            encode, content_type = choose_encoder(accept)
        except (ValueError, TypeError):  # a version that is none
            encode, content_type = choose_encoder("")
        return encode(_WithoutCreated(self.registry)), content_type


class _WithoutCreated(Collector):
    """All that is registered, without the client's `_created`: nobody asks for it, and each counter and
    histogram would have a series more. Turned off in the client, the program's own would be gone as well.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        for family in self._registry.collect():
            shown = copy.copy(family)
            shown.samples = [one for one in family.samples if one.name != f"{family.name}_created"]
            yield shown


class _Waiting(Collector):
    """What waits in the database, for whichever process."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[int, int]] | None = None
        self._at_ms = 0
        self._asked_at = float("-inf")

    async def ask(self, store: Store) -> None:
        now = time.monotonic()
        if now - self._asked_at < SCRAPE_SECONDS:
            return
        self._asked_at = now
        try:
            self._found, self._at_ms = await store.waiting(), store.now_ms()
        except StoreError:
            logger.exception("the store does not say what waits")
            self._found = None

    def describe(self) -> Iterator[Metric]:
        yield from self._families({})

    def collect(self) -> Iterator[Metric]:
        if self._found is not None:
            yield from self._families(self._found)

    def _families(self, found: dict[str, tuple[int, int]]) -> Iterator[Metric]:
        def seconds(what: str) -> float:
            return max(0, self._at_ms - found[what][1]) / 1000 if what in found else 0.0

        pending = self._family("interrupts_pending", "Pauses that wait for a person now.", "kind")
        oldest = self._family("interrupt_oldest_seconds", "How long the first of them waits.", "kind")
        for kind in KINDS:
            pending.add_metric([kind], found.get(kind, (0, 0))[0])
            oldest.add_metric([kind], seconds(kind))
        runnable = self._family("threads_runnable", "Threads that a worker could take now.")
        runnable.add_metric([], found.get("runnable", (0, 0))[0])
        longest = self._family("runnable_oldest_seconds", "How long the first of them has waited.")
        longest.add_metric([], seconds("runnable"))
        abandoned = self._family("threads_abandoned", "Threads among them whose worker's lease ended.")
        abandoned.add_metric([], found.get("abandoned", (0, 0))[0])
        yield from (pending, oldest, runnable, longest, abandoned)

    def _family(self, name: str, about: str, *labels: str) -> Any:
        return GaugeMetricFamily(f"tenuto_{name}", about, labels=labels)

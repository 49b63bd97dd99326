"""What the tests of traces share: an exporter in memory, and runtimes on one database."""

from pathlib import Path
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tenuto import Agent, Runtime, tool
from tenuto.models.scripted import ScriptedModel
from tenuto.observe import Observe
from tenuto.observe.traces import traceparent

WORDS = "the moon is made of cheese"


class Spans(InMemorySpanExporter):
    """What one provider has exported; `provider` is not the global one."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.provider = TracerProvider(**options)
        self.provider.add_span_processor(SimpleSpanProcessor(self))
        self.tracer = self.provider.get_tracer("the.program")

    def all(self, name: str = "") -> list[ReadableSpan]:
        return [span for span in self.get_finished_spans() if span.name.startswith(name)]

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.all(name)
        return span

    def children(self, parent: ReadableSpan) -> list[str]:
        return [
            span.name for span in self.all() if span.parent and span.parent.span_id == parent.context.span_id
        ]


def links(span: ReadableSpan) -> list[tuple[str, str]]:
    """Why, and to which span."""
    return [
        (str(dict(link.attributes or {})["tenuto.link"]), traceparent(link.context)) for link in span.links
    ]


class Place:
    """Runtimes on one database, each as if it were a process of its own."""

    def __init__(self, path: Path, spans: Spans, tools: list[Any], **agent: Any) -> None:
        self.database = f"sqlite:///{path}/t.db"
        self.spans = spans
        self.agent = Agent("ops", WORDS, tools, **agent)
        self.observing: dict[str, Any] = {}

    def runtime(self, answers: Any, **options: Any) -> Runtime:
        model = answers if hasattr(answers, "reply") else ScriptedModel(answers)
        observe = Observe(traces=self.spans.provider, **self.observing)
        return Runtime([self.agent], self.database, model=model, observe=observe, **options)


@tool(effect="read")
async def look(n: int) -> str:
    return f"seen {n}"


@tool(effect="once", approval=True)
async def pay(n: int) -> str:
    return f"paid {n}"

"""What `tenuto serve` and `tenuto worker` turn on: metrics, and traces when the environment names where to
send them, by OpenTelemetry's own variables.

A tracer provider that the agents' module has set up is used as it is, and left to it. Nothing here keeps a
process from starting: what cannot be had is said in one line and left out.
"""

import contextlib
import importlib
import logging
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from tenuto.limits import TRACES_END_SECONDS
from tenuto.observe.observing import Observe

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter

logger = logging.getLogger("tenuto.observe")
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


@contextlib.contextmanager
def looking_on(environment: Mapping[str, str] | None = None) -> Iterator[Observe]:
    """What a process is to be looked on with, while it lasts. At its end spans are sent for at most
    `TRACES_END_SECONDS`; those that could not be are lost.
    """
    found = os.environ if environment is None else environment
    content = found.get("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "").lower()
    theirs = _present()
    ours = _provider(found) if theirs is None else None
    observe = Observe(
        metrics=True,
        traces=theirs or ours or False,
        content=content in ("true", "1", "span_only", "span_and_event"),
    )
    try:
        yield observe
    finally:
        if ours is not None:
            # An exporter goes on trying for longer than a process has to end.
            ending = threading.Thread(target=ours.shutdown, name="tenuto-traces", daemon=True)
            ending.start()
            ending.join(TRACES_END_SECONDS)


def _present() -> "TracerProvider | None":
    """The provider that somebody in this process has set up; looking for it imports nothing."""
    sdk = sys.modules.get("opentelemetry.sdk.trace")
    if sdk is None:
        return None
    from opentelemetry import trace

    present = trace.get_tracer_provider()
    return present if isinstance(present, sdk.TracerProvider) else None


def _provider(environment: Mapping[str, str]) -> "TracerProvider | None":
    """A provider as the environment wants it; None for no traces."""
    exporter = environment.get("OTEL_TRACES_EXPORTER", "").strip().lower()
    named = [name for name in _ENDPOINTS if environment.get(name, "").strip()]
    disabled = environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    if disabled or exporter == "none" or not (named or exporter):
        return None
    asked = named[0] if named else "OTEL_TRACES_EXPORTER"
    try:
        made = _exporter(exporter or "otlp", environment)
    except ImportError as error:
        missing = error.name or "a part of OpenTelemetry"
        logger.warning("%s is set, but %s is not installed: no traces. %s", asked, missing, _INSTALL)
        return None
    if made is None:
        logger.warning("OTEL_TRACES_EXPORTER is %r: no traces. Use otlp, console or none", exporter)
        return None
    logger.info("turns are traced (%s)", asked)
    return _new_provider(made)


_INSTALL = "Install tenuto[otel]; for grpc also opentelemetry-exporter-otlp-proto-grpc"


def _exporter(name: str, environment: Mapping[str, str]) -> "SpanExporter | None":
    """What sends spans, set up by its own variables. Raises `ImportError`."""
    if name == "console":
        from opentelemetry.sdk.trace.export import ConsoleSpanExporter

        return ConsoleSpanExporter(out=sys.stderr)
    if name != "otlp":
        return None
    protocols = (
        environment.get(f"OTEL_EXPORTER_OTLP{part}_PROTOCOL", "").strip() for part in ("_TRACES", "")
    )
    if next(filter(None, protocols), "http/protobuf") == "grpc":
        grpc = importlib.import_module("opentelemetry.exporter.otlp.proto.grpc.trace_exporter")
        made: SpanExporter = grpc.OTLPSpanExporter()
        return made
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter()


def _new_provider(exporter: "SpanExporter") -> "TracerProvider":
    from opentelemetry import trace
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    resource = Resource.create()
    if str(resource.attributes.get(SERVICE_NAME, "")).startswith("unknown_service"):
        resource = resource.merge(Resource({SERVICE_NAME: "tenuto"}))
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    # For the instrumentation of whatever tools use.
    trace.set_tracer_provider(provider)
    return provider

"""Traces of real server processes, sent over OTLP/HTTP to a small collector."""

import contextlib
import gzip
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from tests.cli.conftest import SECONDS, Shell

from tenuto.observe import environment
from tenuto.observe.environment import looking_on

ANA = {"Authorization": "Bearer s3cret", "Prefer": "wait=20"}
CALLER = f"00-{'a' * 32}-{'b' * 16}-01"


class Collector:
    """Takes OTLP over HTTP as a collector does; `spans` in the order in which they came."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.services: set[str] = set()
        self.came = threading.Condition()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                assert self.path == "/v1/traces"
                assert self.headers["Content-Type"] == "application/x-protobuf"
                collector.take(ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.end_headers()
                self.wfile.write(ExportTraceServiceResponse().SerializeToString())

            def log_message(self, *_: Any) -> None:
                """Not on the test's stderr."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def take(self, request: ExportTraceServiceRequest) -> None:
        with self.came:
            for resource in request.resource_spans:
                named = {pair.key: pair.value.string_value for pair in resource.resource.attributes}
                self.services.add(named["service.name"])
                self.spans += [span for scope in resource.scope_spans for span in scope.spans]
            self.came.notify_all()

    def turns(self, count: int) -> list[Any]:
        """The roots of so many turns, once they have come."""
        with self.came:
            assert self.came.wait_for(lambda: len(self._turns()) >= count, SECONDS), self.spans
            return self._turns()

    def _turns(self) -> list[Any]:
        found = [span for span in self.spans if span.name.startswith("invoke_agent")]
        return sorted(found, key=lambda span: span.start_time_unix_nano)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def collector() -> Iterator[Collector]:
    with contextlib.closing(Collector()) as made:
        yield made


def test_a_turn_is_linked_across_a_kill(shell: Shell, collector: Collector) -> None:
    sending = {
        "APPROVER_SECRET": "s3cret",
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
        "OTEL_BSP_SCHEDULE_DELAY": "50",
    }
    new = {"message": "send the moon"}
    with (
        shell.serving(**sending) as (process, url),
        httpx2.Client(base_url=url, timeout=SECONDS, headers=ANA) as client,
    ):
        thread = client.post("/v1/threads", json=new, headers={"traceparent": CALLER}).json()
        collector.turns(1)
        process.kill()
    with (
        shell.serving(**sending) as (_, url),
        httpx2.Client(base_url=url, timeout=SECONDS, headers=ANA) as client,
    ):
        path = f"/v1/interrupts/{thread['interrupts'][0]['id']}/resolve"
        assert client.post(path, json={"outcome": "approve"}).json()["status"] == "completed"
    # What was not sent yet is sent when the server is asked to end.
    first, second = collector.turns(2)
    assert collector.services == {"tenuto"}
    assert first.trace_id != second.trace_id
    assert first.parent_span_id == second.parent_span_id == b""
    resumed = [link for link in second.links if link.trace_id == first.trace_id]
    assert [link.span_id for link in resumed] == [first.span_id]
    # The request that began it belongs to the trace of its caller, and the turn points back there.
    assert [link.trace_id.hex() for link in first.links] == ["a" * 32]
    by_turn = {
        turn.trace_id: sorted(
            span.name for span in collector.spans if span.trace_id == turn.trace_id and span is not turn
        )
        for turn in (first, second)
    }
    assert by_turn == {
        first.trace_id: ["chat scripted"],
        second.trace_id: ["chat scripted", "execute_tool send"],
    }
    assert not [span for span in collector.spans if "moon" in str(span)]


def test_a_server_without_the_sdk_says_so_and_serves(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['opentelemetry.sdk.trace'] = None\n")
    asked = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "PYTHONPATH": str(tmp_path)}
    with shell.serving(**asked) as (process, url):
        assert httpx2.get(f"{url}/healthz").status_code == 200
        assert process.stderr
        line = process.stderr.readline()
    assert (
        "OTEL_EXPORTER_OTLP_ENDPOINT is set, but opentelemetry.sdk.trace is not installed: no traces" in line
    )
    assert "Install tenuto[otel]" in line


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"OTEL_SDK_DISABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"},
        {"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"},
        {"OTEL_SERVICE_NAME": "mine"},
    ],
)
def test_what_does_not_ask_for_traces_gets_none(variables: dict[str, str]) -> None:
    with looking_on(variables) as observe:
        assert observe.traces is None
        assert observe.metrics is not None


def test_an_exporter_that_does_not_exist_is_named(caplog: pytest.LogCaptureFixture) -> None:
    with looking_on({"OTEL_TRACES_EXPORTER": "jaeger"}) as observe:
        assert observe.traces is None
    assert "OTEL_TRACES_EXPORTER is 'jaeger': no traces. Use otlp, console or none" in caplog.text


def test_grpc_without_its_package_is_named(caplog: pytest.LogCaptureFixture) -> None:
    grpc = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}
    with looking_on(grpc) as observe:
        assert observe.traces is None
    assert "opentelemetry-exporter-otlp-proto-grpc" in caplog.text


def test_a_collector_that_hangs_does_not_keep_a_process_from_ending(monkeypatch: pytest.MonkeyPatch) -> None:
    let_go = threading.Event()

    class Hangs(SpanExporter):
        def export(self, spans: Any) -> SpanExportResult:
            let_go.wait()
            return SpanExportResult.FAILURE

    monkeypatch.setattr(environment, "_exporter", lambda *_: Hangs())
    monkeypatch.setattr(environment, "TRACES_END_SECONDS", 0.1)
    monkeypatch.setattr("opentelemetry.trace.set_tracer_provider", lambda _: None)
    try:
        with looking_on({"OTEL_TRACES_EXPORTER": "otlp"}) as observe:
            assert observe.traces is not None
            observe.traces.tracer.start_span("waits to be sent").end()
    finally:
        let_go.set()

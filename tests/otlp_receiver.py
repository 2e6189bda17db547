"""A receiver of spans for tests: OTLP over HTTP, in protobuf, as a collector has it.

    with receiving() as receiver:
        ...                          # send to receiver.url
        receiver.spans

It is a server in threads of its own, and parses what it is sent with OpenTelemetry's own
messages.  Tests that import this module are skipped where the extra ``otel`` is missing.
"""

from __future__ import annotations

import dataclasses
import gzip
import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk")
pytest.importorskip("opentelemetry.exporter.otlp.proto.http")

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Status


@dataclasses.dataclass(frozen=True)
class Received:
    """One span, as it came."""

    name: str
    trace: str
    id: str
    parent: str
    """Empty for the first one of a trace."""
    attributes: dict[str, Any]
    service: dict[str, Any]
    """Attributes of the process that sent it."""
    failed: bool
    began_ns: int
    ended_ns: int


class Receiver:
    """Keeps what it is sent."""

    def __init__(self) -> None:
        self.spans: list[Received] = []
        self.requests = 0
        self.url = ""

    def take(self, body: bytes) -> None:
        """One request."""
        message = ExportTraceServiceRequest.FromString(body)
        self.requests += 1
        for resource in message.resource_spans:
            service = _plain(resource.resource.attributes)
            for scope in resource.scope_spans:
                self.spans += [_received(span, service) for span in scope.spans]

    def named(self, name: str) -> list[Received]:
        """The spans whose names begin so."""
        return [span for span in self.spans if span.name.startswith(name)]


def _received(span: Any, service: dict[str, Any]) -> Received:
    return Received(
        span.name, span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex(),
        _plain(span.attributes), service, span.status.code == Status.STATUS_CODE_ERROR,
        span.start_time_unix_nano, span.end_time_unix_nano,
    )  # fmt: skip


def _plain(pairs: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}


@contextmanager
def receiving() -> Iterator[Receiver]:
    """A receiver that listens."""
    receiver = Receiver()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            assert self.path == "/v1/traces"
            assert self.headers["content-type"] == "application/x-protobuf"
            receiver.take(body)
            self.send_response(200)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        receiver.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield receiver
        finally:
            server.shutdown()
            thread.join()

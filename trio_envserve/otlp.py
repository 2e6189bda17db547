"""Sending spans from the processes that this package starts: the command and its workers.

Library code here only makes spans where its program keeps them (:mod:`.tracing`); a
program that embeds it configures OpenTelemetry itself.  This module is for our own
processes, and it needs the extra ``otel``.

Theory of operation
-------------------
Spans that have ended wait in a bounded queue, and a thread of the SDK sends them.  So a
receiver that is down, slow or wrong costs spans and holds up nobody: whoever ends a span
only puts it into the queue, and where that is full the oldest is lost.  The SDK and its
exporter log each failure; here that is one line when spans begin to be lost, and one when
they arrive again (:class:`_Told`).
"""

from __future__ import annotations

import dataclasses
import logging
import os
import threading
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, final

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

_log = logging.getLogger("trio_envserve.otlp")

FLUSH_S = 1.0
"""Time that a process waits at its end for its last spans to be sent, in seconds."""

SEND_EVERY_S = 1.0
"""Ended spans are sent so often, unless OTEL_BSP_SCHEDULE_DELAY says otherwise."""

ENDPOINTS = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"
"""Either of these variables asks for spans, as ``--otlp`` does."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OtlpSetup:
    """The receiver of spans, and the part of traces to keep."""

    endpoint: str = ""
    """``http://HOST:4318``; empty: as the variables of OpenTelemetry say."""
    ratio: float | None = None
    """The part of the traces that begin here that is kept; None: as
    ``OTEL_TRACES_SAMPLER`` says, which is all of them."""


@final
class _Sending:
    """The exporter of this process.  Global, as the tracer provider of OpenTelemetry is that
    it belongs to: a process can set that once, and its last lines (:func:`finish`, before
    ``os._exit``) come from places that nothing is handed to."""

    provider: TracerProvider | None = None
    told: Any = None


def is_installed() -> bool:
    """Whether the extra is there."""
    return _has("opentelemetry.sdk") and _has("opentelemetry.exporter.otlp.proto.http")


def _has(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def asked_by_variables() -> bool:
    """Whether the environment of this process asks for spans over OTLP."""
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    if os.environ.get("OTEL_TRACES_EXPORTER", "otlp") != "otlp":
        return False
    return any(os.environ.get(name) for name in ENDPOINTS)


def configure(setup: OtlpSetup, who: str) -> None:
    """Let this process, which must be ours, keep traces and send them.  ``who``:
    ``server``, or a worker id such as ``w0-3``.  Raises ImportError without the extra, and
    whatever the SDK does for variables that it cannot read."""
    from opentelemetry import trace
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

    reasons = _Reasons()
    quiet = logging.getLogger("opentelemetry")
    quiet.addHandler(reasons)
    quiet.propagate = False
    about = {"service.instance.id": f"{who} {os.getpid()}"}
    if not _names_service():
        about["service.name"] = "trio-envserve"
    sampler = None if setup.ratio is None else ParentBased(TraceIdRatioBased(setup.ratio))
    # At the end of the process it would wait for longer than anybody does: see finish().
    provider = TracerProvider(
        resource=Resource.create(about), sampler=sampler, shutdown_on_exit=False
    )
    url = f"{setup.endpoint.rstrip('/')}/v1/traces" if setup.endpoint else None
    told = _told(OTLPSpanExporter(endpoint=url), url or "the receiver", reasons)
    delay_ms = None if os.environ.get("OTEL_BSP_SCHEDULE_DELAY") else SEND_EVERY_S * 1000
    provider.add_span_processor(BatchSpanProcessor(told, schedule_delay_millis=delay_ms))
    trace.set_tracer_provider(provider)
    _Sending.provider, _Sending.told = provider, told


def try_to_configure(setup: OtlpSetup | Mapping[str, Any], who: str) -> None:
    """Configure spans if that is possible; else a line in the log says why there are none.
    ``setup`` may be unchecked arguments of :class:`OtlpSetup`."""
    try:
        configure(setup if isinstance(setup, OtlpSetup) else OtlpSetup(**setup), who)
    except Exception as error:  # wrong arguments, variables that the SDK cannot read, or its lack
        _log.warning("no spans are sent: %s: %s", type(error).__name__, error)


def _names_service() -> bool:
    attributes = os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    return bool(os.environ.get("OTEL_SERVICE_NAME")) or "service.name=" in attributes


def finish(limit_s: float = FLUSH_S) -> None:
    """Send what has ended, but wait not for long, and not at all for a receiver that is
    down.  Call it before ``os._exit``."""
    provider = _Sending.provider
    if provider is None or _Sending.told.failing:
        return
    _Sending.provider = None
    sending = threading.Thread(target=provider.shutdown, name="last spans", daemon=True)
    sending.start()
    sending.join(limit_s)


@final
class _Reasons(logging.Handler):
    """Keeps the first line of an exporter about what it cannot send, and shows none of
    OpenTelemetry's own."""

    text = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Take a record; one that cannot be formatted is not worth more."""
        if self.text or not record.name.startswith("opentelemetry.exporter"):
            return
        try:
            self.text = record.getMessage()
        except Exception:  # arguments that do not fit, of whatever library
            self.text = str(record.msg)


def _told(exporter: Any, where: str, reasons: _Reasons) -> Any:
    """An exporter that tells in one line when spans begin to be lost.  The class is made
    here, since its base is in the extra."""
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

    class Told(SpanExporter):
        """Passes on what another exporter sends."""

        failing = False
        lost = 0

        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            result: SpanExportResult
            reasons.text = ""
            try:
                result = exporter.export(spans)
            except Exception as error:  # of any of the libraries below it: the thread goes on
                reasons.text = f"{type(error).__name__}: {error}"
                result = SpanExportResult.FAILURE
            if result is SpanExportResult.SUCCESS:
                if self.failing:
                    _log.warning("spans arrive at %s again; %d were lost", where, self.lost)
                self.failing, self.lost = False, 0
                return result
            if not self.failing:
                why = reasons.text[:400] or "it gave no reason"
                _log.warning("spans are lost, until %s takes them again: %s", where, why)
            self.failing = True
            self.lost += len(spans)
            return result

        def shutdown(self) -> None:
            exporter.shutdown()

        def force_flush(self, timeout_millis: int = 30000) -> bool:
            return bool(exporter.force_flush(timeout_millis))

    return Told()

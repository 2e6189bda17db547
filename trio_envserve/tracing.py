"""Spans of OpenTelemetry, where somebody keeps them.

Theory of operation
-------------------
A process keeps traces if its program has given OpenTelemetry a tracer provider.  Nothing
here does that, and nothing here imports OpenTelemetry: if nobody else has, there is no
provider (:func:`tracer`), and there are no spans.  Our own processes set one up where they
are told to (:mod:`.otlp`).

From process to process a span is its *traceparent*, 55 characters of W3C's Trace Context. A process
that keeps no traces, or not this one, passes it on unchanged.  A traceparent says whether its trace
is kept (*sampled*), and all below it follow that.

A provider, its sampler and its processors are code of the program around.  An exception of theirs
costs a span and a line in the log, and nothing else.  Names and texts are cut, since they wait in a
queue that is bounded in spans only.

Inside a process the innermost span is a context variable (:func:`here`), set with
:func:`below`, and OpenTelemetry's own is set along with it, so that spans which other code
makes have their place, too.
"""

from __future__ import annotations

import contextlib
import logging
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, final

from .redaction import redacted

if TYPE_CHECKING:
    from opentelemetry import trace as api

Kind: TypeAlias = Literal["INTERNAL", "SERVER", "CLIENT"]
"""Names of OpenTelemetry's ``SpanKind``."""

Attributes: TypeAlias = Mapping[str, "str | bool | int | float"]

_log = logging.getLogger("trio_envserve.tracing")

_NAME = "trio_envserve"
_TOLD_CHARS = 200
"""Most of a name, and of why a span has failed."""
_OF_TRACE = 35
"""Length of the part of a traceparent that all spans of one trace share."""
_VALUE_CHARS = 1000
"""Most of an attribute that is text."""
_HEADER = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_HERE: ContextVar[str | None] = ContextVar("trio_envserve.traceparent", default=None)


@final
class _Known:
    """The tracer of a provider: to make one takes longer than to make a span.  Global, as
    the provider is: it follows that, and holds nothing else."""

    provider: object = None
    tracer: Any = None
    told = False
    """Whether the log has a line about what it raised."""


@contextmanager
def _contained() -> Iterator[None]:
    """Exceptions of the provider in this block end here."""
    try:
        yield
    except Exception as error:  # of samplers, processors and whatever else is not ours
        if not _Known.told:
            _Known.told = True
            what = type(error).__name__
            _log.warning("spans are lost: the tracer provider raised %s", what, exc_info=error)


def tracer() -> api.Tracer | None:
    """The tracer of this process, if it keeps traces."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return None
    try:
        provider = trace.get_tracer_provider()
        if isinstance(provider, (trace.ProxyTracerProvider, trace.NoOpTracerProvider)):
            return None
    except Exception:  # another thread is importing it, or a variable names what is no provider
        return None
    if provider is not _Known.provider:
        found: api.Tracer | None = None
        _Known.told = False
        with _contained():
            found = trace.get_tracer(_NAME)
        _Known.tracer, _Known.provider = found, provider
    known: api.Tracer | None = _Known.tracer
    return known


def read(header: str) -> str | None:
    """The traceparent of an HTTP header, as version 00; None if it is none."""
    found = _HEADER.fullmatch(header)
    if found is None or not found[2].strip("0") or not found[3].strip("0"):
        return None
    version, rest = found[1], found[5]
    if version == "ff" or (version == "00" and rest):
        return None
    return f"00-{found[2]}-{found[3]}-{found[4]}"


def is_sampled(traceparent: str) -> bool:
    """Whether the trace is kept."""
    return bool(int(traceparent[-2:], 16) & 1)


def here() -> str | None:
    """The innermost span of this task or thread, as far as it is known."""
    return _HERE.get()


@final
class Span:
    """A span that has begun.  It is kept when it has ended."""

    __slots__ = ("_span", "is_kept", "traceparent")

    def __init__(self, span: api.Span) -> None:
        self._span = span
        self.is_kept = span.is_recording()
        """Whether anything of it is kept."""
        context = span.get_span_context()
        flags = context.trace_flags & 0xFF
        self.traceparent = f"00-{context.trace_id:032x}-{context.span_id:016x}-{flags:02x}"

    def tell(self, attributes: Attributes) -> None:
        """Say more about it."""
        with _contained():
            self._span.set_attributes(_bounded(attributes))

    def end(self, attributes: Attributes | None = None, *, error: str | None = None) -> None:
        """End the span; ``error``: why it has failed."""
        if attributes:
            self.tell(attributes)
        with _contained():
            if error is not None:
                from opentelemetry.trace import Status, StatusCode

                self._span.set_status(Status(StatusCode.ERROR, _text(error, _TOLD_CHARS)))
            self._span.end()


def begin(
    name: str, parent: str | None, kind: Kind = "INTERNAL", attributes: Attributes | None = None
) -> Span | None:
    """A span below ``parent``; None: the first one of a trace, of which the provider's
    sampler decides whether it is kept.  None if this process keeps no traces."""
    found = tracer()
    if found is None:
        return None
    from opentelemetry.context import Context

    context = Context() if parent is None else _context_of(parent)
    return _begin(found, name, context, kind, attributes)


def begin_here(name: str, kind: Kind) -> Span | None:
    """Begin a span below OpenTelemetry's current one."""
    found = tracer()
    return None if found is None else _begin(found, name, None, kind, None)


def _begin(
    found: api.Tracer, name: str, context: Any, kind: Kind, attributes: Attributes | None
) -> Span | None:
    from opentelemetry.trace import SpanKind

    about = _bounded(attributes or {})
    with _contained():
        name = _text(name, _TOLD_CHARS)
        span = found.start_span(name, context, kind=SpanKind[kind], attributes=about)
        # A provider that is switched off (OTEL_SDK_DISABLED) makes spans without an id.
        if span.get_span_context().is_valid:
            return Span(span)
    return None


def _bounded(attributes: Attributes) -> dict[str, str | bool | int | float]:
    return {
        name: _text(value, _VALUE_CHARS) if isinstance(value, str) else value
        for name, value in attributes.items()
    }


def _text(text: str, most: int) -> str:
    """A text cut to its bound, without secrets, and with nothing that could not be sent."""
    return redacted(text)[:most].encode("utf-8", "replace").decode()


def _context_of(traceparent: str) -> Any:
    from opentelemetry.context import Context
    from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

    _, trace_id, span_id, flags = traceparent.split("-")
    context = SpanContext(
        int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=TraceFlags(int(flags, 16))
    )
    return set_span_in_context(NonRecordingSpan(context), Context())


@contextmanager
def below(traceparent: str | None) -> Iterator[None]:
    """In this block, what this task does stands below a span."""
    if traceparent is None:
        yield
        return
    token = _HERE.set(traceparent)
    attached = None
    if tracer() is not None:
        from opentelemetry import context

        attached = context.attach(_context_of(traceparent))
    try:
        yield
    finally:
        if attached is not None:
            context.detach(attached)
        with contextlib.suppress(ValueError):  # the block was left in another context
            _HERE.reset(token)


@final
class Trace:
    """The spans of one execution, which are below its traceparent, in any thread."""

    def __init__(self, traceparent: str | None = None) -> None:
        self._traceparent = traceparent

    @contextmanager
    def span(
        self, name: str, attributes: Attributes | None = None, kind: Kind = "INTERNAL"
    ) -> Iterator[Span | None]:
        """A span for this block, with what it raises; None if the trace is not kept."""
        parent = here()
        # A call from another thread has a task of its own, which is below nothing yet; and a
        # task that many rollouts share is below the one in which it was started.
        if parent is None or parent[:_OF_TRACE] != (self._traceparent or "")[:_OF_TRACE]:
            parent = self._traceparent
        span = None
        if parent is not None and is_sampled(parent):
            span = begin(name, parent, kind, attributes)
        if span is None:
            with below(parent):
                yield None
            return
        try:
            with below(span.traceparent):
                yield span
        except Exception as error:
            # Without its text, which may quote an input, and may be code that is not ours.
            span.end({"error.type": type(error).__name__}, error=type(error).__name__)
            raise
        except BaseException:
            span.end({"envserve.cancelled": True})
            raise
        span.end()


NO_TRACE = Trace()
"""Trace that records nothing."""

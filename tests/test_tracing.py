"""Spans where somebody keeps them, and nothing where nobody does."""

from __future__ import annotations

import contextvars
import json
import logging
import subprocess
import sys
from collections.abc import Callable

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import StatusCode

from tests.spans import Kept, about, id_of, kept, parent_of
from trio_envserve import tracing
from trio_envserve.logs import _JsonFormatter

__all__ = ["kept"]

SPAN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
OTHER = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
UNKEPT = f"{SPAN[:-1]}0"


def test_without_a_provider_there_are_no_spans():
    assert tracing.tracer() is None
    assert tracing.begin("rollout", SPAN) is None
    assert tracing.begin_here("call", "CLIENT") is None
    with tracing.below(SPAN):
        assert tracing.here() == SPAN
    with tracing.Trace(SPAN).span("a block") as span:
        assert span is None
        assert tracing.here() == SPAN, "it is passed on all the same"
    assert tracing.here() is None


@pytest.mark.real
def test_nothing_imports_opentelemetry_unasked():
    code = (
        "import sys, trio, trio_envserve as t\n"
        "from trio_envserve import tracing, otlp\n"
        "from trio_envserve.net import MemoryNetwork\n"
        "async def env(rollout):\n"
        "    with rollout.span('x'):\n"
        "        return {'reward': 1.0}\n"
        "async def main():\n"
        "    network = MemoryNetwork()\n"
        "    async with t.open_server(env, workers=0, bind='memory:s', network=network):\n"
        "        async with t.open_client('memory:s', network=network) as client:\n"
        f"            await client.run_rollout(1, traceparent={SPAN!r})\n"
        "trio.run(main)\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


def test_a_module_that_another_thread_imports_just_now_is_no_tracer(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", type(sys)("opentelemetry.trace"))
    assert tracing.tracer() is None


class Broken:
    """A provider of no tracer."""

    def get_tracer(self, *args: object, **options: object) -> None:
        raise RuntimeError


def no_provider() -> None:
    raise StopIteration  # as OTEL_PYTHON_TRACER_PROVIDER=typo does


@pytest.mark.parametrize("provider", [no_provider, Broken])
def test_g10_a_provider_that_gives_no_tracer_gives_no_spans(
    monkeypatch: pytest.MonkeyPatch, provider: Callable[[], object]
):
    monkeypatch.setattr(trace, "get_tracer_provider", provider)
    assert tracing.begin("rollout", SPAN) is None
    assert tracing.begin_here("call", "CLIENT") is None


def test_a_provider_that_is_switched_off_gives_no_spans(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    provider = TracerProvider(shutdown_on_exit=False)
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    assert tracing.begin("rollout", None) is None, "its ids are zeros, which nobody takes"
    assert tracing.begin_here("call", "CLIENT") is None


class Raising(SpanProcessor):
    """Raises whatever comes: to be added to a provider."""

    def __init__(self, *events: str) -> None:
        self.events = events

    def on_start(self, span: object, parent_context: object = None) -> None:
        if "start" in self.events:
            raise RuntimeError("start")

    def on_end(self, span: object) -> None:
        if "end" in self.events:
            raise RuntimeError("end")


@pytest.mark.parametrize("event", ["start", "end"])
def test_g10_a_processor_that_raises_costs_spans_and_one_line(
    kept: Kept, caplog: pytest.LogCaptureFixture, event: str
):
    kept.provider.add_span_processor(Raising(event))
    for _ in range(2):
        span = tracing.begin("rollout", SPAN)
        assert (span is None) == (event == "start")
        if span is not None:
            span.end({"a": 1}, error="no")
        with tracing.Trace(SPAN).span("a block"):
            assert tracing.here()
    (line,) = [each for each in caplog.records if each.name == "trio_envserve.tracing"]
    assert line.getMessage() == "spans are lost: the tracer provider raised RuntimeError"


def test_g8_names_and_texts_are_cut_and_can_be_sent(kept: Kept):
    with tracing.Trace(SPAN).span("n" * 10**6, {"text": "t" * 10**6, "n": 1}) as span:
        assert span is not None
        span.tell({"more": "m" * 10**6})
    with tracing.Trace(SPAN).span("half a pair \ud800"):
        pass
    long, odd = kept.all
    assert long.name == "n" * 200
    assert about(long) == {"text": "t" * 1000, "n": 1, "more": "m" * 1000}
    assert odd.name == "half a pair ?"


@pytest.mark.parametrize(
    ("header", "found"),
    [
        (SPAN, SPAN),
        (UNKEPT, UNKEPT),
        ("01" + SPAN[2:], SPAN),
        ("cc" + SPAN[2:] + "-what-comes-later", SPAN),
        (SPAN + "-more", None),
        ("ff" + SPAN[2:], None),
        (SPAN.upper(), None),
        (SPAN[:-1], None),
        ("", None),
        ("00-" + "0" * 32 + SPAN[35:], None),
        (SPAN[:36] + "0" * 16 + "-01", None),
    ],
)
def test_a_traceparent_is_read_from_a_header(header: str, found: str | None):
    assert tracing.read(header) == found


def test_a_span_is_below_its_parent_and_says_so_to_the_next(kept: Kept):
    first = tracing.begin("rollout", SPAN, "SERVER", {"a": 1})
    assert first is not None
    assert first.is_kept
    assert first.traceparent[:35] == SPAN[:35]
    second = tracing.begin("execution", first.traceparent)
    assert second is not None
    second.end(error="x" * 900)
    first.tell({"b": 2})
    first.end({"c": 3})
    outer, inner = kept.one("rollout"), kept.one("execution")
    assert parent_of(outer) == int(SPAN[36:52], 16)
    assert parent_of(inner) == id_of(outer)
    assert about(outer) == {"a": 1, "b": 2, "c": 3}
    assert outer.kind is trace.SpanKind.SERVER
    assert inner.status.status_code is StatusCode.ERROR
    assert inner.status.description == "x" * 200


def test_spans_below_one_that_is_not_kept_are_not_kept(kept: Kept):
    span = tracing.begin("rollout", UNKEPT)
    assert span is not None
    assert not span.is_kept
    assert not tracing.is_sampled(span.traceparent)
    span.end({"a": 1}, error="lost")
    with tracing.Trace(UNKEPT).span("a block") as inner:
        assert inner is None
        assert tracing.here() == UNKEPT
    assert kept.all == []


def test_the_sampler_of_the_provider_decides_about_a_trace_that_begins_here(kept: Kept):
    kept.provider.sampler = ALWAYS_OFF
    span = tracing.begin("rollout", None)
    assert span is not None
    assert not span.is_kept


def test_blocks_are_nested_and_so_are_spans_of_other_code(kept: Kept):
    with tracing.Trace(SPAN).span("outer") as outer:
        assert outer is not None
        with kept.tracer.start_as_current_span("of a library"):
            pass
        with tracing.Trace(SPAN).span("inner", {"n": 1}):
            pass
    assert tracing.here() is None
    assert not trace.get_current_span().get_span_context().is_valid
    (first,) = kept.named("outer")
    assert parent_of(kept.one("of a library")) == parent_of(kept.one("inner")) == id_of(first)


def test_a_block_elsewhere_is_below_the_execution(kept: Kept):
    of_execution = tracing.Trace(SPAN)

    def block() -> None:
        with of_execution.span("in a thread"):
            pass

    contextvars.Context().run(block)
    assert parent_of(kept.one("in a thread")) == int(SPAN[36:52], 16)


@pytest.mark.parametrize("own", [OTHER, None])
def test_g10_a_block_in_a_task_of_another_rollout_is_in_its_own_trace(kept: Kept, own: str | None):
    with tracing.below(SPAN):  # as a task that the first rollout has started, and others use
        with tracing.Trace(own).span("a block"):
            pass
        with tracing.Trace(SPAN).span("of the first"):
            pass
    assert parent_of(kept.one("of the first")) == int(SPAN[36:52], 16)
    assert [parent_of(span) for span in kept.named("a block")] == (
        [int(OTHER[36:52], 16)] if own else []
    )


def test_an_error_in_a_block_is_told_by_its_type_and_not_by_its_text(kept: Kept):
    with pytest.raises(ValueError, match="a secret"):
        with tracing.Trace(SPAN).span("fails"):
            raise ValueError("a secret")
    with pytest.raises(KeyboardInterrupt):
        with tracing.Trace(SPAN).span("stops"):
            raise KeyboardInterrupt
    failed, stopped = kept.one("fails"), kept.one("stops")
    assert (failed.status.description, about(failed)) == (
        "ValueError", {"error.type": "ValueError"},
    )  # fmt: skip
    assert failed.events == ()
    assert about(stopped) == {"envserve.cancelled": True}


def test_a_block_that_is_left_in_another_context_ends_all_the_same():
    block = tracing.below(SPAN)
    contextvars.copy_context().run(block.__enter__)
    block.__exit__(None, None, None)


def test_a_line_of_the_log_in_json_names_the_span_in_which_it_was_written():
    record = logging.LogRecord("env", logging.INFO, "", 0, "hello", None, None)
    with tracing.below(SPAN):
        line = json.loads(_JsonFormatter().format(record))
    assert f"00-{line['trace_id']}-{line['span_id']}-01" == SPAN
    assert "trace_id" not in json.loads(_JsonFormatter().format(record))

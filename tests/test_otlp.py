"""Sending spans from one of our own processes: what asks for it, and what cannot be sent."""

from __future__ import annotations

import logging
import socket
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

from tests.otlp_receiver import receiving
from trio_envserve import otlp, tracing
from trio_envserve.otlp import ENDPOINTS, OtlpSetup

HANG_S = 300


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process, as one of our own that has set nothing up; and so again afterwards."""
    providers: list[TracerProvider] = []
    monkeypatch.setattr(trace, "set_tracer_provider", providers.append)
    monkeypatch.setattr(
        trace, "get_tracer_provider",
        lambda: providers[-1] if providers else trace.ProxyTracerProvider(),
    )  # fmt: skip
    monkeypatch.setattr(otlp._Sending, "provider", None)
    monkeypatch.setattr(otlp._Sending, "told", None)
    library = logging.getLogger("opentelemetry")
    before = library.handlers[:], library.propagate
    for name in (*ENDPOINTS, "OTEL_SDK_DISABLED", "OTEL_TRACES_EXPORTER", "OTEL_SERVICE_NAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
    yield
    if otlp._Sending.told is not None:
        otlp._Sending.told.shutdown()  # else it would try to send the rest
    for provider in providers:
        provider.shutdown()
    for thread in threading.enumerate():
        if thread.name == "last spans":
            thread.join(HANG_S)  # else its lines would be those of the next test
    library.handlers[:], library.propagate = before


def end_spans(count: int) -> None:
    for _ in range(count):
        span = tracing.begin("rollout", None)
        assert span is not None
        span.end()


def until(condition: Any) -> None:
    """Wait for what another thread does."""
    give_up_s = time.monotonic() + HANG_S
    while not condition():
        assert time.monotonic() < give_up_s
        time.sleep(0.01)


def test_variables_ask_for_spans(process: None, monkeypatch: pytest.MonkeyPatch):
    assert not otlp.asked_by_variables()
    for name in ENDPOINTS:
        with monkeypatch.context() as changed:
            changed.setenv(name, "http://127.0.0.1:4318")
            assert otlp.asked_by_variables()
            changed.setenv("OTEL_TRACES_EXPORTER", "none")
            assert not otlp.asked_by_variables()
            changed.delenv("OTEL_TRACES_EXPORTER")
            changed.setenv("OTEL_SDK_DISABLED", "true")
            assert not otlp.asked_by_variables()


def test_ended_spans_are_sent_before_the_process_ends(
    process: None, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "3600000")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "trainer")
    with receiving() as receiver:
        otlp.configure(OtlpSetup(endpoint=f"{receiver.url}/", ratio=1.0), "w0-3")
        end_spans(3)
        otlp.finish(HANG_S)
        otlp.finish(HANG_S)  # a second time there is nothing to do
    assert len(receiver.spans) == 3
    service = receiver.spans[0].service
    assert service["service.name"] == "trainer"
    assert service["service.instance.id"].startswith("w0-3 ")


def test_the_ratio_decides_about_what_begins_here(process: None):
    otlp.configure(OtlpSetup(endpoint="http://127.0.0.1:9", ratio=0.0), "server")
    span = tracing.begin("rollout", None)
    assert span is not None
    assert not span.is_kept


def test_spans_that_are_lost_are_one_line_and_so_is_their_end(
    process: None, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    # The exporter says why it cannot send only where it has time to try again.
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "3")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        otlp.configure(OtlpSetup(endpoint=f"http://127.0.0.1:{port}"), "server")
        end_spans(10)
        until(lambda: caplog.messages)
        end_spans(5000)  # more than there is room for
        told = otlp._Sending.told
        until(lambda: told.lost > 10)
        assert len(caplog.messages) == 1
        assert caplog.messages[0].startswith(f"spans are lost, until http://127.0.0.1:{port}")
        assert "refused" in caplog.messages[0].lower()
        otlp.finish(HANG_S)
        assert otlp._Sending.provider is not None, "it does not wait for who is down"


def test_a_receiver_that_takes_spans_again_is_one_line(
    process: None, caplog: pytest.LogCaptureFixture
):
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

    good = SpanExportResult.SUCCESS
    results: list[Any] = [SpanExportResult.FAILURE, RuntimeError("broken"), good, good]

    class Flaky(SpanExporter):
        def export(self, spans: Any) -> SpanExportResult:
            result = results.pop(0)
            if isinstance(result, Exception):
                raise result
            kind: SpanExportResult = result
            return kind

    told = otlp._told(Flaky(), "here", otlp._Reasons())
    for _ in range(4):
        told.export([None, None])
    assert caplog.messages == [
        "spans are lost, until here takes them again: it gave no reason",
        "spans arrive at here again; 4 were lost",
    ]
    told.force_flush()
    told.shutdown()


def test_a_line_of_a_library_that_cannot_be_formatted_does_no_harm():
    heard = otlp._Reasons()
    record = logging.LogRecord("opentelemetry.exporter", 30, "", 0, "%d", ("x",), None)
    heard.emit(record)
    assert heard.text == "%d"


def test_a_receiver_that_never_answers_holds_up_nobody(
    process: None, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        otlp.configure(OtlpSetup(endpoint=url), "server")
        end_spans(1)
        connection, _ = silent.accept()
        with connection:
            end_spans(5000)
            finished = threading.Event()

            def finish() -> None:
                otlp.finish(0.05)
                finished.set()

            threading.Thread(target=finish).start()
            assert finished.wait(HANG_S)


@pytest.mark.parametrize(
    ("setup", "why"),
    [
        (OtlpSetup(), "ModuleNotFoundError"),
        ({"endpont": "http://127.0.0.1:4318"}, "TypeError"),
    ],
    ids=["without the extra", "a wrong argument"],
)
def test_a_set_up_that_fails_costs_a_worker_one_line_and_its_spans(
    process: None, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch,
    setup: Any, why: str,
):  # fmt: skip
    if why == "ModuleNotFoundError":
        monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    otlp.try_to_configure(setup, "w0-1")
    (line,) = caplog.messages
    assert line.startswith(f"no spans are sent: {why}: ")
    assert tracing.tracer() is None
    otlp.finish()


def test_the_extra_is_looked_for(monkeypatch: pytest.MonkeyPatch):
    assert otlp.is_installed()
    monkeypatch.setattr(otlp, "find_spec", lambda name: None)
    assert not otlp.is_installed()

    def missing(name: str) -> None:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(otlp, "find_spec", missing)
    assert not otlp.is_installed()

"""libzmq's events in, connection events out."""

from __future__ import annotations

import pytest
import zmq

from trio_envserve.net.monitor import EventTranslator

UP = zmq.EVENT_HANDSHAKE_SUCCEEDED
DOWN = zmq.EVENT_DISCONNECTED
BAD = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
WRONG = zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
CLOSED = zmq.EVENT_CLOSED
RETRIED = zmq.EVENT_CONNECT_RETRIED


def translated(listening: bool, events: list[zmq.Event]) -> list[str]:
    translator = EventTranslator(listening)
    reports = [translator.translate(int(event)) for event in events]
    return [report.name for report in reports if report is not None]


@pytest.mark.parametrize(
    ("events", "reports"),
    [
        ([UP, DOWN, RETRIED, UP], ["CONNECTED", "DISCONNECTED", "CONNECTED"]),
        ([CLOSED, RETRIED, CLOSED, RETRIED, UP], ["REFUSED", "REFUSED", "CONNECTED"]),
        ([RETRIED, RETRIED], ["REFUSED", "REFUSED"]),  # a name that is not found
        ([UP, DOWN, RETRIED, RETRIED], ["CONNECTED", "DISCONNECTED", "REFUSED"]),
        ([BAD, DOWN, RETRIED, UP], ["HANDSHAKE_FAILED", "CONNECTED"]),
        ([WRONG, BAD, DOWN], ["HANDSHAKE_FAILED"]),
        ([zmq.EVENT_MONITOR_STOPPED], []),
    ],
)
def test_a_dealer(events: list[zmq.Event], reports: list[str]):
    assert translated(False, events) == reports


@pytest.mark.parametrize(
    ("events", "reports"),
    [
        ([UP, UP, DOWN], ["CONNECTED", "CONNECTED", "DISCONNECTED"]),
        ([BAD, DOWN, UP, DOWN], ["HANDSHAKE_FAILED", "CONNECTED", "DISCONNECTED"]),
        ([UP, CLOSED, RETRIED], ["CONNECTED"]),
    ],
)
def test_a_router(events: list[zmq.Event], reports: list[str]):
    assert translated(True, events) == reports

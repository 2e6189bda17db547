"""What clients of verifiers say, and the answers in bytes."""

from __future__ import annotations

import pytest

from trio_envserve.doors.verifiers import msgpack, wire
from trio_envserve.doors.verifiers.wire import CancelAsk, HealthAsk, NotUnderstood, RunAsk

ID = b"0123456789abcdef0123456789abcdef"


def test_a_probe_a_run_and_a_cancel_are_understood():
    target = msgpack.write({"request_id": "ab"})
    assert wire.read([ID, b"health", b"\x80"]) == HealthAsk(ID)
    assert wire.read([ID, b"run", b"anything"]) == RunAsk(ID, b"anything")
    assert wire.read([ID, b"cancel", target]) == CancelAsk(ID, b"ab")


@pytest.mark.parametrize(
    "frames",
    [
        [],
        [b""],
        [ID],
        [ID, b"health"],
        [b"", b"health", b"\x80"],
        [ID, b"health", b"\x80", b""],
        [ID] * 64,
        [b"a" * 129, b"run", b""],
        [b"a\n", b"run", b""],
        [b"\xff", b"run", b""],
        ["\u00e4".encode(), b"run", b""],
    ],
)
def test_what_the_wire_does_not_have_is_not_understood(frames):
    assert wire.read(frames) is None


@pytest.mark.parametrize(
    ("method", "payload", "why"),
    [
        (b"", b"", "unknown method ''"),
        (b"RUN", b"", "unknown method 'RUN'"),
        (b"\xff" * 1000, b"", "unknown method"),
        (b"cancel", b"", "cannot be read: it ends too early"),
        (b"cancel", b"\x80", "names the request_id"),
        (b"cancel", msgpack.write({"request_id": None}), "names the request_id"),
        (b"cancel", msgpack.write({"request_id": ""}), "names the request_id"),
        (b"cancel", msgpack.write({"request_id": "a\x00"}), "names the request_id"),
        (b"cancel", bytes(5000), "5000 bytes"),
    ],
)
def test_what_is_wrong_is_told_to_who_said_it(method, payload, why):
    with pytest.raises(NotUnderstood) as caught:
        wire.read([ID, method, payload])
    assert caught.value.name == ID
    assert why in caught.value.why
    assert len(caught.value.why) < 200


def test_the_answers_are_those_of_the_library():
    assert wire.healthy(ID) == (ID, b"reply", b"\x82\xa7success\xc3\xa5error\xc0")
    assert wire.failed(ID, "no") == (ID, b"reply", b"\x82\xa7success\xc2\xa5error\xa2no")
    assert wire.cancelled(ID, True) == (
        ID, b"reply", b"\x83\xa7success\xc3\xa5error\xc0\xa9cancelled\xc3"
    )  # fmt: skip
    assert wire.discard(ID, "t") == (ID, b"delta", b"\x82\xa5trace\xa1t\xa7discard\xc3")
    assert wire.delta(ID, b"d") == (ID, b"delta", b"d")
    assert wire.ended(ID, b"r") == (ID, b"reply", b"r")

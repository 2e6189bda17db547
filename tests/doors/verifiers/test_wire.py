"""What clients of verifiers say, and the answers in bytes."""

from __future__ import annotations

import importlib
import sys

import msgpack
import pytest

from trio_envserve.doors.verifiers import wire
from trio_envserve.doors.verifiers.wire import CancelAsk, HealthAsk, NotUnderstood, RunAsk

ID = b"0123456789abcdef0123456789abcdef"


def test_a_probe_a_run_and_a_cancel_are_understood():
    target = msgpack.packb({"request_id": "ab"})
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
        (b"cancel", b"", "cannot be read: Unpack failed: incomplete input"),
        (b"cancel", b"\x80", "names the request_id"),
        (b"cancel", b"\x91\xa1a", "names the request_id"),
        (b"cancel", b"\x80\x80", "cannot be read"),
        (b"cancel", b"\x91" * 4000, "cannot be read: StackError"),
        (b"cancel", b"\xdf\xff\xff\xff\xff", "cannot be read"),
        (b"cancel", b"\x81\xaarequest_id\xa1\xff", "cannot be read"),
        (b"cancel", msgpack.packb({"request_id": None}), "names the request_id"),
        (b"cancel", msgpack.packb({"request_id": ""}), "names the request_id"),
        (b"cancel", msgpack.packb({"request_id": "a\x00"}), "names the request_id"),
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
    assert bytes(wire.failed(ID, "\ud800")[2]).endswith(b"\xa6\\ud800")
    assert wire.delta(ID, b"d") == (ID, b"delta", b"d")
    assert wire.ended(ID, b"r") == (ID, b"reply", b"r")


def test_door_without_its_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    for name in [each for each in sys.modules if each.startswith("trio_envserve.doors.verifiers")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "msgpack", None)
    with pytest.raises(ImportError, match=r"pip install 'trio-envserve\[verifiers\]'"):
        importlib.import_module("trio_envserve.doors.verifiers")

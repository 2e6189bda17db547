"""Errors as records on the wire: any text is safe, and what cannot be read may have run."""

from __future__ import annotations

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_envserve.core import error_records
from trio_envserve.core.errors import ErrorInfo
from trio_envserve.core.terms import Verdict
from trio_envserve.core.worker import SetUpFailed, WorkerCore

from .helpers import Pair

INFO = ErrorInfo(
    "rollout-failed", Verdict.RAN_AND_FAILED, "text", "ValueError", "traceback", "w0-1", "ab",
    1.5, 2,
)  # fmt: skip


@given(st.text(st.characters(), max_size=50))
def test_any_text_can_be_in_an_error(text):
    info = ErrorInfo("code", Verdict.MAY_HAVE_RUN, text, type=text)
    assert error_records.decode(error_records.encode(info)).code == "code"


@pytest.mark.parametrize("letter", ["a", "é", "\N{SNOWMAN}", "\N{SNAKE}"])
def test_g8_long_texts_keep_their_beginning_and_end_within_the_bytes(letter):
    text = "first" + letter * 1000 + "last"
    record = error_records.to_record(
        ErrorInfo("code", Verdict.MAY_HAVE_RUN, text, traceback=text), most_bytes=100
    )
    for name in ("message", "traceback"):
        assert record[name].startswith("first" + letter)
        assert record[name].endswith(letter + "last")
        assert "bytes left out" in record[name]
        assert len(record[name].encode()) < 100 + 50


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff",
        cbor2.dumps([]),
        cbor2.dumps({}),
        cbor2.dumps({"code": "a", "verdict": "OF_THE_FUTURE", "message": "b"}),
        cbor2.dumps({"code": "a", "verdict": "MAY_HAVE_RUN"}),
        cbor2.dumps({"code": "a", "verdict": "DID_NOT_RUN", "message": 5}),
        cbor2.dumps({"code": "a", "verdict": "DID_NOT_RUN", "message": "b", "executions": "9"}),
        cbor2.dumps({"code": "a", "verdict": "DID_NOT_RUN", "message": "b", "duration_s": "9"}),
    ],
)
def test_g9_an_error_that_cannot_be_read_says_that_it_may_have_run(body):
    info = error_records.decode(body)
    assert (info.code, info.verdict) == ("unreadable", Verdict.MAY_HAVE_RUN)


def test_an_error_comes_back_the_same_and_what_a_newer_peer_adds_is_left_out():
    assert error_records.decode(error_records.encode(INFO)) == INFO
    record = error_records.to_record(INFO) | {"colour": "red"}
    assert error_records.decode(cbor2.dumps(record)) == INFO


def test_an_error_record_with_such_a_number_crashed_the_reader_of_broken_records():
    assert error_records.decode(cbor2.dumps({"verdict": 10**6000})).code == "unreadable"


def test_the_name_of_an_exception_could_not_be_encoded():
    """Only message and traceback were made safe."""
    info = ErrorInfo("code", Verdict.RAN_AND_FAILED, "text", type="\ud800", worker="\ud800")
    assert error_records.decode(error_records.encode(info)).type == "\\ud800"


def test_a_broken_environment_with_a_long_traceback_was_never_heard_of():
    """The worker's message, and then each answer to a sync, exceeded the size of a header."""
    pair = Pair(hello=False, server={"broken_after": 1})
    info = ErrorInfo("broken", Verdict.DID_NOT_RUN, "x", traceback="\N{SNAKE}" * 2_000_000)
    core = pair.workers[b"w0-1"]
    assert isinstance(core, WorkerCore)
    pair.work(b"w0-1", core.take(SetUpFailed(info)))
    pair.die(b"w0-1")
    pair.advance(1.5)
    assert pair.client.link.server["status"] == "broken"
    assert pair.router.malformed == 0

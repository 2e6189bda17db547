"""The client's records."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_envserve.core import client
from trio_envserve.core.client import Call, CallKey, ClientSession, Terms
from trio_envserve.core.errors import ErrorInfo
from trio_envserve.core.key_records import KeyAct, KeyName
from trio_envserve.core.ranges import Ranges
from trio_envserve.core.requests import grant
from trio_envserve.core.terms import Verdict

from .helpers import identifier


@given(st.frozensets(st.integers(0, 30)))
def test_pending_is_stated_as_spans(sequences):
    session = ClientSession(identifier(1), identifier(2), 9, 9)
    for sequence in sorted(sequences):
        session.calls[sequence] = Call(sequence, b"", Terms(), 1, None, 0.0)
    assert session.pending() == Ranges(sequences).flat()


@given(st.integers(1, 20))
def test_g2_the_executions_of_all_sessions_together_are_the_allowance(allowance):
    left, started = allowance, 0
    while left > 0:
        granted = grant(left)
        assert 1 <= granted <= left
        started += granted
        left -= granted
    assert started == allowance


@pytest.mark.parametrize(
    ("started", "verdict"),
    [(False, Verdict.DID_NOT_RUN), (True, Verdict.MAY_HAVE_RUN), (None, Verdict.MAY_HAVE_RUN)],
)
def test_g9_a_limit_that_passed_says_did_not_run_only_if_the_server_does(started, verdict):
    assert client.limit_passed(started=started).verdict is verdict


def lost(earlier: int, most: int, act: KeyAct | None = None) -> Call:
    """A call of whose executions lost sessions may have started so many."""
    key = None if act is None else CallKey(act, KeyName(b"n", b"k"))
    return Call(0, b"", Terms(), most, None, 0.0, may_have_run=True, earlier=earlier, key=key)


def test_g9_after_a_loss_did_not_run_is_not_the_whole_truth():
    here = ErrorInfo("too-large", Verdict.DID_NOT_RUN, "5 bytes")
    after = client.after_loss(here, lost(3, 4))
    assert (after.code, after.verdict) == ("server-lost", Verdict.MAY_HAVE_RUN)
    assert "at most 3 of the 4 executions" in after.message
    died = ErrorInfo("worker-lost", Verdict.MAY_HAVE_RUN, "died")
    after = client.after_loss(died, lost(37, 50))
    assert (after.code, after.verdict) == ("worker-lost", Verdict.MAY_HAVE_RUN)
    assert "at most 37 of the 50 executions" in after.message
    failed = ErrorInfo("rollout-failed", Verdict.RAN_AND_FAILED, "text")
    assert client.after_loss(failed, lost(1, 4)) is failed


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (KeyAct.ATTACH, "may have run the work of its key before, for others"),
        (KeyAct.CANCEL, "may have carried it out before"),
        (KeyAct.FORGET, "may have carried it out before"),
    ],
)
def test_g9_who_sends_nothing_that_runs_was_told_of_executions_of_its_own(act, words):
    never = ErrorInfo("never-started", Verdict.DID_NOT_RUN, "cancelled")
    after = client.after_loss(never, lost(1, 4, act))
    assert (after.code, after.verdict) == ("server-lost", Verdict.MAY_HAVE_RUN)
    assert after.message == f"cancelled; servers that were lost {words}"

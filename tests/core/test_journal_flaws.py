"""What a simulated disk has found wrong with what must be safe before what."""

from __future__ import annotations

import pytest

from trio_envserve.core import error_records, messages
from trio_envserve.core.closing import ClosingStage
from trio_envserve.core.journal import (
    Closed,
    Commanded,
    Joined,
    Opened,
    Record,
    Started,
)
from trio_envserve.core.key_records import KeyAct, KeyName
from trio_envserve.core.keys import ENDED_AT_ONCE
from trio_envserve.core.limits import KeyLimits
from trio_envserve.core.router_effects import Flush, ToWorker
from trio_envserve.core.router_inputs import (
    CloseAsked,
    PoolOpened,
    Restored,
    Saved,
    WorkerMessage,
)
from trio_envserve.core.terms import Status, Verdict

from .helpers import STRANGER, identifier
from .keyed import NAME, Keyed
from .test_journal import Journaled, crashed_with, fail


def told(pair: Journaled) -> list[messages.Message]:
    """What the stranger was told but its welcome."""
    return [message for _, message in pair.mail if not isinstance(message, messages.Welcome)]


def is_closed(record: Record) -> bool:
    return isinstance(record, Closed)  # as tuples it and a Started are equal


def verdict(pair: Keyed, session: bytes, sequence: int = 0) -> Verdict:
    entry = pair.router.cache.sessions[session].entries[sequence]
    assert entry.kept is not None
    return error_records.decode(entry.kept.frames[1]).verdict


# -- the end of a generation ----------------------------------------------------------


def test_g11_a_cancel_was_confirmed_before_what_it_had_ended_was_safe():
    """After a crash what had been cancelled waited again, and ran."""
    pair = Journaled(ready=False)
    session = pair.stranger()
    pair.request(session)
    pair.disk()
    for _ in range(2):  # it comes again
        pair.tell(messages.KeyedCancel(session, 0), route=STRANGER)
    assert is_closed(pair.records[-1])
    assert told(pair) == []
    pair.disk()
    assert told(pair) == [messages.Cancelled(session, 0, False)]


def test_a_cancel_that_ends_nothing_does_not_wait_for_the_disk():
    pair = Journaled(ready=False)
    session = pair.stranger()
    pair.request(session, 0)
    pair.request(session, 1)
    pair.tell(messages.KeyedCancel(session, 0), route=STRANGER)
    assert told(pair) == [messages.Cancelled(session, 0, True)]


def test_a_cancel_of_what_is_over_waits_for_the_end_of_that():
    pair = Journaled(ready=False)
    session = pair.stranger()
    pair.request(session)
    pair.about(KeyAct.CANCEL)
    pair.tell(messages.KeyedCancel(session, 0), route=STRANGER)
    assert told(pair) == []
    pair.disk()
    assert told(pair) == [messages.Cancelled(session, 0, True)]


def test_a_cancel_is_confirmed_to_nobody_whose_session_is_gone():
    pair = Journaled(ready=False)
    session = pair.stranger()
    pair.request(session)
    pair.tell(messages.KeyedCancel(session, 0), route=STRANGER)
    pair.tell(messages.Goodbye(session), route=STRANGER)
    pair.disk()
    assert told(pair) == []


def test_g11_a_deadline_said_that_nothing_ran_before_the_end_was_safe():
    pair = Journaled(ready=False)
    session = pair.stranger()
    pair.request(session, deadline_s=5.0)
    pair.disk()
    pair.advance(6.0)
    assert is_closed(pair.records[-1])
    assert told(pair) == []
    pair.disk()
    (outcome,) = told(pair)
    assert isinstance(outcome, messages.Outcome)
    assert verdict(pair, session) is Verdict.DID_NOT_RUN


def test_a_deadline_that_passed_while_the_outcome_was_saved_ended_the_server():
    """It answered the request, and then the outcome was there for one that was answered."""
    pair = Journaled()
    session = pair.stranger()
    pair.request(session, deadline_s=5.0)
    pair.disk()
    pair.end(payload=b"outcome")
    pair.advance(6.0)
    assert told(pair) == []
    pair.disk()
    (outcome,) = told(pair)
    assert isinstance(outcome, messages.Outcome)
    assert outcome.status == Status.RESULT  # its completion had won


def test_what_was_decided_first_is_told_before_what_follows_is_sent():
    pair = Journaled()
    session = pair.stranger()
    pair.request(session, 0)
    pair.about(KeyAct.CANCEL)
    pair.request(session, 1)
    out = pair.router.take(Saved(len(pair.records), pair.now_s))
    kinds = [type(effect) for effect in out]
    assert kinds.index(ToWorker) == len(kinds) - 1


def test_a_cancel_that_came_first_and_was_forgotten_hit_a_request_after_a_crash():
    class Short(Journaled):
        keys = KeyLimits(command_s=10.0)

    first = Short()
    first.about(KeyAct.CANCEL)
    first.disk()
    first.advance(11.0)
    other = crashed_with(first.records)
    other.call()
    other.disk()
    assert len(other.runs) == 1


# -- a journal that is lost --------------------------------------------------------------


def test_g9_what_waited_behind_much_that_ran_heard_nothing_of_the_end_of_the_journal():
    """Those that had been sent used up what one turn may end, at each tick again."""
    limits = {"queue": 5000, "window": 5000, "worker_capacity": ENDED_AT_ONCE}
    pair = Journaled(server=limits)
    session = pair.stranger()
    for number in range(ENDED_AT_ONCE + 10):
        pair.request(session, number, name=KeyName(b"default", b"%d" % number))
    pair.disk()
    assert len(pair.runs) == ENDED_AT_ONCE
    fail(pair, final=True)
    assert verdict(pair, session, ENDED_AT_ONCE) is Verdict.MAY_HAVE_RUN
    assert verdict(pair, session, ENDED_AT_ONCE + 9) is Verdict.MAY_HAVE_RUN
    assert pair.router.workforce.live_count() == ENDED_AT_ONCE  # what runs goes on


# -- what a journal has left ------------------------------------------------------------


def test_of_what_a_journal_had_counted_a_quarter_was_never_started():
    """It was held back for the next session, for which nobody could have counted."""
    pair = Journaled(rerun=True)
    pair.call()
    own = next(session for session in pair.router.cache.sessions.values() if session.own)
    assert own.entries[0].allowance == 3  # who asked counts so many for this session
    other = crashed_with(pair.records, rerun=True)
    for most in (1, 2, 3):
        other.disk()
        assert len(other.runs) == most
        other.die(other.runs[-1][0])
        other.advance(5.0)
    other.disk()
    assert len(other.runs) == 3
    assert other.heard().status == Status.ERROR


def test_who_joined_counts_and_what_was_said_is_said_again_after_a_crash():
    opened, tag = left(started=False)[0], identifier(8)
    said = Commanded(True, *NAME, tag, None, True, False)
    other = crashed_with([opened, Joined(0, identifier(6)), said])
    assert other.router.keys.generations[0].lost == {identifier(5), identifier(6)}
    other.request(other.stranger(902), act=KeyAct.FORGET, tag=tag, body=b"")
    other.disk()
    assert 0 in other.router.keys.generations  # it hits nothing else
    assert other.heard().status == Status.RESULT


# -- closing ----------------------------------------------------------------------------


@pytest.mark.parametrize("stage", [ClosingStage.DRAINING, ClosingStage.CANCELLING])
def test_g9_a_server_closed_before_its_answers_were_safe(stage: ClosingStage):
    """So nobody heard them."""
    pair = Journaled()
    session = pair.stranger()
    pair.request(session)
    pair.disk()
    pair.give(CloseAsked(pair.now_s, stage))
    pair.settle()
    if stage is ClosingStage.DRAINING:
        pair.end()
        assert pair.router.closing.stage is stage
        assert pair.router.status()["closing"]["outcomes"] == 1
    pair.advance(2.0)
    assert pair.router.closing.stage is not ClosingStage.FLUSHING
    assert not [message for message in told(pair) if isinstance(message, messages.Outcome)]
    pair.disk()
    assert [message for message in told(pair) if isinstance(message, messages.Outcome)]


@pytest.mark.parametrize("act", [KeyAct.ASK, KeyAct.FORGET, KeyAct.CANCEL])
def test_g9_what_came_while_the_last_answers_left_waited_for_the_disk(act: KeyAct):
    """Nobody heard of it: the server was closed before that was safe."""
    pair = Journaled(ready=False)
    session = pair.stranger()
    pair.give(CloseAsked(pair.now_s, ClosingStage.CANCELLING))
    pair.advance(0.5)
    assert pair.router.closing.stage is ClosingStage.FLUSHING
    pair.request(session, act=act)
    (refused,) = [said for said in told(pair) if isinstance(said, messages.Refused)]
    assert (refused.code, refused.delay_s is None) == ("journal", False)
    assert refused.text.endswith("the server ends")
    assert pair.records == []


def left(*, started: bool) -> list[Record]:
    opened = Opened(0, *NAME, b"digest", True, 4, 0, identifier(5), b"body")
    return [opened, Started(0)] if started else [opened]


@pytest.mark.parametrize("opened", [False, True], ids=["locked out", "no worker yet"])
@pytest.mark.parametrize("started", [False, True])
def test_g9_who_waited_for_what_a_journal_had_left_heard_nothing_of_a_server_that_closed(
    started: bool, opened: bool
):
    pair = Journaled(ready=False)
    pair.give(Restored(left(started=started), pair.now_s))
    if opened:
        pair.give(PoolOpened((), pair.now_s))
    session = pair.stranger()
    pair.request(session, act=KeyAct.ATTACH)
    pair.give(CloseAsked(pair.now_s, ClosingStage.DRAINING))
    pair.settle()
    pair.advance(0.5)
    assert not any(isinstance(effect, Flush) for effect in pair.said())
    pair.disk()
    may_have = Verdict.MAY_HAVE_RUN if started else Verdict.DID_NOT_RUN
    assert verdict(pair, session) is may_have


def test_g9_what_may_have_run_before_did_not_run_said_a_server_without_a_worker():
    """The same without a journal: who is back says that it may have run."""
    pair = Keyed(ready=False, rerun=True)
    pair.router.keys.declared_rerun = True
    pair.router.workforce.environment = "environment"
    back, other = pair.stranger(), pair.stranger(901)
    pair.request(back, earlier=1, gone=True, rerun=True)
    pair.request(other, rerun=True)
    pair.give(CloseAsked(pair.now_s, ClosingStage.DRAINING))
    pair.settle()
    assert verdict(pair, other) is Verdict.MAY_HAVE_RUN


# -- a worker that says what cannot be ------------------------------------------------


@pytest.mark.parametrize("what", ["it has seen it", "it has its outcome"])
def test_g10_a_worker_ended_the_server_by_what_it_said_of_a_dispatch_that_was_not_sent(what):
    pair = Journaled()
    pair.call()
    ((worker, core),) = pair.workers.items()
    (execution,) = pair.router.workforce.workers[worker].live.values()
    said: messages.Message = messages.Beat(1, [0, 1], {})
    if what == "it has its outcome":
        said = messages.Announced(execution.session.id, execution.sequence, 0, 10)
    pair.give(WorkerMessage((worker, core.incarnation, messages.encode(said)), pair.now_s))
    pair.disk()
    assert not pair.runs

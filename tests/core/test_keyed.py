"""Keyed requests: the keys, joined with the dedup cache, the queue and the workers.

What becomes of a generation in each state is in ``test_key_table`` and its neighbours;
here it is that callers get what is theirs, through a whole server.
"""

from __future__ import annotations

from typing import Any

import cbor2
import pytest

from trio_envserve.core import error_records, messages
from trio_envserve.core.client_effects import Answer
from trio_envserve.core.client_inputs import CallsCancelled
from trio_envserve.core.key_records import GenerationState, KeyAct, KeyName
from trio_envserve.core.requests import RequestState
from trio_envserve.core.terms import Status, Verdict
from trio_envserve.core.worker_inputs import EnvironmentReady

from .helpers import STRANGER, identifier, limit_keys
from .keyed import Keyed, generation


def test_g2_two_that_ask_under_one_key_start_it_once():
    pair = Keyed()
    pair.call()
    session = pair.stranger()
    pair.request(session)
    assert len(pair.runs) == 1
    pair.end(payload=b"the one")
    mine = pair.last()
    assert isinstance(mine, Answer)
    assert bytes(mine.body) == b"the one"
    theirs = pair.heard()
    assert (theirs.session, theirs.sequence, theirs.status) == (session, 0, Status.RESULT)
    assert (theirs.worker, theirs.executions) == ("w0-1", 1)


def test_g4_its_outcome_is_replayed_to_those_that_ask_later():
    pair = Keyed()
    pair.call()
    pair.end()
    pair.receive(0)
    pair.call()
    assert len(pair.runs) == 1
    assert isinstance(pair.last(), Answer)
    assert len(pair.answers) == 2
    pair.about(KeyAct.ATTACH)
    assert len(pair.answers) == 3
    assert isinstance(pair.last(), Answer)


def test_g6_another_input_under_the_key_is_a_conflict():
    pair = Keyed()
    pair.call()
    session = pair.stranger()
    pair.request(session, body=b"other")
    refused = pair.heard()
    assert (refused.code, refused.delay_s) == ("key-conflict", None)
    pair.call(body=b"other")
    assert pair.failure().code == "key-conflict"
    assert pair.failure().verdict is Verdict.DID_NOT_RUN


@pytest.mark.parametrize(
    "other",
    [{"name": KeyName(b"default", b"other")}, {"act": KeyAct.FORGET}, {"caller": identifier(3)}],
    ids=str,
)
def test_g6_an_id_that_asked_something_of_another_key_was_taken_for_the_same(
    other: dict[str, Any],
):
    pair = Keyed()
    session = pair.stranger()
    pair.request(session, 0)
    pair.request(session, 0, **other)
    assert (pair.heard().code, pair.heard().delay_s) == ("conflict", None)
    pair.end(payload=b"the first")
    assert (pair.heard().sequence, pair.heard().status) == (0, Status.RESULT)
    assert len(pair.runs) == 1


# -- who leaves ---------------------------------------------------------------


def test_g7_the_first_of_two_that_leaves_cancels_nothing():
    pair = Keyed()
    pair.call()
    session = pair.stranger()
    pair.request(session)
    pair.give_client(CallsCancelled((0,), pair.now_s))
    pair.advance(0.1)
    assert pair.cancels == []
    assert generation(pair) is GenerationState.RUNNING
    pair.tell(messages.Finish(session, [0, 1]), route=STRANGER)
    assert len(pair.cancels) == 1
    assert generation(pair) is GenerationState.CLOSED


def test_g7_a_cancel_of_what_never_started_says_so():
    pair = Keyed(ready=False)
    session = pair.stranger()
    pair.request(session)
    pair.tell(messages.KeyedCancel(session, 0), route=STRANGER)
    assert pair.heard() == messages.Cancelled(session, 0, False)
    assert len(pair.router.queue) == 0


def test_g7_a_cancel_beside_another_that_waits_says_that_it_may_have_run():
    pair = Keyed(ready=False)
    pair.give_client()
    session = pair.stranger()
    pair.request(session, 0, caller=identifier(1))
    pair.request(session, 1, caller=identifier(2))
    pair.tell(messages.KeyedCancel(session, 0), route=STRANGER)
    assert pair.heard().started
    assert len(pair.router.queue) == 1


def test_g7_a_cancel_of_what_was_never_seen_may_have_run_for_others():
    pair = Keyed()
    session = pair.stranger()
    pair.tell(messages.KeyedCancel(session, 0), route=STRANGER)
    assert pair.heard() == messages.Cancelled(session, 0, True)


def test_a_limit_of_the_caller_is_his_alone():
    pair = Keyed(ready=False)
    pair.restart(proven=True)
    pair.auto_hello = False
    pair.call(limit_s=5.0)
    session = pair.stranger()
    pair.request(session)
    pair.advance(10.0)
    assert pair.failure().verdict is Verdict.MAY_HAVE_RUN  # for the stranger, it still may
    assert len(pair.router.queue) == 1


@pytest.mark.parametrize("others", [False, True])
def test_a_deadline_says_whether_the_work_goes_on(others: bool):
    pair = Keyed(ready=False)
    session = pair.stranger()
    pair.request(session, 0, deadline_s=5.0, caller=identifier(1))
    if others:
        pair.request(session, 1, caller=identifier(2))
    pair.advance(6.0)
    outcome = pair.heard()
    assert outcome.status is not Status.RESULT
    entry = pair.router.cache.sessions[session].entries[0]
    assert entry.kept is not None
    info = error_records.decode(entry.kept.frames[1])
    assert info.verdict is (Verdict.MAY_HAVE_RUN if others else Verdict.DID_NOT_RUN)
    assert len(pair.router.queue) == others


def test_a_goodbye_leaves_and_a_lost_lease_goes_on_counting():
    for goodbye in (True, False):
        pair = Keyed(server={"lease_s": 20.0})
        session = pair.stranger()
        pair.request(session)
        if goodbye:
            pair.tell(messages.Goodbye(session), route=STRANGER)
        else:
            pair.advance(21.0)
        assert session not in pair.router.cache.sessions or not goodbye
        assert generation(pair) is (GenerationState.CLOSED if goodbye else GenerationState.RUNNING)


def test_g4_a_caller_that_comes_back_takes_its_old_place():
    pair = Keyed(server={"lease_s": 20.0})
    pair.request(pair.stranger())
    pair.advance(21.0)
    pair.end()
    session = pair.stranger(905)
    pair.request(session)
    assert len(pair.runs) == 1
    assert pair.heard().status == Status.RESULT
    assert not pair.router.keys.generations[0].lost


def test_g8_retention_ends_and_the_next_ask_is_new_work():
    pair = Keyed()
    pair.call()
    pair.end()
    pair.receive(0)
    pair.advance(pair.keys.retention_s + 2.0)
    assert generation(pair) is GenerationState.CLOSED
    pair.call()
    assert len(pair.runs) == 2


def test_g4_retention_begins_when_the_last_has_left():
    pair = Keyed()
    pair.call()
    pair.end()
    pair.advance(pair.keys.retention_s + 2.0)  # and it was not received
    assert generation(pair) is GenerationState.COMPLETED


# -- commands -----------------------------------------------------------------


@pytest.mark.parametrize("tag", [0, b"", b"id"])
def test_g4_a_cancel_of_what_has_its_outcome_drops_nothing_and_says_so(tag: int | bytes):
    """The outcome was dropped, also before its caller had it, and the answer said that it was
    cancelled."""
    pair = Keyed()
    pair.call()
    pair.end()
    session = pair.stranger()
    for sequence in range(2):
        pair.request(session, sequence, b"", act=KeyAct.CANCEL, tag=tag)
        said = {"generation": None, "started": True, "finished": True}
        assert pair.answered(session, sequence) == said
        if sequence == 0:
            pair.receive(0)
    assert generation(pair) is GenerationState.COMPLETED
    pair.request(session, 2)
    assert pair.heard().status == Status.RESULT


@pytest.mark.parametrize("act", [KeyAct.CANCEL, KeyAct.FORGET])
def test_a_command_without_an_id_hits_nothing_when_its_request_is_sent_again(act: KeyAct):
    pair = Keyed()
    session = pair.stranger()
    pair.call()
    for _ in range(2):
        pair.request(session, 0, b"", act=act, tag=b"")
        if len(pair.runs) == 1:
            pair.end()  # what was cancelled, or was to be forgotten
        pair.call(body=b"other")
    pair.tell(messages.Finish(session, [0, 1]), route=STRANGER)
    pair.request(session, 0, b"", act=act, tag=b"")
    assert generation(pair, 0) is GenerationState.CLOSED
    assert generation(pair, 1) is GenerationState.RUNNING
    assert not pair.router.keys.commands.said


@pytest.mark.parametrize("act", [KeyAct.CANCEL, KeyAct.FORGET])
def test_a_command_without_an_id_that_is_issued_again_hits_nothing(act: KeyAct):
    """The session that had it is lost, and may have carried it out: what is there now may be
    another generation."""
    pair = Keyed()
    session = pair.stranger()
    pair.call()
    pair.request(session, 0, b"", act=act, tag=b"", earlier=0, gone=True)
    assert (pair.heard().code, pair.heard().delay_s) == ("unknown-key", None)
    assert generation(pair) is GenerationState.RUNNING
    pair.request(session, 1, b"", act=act, tag=b"id", earlier=0, gone=True)
    assert generation(pair) is GenerationState.CLOSED


def test_g8_commands_are_refused_for_now_at_their_bound():
    pair = Keyed()
    limit_keys(pair, commands=1)
    session = pair.stranger()
    pair.request(session, 0, b"", act=KeyAct.CANCEL, tag=b"one")
    pair.request(session, 1, b"", act=KeyAct.CANCEL, tag=b"two")
    assert (pair.heard().code, pair.heard().delay_s is None) == ("commands-full", False)


def test_what_cannot_be_a_key_is_refused():
    pair = Keyed()
    session = pair.stranger()
    pair.request(session, name=KeyName(b"", b"key"))
    assert (pair.heard().code, pair.heard().delay_s) == ("refused", None)
    assert pair.router.cache.sessions[session].state(0) is RequestState.NOT_SEEN


# -- generations --------------------------------------------------------------


def test_g1_the_next_generation_waits_for_the_end_of_the_last():
    pair = Keyed()
    pair.call()
    first = pair.runs[-1]
    pair.about(KeyAct.FORGET)
    pair.call()
    assert len(pair.runs) == 1
    assert generation(pair, 1) is GenerationState.HELD
    pair.end(first, status=Status.CANCELLED)
    assert len(pair.runs) == 2
    assert generation(pair, 1) is GenerationState.RUNNING


def test_g7_what_is_held_and_cancelled_never_starts():
    pair = Keyed()
    pair.call()
    pair.about(KeyAct.FORGET)
    pair.call()
    pair.about(KeyAct.CANCEL)
    said = pair.answers[-1]
    assert isinstance(said, Answer)
    assert cbor2.loads(said.body) == {"generation": 1, "started": False}
    pair.end(status=Status.CANCELLED)
    assert len(pair.runs) == 1


def test_g1_nothing_of_a_key_runs_beside_what_a_dying_worker_still_runs():
    pair = Keyed(workers=2)
    pair.call()
    worker = pair.runs[-1][0]
    pair.about(KeyAct.FORGET)
    pair.call()
    assert len(pair.runs) == 1
    pair.die(worker)
    assert len(pair.runs) == 2


@pytest.mark.parametrize("consent", [False, True])
def test_g2_its_worker_dies(consent: bool):
    pair = Keyed(workers=2, rerun=consent)
    pair.call()
    pair.die()
    assert len(pair.runs) == 1 + consent
    if not consent:
        assert pair.failure().code == "worker-lost"
        pair.call()  # and that is what everybody hears
        assert len(pair.runs) == 1
        assert pair.failure().code == "worker-lost"


# -- a server that was lost -------------------------------------------------------


@pytest.mark.parametrize(
    ("proven", "rerun", "runs"), [(True, True, 2), (True, False, 1), (False, True, 1)]
)
def test_g2_it_is_issued_again_only_by_proof_and_consent(proven: bool, rerun: bool, runs: int):
    pair = Keyed(rerun=rerun, client={"recovery_s": 20.0})
    pair.call()
    pair.restart(proven=proven)
    pair.advance(30.0)
    assert len(pair.runs) == runs
    if runs == 1:
        assert pair.failure().verdict is Verdict.MAY_HAVE_RUN


def test_it_is_issued_again_once_a_worker_has_said_what_it_consents_to():
    pair = Keyed(rerun=True)
    pair.call()
    pair.auto_hello = False
    pair.restart(proven=True)
    pair.advance(5.0)
    assert len(pair.runs) == 1
    assert not pair.answers
    pair.auto_hello = True
    for worker, core in pair.workers.items():
        pair.work(worker, core.take(EnvironmentReady(1, "env", True)))
    pair.advance(5.0)
    assert len(pair.runs) == 2


def test_g2_each_epoch_starts_its_part_of_the_allowance():
    pair = Keyed(rerun=True)
    session = pair.stranger()
    pair.request(session, allowance=4)
    own = next(s for s in pair.router.cache.sessions.values() if s.own)
    assert own.entries[0].allowance == 3
    pair.request(session, 1, name=KeyName(b"default", b"b"), allowance=4, earlier=3, gone=True)
    assert own.entries[1].allowance == 1


def test_a_session_that_was_forgotten_joins_what_still_runs():
    """The client slept for longer than its lease; its work went on."""
    pair = Keyed(server={"lease_s": 20.0}, client={"late_s": 1.0})
    pair.call()
    pair.router.dispatcher.end(pair.session, lost=True)
    pair.advance(3.0)
    pair.end()
    assert len(pair.runs) == 1
    assert isinstance(pair.last(), Answer)
    assert not pair.router.keys.generations[0].lost

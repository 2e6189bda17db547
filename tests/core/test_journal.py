"""What must be safe before what (G11): a router whose disk saves when it is told to."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest

from trio_envserve.core import error_records, messages
from trio_envserve.core.client import Answer
from trio_envserve.core.closing import ClosingStage
from trio_envserve.core.gate import BUDGET, RECORDS_OF_EACH
from trio_envserve.core.journal import (
    Closed,
    Commanded,
    Completed,
    Joined,
    Opened,
    Record,
    Started,
    plain_of,
    record_of,
    remains_of,
)
from trio_envserve.core.key_records import KeyAct, KeyName, input_digest
from trio_envserve.core.limits import KeyLimits
from trio_envserve.core.router_effects import Flush, ToWorker
from trio_envserve.core.router_inputs import (
    CloseAsked,
    PoolOpened,
    Restored,
    Saved,
    SaveFailed,
    WorkerMessage,
)
from trio_envserve.core.terms import ID_BYTES, Status, Verdict
from trio_envserve.core.work import PAGES, WorkState

from .helpers import NAME, STRANGER, identifier, named
from .keyed import AtDisk, Journaled, Keyed, crashed, crashed_with, fail, told


def test_g11_a_start_is_safe_before_its_dispatch():
    pair = Journaled.asked()
    digest = input_digest(b"body", None)
    opened = Opened(0, *NAME, digest, None, 4, 0, bytes(ID_BYTES), b"body")
    ((incarnation, _),) = [(w.incarnation, w) for w in pair.router.workforce.workers.values()]
    assert pair.records == [opened, Started(0, incarnation, 0)]
    assert not pair.runs
    assert not pair.router.behind  # nobody goes round and round while the disk is slow
    pair.disk(1)
    assert not pair.runs
    pair.disk()
    assert len(pair.runs) == 1


def test_g1_a_beat_does_not_name_a_dispatch_whose_start_is_not_safe():
    pair = Journaled.asked()
    pair.beat()
    assert (pair.runs, pair.kills) == ([], [])
    pair.disk()
    pair.beat()
    assert (len(pair.runs), pair.kills) == (1, [])


def test_g7_what_is_cancelled_before_its_start_is_safe_is_never_sent():
    pair = Journaled()
    number = pair.call()
    pair.cancel(number)
    assert pair.records[-1] == Closed(0)
    pair.disk()
    pair.beat()
    assert not pair.runs
    assert not pair.router.workforce.live_count()
    pair.call()
    pair.disk()
    assert len(pair.runs) == 1


def test_g7_a_stop_went_out_before_its_dispatch_which_then_began():
    """Its start had just become safe, in the turn in which a closing server answered the rest."""
    count = BUDGET + 8
    pair = Journaled(workers=1, server={"worker_capacity": count, "window": 2 * count})
    for number in range(count):
        pair.call(b"b%d" % number, named(number))
    started = len(pair.records)
    pair.give(CloseAsked(pair.now_s, ClosingStage.CANCELLING))
    assert pair.router.behind, "some are answered in later turns"
    pair.router_takes(Saved(started, pair.now_s))
    assert not any(isinstance(each, messages.Dispatch) for each in pair.to_workers)
    assert not pair.runs


def test_a_server_that_closed_counted_a_dispatch_that_waited_for_the_disk_as_an_outcome():
    pair = Journaled.asked()
    pair.close()
    closing = pair.router.status()["closing"]
    assert (closing["running"], closing["outcomes"]) == (1, 0)


def test_a_server_that_closed_waited_for_a_stuck_disk_with_a_dispatch_that_nobody_wanted():
    pair = Journaled()
    session = pair.stranger()
    pair.request(session)
    pair.tell(messages.Goodbye(session), route=STRANGER)
    pair.close()
    assert not pair.draining()
    pair.disk()
    assert not pair.runs


def test_g11_a_worker_that_died_before_it_was_sent_a_dispatch_is_sent_none():
    pair = Journaled.asked()
    pair.die(pair.spawns[0].worker)
    pair.disk()
    assert not pair.runs


def test_g11_an_outcome_is_safe_before_its_answer():
    pair = Journaled.running()
    pair.end(payload=b"outcome")
    completed = pair.records[-1]
    assert isinstance(completed, Completed)
    assert completed.frames[1] == b"outcome"
    pair.call()  # a second one has it no earlier
    pair.advance(5.0)
    assert not pair.answers
    assert not pair.router.behind
    pair.disk()
    assert [type(each) for each in pair.answers] == [Answer, Answer]


def test_g11_what_is_said_to_a_command_is_safe_before():
    pair = Journaled.running()
    pair.about(KeyAct.FORGET)
    pair.advance(5.0)
    assert isinstance(pair.records[-1], Commanded)
    assert Closed(0) in pair.records
    assert not pair.answers
    pair.disk()
    assert len(pair.answers) == 2  # it, and who waited


def test_calls_without_a_key_do_not_wait_for_the_disk():
    pair = Journaled.asked()
    pair.submit(b"plain")
    assert [run.body for _, run in pair.runs] == [b"plain"]
    pair.end()
    assert len(pair.answers) == 1
    pair.beat()
    pair.disk()
    pair.beat()
    assert [run.body for _, run in pair.runs] == [b"plain", b"body"]


def test_g11_what_is_said_to_a_cancel_of_a_call_is_safe_before():
    pair, session = Journaled.with_stranger()
    pair.request(session)
    pair.disk(1)
    pair.tell(messages.Cancel(session, 0), route=STRANGER)
    assert pair.records[-1] == Closed(0)
    assert not said_to_cancels(pair)
    pair.disk()
    assert said_to_cancels(pair) == [messages.Cancelled(session, 0, True)]
    pair.request(session, 1, name=KeyName(b"default", b"unsaved"))
    pair.tell(messages.Cancel(session, 2), route=STRANGER)  # without a key: at once
    pair.tell(messages.Cancel(session, 3), route=STRANGER)  # it was never taken in
    assert len(said_to_cancels(pair)) == 3


def said_to_cancels(pair: Journaled) -> list[messages.Message]:
    return pair.mailed(messages.Cancelled)


def test_g11_one_answer_is_held_for_who_asks_again_and_again_which_keys_there_are():
    pair = Journaled()
    pair.request(pair.stranger())
    for probe in range(3):
        pair.tell(messages.Query(probe, "keys", 0, b""), route=STRANGER)
    assert not pair.mailed(messages.QueryAnswer), "what it says is not safe yet"
    pair.disk()
    assert [m.probe for _, m in pair.mail if isinstance(m, messages.QueryAnswer)] == [0]
    pair.tell(messages.Query(3, "keys", 0, b""), route=STRANGER)
    assert pair.heard().probe == 3


@pytest.mark.parametrize("fails", [False, True])
def test_what_was_safe_is_answered_whatever_is_written_meanwhile(fails: bool):
    pair = Journaled.running()
    pair.end(payload=b"known")
    pair.disk()
    pair.call(name=KeyName(b"default", b"other"))
    if fails:
        fail(pair)
    pair.call()
    assert len(pair.answers) == 2
    pair.tell(messages.Query(1, "keys", 0, b""), route=STRANGER)
    assert bool(pair.mailed(messages.QueryAnswer)) is fails


# -- a disk that fails ----------------------------------------------------------------


def test_while_nothing_can_be_saved_new_keys_are_refused_with_the_reason():
    pair = Journaled.running()
    pair.end(payload=b"known")
    pair.disk()
    fail(pair)
    status = pair.router.status()
    assert (status["durable"], status["journal"]) == (False, "the disk is full")
    session = pair.stranger()
    pair.request(session, 0, name=KeyName(b"default", b"new"))
    assert (pair.heard().code, pair.heard().delay_s is None) == ("journal", False)
    assert "the disk is full" in pair.heard().text
    pair.request(session, 1)  # what is known is answered
    assert (pair.heard().sequence, pair.heard().status) == (1, Status.RESULT)
    pair.submit(b"plain")  # and what has no key runs
    assert pair.runs[-1][1].body == b"plain"
    pair.disk()
    assert pair.router.status()["durable"] is True
    assert "journal" not in pair.router.status()
    pair.request(session, 2, name=KeyName(b"default", b"new"))
    pair.disk()
    assert pair.runs[-1][1].body == b"body"


@pytest.mark.parametrize("fails", ["before the deadline", "after the deadline"])
def test_g9_who_waited_for_a_disk_that_fails_was_told_nothing_when_its_deadline_passed(fails: str):
    """It waited until the disk took all else, which may be hours."""
    pair = Journaled()
    pair.request(pair.stranger(), deadline_s=1.0)
    pair.disk()
    pair.end(payload=b"outcome")
    if fails == "after the deadline":
        pair.advance(1.5)
        assert not isinstance(pair.heard(), messages.Outcome), "what it will be told came first"
    fail(pair)
    pair.advance(1.5)
    said, payload = told(pair)
    assert error_records.decode(payload).verdict is Verdict.MAY_HAVE_RUN
    pair.disk()
    assert pair.heard() == said


def test_what_waited_for_a_record_goes_on_when_it_is_saved_after_all():
    pair = Journaled.asked()
    fail(pair)
    fail(pair)  # again, which is not said again
    assert len([report for report in pair.reports if "cannot save" in report.text]) == 1
    pair.advance(5.0)
    assert not pair.runs
    pair.disk()
    assert pair.reports[-1].text == "the journal saves again"
    assert len(pair.runs) == 1


def test_g9_what_waited_for_a_record_that_never_will_be_safe_may_have_run():
    pair = Journaled()
    pair.call()  # its start is not safe
    waiting = KeyName(b"default", b"waiting")
    session = pair.stranger()
    pair.request(session, name=waiting)
    pair.tell(messages.Cancel(session, 0), route=STRANGER)
    fail(pair, final=True)
    assert said_to_cancels(pair) == [messages.Cancelled(session, 0, True)]
    assert pair.failure().verdict is Verdict.MAY_HAVE_RUN
    assert pair.failure().code == "not-durable"
    assert "the disk is full" in pair.failure().message
    assert not pair.runs
    assert not pair.router.workforce.live_count()
    pair.disk()
    assert pair.router.status()["durable"] is False  # for ever
    fail(pair)
    assert not pair.router.behind


def test_g9_what_runs_while_the_journal_is_lost_ends_as_what_may_have_run():
    pair = Journaled.running(rerun=True)
    fail(pair, final=True)
    assert len(pair.runs) == 1
    assert not pair.answers
    pair.die(pair.spawns[0].worker)
    pair.advance(1.0)  # it would wait for another worker
    assert pair.failure().code == "not-durable"


def test_g10_the_end_of_the_journal_answers_no_more_in_one_turn_than_others():
    pair, session = Journaled.with_stranger(server={"queue": 5000, "window": 5000})
    for number in range(BUDGET + 10):
        pair.request(session, number, name=named(number))
    pair.give(SaveFailed("the disk is full", True, pair.now_s))
    assert len(pair.router.queue)
    pair.advance(2.0)
    assert not len(pair.router.queue)


# -- after a crash -----------------------------------------------------------------


def test_g11_what_waited_waits_again():
    first = Journaled.asked()
    other = crashed(first, 1)
    assert not other.runs  # its start is not safe
    other.disk()
    assert [run.body for _, run in other.runs] == [b"body"]
    other.end(payload=b"outcome")
    other.disk()
    assert told(other)[1] == b"outcome"


def test_g2_what_was_started_and_not_finished_does_not_run_again_without_consent():
    first = Journaled.asked()
    other = crashed(first)
    other.disk()
    assert not other.runs
    outcome, payload = told(other)
    assert (outcome.status, outcome.executions) == (Status.ERROR, 1)
    assert error_records.decode(payload).verdict is Verdict.MAY_HAVE_RUN


def test_g9_executions_of_a_server_before_were_told_as_those_of_one_session():
    first = Journaled(rerun=True)
    first.call(max_executions=2)
    other = crashed(first, rerun=True)
    other.disk()
    other.die(other.runs[0][0])
    other.disk()
    outcome, payload = told(other)
    assert outcome.executions == 2
    assert "executions of its key: 2 of 2 granted" in error_records.decode(payload).message


def test_g2_what_was_started_runs_again_by_consent_within_its_allowance():
    pair = Journaled.asked(rerun=True)
    records: list[Record] = []
    for started in range(1, 5):
        records += pair.records
        assert sum(isinstance(each, Started) for each in records) == started
        pair = crashed_with(records, rerun=True)
    pair.disk()
    assert not pair.runs
    assert told(pair)[0].executions == 4


def test_g11_what_was_answered_is_answered_again_byte_for_byte():
    first = Journaled.running()
    first.end(payload=b"outcome")
    other = crashed(first)
    assert not other.runs
    outcome, payload = told(other)
    assert (outcome.status, payload) == (Status.RESULT, b"outcome")


def test_g7_what_was_forgotten_is_not_there_again():
    first = Journaled.running()
    first.about(KeyAct.FORGET)
    other = crashed(first)
    assert other.heard().code == "unknown-key"
    assert not other.router.works.generations
    assert other.router.works.next_number == 1


def test_the_limit_and_the_grace_of_what_a_server_left_are_those_that_it_was_opened_with():
    first = Journaled()
    first.call(execution_s=65.0, grace_s=5.0)
    other = crashed(first, 1)
    other.disk()
    assert [run.late_s for _, run in other.runs] == [60.0]


def test_who_had_asked_counts_until_the_orphan_deadline():
    first = Journaled.asked()
    other = crashed(first, 1)
    other.disk()
    other.advance(21.0)
    assert other.cancels
    assert other.records[-1] == Closed(0)


def test_much_that_waited_goes_on_in_portions():
    caller = identifier(1)
    records: list[Record] = [
        Opened(n, b"default", b"%d" % n, bytes(32), None, 1, 0, caller, b"")
        for n in range(BUDGET + 1)
    ]
    other = Journaled(ready=False)
    other.give(Restored(records, other.now_s), PoolOpened((), other.now_s))
    generations = other.router.works.generations.values()
    assert [g.number for g in generations if g.state is WorkState.HELD] == [BUDGET]
    other.settle()
    assert all(g.state is WorkState.WAITING for g in generations)


@pytest.mark.parametrize(
    "record",
    [
        Opened(1, b"default", b"key", bytes(32), True, 4, 1, bytes(16), b"body"),
        Opened(1, b"n", b"key", bytes(32), None, 4, 1, bytes(16), b"body", bytes(16), 7),
        Opened(1, b"n", b"key", bytes(32), None, 4, 1, bytes(16), b"body", execution_s=2.5),
        Opened(1, b"n", b"key", bytes(32), None, 4, 1, bytes(16), b"body", bytes(16), 7, 2.5),
        Opened(1, b"n", b"key", bytes(32), None, 4, 1, bytes(16), b"body", bytes(16), 7, 2.5, 1.5),
        Opened(1, b"n", b"key", bytes(32), None, 4, 1, bytes(16), b"body", grace_s=1.5),
        Joined(1, bytes(16)),
        Started(1),
        Completed(1, (b"header", b"payload")),
        Closed(1),
        Commanded(True, b"default", b"key", b"tag", 1, True),
    ],
    ids=lambda record: type(record).__name__,
)
def test_a_record_is_the_same_from_plain_values(record: Record):
    again = record_of(plain_of(record))
    assert (type(again), again) == (type(record), record)


def test_lengths_can_stand_for_bodies():
    opened = Opened(1, b"default", b"key", bytes(32), None, 4, 0, bytes(16), b"body")
    assert record_of(plain_of(opened, len)) == opened._replace(body=bytes(4))
    completed = Completed(1, (b"header", b"payload"))
    assert record_of(plain_of(completed, len)) == Completed(1, (b"header", bytes(7)))


def test_what_is_over_may_be_there_without_its_beginning():
    """A journal drops the records of what is over, and knows the last number."""
    other = crashed_with([Closed(41)])
    other.call(name=KeyName(b"default", b"other"))
    assert {r.number for r in other.records if isinstance(r, Opened)} == {42}


def test_g11_first_start_in_the_record_that_opens_a_key_is_one_execution():
    opened = Opened(0, *NAME, bytes(32), None, 0, 1, bytes(ID_BYTES), b"body", identifier(3), 7)
    (left,) = remains_of([opened]).generations.values()
    assert (left.executions, left.opened.allowance, left.opened.earlier) == (1, 1, 0)
    assert left.last == (identifier(3), 7)


# -- A disk that is stuck, and what goes on being asked of keys meanwhile (G8) -

MOST = 10
"""Generations that there may be."""

LIMITS = KeyLimits(
    generations=MOST, retained_bytes=10_000, namespace_share=1.0, retention_s=64.0, orphan_s=20.0
)


Stuck = functools.partial(Journaled, keys=LIMITS)
"""A server whose disk saves nothing until it is told to."""

StuckAtRest = functools.partial(AtDisk, keys=LIMITS)
"""The same, which reads outcomes from its journal, too."""


def owed(pair: Journaled) -> tuple[int, int, int]:
    """Records and bytes that are not safe, and who waits for that."""
    journal, gate = pair.router.journal, pair.router.works.gate
    return journal.appended - journal.safe, journal.waiting_bytes, gate.waiting


def flood(pair: Journaled, session: bytes, first: int = 0) -> None:
    """Ask and cancel under ever new keys."""
    for number in range(first, first + 200):
        pair.request(session, number, name=named(number))
        pair.tell(messages.Cancel(session, number), route=STRANGER)


@pytest.mark.parametrize("kind", [Stuck, StuckAtRest], ids=["in memory", "at rest"])
def test_g8_who_asked_and_cancelled_under_ever_new_keys_filled_memory_while_a_disk_was_stuck(
    kind: Callable[..., Journaled],
):
    pair = kind(ready=False)
    session = pair.stranger()
    flood(pair, session)
    records, _, waiting = owed(pair)
    assert records <= RECORDS_OF_EACH * MOST + 1
    assert waiting <= RECORDS_OF_EACH * MOST
    pair.request(session, 200, name=named(200))
    refused = pair.heard()
    assert (refused.code, refused.delay_s is None) == ("journal", False)
    assert "not on the disk yet" in refused.text
    pair.disk()
    assert owed(pair) == (0, 0, 0)
    pair.request(session, 200, name=named(200))
    assert pair.router.works.open


def test_g8_the_inputs_of_what_was_cancelled_filled_memory_while_a_disk_was_stuck():
    pair = Stuck(ready=False)
    session = pair.stranger()
    for number in range(20):
        pair.request(session, number, bytes(4_000), name=named(number))
        pair.tell(messages.Cancel(session, number), route=STRANGER)
    assert owed(pair)[1] == 12_000
    pair.disk(1)
    assert owed(pair)[1] == 8_000
    pair.request(session, 20, bytes(4_000), name=named(20))
    assert owed(pair)[1] == 12_000
    pair.disk()
    assert owed(pair)[1] == 0


@pytest.mark.parametrize("act", [KeyAct.CANCEL, KeyAct.FORGET])
def test_g8_commands_that_hit_nothing_filled_memory_while_a_disk_was_stuck(act: KeyAct):
    pair = Stuck(ready=False)
    session = pair.stranger()
    pair.request(session, 0)
    for number in range(1, 400):
        pair.request(session, number, b"", act=act, tag=99, name=named(number))
        pair.tell(messages.Cancel(session, number), route=STRANGER)
    assert owed(pair)[2] <= 2 * RECORDS_OF_EACH * MOST + 2


def test_commands_end_work_where_requests_are_refused():
    pair = Stuck(ready=False)
    session = pair.stranger()
    pair.request(session, 0)
    flood(pair, session, 1)
    assert NAME in pair.router.works.open
    pair.request(session, 300, b"", act=KeyAct.CANCEL, tag=0)
    assert NAME not in pair.router.works.open
    pair.disk()
    assert pair.heard().status == Status.RESULT


def test_g8_pages_of_keys_filled_memory_while_a_disk_was_stuck():
    pair = Stuck(ready=False)
    pair.stranger()
    for turn in range(2):
        pair.call(name=named(turn))
        for number in range(3 * PAGES):
            pair.tell(messages.Query(1, "keys", 0, b"default"), route=b"route %d" % number)
        assert owed(pair)[2] == PAGES
        pair.disk()
        assert owed(pair)[2] == 0
    pair.tell(messages.Query(2, "keys", 0, b"default"), route=STRANGER)
    assert isinstance(pair.heard(), messages.QueryAnswer)


def test_what_was_let_in_goes_on_while_requests_are_refused():
    pair = Stuck()
    session = pair.stranger()
    number = pair.call(name=named(1000))
    pair.disk()
    flood(pair, session)
    pair.end(payload=b"outcome")
    pair.request(session, 300, b"", act=KeyAct.ATTACH, name=named(1000))
    assert pair.heard().code == "journal"  # this outcome is not safe, and would wait
    pair.disk()
    pair.receive(number)
    pair.request(session, 300, b"", act=KeyAct.ATTACH, name=named(1000))
    assert pair.heard().status == Status.RESULT


@pytest.mark.parametrize("kind", [Stuck, StuckAtRest], ids=["in memory", "at rest"])
def test_what_is_known_and_safe_is_told_while_requests_are_refused(kind: Callable[..., Journaled]):
    pair = kind()
    number = pair.call()
    pair.disk()
    pair.end(payload=b"out")
    pair.disk()
    pair.receive(number)
    pair.advance(1.0)
    pair.disk()
    session = pair.stranger()
    flood(pair, session)
    pair.request(session, 300, b"", act=KeyAct.ATTACH)
    pair.request(session, 301)
    if isinstance(pair, AtDisk):
        pair.read()
    told = pair.mailed(messages.Outcome)
    assert sorted((each.sequence, each.status) for each in told) == [
        (300, Status.RESULT), (301, Status.RESULT),
    ]  # fmt: skip
    pair.request(session, 302, b"", act=KeyAct.ATTACH, name=named(1000))
    assert pair.heard().code == "unknown-key"


def test_g9_a_journal_that_is_lost_owes_nothing_and_refuses_no_command_for_that():
    pair = Stuck(ready=False)
    session = pair.stranger()
    flood(pair, session)
    fail(pair, final=True)
    pair.request(session, 300, b"", act=KeyAct.CANCEL, tag=99)
    pair.advance(1.0)
    assert pair.heard().status == Status.ERROR  # it is told so, and that it is not durable


def test_g8_the_ends_of_retentions_filled_memory_while_a_disk_was_stuck():
    """Keys at rest may be millions; each leaves a record when its retention ends."""

    keys = KeyLimits(generations=2, namespace_share=1.0, retention_s=64.0)
    pair = AtDisk(keys=keys)
    for number in range(12):
        pair.run_one(name=named(number))
        pair.advance(8.0)
    assert pair.resting.all.keys
    pair.disk()
    for _ in range(100):
        pair.advance(2.0)
    assert not pair.router.behind
    assert owed(pair)[0] < RECORDS_OF_EACH * 2
    assert pair.resting.all.keys
    for _ in range(20):
        pair.disk()
        pair.advance(2.0)
    assert not pair.resting.all.keys


# -- What a simulated disk has found wrong with what must be safe before what --


def mail_of(pair: Journaled) -> list[messages.Message]:
    """What the stranger was told but its welcome."""
    return [message for _, message in pair.mail if not isinstance(message, messages.Welcome)]


# -- the end of a generation ----------------------------------------------------------


def test_g11_a_cancel_was_confirmed_before_what_it_had_ended_was_safe():
    """After a crash what had been cancelled waited again, and ran."""
    pair, session = Journaled.with_stranger(ready=False)
    pair.request(session)
    pair.disk()
    for _ in range(2):  # it comes again
        pair.tell(messages.Cancel(session, 0), route=STRANGER)
    assert isinstance(pair.records[-1], Closed)  # as tuples it and a Started are equal
    assert mail_of(pair) == []
    pair.disk()
    assert mail_of(pair) == [messages.Cancelled(session, 0, False)]


def test_a_cancel_is_confirmed_to_nobody_whose_session_is_gone():
    pair, session = Journaled.with_stranger(ready=False)
    pair.request(session)
    pair.tell(messages.Cancel(session, 0), route=STRANGER)
    pair.tell(messages.Goodbye(session), route=STRANGER)
    pair.disk()
    assert mail_of(pair) == []


def test_a_deadline_that_passed_while_the_outcome_was_saved_ended_the_server():
    """It answered the request, and then the outcome was there for one that was answered."""
    pair, session = Journaled.with_stranger()
    pair.request(session, deadline_s=5.0)
    pair.disk()
    pair.end(payload=b"outcome")
    pair.advance(6.0)
    assert mail_of(pair) == []
    pair.disk()
    (outcome,) = mail_of(pair)
    assert isinstance(outcome, messages.Outcome)
    assert outcome.status == Status.RESULT  # its completion had won


def test_what_was_decided_first_is_told_before_what_follows_is_sent():
    pair, session = Journaled.with_stranger()
    pair.request(session, 0)
    pair.about(KeyAct.CANCEL)
    pair.request(session, 1)
    out = pair.router.take(Saved(len(pair.records), pair.now_s))
    kinds = [type(effect) for effect in out]
    assert kinds.index(ToWorker) == len(kinds) - 1


# -- a journal that is lost --------------------------------------------------------------


def test_g9_what_waited_behind_much_that_ran_heard_nothing_of_the_end_of_the_journal():
    """Those that had been sent used up what one turn may end, at each tick again."""
    limits = {"queue": 5000, "window": 5000, "worker_capacity": BUDGET}
    pair, session = Journaled.with_stranger(server=limits)
    for number in range(BUDGET + 10):
        pair.request(session, number, name=named(number))
    pair.disk()
    assert len(pair.runs) == BUDGET
    fail(pair, final=True)
    assert pair.verdict_of(session, BUDGET) is Verdict.MAY_HAVE_RUN
    assert pair.verdict_of(session, BUDGET + 9) is Verdict.MAY_HAVE_RUN
    assert pair.router.workforce.live_count() == BUDGET  # what runs goes on


# -- what a journal has left ------------------------------------------------------------


def test_of_what_a_journal_had_counted_a_quarter_was_never_started():
    """It was held back for the next session, for which nobody could have counted."""
    pair = Journaled.asked(rerun=True)
    (work,) = pair.router.works.generations.values()
    assert work.allowance == 3  # who asked counts so many for this session
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
    said = Commanded(True, *NAME, tag, None, True)
    other = crashed_with([opened, Joined(0, identifier(6)), said])
    assert other.router.works.generations[0].lost == {identifier(5), identifier(6)}
    other.request(other.stranger(902), act=KeyAct.FORGET, tag=tag, body=b"")
    other.disk()
    assert 0 in other.router.works.generations  # it hits nothing else
    assert other.heard().status == Status.RESULT


# -- closing ----------------------------------------------------------------------------


@pytest.mark.parametrize("stage", [ClosingStage.DRAINING, ClosingStage.CANCELLING])
def test_g9_a_server_closed_before_its_answers_were_safe(stage: ClosingStage):
    """So nobody heard them."""
    pair, session = Journaled.with_stranger()
    pair.request(session)
    pair.disk()
    pair.close(stage)
    if stage is ClosingStage.DRAINING:
        pair.end()
        assert pair.router.closing.stage is stage
        assert pair.router.status()["closing"]["outcomes"] == 1
    pair.advance(2.0)
    assert pair.router.closing.stage is not ClosingStage.FLUSHING
    assert not [message for message in mail_of(pair) if isinstance(message, messages.Outcome)]
    pair.disk()
    assert [message for message in mail_of(pair) if isinstance(message, messages.Outcome)]


@pytest.mark.parametrize("act", [KeyAct.ASK, KeyAct.FORGET, KeyAct.CANCEL])
def test_g9_what_came_while_the_last_answers_left_waited_for_the_disk(act: KeyAct):
    """Nobody heard of it: the server was closed before that was safe."""
    pair, session = Journaled.with_stranger(ready=False)
    pair.give(CloseAsked(pair.now_s, ClosingStage.CANCELLING))
    pair.advance(0.5)
    assert pair.router.closing.stage is ClosingStage.FLUSHING
    pair.request(session, act=act)
    (refused,) = [said for said in mail_of(pair) if isinstance(said, messages.Refused)]
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
    pair.close(ClosingStage.DRAINING)
    pair.advance(0.5)
    assert not any(isinstance(effect, Flush) for effect in pair.said())
    pair.disk()
    may_have = Verdict.MAY_HAVE_RUN if started else Verdict.DID_NOT_RUN
    assert pair.verdict_of(session) is may_have


def test_g9_what_may_have_run_before_did_not_run_said_a_server_without_a_worker():
    """The same without a journal: who is back says that it may have run."""
    pair = Keyed(ready=False, rerun=True)
    environment = pair.router.works.environment
    environment.rerun = environment.is_known = True
    back, other = pair.stranger(), pair.stranger(901)
    pair.request(back, earlier=1, rerun=True)
    pair.request(other, rerun=True)
    pair.close(ClosingStage.DRAINING)
    assert pair.verdict_of(other) is Verdict.MAY_HAVE_RUN


# -- a worker that says what cannot be ------------------------------------------------


def test_g10_a_worker_ended_the_server_by_what_it_said_of_a_dispatch_that_was_not_sent():
    pair = Journaled.asked()
    ((worker, core),) = pair.workers.items()
    (execution,) = pair.router.workforce.workers[worker].live.values()
    said = messages.Announced(execution.session.id, execution.sequence, 0, 10)
    pair.give(WorkerMessage((worker, core.incarnation, messages.encode(said)), pair.now_s))
    pair.settle()
    assert [kill.worker for kill in pair.kills] == [worker]

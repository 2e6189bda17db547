"""What must be safe before what (G11): a router whose disk saves when it is told to."""

from __future__ import annotations

from typing import Any

import pytest

from trio_envserve.core import error_records, messages
from trio_envserve.core.client_effects import Answer
from trio_envserve.core.client_inputs import CallsCancelled
from trio_envserve.core.journal import (
    Cancelled,
    Closed,
    Commanded,
    Completed,
    Joined,
    Opened,
    Record,
    Started,
    plain_of,
    record_of,
)
from trio_envserve.core.key_records import GenerationState, KeyAct, KeyName, input_digest
from trio_envserve.core.keys import ENDED_AT_ONCE
from trio_envserve.core.restored import remains_of
from trio_envserve.core.router import Router
from trio_envserve.core.router_effects import Save, ToWorker
from trio_envserve.core.router_inputs import PoolOpened, Restored, Saved, SaveFailed
from trio_envserve.core.terms import ID_BYTES, Status, Verdict

from .helpers import STRANGER, decoded, identifier
from .keyed import NAME, OTHER, Keyed


class Journaled(Keyed):
    """A pair whose server has a journal."""

    def __init__(self, **how: Any) -> None:
        self.records: list[Record] = []
        """All that were given to the disk."""
        self.to_workers: list[messages.Message] = []
        super().__init__(**how)

    def new_router(self) -> Router:
        return Router(
            epoch=self.ids(), slots=self.slots, now_s=self.now_s, new_id=self.ids,
            limits=self.server_limits, wire=self.wire, heartbeats=self.heartbeats,
            keys=self.keys, journaled=True,
        )  # fmt: skip

    def _carry_out(self, effect: Any) -> None:
        if isinstance(effect, Save):
            self.records += effect.records
            assert effect.upto == len(self.records)
            return
        if isinstance(effect, ToWorker):
            self.to_workers.append(decoded(effect.frames[1:]))
        super()._carry_out(effect)

    def disk(self, upto: int | None = None) -> None:
        """So many records are safe; all, if no number is given."""
        while True:
            known = len(self.records)
            self.give(Saved(known if upto is None else upto, self.now_s))
            self.settle()
            if upto is not None or len(self.records) == known:
                return


def test_g11_a_start_is_safe_before_its_dispatch():
    pair = Journaled()
    pair.call()
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


def test_g11_no_repair_sends_a_dispatch_before_its_start_is_safe():
    pair = Journaled()
    pair.call()
    for _ in range(3):  # its worker misses it, and says so
        pair.beat()
    statement = pair.to_workers[-1]
    assert isinstance(statement, messages.Statement)
    assert statement.next == 1
    assert not pair.runs
    pair.disk()
    pair.beat()
    assert len(pair.runs) == 1


def test_g7_what_is_cancelled_before_its_start_is_safe_is_never_sent():
    pair = Journaled()
    number = pair.call()
    pair.give_client(CallsCancelled((number,), pair.now_s))
    pair.settle()
    assert pair.records[-1] == Closed(0)
    pair.disk()
    pair.beat()
    assert not pair.runs
    assert not pair.router.workforce.live_count()
    pair.call()
    pair.disk()
    assert len(pair.runs) == 1


def test_g11_a_worker_that_died_before_it_was_sent_a_dispatch_is_sent_none():
    pair = Journaled()
    pair.call()
    pair.die(pair.spawns[0].worker)
    pair.disk()
    assert not pair.runs


def test_g11_an_outcome_is_safe_before_its_answer():
    pair = Journaled()
    pair.call()
    pair.disk()
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
    pair = Journaled()
    pair.call()
    pair.disk()
    pair.about(KeyAct.FORGET)
    pair.advance(5.0)
    assert isinstance(pair.records[-1], Commanded)
    assert Closed(0) in pair.records
    assert not pair.answers
    pair.disk()
    assert len(pair.answers) == 2  # it, and who waited


def test_calls_without_a_key_do_not_wait_for_the_disk():
    pair = Journaled()
    pair.call()
    pair.submit(b"plain")
    assert [run.body for _, run in pair.runs] == [b"plain"]
    pair.end()
    assert len(pair.answers) == 1
    pair.beat()
    pair.disk()
    pair.beat()
    assert [run.body for _, run in pair.runs] == [b"plain", b"body"]


def test_g11_what_is_said_to_a_cancel_of_a_call_is_safe_before():
    pair = Journaled()
    session = pair.stranger()
    pair.request(session)
    pair.disk(1)
    pair.tell(messages.KeyedCancel(session, 0), route=STRANGER)
    assert pair.records[-1] == Closed(0)
    assert not said_to_cancels(pair)
    pair.disk()
    assert said_to_cancels(pair) == [messages.Cancelled(session, 0, True)]
    pair.request(session, 1, name=KeyName(b"default", b"unsaved"))
    pair.tell(messages.Cancel(session, 2), route=STRANGER)  # without a key: at once
    pair.tell(messages.KeyedCancel(session, 3), route=STRANGER)  # it was never taken in
    assert len(said_to_cancels(pair)) == 3


def said_to_cancels(pair: Journaled) -> list[messages.Message]:
    return [message for _, message in pair.mail if isinstance(message, messages.Cancelled)]


def test_g11_what_is_said_of_the_keys_that_are_there_is_safe_before():
    pair = Journaled()
    pair.request(pair.stranger())
    pair.tell(messages.AskKeys(1, b"", 0), route=STRANGER)
    assert not isinstance(pair.heard(), messages.KnownKeys)
    pair.disk()
    assert isinstance(pair.heard(), messages.KnownKeys)


def test_g8_who_asks_again_and_again_which_keys_there_are_is_held_one_answer():
    pair = Journaled()
    pair.request(pair.stranger())
    for probe in range(3):
        pair.tell(messages.AskKeys(probe, b"", 0), route=STRANGER)
    pair.disk()
    assert [m.probe for _, m in pair.mail if isinstance(m, messages.KnownKeys)] == [0]
    pair.tell(messages.AskKeys(3, b"", 0), route=STRANGER)
    assert pair.heard().probe == 3


def test_what_was_safe_is_answered_whatever_is_written_meanwhile():
    pair = Journaled()
    pair.call()
    pair.disk()
    pair.end(payload=b"known")
    pair.disk()
    pair.call(name=KeyName(b"default", b"other"))
    pair.call()
    assert len(pair.answers) == 2


# -- a disk that fails ----------------------------------------------------------------


def fail(pair: Journaled, *, final: bool = False) -> None:
    pair.give(SaveFailed("the disk is full", final, pair.now_s))
    pair.settle()


def test_while_nothing_can_be_saved_new_keys_are_refused_with_the_reason():
    pair = Journaled()
    pair.call()
    pair.disk()
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


def test_what_is_answered_meanwhile_does_not_wait_for_what_cannot_be_saved():
    pair = Journaled()
    pair.call()
    pair.disk()
    pair.end(payload=b"known")
    pair.disk()
    pair.call(name=KeyName(b"default", b"other"))
    fail(pair)
    pair.call()
    assert len(pair.answers) == 2
    pair.tell(messages.AskKeys(1, b"", 0), route=STRANGER)
    assert isinstance(pair.heard(), messages.KnownKeys)


def test_g9_a_deadline_that_passes_while_nothing_can_be_saved_says_that_it_may_have_run():
    pair = Journaled(ready=False)  # no worker is there yet
    pair.auto_hello = False
    pair.request(pair.stranger(), deadline_s=1.0)
    pair.disk()
    fail(pair)
    pair.advance(1.5)
    assert pair.records[-1] == Closed(0)
    assert error_records.decode(told(pair)[1]).verdict is Verdict.MAY_HAVE_RUN


def test_g9_a_deadline_that_passes_while_the_outcome_cannot_be_saved_is_kept():
    pair = Journaled()
    pair.request(pair.stranger(), deadline_s=1.0)
    pair.disk()
    pair.end(payload=b"outcome")
    fail(pair)
    pair.advance(1.5)
    said = pair.heard()
    assert isinstance(said, messages.Outcome)
    assert said.status == Status.ERROR
    pair.disk()
    assert pair.heard() == said


@pytest.mark.parametrize("what", ["its outcome", "the end of its key"])
def test_g9_who_waited_for_the_disk_when_the_deadline_passed_was_told_nothing_if_it_failed_later(
    what: str,
):
    """It waited until the disk took all else, which may be hours."""
    pair = Journaled(ready=what == "its outcome")
    pair.request(pair.stranger(), deadline_s=1.0)
    pair.disk()
    if what == "its outcome":
        pair.end(payload=b"outcome")
    pair.advance(1.5)
    assert not isinstance(pair.heard(), messages.Outcome), "what it will be told came first"
    fail(pair)
    pair.advance(1.5)
    said, payload = told(pair)
    assert error_records.decode(payload).verdict is Verdict.MAY_HAVE_RUN
    pair.disk()
    assert pair.heard() == said


def test_what_waited_for_a_record_goes_on_when_it_is_saved_after_all():
    pair = Journaled()
    pair.call()
    fail(pair)
    fail(pair)  # again, which is not said again
    assert len([report for report in pair.reports if "cannot save" in report.text]) == 1
    pair.advance(5.0)
    assert not pair.runs
    pair.disk()
    assert pair.reports[-1].text == "the journal saves again"
    assert len(pair.runs) == 1


def test_nothing_is_started_while_nothing_can_be_saved():
    pair = Journaled()
    pair.call()
    pair.disk(1)
    pair.die(pair.spawns[0].worker)
    pair.call(name=KeyName(b"default", b"second"))
    fail(pair)
    started = [record for record in pair.records if isinstance(record, Started)]
    pair.advance(5.0)
    assert [record for record in pair.records if isinstance(record, Started)] == started


def test_g9_what_waited_for_a_record_that_never_will_be_safe_may_have_run():
    pair = Journaled()
    pair.call()  # its start is not safe
    waiting = KeyName(b"default", b"waiting")
    session = pair.stranger()
    pair.request(session, name=waiting)
    pair.tell(messages.KeyedCancel(session, 0), route=STRANGER)
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
    pair = Journaled(rerun=True)
    pair.call()
    pair.disk()
    fail(pair, final=True)
    assert len(pair.runs) == 1
    assert not pair.answers
    pair.die(pair.spawns[0].worker)
    pair.advance(1.0)  # it would wait for another worker
    assert pair.failure().code == "not-durable"


def test_g10_the_end_of_the_journal_answers_no_more_in_one_turn_than_others():
    pair = Journaled(server={"queue": 5000, "window": 5000})
    session = pair.stranger()
    for number in range(ENDED_AT_ONCE + 10):
        pair.request(session, number, name=KeyName(b"default", b"%d" % number))
    pair.give(SaveFailed("the disk is full", True, pair.now_s))
    assert pair.router.cache.queued_count
    pair.advance(2.0)
    assert not pair.router.cache.queued_count


# -- after a crash -----------------------------------------------------------------


def crashed(pair: Journaled, safe: int | None = None, *, rerun: bool = False) -> Journaled:
    """Another server, with so much of the journal of the first one; all, if no number is
    given.  Somebody is attached to the key."""
    pair.disk()
    return crashed_with(pair.records[:safe], rerun=rerun)


def crashed_with(records: list[Record], *, rerun: bool = False) -> Journaled:
    other = Journaled(ready=False, rerun=rerun)
    other.auto_hello = True
    other.give(Restored(records, other.now_s), PoolOpened((), other.now_s))
    other.settle()
    other.request(other.stranger(), act=KeyAct.ATTACH)
    return other


def told(pair: Journaled) -> tuple[messages.Outcome, bytes]:
    """What the attached one was told."""
    outcome = pair.heard()
    assert isinstance(outcome, messages.Outcome)
    (kept,) = [e.kept for s in pair.router.cache.sessions.values() for e in s.entries.values()]
    assert kept is not None
    return outcome, bytes(kept.frames[1])


def test_g11_what_waited_waits_again():
    first = Journaled()
    first.call()
    other = crashed(first, 1)
    assert not other.runs  # its start is not safe
    other.disk()
    assert [run.body for _, run in other.runs] == [b"body"]
    other.end(payload=b"outcome")
    other.disk()
    assert told(other)[1] == b"outcome"


def test_g2_what_was_started_and_not_finished_does_not_run_again_without_consent():
    first = Journaled()
    first.call()
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
    pair = Journaled(rerun=True)
    pair.call()
    records: list[Record] = []
    for started in range(1, 5):
        records += pair.records
        assert sum(isinstance(each, Started) for each in records) == started
        pair = crashed_with(records, rerun=True)
    pair.disk()
    assert not pair.runs
    assert told(pair)[0].executions == 4


def test_g11_what_was_answered_is_answered_again_byte_for_byte():
    first = Journaled()
    first.call()
    first.disk()
    first.end(payload=b"outcome")
    other = crashed(first)
    assert not other.runs
    outcome, payload = told(other)
    assert (outcome.status, payload) == (Status.RESULT, b"outcome")


def test_g7_what_was_forgotten_is_not_there_again():
    first = Journaled()
    first.call()
    first.disk()
    first.about(KeyAct.FORGET)
    other = crashed(first)
    assert other.heard().code == "unknown-key"
    assert not other.router.keys.generations
    assert other.router.keys.next_number == 1


def test_g7_a_cancel_that_came_first_is_remembered_and_used_up_once():
    first = Journaled()
    first.about(KeyAct.CANCEL)
    first.call()
    for safe, hit in ((1, True), (2, False)):
        other = crashed(first, safe)
        other.call()
        other.disk()
        assert len(other.runs) == (not hit)


def test_who_had_asked_counts_until_the_orphan_deadline():
    first = Journaled()
    first.call()
    other = crashed(first, 1)
    other.disk()
    other.advance(21.0)
    assert other.cancels
    assert other.records[-1] == Closed(0)


def test_who_had_joined_counts_too():
    first = Journaled()
    first.call()
    first.request(first.stranger())
    other = crashed_with([each for each in first.records if not isinstance(each, Started)])
    (generation,) = other.router.keys.generations.values()
    opened = first.records[0]
    assert isinstance(opened, Opened)
    assert generation.lost == {opened.caller, OTHER}


def test_what_is_forgotten_before_it_could_go_on_is_not_entered():
    first = Journaled()
    first.call()
    records = first.records
    other = Journaled(ready=False)
    other.auto_hello = True
    other.give(Restored(records, other.now_s))  # a worker is to say first what it consents to
    other.settle()
    other.request(other.stranger(), act=KeyAct.FORGET, tag=other.ids())
    other.give(PoolOpened((), other.now_s))
    other.disk()
    assert not other.runs
    assert not other.router.keys.generations


def test_much_that_waited_goes_on_in_portions():
    caller = identifier(1)
    records: list[Record] = [
        Opened(n, b"default", b"%d" % n, bytes(32), None, 1, 0, caller, b"")
        for n in range(ENDED_AT_ONCE + 1)
    ]
    other = Journaled(ready=False)
    other.give(Restored(records, other.now_s), PoolOpened((), other.now_s))
    generations = other.router.keys.generations.values()
    assert [g.number for g in generations if g.state is GenerationState.HELD] == [ENDED_AT_ONCE]
    other.settle()
    assert all(g.state is GenerationState.WAITING for g in generations)


@pytest.mark.parametrize(
    "record",
    [
        Opened(1, b"default", b"key", bytes(32), True, 4, 1, bytes(16), b"body"),
        Opened(1, b"n", b"key", bytes(32), None, 4, 1, bytes(16), b"body", bytes(16), 7),
        Opened(1, b"n", b"key", bytes(32), None, 4, 1, bytes(16), b"body", execution_s=2.5),
        Opened(1, b"n", b"key", bytes(32), None, 4, 1, bytes(16), b"body", bytes(16), 7, 2.5),
        Joined(1, bytes(16)),
        Started(1),
        Completed(1, (b"header", b"payload")),
        Closed(1),
        Cancelled(b"default", b"key"),
        Commanded(True, b"default", b"key", b"tag", 1, True, False),
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
    other = crashed_with([Closed(41), Cancelled(*NAME)])
    other.call(name=KeyName(b"default", b"other"))
    assert {r.number for r in other.records if isinstance(r, Opened)} == {42}


def test_g11_first_start_in_the_record_that_opens_a_key_is_one_execution():
    opened = Opened(0, *NAME, bytes(32), None, 0, 1, bytes(ID_BYTES), b"body", identifier(3), 7)
    (left,) = remains_of([opened]).generations.values()
    assert (left.executions, left.opened.allowance, left.opened.earlier) == (1, 1, 0)
    assert left.last == (identifier(3), 7)

"""Saved states: what is kept of them, for whom, and when their worker is told."""

from __future__ import annotations

from typing import Any

import pytest

from trio_envserve.core import messages
from trio_envserve.core.journal import (
    Completed,
    Record,
    Started,
    StateSaved,
    plain_of,
    record_of,
    remains_of,
)
from trio_envserve.core.key_records import KeyAct, KeyName
from trio_envserve.core.limits import KIB
from trio_envserve.core.router_inputs import Exited, PoolOpened, Restored, WorkerBack
from trio_envserve.core.terms import Status
from trio_envserve.core.work import WorkState
from trio_envserve.core.worker import SaveEnded

from .helpers import FIRST, Pair, body_of_weight, identifier, limit_keys
from .keyed import Journaled, Keyed, fail

SAFE = SaveEnded(0, "")


def told(pair: Pair) -> list[str]:
    """How each save has ended; empty: it is safe."""
    return [ended.refused for _, ended in pair.saves]


def consenting(**how: Any) -> Pair:
    """A pair whose client has asked for what may run again."""
    pair = Pair(**how)
    pair.submit(rerun=True)
    return pair


def saved(pair: Pair) -> list[bytes | None]:
    """What each execution began with."""
    return [None if run.saved is None else bytes(run.saved) for _, run in pair.runs]


def held_bytes(pair: Pair) -> tuple[int, int]:
    """Bytes of bodies and states that are held: of all, and of the client."""
    return pair.router.accounts.all.held_bytes, pair.session.account.held_bytes


# -- without a journal -------------------------------------------------------------


def test_a_further_execution_begins_with_the_newest_state_that_was_saved():
    pair = consenting()
    pair.save(b"one")
    pair.save(b"two")
    assert pair.saves == [(FIRST, SAFE), (FIRST, SAFE)]
    pair.die()
    assert saved(pair) == [None, b"two"]
    assert [bytes(run.body) for _, run in pair.runs] == [b"body", b"body"]
    pair.die()
    assert saved(pair)[-1] == b"two", "what has saved nothing takes nothing away"
    pair.end()
    assert pair.result(0) == b"outcome"
    assert held_bytes(pair) == (0, 0)


def test_what_may_not_run_again_saves_in_vain_and_is_told_that_all_is_well():
    pair = Pair()
    pair.submit(rerun=False)
    before = held_bytes(pair)
    pair.save(b"state")
    assert told(pair) == [""]
    assert held_bytes(pair) == before
    pair.die()
    assert "states saved before: 1" in pair.failure().message


@pytest.mark.parametrize(
    "wrong", [{"number": 7}, {"incarnation": identifier(555)}], ids=["number", "incarnation"]
)
def test_g5_a_save_of_a_dispatch_that_there_is_not_changes_nothing(wrong: dict[str, Any]):
    pair = consenting()
    incarnation = wrong.pop("incarnation", None)
    save = messages.WorkerSave(pair.session.id, 0, 0, 1)._replace(**wrong)
    pair.from_worker(save, b"lie", incarnation=incarnation)
    assert told(pair) == []
    pair.die()
    assert saved(pair) == [None, None]


def test_g5_a_save_of_another_request_ends_its_worker():
    pair = consenting()
    pair.from_worker(messages.WorkerSave(pair.session.id, 9, 0, 1), b"lie")
    assert pair.router.malformed == 1
    assert [kill.worker for kill in pair.kills] == [FIRST]


@pytest.mark.parametrize("announced", [False, True])
def test_g5_a_save_after_the_outcome_changes_nothing(announced: bool):
    pair = consenting()
    held = held_bytes(pair) if announced else (0, 0)
    with pair.losing(messages.Fetch):
        pair.end(payload=bytes(70 * KIB if announced else 7))
        pair.from_worker(messages.WorkerSave(pair.session.id, 0, 0, 1), b"late")
    assert (told(pair), held_bytes(pair)) == ([], held)


def test_a_save_of_a_worker_that_never_said_hello_changes_nothing():
    pair = consenting()
    pair.router.workforce.workers.pop(FIRST)
    pair.from_worker(messages.WorkerSave(pair.session.id, 0, 0, 1), b"early")
    assert told(pair) == []


def test_g7_what_was_cancelled_saves_nothing():
    pair = consenting()
    with pair.losing(messages.Stop):
        pair.cancel(0)
    pair.save(b"state")
    (refused,) = told(pair)
    assert "nothing goes on from here" in refused
    assert pair.router.accounts.all.held_bytes == 0


# -- bounds ------------------------------------------------------------------------


def test_g8_a_state_that_is_too_large_is_refused_by_its_worker_and_the_one_before_stays():
    pair = consenting(server={"save_bytes": 8})
    pair.workers[FIRST].save_bytes = 8
    pair.save(b"small")
    pair.save(b"not small")
    assert told(pair)[1] == "it has 9 bytes, and 8 are allowed (save_bytes)"
    pair.save(b"again")
    pair.die()
    assert saved(pair) == [None, b"again"]


def test_g8_input_and_state_together_fit_into_a_message():
    pair = Pair(wire={"message_bytes": 32 * KIB, "header_bytes": 32 * KIB})
    pair.submit(bytes(20 * KIB), rerun=True)
    pair.save(bytes(12 * KIB))
    pair.save(bytes(12 * KIB + 1))
    safe, refused = told(pair)
    assert safe == ""
    assert refused.startswith(f"it has {12 * KIB + 1} bytes, and {12 * KIB} are allowed")


def test_g8_states_count_as_bodies_of_their_account_and_the_next_is_refused():
    pair = consenting(server={"queue_bytes": 200})
    pair.save(b"." * 50)
    assert held_bytes(pair) == (54, 54)
    pair.save(b"." * 20)
    assert held_bytes(pair) == (24, 24)
    pair.save(b"." * 100)
    assert "there is no room for 80 bytes more of this caller (queue_bytes)" in told(pair)[-1]
    assert held_bytes(pair) == (24, 24)
    pair.die()
    assert saved(pair)[-1] == b"." * 20
    pair.end()
    assert held_bytes(pair) == (0, 0)


def test_g8_a_state_counts_by_what_its_value_costs():
    pair = consenting()
    pair.save(body_of_weight(1000))
    assert held_bytes(pair) == (1004, 1004)
    pair.cancel(0)
    pair.beat()
    assert pair.router.accounts.all.held_bytes == 0


# -- with a journal ----------------------------------------------------------------


def states(records: list[Record]) -> list[StateSaved]:
    return [each for each in records if isinstance(each, StateSaved)]


def restored(records: list[Record], *, rerun: bool = True) -> Journaled:
    """The next server, whose workers have said hello."""
    other = Journaled(ready=False, rerun=rerun)
    other.auto_hello = True
    other.router_takes(Restored(records, other.now_s), PoolOpened((), other.now_s))
    return other


def test_g11_a_worker_is_told_once_its_state_is_safe():
    pair = Journaled.running(rerun=True)
    pair.save(b"state")
    assert told(pair) == []
    assert states(pair.records) == [StateSaved(0, 1, 1, b"state")]
    pair.beat()  # it comes again meanwhile
    pair.beat()
    assert len(states(pair.records)) == 1
    pair.disk()
    assert told(pair) == [""]


def test_g11_another_save_before_the_first_is_answered_is_ignored():
    pair = Journaled.running(rerun=True)
    work = pair.router.works.generations[0]
    execution = work.execution
    assert execution is not None
    pair.save(b"one")
    pair.from_worker(messages.WorkerSave(work.account.id, 0, 0, 2), b"two")
    pair.disk()
    assert (told(pair), execution.saves, work.saved) == ([""], 1, b"one")


def test_g11_the_next_server_goes_on_from_the_newest_state():
    pair = Journaled.running(rerun=True)
    for state in (b"one", b"two"):
        pair.save(state)
        pair.disk()
    other = restored(pair.records)
    other.disk()
    assert saved(other) == [b"two"]
    work = other.router.works.generations[0]
    assert (work.saves, work.weight) == (2, len(b"body") + len(b"two"))
    other.save(b"three")
    other.disk()
    assert told(other) == [""]
    assert states(other.records)[-1] == StateSaved(0, 1, 3, b"three")
    other.end()
    other.disk()
    assert other.router.accounts.all.held_bytes == 0


def test_g11_what_may_not_run_again_is_told_how_often_it_had_saved():
    pair = Journaled.running(rerun=True)
    pair.save(b"state")
    pair.disk()
    other = restored(pair.records, rerun=False)
    (completed,) = [each for each in other.records if isinstance(each, Completed)]
    assert b"executions: 1; states saved before: 1" in bytes(completed.frames[1])
    assert other.router.accounts.all.held_bytes == 0


def test_g11_the_state_of_what_consents_no_more_is_for_a_server_whose_environment_does():
    pair = Journaled.running(rerun=False)
    pair.save(b"state")
    pair.disk()
    assert told(pair) == [""]
    assert pair.router.works.generations[0].saved is None
    other = restored(pair.records, rerun=True)
    other.disk()
    assert saved(other) == [b"state"]


def test_g11_an_outcome_leaves_no_state_to_the_next_server():
    pair = Journaled.running(rerun=True)
    pair.save(b"state")
    pair.disk()
    pair.end()
    pair.disk()
    other = restored(pair.records)
    work = other.router.works.generations[0]
    assert (work.state, work.saved) == (WorkState.COMPLETED, None)
    assert work.size_bytes == work.own_bytes + work.outcome.size_bytes  # type: ignore[union-attr]  # it has one


def test_a_state_of_one_generation_is_not_the_next_ones():
    pair = Keyed.asked(rerun=True)
    pair.save(b"state")
    pair.about(KeyAct.FORGET)
    pair.beat()
    pair.end(status=Status.CANCELLED)
    pair.call(rerun=True)
    assert saved(pair) == [None, None]


def test_g11_a_disk_that_has_failed_for_good_has_no_state_and_says_so():
    pair = Journaled.running(rerun=True)
    pair.save(b"one")
    fail(pair, final=True)
    assert told(pair) == ["for now: the journal cannot save it: the disk is full"]
    pair.save(b"two")
    assert told(pair)[1:] == ["for now: the journal cannot save it: the disk is full"]


def test_g8_a_disk_that_is_far_behind_gets_no_more_states():
    pair = Journaled.running(rerun=True)
    pair.call(name=KeyName(b"default", b"other"), rerun=True)
    limit_keys(pair, retained_bytes=4)
    pair.save(b"state", pair.runs[0])
    assert told(pair) == [
        "for now: the journal cannot save it: what came before is not on the disk yet"
    ]
    pair.disk()
    pair.save(b"state", pair.runs[0])
    pair.disk()
    assert told(pair)[1:] == [""]


def test_a_worker_that_has_died_meanwhile_is_told_nothing():
    pair = Journaled.running(rerun=True)
    pair.save(b"state")
    pair.to_workers.clear()
    pair.die()
    pair.disk()
    assert messages.SaveAnswer not in map(type, pair.to_workers)
    assert saved(pair) == [None, b"state"]


# -- workers of hosts, with the next router ------------------------------------------


def back(pair: Journaled, records: list[Record], *more: Exited, arrived: int = 1) -> Journaled:
    """The next server, to which the worker of the first one comes back, where so many dispatches
    have arrived, and what its host says besides."""
    core = pair.workers[FIRST]
    other = Journaled(ready=False, rerun=True)
    other.router_takes(Restored(records, other.now_s))
    hello = messages.encode(messages.WorkerHello(2, 1, "env", True, 256))
    running = [0, 1] * arrived
    given = WorkerBack(FIRST, 0, core.incarnation, 7, False, hello, arrived, running, other.now_s)
    if not more:
        other.workers[FIRST] = core
    other.router._follow([given, *more], other.now_s)
    other.auto_hello = True
    other.open_pool()
    return other


def test_g9_a_dispatch_that_is_sent_again_by_the_next_router_says_when_its_rollout_is_late():
    """Its grace was forgotten with the router before."""
    pair = Journaled(rerun=True)
    with pair.losing(messages.Dispatch):
        pair.call(execution_s=65.0, grace_s=5.0)
        pair.disk()
    other = back(pair, pair.records, arrived=0)
    assert [run.late_s for _, run in other.runs] == [60.0]


def test_a_worker_that_comes_back_sends_the_save_that_nobody_has_answered():
    pair = Journaled.running(rerun=True)
    pair.save(b"one")
    pair.disk()
    pair.save(b"two")  # its record is lost with the server
    other = back(pair, pair.records[:-1])
    assert other.runs == []
    other.disk()
    assert told(other) == [""]
    assert states(other.records) == [StateSaved(0, 2, 2, b"two")]


def test_g11_an_earlier_save_that_comes_to_the_next_router_replaces_nothing():
    """A host sends again what the router before may not have taken."""
    pair = Journaled.running(rerun=True)
    for state in (b"one", b"two"):
        pair.save(state)
        pair.disk()
    other = back(pair, pair.records)
    for save, state in ((1, b"one"), (2, b"two")):
        message = messages.WorkerSave(identifier(99), 0, 0, save)  # the id of before
        other.from_worker(message, state)
    assert states(other.records) == []
    assert other.router.works.generations[0].saved == b"two"
    assert other.to_workers[-1] == messages.SaveAnswer(0, 2, "")


def test_a_save_of_what_the_next_router_does_not_know_is_refused():
    pair = Journaled.running(rerun=True)
    other = back(pair, [])
    other.from_worker(messages.WorkerSave(identifier(99), 0, 0, 1), b"state")
    answer = other.to_workers[-1]
    assert isinstance(answer, messages.SaveAnswer)
    assert "nothing goes on from here" in answer.refused


# -- records -----------------------------------------------------------------------


def test_a_record_of_a_state_is_read_as_it_was_written():
    record = StateSaved(3, 2, 5, b"state")
    assert record_of(plain_of(record)) == record
    assert record_of(plain_of(record, len)) == record._replace(body=bytes(5))


def test_g11_saves_are_counted_anew_for_each_execution():
    pair = Journaled.running(rerun=True)
    pair.save(b"one")
    pair.disk()
    left = remains_of(pair.records).generations[0]
    assert (left.saved, left.last_save, left.saves) == (b"one", 1, 1)
    left = remains_of([*pair.records, Started(0, identifier(5), 0)]).generations[0]
    assert (left.saved, left.last_save, left.saves) == (b"one", 0, 1)

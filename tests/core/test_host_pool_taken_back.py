"""A router with a journal takes back what a host runs for the one before."""

from __future__ import annotations

from typing import Any

import pytest

from trio_envserve.core import error_records, messages
from trio_envserve.core.journal import Record
from trio_envserve.core.key_records import KeyAct, KeyName
from trio_envserve.core.lives import Phase
from trio_envserve.core.ranges import Ranges
from trio_envserve.core.router_inputs import (
    Exited,
    HostsDead,
    HostsLive,
    PoolOpened,
    Restored,
    WorkerBack,
    WorkerMessage,
)
from trio_envserve.core.terms import Status, Verdict

from .test_journal import Journaled, told

WORKER, BEFORE = b"w0-1", b"b" * 16
HELLO = messages.encode(messages.WorkerHello(1, 7, "env", False, 256))


class Followed(Journaled):
    """The router that follows that of another pair, whose only worker lives on."""

    def __init__(
        self, first: Journaled, records: list[Record] | None = None, *, rerun: bool = False
    ) -> None:
        super().__init__(ready=False, workers=0, rerun=rerun)
        self.now_s = first.now_s
        self.first = first
        self.core = first.workers[WORKER]
        saved = first.records if records is None else records
        self.give(Restored(saved, self.now_s), HostsLive(self.now_s), PoolOpened((), self.now_s))
        self.settle()
        self.slots_of_host = self.router.pool.open_slots(1, "host", "-tag")

    def back(
        self, *running: int, next: int = 1, hello: bytes = HELLO, is_to_end: bool = False
    ) -> None:
        self.workers[WORKER] = self.core
        slot, spans = self.slots_of_host[0].index, Ranges(running).flat()
        self.give(
            WorkerBack(
                WORKER, slot, self.core.incarnation, 7, is_to_end, hello, next, spans, self.now_s
            )
        )
        self.settle()

    def attach(self) -> None:
        self.request(self.stranger(), act=KeyAct.ATTACH)
        self.disk()

    @property
    def unknown(self) -> int:
        return self.router.dispatcher.dispatches.unknown.live_executions


def running(*, rerun: bool = False) -> Journaled:
    """A key that runs, which is safe."""
    first = Journaled(rerun=rerun)
    first.call()
    first.disk()
    assert len(first.runs) == 1
    return first


def test_g2_what_runs_goes_on_and_is_answered_by_the_next_router():
    first = running()
    other = Followed(first)
    other.attach()
    other.back(0)
    assert not other.runs
    assert other.router.pool.lives[WORKER].phase is Phase.READY
    assert other.router.pool.lives[WORKER].held, "no work before it is known to hold its lease"
    assert not other.unknown
    other.runs = first.runs
    other.end(payload=b"outcome")
    other.disk()
    outcome, payload = told(other)
    assert (outcome.status, payload, outcome.executions) == (Status.RESULT, b"outcome", 1)
    assert len(first.runs) == 1


def test_what_was_dispatched_before_is_not_counted_as_dispatched_again():
    other = Followed(running())
    other.back(0)
    counters = other.router.cache.counters
    assert (counters.dispatched, counters.reruns) == (0, 0)


def test_nothing_is_said_before_what_runs_is_merged():
    first = running()
    other = Followed(first)
    said: list[Any] = []
    other.to_workers = said
    other.back(0)
    (statement,) = said
    assert (statement.live, statement.cancelled, statement.next) == ([0, 1], [], 1)


def test_numbers_go_on_above_what_the_journal_has_and_the_host_has_not_seen():
    first = Journaled()
    first.lose = lambda message: isinstance(message, messages.Dispatch)
    first.call()
    first.disk()
    assert not first.runs
    other = Followed(first)
    other.back(next=0)
    worker = other.router.workforce.workers[WORKER]
    assert worker.next_number == 1
    other.beat()
    assert [run.body for _, run in other.runs] == [b"body"], "it is sent again with its number"
    assert list(other.core.running) == [0]


def test_what_the_journal_does_not_know_is_stopped_and_holds_the_dead_epoch():
    first = Journaled()
    first.submit(b"without a key")
    assert len(first.runs) == 1
    other = Followed(first)
    other.back(0)
    assert other.unknown == 1
    assert other.cancels == [(WORKER, 0)]
    other.runs = first.runs
    other.end(status=Status.CANCELLED, payload=b"")
    assert not other.unknown
    other.give(HostsDead([BEFORE], other.now_s))
    other.settle()
    assert BEFORE in other.router.dead_epochs


def test_no_key_begins_before_all_of_the_router_before_is_dead():
    first = Journaled()
    first.call()  # its start is not safe
    other = Followed(first, first.records[:1])
    other.back(next=0)
    other.router.pool.lives[WORKER].held = False
    other.request(other.stranger(), body=b"another", name=KeyName(b"default", b"new"))
    other.advance(0.5)
    other.disk()
    assert not other.runs
    assert not other.router.behind
    other.give(HostsDead([BEFORE], other.now_s))
    other.disk()
    assert sorted(bytes(run.body) for _, run in other.runs) == [b"another", b"body"]


def test_an_outcome_that_the_router_before_had_and_lost_may_have_run():
    first = running()
    saved = list(first.records)
    first.end(payload=b"outcome")
    first.beat()  # the worker drops it
    other = Followed(first, saved)
    other.attach()
    other.back()
    other.disk()
    outcome, payload = told(other)
    assert (outcome.status, outcome.executions) == (Status.ERROR, 1)
    assert error_records.decode(payload).verdict is Verdict.MAY_HAVE_RUN


def test_what_the_router_before_had_begun_to_cancel_is_not_cancelled_for_others():
    first = running()
    saved = list(first.records)
    first.about(KeyAct.CANCEL)
    assert first.cancels
    other = Followed(first, saved)
    other.attach()
    other.back(0)
    other.runs = first.runs
    other.end(status=Status.CANCELLED, payload=b"")
    other.disk()
    _, payload = told(other)
    assert error_records.decode(payload).verdict is Verdict.MAY_HAVE_RUN


def test_what_is_lost_after_all_runs_again_by_consent():
    first = running(rerun=True)
    other = Followed(first, rerun=True)
    other.back(0, hello=messages.encode(messages.WorkerHello(1, 7, "env", True, 256)))
    other.give(HostsDead([BEFORE], other.now_s))
    other.workers.clear()
    other.auto_hello = True
    other.give(Exited(WORKER, other.now_s, "its host is gone"))
    other.advance(5.0)
    other.disk()
    assert [run.body for _, run in other.runs] == [b"body"]
    assert other.router.keys.generations[0].executions == 2


def test_what_was_cancelled_meanwhile_is_stopped():
    first = running()
    other = Followed(first)
    other.request(other.stranger(), act=KeyAct.CANCEL, tag=other.ids())
    other.disk()
    other.back(0)
    assert other.cancels == [(WORKER, 0)]
    assert other.unknown == 1


def test_what_was_cancelled_meanwhile_and_never_arrived_is_nothing():
    first = Journaled()
    first.lose = lambda message: isinstance(message, messages.Dispatch)
    first.call()
    first.disk()
    other = Followed(first)
    other.request(other.stranger(), act=KeyAct.CANCEL, tag=other.ids())
    other.disk()
    other.back(next=0)
    assert not other.cancels
    assert not other.unknown


def test_a_worker_that_has_not_said_hello_says_it_to_the_next_router():
    first = running()
    other = Followed(first, [])
    other.back(hello=b"", next=0)
    assert WORKER not in other.router.workforce.workers
    life = other.router.pool.lives[WORKER]
    assert (life.phase, life.pid) == (Phase.STARTING, 7)
    other.give(WorkerMessage([WORKER, life.incarnation, HELLO], other.now_s))
    assert life.phase is Phase.READY


def test_what_is_no_hello_makes_no_worker():
    other = Followed(running(), [])
    other.back(hello=messages.encode(messages.Beat(1, [], {})))
    assert WORKER not in other.router.workforce.workers


def test_a_worker_without_a_place_ends_and_its_work_with_it():
    first = running()
    other = Followed(first)
    other.attach()
    other.back(0, is_to_end=True)
    assert other.router.pool.lives[WORKER].phase is Phase.ENDING
    assert other.slots_of_host[0].life is None
    other.give(Exited(WORKER, other.now_s, "killed"))
    other.advance(5.0)
    other.disk()
    _, payload = told(other)
    assert error_records.decode(payload).verdict is Verdict.MAY_HAVE_RUN


def test_an_announced_outcome_is_announced_to_the_next_router_too(
    monkeypatch: pytest.MonkeyPatch,
):
    first = running()
    monkeypatch.setattr(first.router.dispatcher.announced, "grant", list)  # it has no room
    large = bytes(first.workers[WORKER].announce_bytes + 1)
    first.end(payload=large)
    first.beat()
    first.beat()
    other = Followed(first)
    other.attach()
    other.back()
    other.beat()
    other.beat()
    other.disk()
    assert told(other)[1] == large

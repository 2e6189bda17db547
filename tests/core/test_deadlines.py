"""Deadlines of requests, limits of executions, and answers in portions."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trio_envserve.core import deadlines, error_records, messages
from trio_envserve.core.client_effects import Answer
from trio_envserve.core.closing import ClosingStage
from trio_envserve.core.deadlines import ANSWERS_AT_ONCE
from trio_envserve.core.key_records import KeyAct, KeyName
from trio_envserve.core.keys import ENDED_AT_ONCE
from trio_envserve.core.router_effects import ToClient
from trio_envserve.core.router_inputs import (
    ClientMessage,
    CloseAsked,
    PoolOpened,
    Resume,
    RouterInput,
    Tick,
)
from trio_envserve.core.terms import Status, Verdict

from .helpers import STRANGER, Pair, decoded
from .keyed import Keyed

LIMIT = {"execution_s": 60}


def error(pair: Pair) -> tuple[str, Verdict, str]:
    """The error of the last answer."""
    answer = pair.answers[-1]
    assert isinstance(answer, Answer)
    info = error_records.decode(answer.body)
    return info.code, info.verdict, info.message


def test_what_lasts_too_long_is_stopped_and_its_caller_told_so():
    pair = Pair.asked(server=LIMIT, rerun=True)
    pair.beat()
    pair.advance(59.0)
    assert not pair.answers
    pair.advance(2.0)
    code, verdict, text = error(pair)
    assert (code, verdict) == ("execution-limit", Verdict.RAN_AND_FAILED)
    assert text.startswith("the 60 s that this server lets an execution last (execution_s)")
    assert [number for _, number in pair.cancels] == [0]
    pair.end(status=Status.CANCELLED)
    pair.advance(100.0)
    assert (len(pair.answers), len(pair.runs)) == (1, 1)


def test_what_may_not_have_arrived_may_have_run():
    pair = Pair.asked(server=LIMIT)
    pair.advance(61.0)  # no beat has said so
    assert error(pair)[:2] == ("no-answer", Verdict.MAY_HAVE_RUN)


def test_g10_many_that_are_too_old_together_are_answered_in_portions(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(deadlines, "ANSWERS_AT_ONCE", 2)
    pair = Pair(server=LIMIT)
    pair.submit_many(5)
    pair.advance(61.0)
    assert len(pair.answers) == 5


def test_g8_limits_of_executions_that_have_ended_are_dropped():
    pair = Pair(server={"execution_s": 100_000})
    for _ in range(3000):
        pair.submit()
        pair.end()
        pair.answers.clear()
    pair.advance(1.0)
    assert len(pair.router.dispatcher.deadlines._limited) < 1024


@settings(max_examples=50, deadline=None)
@given(
    server_s=st.none() | st.integers(1, 20),
    calls=st.lists(st.none() | st.integers(1, 20), min_size=1, max_size=6),
    ends=st.lists(st.integers(1, 25), min_size=6, max_size=6),
)
def test_each_execution_ends_by_itself_or_at_the_smaller_limit(
    server_s: int | None, calls: list[int | None], ends: list[int]
):
    pair = Pair(server={"execution_s": server_s})
    for own_s in calls:
        pair.submit(execution_s=own_s)
    pair.beat()
    expected = {}
    for number, own_s in enumerate(calls):
        limit_s = min((each for each in (server_s, own_s) if each is not None), default=None)
        runs_out = limit_s is not None and limit_s < ends[number]
        expected[number] = (limit_s, Status.ERROR) if runs_out else (ends[number], Status.RESULT)
    told: dict[int, tuple[float | None, Status]] = {}
    for second in range(1, 27):
        pair.advance(0.5)
        for number, run in enumerate(pair.runs):
            if ends[number] == second and number not in told:
                pair.end(run)
        pair.advance(0.5)
        for answer in pair.answers:
            assert isinstance(answer, Answer)
            told.setdefault(answer.call, (second, answer.status))
    assert told == expected


def test_the_limit_of_a_key_is_that_of_the_ask_that_opened_it():
    pair = Keyed()
    pair.call(execution_s=5.0)
    pair.call(execution_s=50.0)
    pair.call()
    pair.beat()
    pair.advance(6.0)
    assert len(pair.answers) == 3
    assert error(pair)[0] == "execution-limit"
    other = Keyed.asked()
    other.call(execution_s=5.0)
    other.advance(50.0)
    assert not other.answers


# -- portions ---------------------------------------------------------------------------
# What ends many requests at once answers them in portions, so that no turn of the loop is
# long: a server that closed answered 4,000 in one, which took 143 ms (G10).

WAITING = 2 * ANSWERS_AT_ONCE + 10


def with_many_waiting(deadline_s: float | None = None, *, ready: bool = True) -> Pair:
    """One runs, if a worker is ready, and so many wait."""
    pair, session = Pair.with_stranger(
        ready=ready, welcomed=False, server={"worker_capacity": 1, "window": 4096}
    )
    for sequence in range(WAITING + ready):
        pair.ask(session, sequence, deadline_s=deadline_s)
    assert pair.router.cache.queued_count == WAITING
    assert not pair.router.behind
    return pair


def turns(pair: Pair, given: RouterInput) -> list[list[int]]:
    """The sequences that are answered in each turn, until none is due."""
    found: list[list[int]] = []
    while not found or pair.router.behind:
        sent = [decoded(e.frames) for e in pair.router.take(given) if isinstance(e, ToClient)]
        found.append([each.sequence for each in sent if isinstance(each, messages.Outcome)])
        given = Resume(pair.now_s)
    return found


def test_a_closing_server_answered_all_that_waited_in_one_turn():
    pair = with_many_waiting()
    told = turns(pair, CloseAsked(pair.now_s))
    assert [len(each) for each in told] == [ANSWERS_AT_ONCE, ANSWERS_AT_ONCE, 10]
    assert [*chain(*told)] == list(range(1, WAITING + 1))
    assert pair.router.closing.stage is ClosingStage.DRAINING


def test_a_tick_answered_all_with_one_deadline_in_one_turn():
    pair = with_many_waiting(5.0)
    pair.now_s += 6.0
    told = turns(pair, Tick(pair.now_s))
    assert [len(each) for each in told] == [ANSWERS_AT_ONCE, ANSWERS_AT_ONCE, 11]
    assert sorted(chain(*told)) == list(range(WAITING + 1))


def test_a_server_without_hope_answered_all_that_waited_in_one_turn(
    monkeypatch: pytest.MonkeyPatch,
):
    pair = with_many_waiting(ready=False)
    pair.give(PoolOpened((), pair.now_s))
    pool = pair.router.pool
    monkeypatch.setattr(pool, "broken", "a traceback")
    monkeypatch.setattr(type(pool), "is_broken_for_good", lambda self: True)
    pair.router.take(Tick(pair.now_s))
    told = turns(pair, Tick(pair.now_s))  # time goes on, too
    assert [len(each) for each in told] == [ANSWERS_AT_ONCE, 10]


def test_leases_that_ended_together_took_one_turn_for_all_of_their_requests():
    pair = Pair(welcomed=False, server={"worker_capacity": 1, "lease_s": 20.0})
    sessions = [pair.stranger(901 + number) for number in range(6)]
    for session in sessions:
        for sequence in range(ANSWERS_AT_ONCE // 2):
            pair.ask(session, sequence)
    ended = [0]
    for _ in range(23):
        pair.now_s += 1.0
        pair.give(Tick(pair.now_s))
        ended.append(pair.router.cache.counters.sessions_ended)
    assert ended[-4:] == [0, 2, 4, 6]
    assert not pair.router.cache.queued_count


# -- many that wait for keys ------------------------------------------------------------
# The goodbye of a client with 16,384 of them took 187 ms, its finish as long.

KEYED = 2 * ENDED_AT_ONCE + 10


def key(number: int) -> KeyName:
    return KeyName(b"default", b"%d" % number)


def with_many_keys() -> tuple[Keyed, bytes]:
    """A stranger waits for as many keys, of which one runs; its session."""
    pair, session = Keyed.with_stranger(server={"worker_capacity": 1, "window": 4096})
    for sequence in range(KEYED):
        pair.request(session, sequence, name=key(sequence))
    assert len(pair.router.keys.generations) == KEYED
    return pair, session


@pytest.mark.parametrize("how", ["goodbye", "finish", "sync"])
def test_all_that_waited_for_keys_left_in_one_turn(how: str):
    pair, session = with_many_keys()
    said: dict[str, messages.Message] = {
        "goodbye": messages.Goodbye(session),
        "finish": messages.Finish(session, [0, KEYED]),
        "sync": messages.Sync(session, pair.router.epoch, 1, 1, KEYED, []),
    }
    given: RouterInput = ClientMessage(STRANGER, (messages.encode(said[how]),), pair.now_s)
    left: list[int] = []
    while not left or pair.router.behind:
        pair.give(given)
        left.append(len(pair.router.keys.open))
        given = Resume(pair.now_s)
    assert left == [ENDED_AT_ONCE + 10, 10, 0]
    pair.settle()
    assert len(pair.cancels) == 1


def test_a_lease_that_ended_lost_all_its_waiters_in_one_turn():
    pair, session = with_many_keys()
    pair.router.dispatcher.end(pair.router.cache.sessions[session], lost=True)
    assert len(pair.router.keys.orphans) == ENDED_AT_ONCE
    pair.settle()
    assert len(pair.router.keys.orphans) == KEYED
    assert not pair.cancels


def test_an_outcome_may_come_before_who_waits_for_it_had_time_to_leave():
    pair, session = with_many_keys()
    for _ in range(ENDED_AT_ONCE):  # so that what runs is not among the first that leave
        pair.end()
    running = pair.router.keys.generations[ENDED_AT_ONCE]
    pair.give(ClientMessage(STRANGER, (messages.encode(messages.Goodbye(session)),), pair.now_s))
    assert running.waiters
    pair.end()
    assert running.number in pair.router.keys.retained
    assert not pair.router.behind


# Who waits for one key is answered together, and so were those of all keys that ended
# together: 30,000 who waited for 1,000 keys were answered in one turn, in 415 ms.

KEYS, WATCHERS = 60, 50


def with_many_watchers(deadline_s: float | None = None) -> tuple[Keyed, bytes]:
    """As many wait for each of many keys, of which one runs: one that counts, first of all,
    and who has attached.  And the session of all of them."""
    pair, session = Keyed.with_stranger(server={"worker_capacity": 1, "window": 4096})
    for number in range(KEYS):
        pair.request(session, number, name=key(number), deadline_s=deadline_s)
    for number in range(KEYS, KEYS * (1 + WATCHERS)):
        pair.request(session, number, b"", act=KeyAct.ATTACH, name=key(number % KEYS))
    assert pair.router.cache.queued_count > 2 * ENDED_AT_ONCE
    assert not pair.router.behind
    return pair, session


def test_a_closing_server_answered_all_who_waited_for_its_keys_in_one_turn():
    pair, _ = with_many_watchers()
    told = turns(pair, CloseAsked(pair.now_s))
    assert max(map(len, told)) <= ENDED_AT_ONCE
    assert sum(map(len, told)) == (KEYS - 1) * (1 + WATCHERS)
    assert pair.router.closing.stage is ClosingStage.DRAINING


def test_deadlines_that_passed_together_ended_the_keys_of_all_who_had_attached_in_one_turn():
    pair, _ = with_many_watchers(5.0)
    pair.now_s += 6.0
    told = turns(pair, Tick(pair.now_s))
    assert max(map(len, told)) <= ENDED_AT_ONCE + KEYS
    assert sum(map(len, told)) == KEYS * (1 + WATCHERS)


def test_those_who_counted_left_together_and_all_who_had_attached_were_told_in_one_turn():
    pair, session = with_many_watchers()
    finish = messages.encode(messages.Finish(session, [0, KEYS]))
    told = turns(pair, ClientMessage(STRANGER, (finish,), pair.now_s))
    assert max(map(len, told)) <= ENDED_AT_ONCE
    assert sum(map(len, told)) == KEYS * WATCHERS


@pytest.mark.parametrize(
    "waiting", [with_many_waiting, lambda: with_many_watchers()[0]], ids=["plain", "for keys"]
)
def test_closing_goes_on_only_when_nobody_waits_for_an_answer(waiting: Callable[[], Pair]):
    pair = waiting()
    pair.router.take(CloseAsked(pair.now_s))
    pair.now_s += 10 * pair.server_limits.drain_s  # the loop was held up
    pair.router.take(Tick(pair.now_s))
    assert pair.router.behind
    while pair.router.behind:
        assert pair.router.closing.stage is ClosingStage.DRAINING
        pair.router.take(Resume(pair.now_s))
    assert pair.router.closing.stage is not ClosingStage.DRAINING


def test_who_has_left_meanwhile_is_not_answered_and_who_is_late_gets_what_is_there():
    pair, session = with_many_watchers(5.0)
    pair.now_s += 4.0
    sent = [e for e in pair.router.take(CloseAsked(pair.now_s)) if isinstance(e, ToClient)]
    first = {each.message.sequence for each in sent if isinstance(each.message, messages.Outcome)}
    asked = [n for n in range(1, KEYS) if n not in first]  # one ran, and was not answered
    assert len(asked) > 2
    gone = asked.pop()
    finish = messages.encode(messages.Finish(session, [gone, gone + 1]))
    pair.router.take(ClientMessage(STRANGER, (finish,), pair.now_s))
    pair.now_s += 2.0  # the deadlines pass before the answers are given
    found = turns(pair, Tick(pair.now_s))
    assert max(map(len, found)) <= ENDED_AT_ONCE + KEYS
    told = [*chain(*found)]
    assert sorted(each for each in told if each < KEYS) == [0, *asked]
    assert len({*told}) == len(told)

"""Accounts: the share rule, at every bound; and what each has used (G8)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_envserve.core import messages
from trio_envserve.core.account import WHOLE, Account, Accounts, Usage
from trio_envserve.core.client import OutcomeReceived
from trio_envserve.core.key_records import KeyName
from trio_envserve.core.limits import KeyLimits, ServerLimits
from trio_envserve.core.messages import Refused

from .bench import Bench
from .helpers import NAME, Pair, identifier


def accounts_with(keys: KeyLimits | None = None, **limits: Any) -> Accounts:
    return Accounts(ServerLimits(**limits), keys or KeyLimits())


def of(accounts: Accounts, number: int) -> Account:
    """The account of a new session."""
    return accounts.of_session(identifier(number), f"client {number}")


def namespace_of(accounts: Accounts, namespace: bytes) -> Account:
    known = accounts.namespaces.get(namespace)
    return known or accounts.open(namespace, namespace.ljust(16, b"."))


# -- the queue --------------------------------------------------------------------

# By bound: limits, and requests (client, sequence, bytes) with the code of each refusal.
BOUNDS: dict[str, tuple[dict[str, Any], list[tuple[int, int, int, str]]]] = {
    "of the window": (
        {"window": 2}, [(1, 0, 4, ""), (1, 1, 4, ""), (1, 2, 4, "window"), (1, 1, 4, "")],
    ),
    "of the queue": (
        {"queue": 2, "session_share": 1.0},
        [(1, 0, 4, ""), (2, 0, 4, ""), (1, 1, 4, "queue-full")],
    ),
    "of a full queue, for who has nothing in it": (
        {"queue": 2, "sessions": 10, "session_share": 1.0},
        [(1, 0, 4, ""), (1, 1, 4, ""), (2, 0, 4, "")],
    ),
    "of a session in the queue": (
        {"queue": 4, "session_share": 0.5},
        [(1, 0, 4, ""), (1, 1, 4, ""), (1, 2, 4, "queue-full"), (2, 0, 4, "")],
    ),
    "of bytes that the others leave": (
        {"queue_bytes": 100, "sessions": 10, "session_share": 0.5},
        [(2, 0, 40, ""), (1, 0, 10, ""), (1, 1, 21, "queue-full"), (1, 1, 20, "")],
    ),
    "of bytes in all": (
        {"queue_bytes": 100, "session_share": 0.5},
        [
            (1, 0, 40, ""), (1, 1, 20, "queue-full"), (2, 0, 50, ""), (3, 0, 11, "queue-full"),
            (3, 0, 10, ""),
        ],
    ),
    "of bytes, for one body that is larger": (
        {"queue_bytes": 10}, [(1, 0, 1000, ""), (2, 0, 1, "queue-full")],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("limits", "requests"), BOUNDS.values(), ids=BOUNDS)
def test_g8_a_request_past_a_bound_is_refused_for_now(limits, requests):
    bench = Bench(**limits)
    refused = 0
    for number, sequence, size, code in requests:
        told = bench.ask(number, sequence, body=b"x" * size)
        assert told == ([(number, sequence, code)] if code else [])
        assert bench.session(number).has_seen(sequence) is not bool(code)
        refused += bool(code)
    assert bench.works.counters.refused_for_now == refused


def test_deadlines_of_waiting_requests_grew_the_kept_outcomes_past_all_bounds():
    """Each left the queue, which made room for the next (G8)."""
    bench = Bench(queue=3, kept_outcomes=2, session_share=1.0)
    for sequence in range(20):
        for number in (1, 2, 3):
            bench.ask(number, sequence)
            ticket = bench.session(number).tickets.get(sequence)
            assert ticket is None or bench.works.expire(ticket)
            bench.turn()
    taken = bench.accounts.all
    assert taken.waiting == taken.kept_unrun
    assert taken.kept_count + len(bench.works.queue) <= 3 + 2
    ticket = bench.session(1).tickets[0]
    assert bench.works.expire(ticket), "a deadline that comes again changes nothing"
    assert bench.turn() == []


def test_one_session_filled_the_queue_for_all_with_large_bodies():
    """Only the kept outcomes had a share for each session (G8)."""
    pair = Pair(ready=False, server={"queue_bytes": 1000})
    pair.submit_many(5, b"x" * 200)
    assert pair.router.accounts.all.held_bytes == 400
    pair.ask(pair.stranger(), body=b"y" * 400)
    assert pair.router.accounts.all.held_bytes == 800


def test_g8_a_body_is_held_no_longer_than_it_can_be_needed():
    bench = Bench()
    bench.ask(1, body=b"body", rerun=True, allowance=3)
    work, taken = bench.own(), bench.accounts.all
    assert taken.held_bytes == work.account.held_bytes == 4
    execution = bench.dispatch(work)
    assert taken.held_bytes == 4
    bench.dies(execution)
    bench.dispatch(work)  # the last one allowed
    assert taken.held_bytes == work.account.held_bytes == 0
    assert work.body is None


def test_g8_a_namespace_waits_when_too_many_have_work():
    accounts = accounts_with(KeyLimits(namespaces=2))
    for namespace in (b"a", b"b"):
        accounts.wait(namespace_of(accounts, namespace), +1)
        accounts.at_work.add(namespace)
    assert not accounts.may_work(b"c", 0)
    assert accounts.may_work(b"a", 0)
    accounts.wait(namespace_of(accounts, b"a"), -1)
    assert accounts.may_work(b"c", 0)
    assert accounts.at_work == {b"b"}


# -- deadlines of what never ran ----------------------------------------------------
# A client with a full worker asked for 10,000 more with a short deadline and was then
# suspended.  Each ended with "it did not run", which is an outcome and is kept; at the
# bound of kept outcomes the server dispatched nothing more, for anybody, until the
# lease of that client had ended: ten minutes.
#
# What never ran takes up room of its session's share of the queue, and stops nobody.


CAPACITY, KEPT, QUEUE = 2, 6, 20


def with_deadlines_passed(count: int) -> Pair:
    """A client fills the worker, and fetches none of ``count`` that were too late."""
    pair, session = Pair.with_stranger(
        server={"kept_outcomes": KEPT, "worker_capacity": CAPACITY, "queue": QUEUE}
    )
    for sequence in range(CAPACITY):
        pair.ask(session, sequence)
    for sequence in range(CAPACITY, CAPACITY + count):
        pair.ask(session, sequence, deadline_s=0.1)
        pair.advance(0.25)
    return pair


def test_another_client_runs_as_much_as_before():
    pair = with_deadlines_passed(KEPT + 1)
    assert pair.router.accounts.all.kept_count == KEPT + 1
    for run in pair.runs[:]:
        pair.end(run)
    pair.submit()
    pair.submit()
    assert len(pair.runs) == 2 * CAPACITY  # a server full of outcomes would let one run


def test_they_are_bounded_as_the_queue_is_and_leave_room_in_it_for_others():
    pair = with_deadlines_passed(3 * QUEUE)
    assert pair.router.accounts.all.kept_count == QUEUE / 2
    assert isinstance(pair.heard(), Refused)
    pair.submit()
    assert len(pair.router.queue) == 1


# -- failures that servers of this kind are known for --------------------------------


def test_failure_05_kept_outcome_is_evicted_at_the_entry_limit():
    """The same past the entry limit: the oldest outcome makes room for the newest, and
    its client's retry runs again.

    Here nothing that has run is thrown away for what has not (G8): at the bound
    dispatching pauses, and goes on when clients have their outcomes.
    """
    pair = Pair(rerun=True, server={"kept_outcomes": 4, "session_share": 1.0})
    pair.lose = lambda message: isinstance(message, messages.Outcome)
    bodies = [b"%d" % number for number in range(12)]
    calls = [pair.submit(body) for body in bodies]
    pair.end_what_runs()
    pair.advance(5.0)

    pair.lose = lambda message: False
    taken: set[int] = set()
    for _ in range(10):
        pair.advance(2.0)
        pair.end_what_runs()
        pair.receive(*pair.endings.keys() - taken)
        taken.update(pair.endings)
    assert sorted(bytes(run.body) for _, run in pair.runs) == sorted(bodies), "each once"
    assert [pair.result(call) for call in calls] == [b"outcome of " + body for body in bodies]


def test_failure_17_kept_outcomes_are_bounded_in_number_but_not_in_bytes():
    """10,000 outcomes may be kept, of 5 MB each.

    Here bytes have a bound too, in all and for each session (G8): past it dispatching
    pauses, so what is kept is at most the bound and what was running.
    """
    bound, size, at_once = 40_000, 5_000, 2
    limits = {"kept_bytes": bound, "session_share": 1.0, "worker_capacity": at_once}
    pair = Pair(server=limits)
    pair.lose = lambda message: isinstance(message, messages.Outcome)
    calls = [pair.submit(b"%d" % number) for number in range(50)]
    pair.end_what_runs(bytes(size))
    kept_bytes = pair.router.stats()["kept_bytes"]
    assert bound <= kept_bytes <= bound + at_once * 2 * size, "kept without a bound"
    assert len(pair.runs) < len(calls), "the rest waits"

    pair.lose = lambda message: False
    taken: set[int] = set()
    for _ in range(20):
        pair.advance(2.0)
        pair.receive(*pair.endings.keys() - taken)
        taken.update(pair.endings)
        pair.end_what_runs(bytes(size))
    assert len(taken) == len(pair.runs) == len(calls)


# -- shares: those who never give back leave enough for the others --------------------

KEPT_MOST = 800
AT_ONCE = 64


def takes_all_it_may(accounts: Accounts, account: Account, size_bytes: int = 1) -> int:
    """It asks, never fetches, and asks again: how many of its outcomes are kept then."""
    while accounts.may_run(account):
        accounts.keep(account, +1, size_bytes, ran=True)
    return account.kept_count


def asks_all_it_may(accounts: Accounts, account: Account) -> int:
    """How many of its requests wait then."""
    while accounts.may_wait(account, 0):
        accounts.wait(account, +1)
    return account.waiting


def test_each_session_takes_its_share_of_what_the_others_leave():
    accounts = accounts_with(kept_outcomes=KEPT_MOST, session_share=0.5)
    hogs = [of(accounts, number) for number in range(4)]
    for hog in hogs:
        accounts.keep(hog, +1, 1, ran=False)  # this takes a place in the queue, and none here
    assert [takes_all_it_may(accounts, hog) for hog in hogs] == [401, 201, 101, 51]


def keeps_another(accounts: Accounts, account: Account) -> None:
    accounts.keep(account, +1, 0, ran=True)


def keeps_a_byte(accounts: Accounts, account: Account) -> None:
    accounts.reserve(account, +1)


def announces_a_byte(accounts: Accounts, account: Account) -> None:
    accounts.announce(account, +1)


@pytest.mark.parametrize(
    ("bound", "takes"),
    [
        ("kept_outcomes", keeps_another), ("kept_bytes", keeps_a_byte),
        ("announced_bytes", announces_a_byte),
    ],
)  # fmt: skip
def test_g8_a_session_that_runs_something_takes_its_share_of_each_bound_and_no_more(bound, takes):
    accounts = accounts_with(None, session_share=0.5, **{bound: 800})
    shares = []
    for number in range(4):
        account, share = of(accounts, number), 0
        accounts.keep(account, +1, 0, ran=True)
        while accounts.may_run(account):
            takes(accounts, account)
            share += 1
        shares.append(share + (bound == "kept_outcomes"))
    assert shares == [400, 200, 100, 50]


def hogs_and_one(
    takes: Callable[[Accounts, Account], int], **limits: Any
) -> tuple[Accounts, Account]:
    """So many sessions that took all they could that nothing is left, and another one."""
    accounts = accounts_with(sessions=100, session_share=0.5, **limits)
    for number in range(50):
        takes(accounts, of(accounts, number))
    return accounts, of(accounts, 60)


def test_many_sessions_that_never_finish_left_no_room_in_the_queue_for_any_other():
    """An honest client stood still until their leases ended."""
    accounts, honest = hogs_and_one(asks_all_it_may, queue=800)
    assert accounts.all.waiting >= 800
    assert asks_all_it_may(accounts, honest) == 8  # its own part: a hundredth


def test_many_sessions_that_never_finish_leave_each_other_its_own_part():
    accounts, honest = hogs_and_one(takes_all_it_may, kept_outcomes=800)
    assert accounts.all.kept_count >= 800
    assert takes_all_it_may(accounts, honest) == 8


@given(
    sessions=st.integers(1, 40), bound=st.integers(1, 2000), share=st.floats(0.1, 1.0),
    namespaces=st.integers(0, 20),
)  # fmt: skip
def test_g8_all_shares_and_parts_together_are_at_most_twice_a_bound(
    sessions: int, bound: int, share: float, namespaces: int
):
    keys = KeyLimits(namespaces=10, namespace_share=share)
    accounts = accounts_with(keys, sessions=sessions, session_share=share, kept_outcomes=bound)
    every = [of(accounts, number) for number in range(sessions)]
    every += [namespace_of(accounts, b"%d" % number) for number in range(namespaces)]
    for account in every:
        taken = takes_all_it_may(accounts, account)
        assert taken >= 1, "each goes on"
    assert sum(account.part for account in every) <= 2 * WHOLE
    assert accounts.all.kept_count <= 3 * bound + len(every)


@pytest.mark.parametrize("hogs", [0, 3])
def test_three_sessions_that_never_finished_left_the_others_one_execution_at_a_time(hogs):
    """They fell from 404 to 19 rollouts a second."""
    pair = Pair(server={"kept_outcomes": KEPT_MOST, "worker_capacity": 2 * AT_ONCE})
    for number in range(hogs):
        session = pair.stranger(900 + number)
        for sequence in range(KEPT_MOST):
            pair.ask(session, sequence)
        while runs := [run for run in pair.runs if run[1].client == "other"]:
            pair.runs.clear()
            for run in runs:
                pair.end(run)
    pair.runs.clear()
    pair.submit_many(AT_ONCE)
    rounds = 0
    while runs := pair.runs[:]:
        rounds += 1
        pair.runs.clear()
        for run in runs:
            pair.end(run)
        for answer in pair.answers:
            pair.give_client(OutcomeReceived(answer.call, pair.now_s))
        pair.answers.clear()
        pair.advance(0.03)
    assert pair.client.calls.live == {}
    assert rounds <= 2  # all at once, or nearly


# -- one client at the bound -----------------------------------------------------
# One client had 256 requests running when it was suspended.  Their outcomes filled all
# the room for kept ones, and nothing was dispatched any more: clients that fetched
# theirs at once waited for ten minutes, for the lease of that one to end.
#
# At the bound, whoever has nothing to fetch goes on, with one execution at a time.


BOUND = 4


def at_the_bound(capacity: int = BOUND, **limits: float) -> Pair:
    """Another client runs as many as are kept, and fetches none."""
    bounds = {"kept_outcomes": BOUND, "session_share": 1.0, "worker_capacity": capacity}
    pair, session = Pair.with_stranger(server={**bounds, **limits})
    for sequence in range(BOUND):
        pair.ask(session, sequence)
    for run in pair.runs[:]:
        pair.end(run)
    assert pair.router.accounts.all.kept_count == BOUND
    return pair


def test_one_at_a_time_is_run_for_who_fetches_them():
    pair = at_the_bound()
    pair.submit_many(3)
    for number in range(3):
        assert len(pair.runs) == BOUND + 1 + number
        pair.end()
        assert len(pair.answers) == 1 + number
        pair.receive(number)


def test_who_does_not_fetch_gets_no_further_one():
    pair = at_the_bound()
    pair.submit()
    pair.submit()
    assert len(pair.runs) == BOUND + 1
    pair.end()
    pair.advance(3.0)
    assert len(pair.runs) == BOUND + 1


# -- namespaces --------------------------------------------------------------------


def open_one(accounts: Accounts, namespace: bytes, outcome_bytes: int = 0) -> None:
    accounts.retain(namespace_of(accounts, namespace), 1, 10, outcome_bytes)


def retains_all_it_may(accounts: Accounts, namespace: bytes, size_bytes: int) -> int:
    """It asks, never forgets, and asks again: how many of its outcomes are retained then."""
    brought = 0
    while accounts.may_open(namespace, 10) and accounts.may_retain(
        namespace_of(accounts, namespace)
    ):
        open_one(accounts, namespace, size_bytes)
        brought += 1
    return brought


def test_a_namespace_that_passes_the_bound_by_what_was_running_leaves_the_others_their_part():
    """Sixty large outcomes came at once: keys of all other namespaces were not run."""
    accounts = accounts_with(KeyLimits(generations=1000, retained_bytes=10_000, namespaces=10))
    for _ in range(60):
        open_one(accounts, b"large", 1000)
    assert not accounts.may_retain(namespace_of(accounts, b"large"))
    assert accounts.may_open(b"small", 10)
    # Its part are 1000 bytes, of which each takes 250.
    assert retains_all_it_may(accounts, b"small", 240) == 4
    assert accounts.may_retain(namespace_of(accounts, b"another"))


def test_generations_past_their_bound_leave_the_others_their_part():
    accounts = accounts_with(KeyLimits(generations=100, namespaces=10))
    for _ in range(100):
        open_one(accounts, b"many")
    assert not accounts.may_open(b"many", 10)
    assert retains_all_it_may(accounts, b"few", 10) == 8


def test_the_parts_of_all_namespaces_together_are_no_more_than_the_bound():
    """Callers choose namespaces: there may be more of them than the limit says."""
    keys = KeyLimits(generations=10_000, retained_bytes=10_000, namespaces=10)
    accounts = accounts_with(keys)
    open_one(accounts, b"large", 10_000)
    brought = [retains_all_it_may(accounts, b"%d" % number, 1) for number in range(100)]
    assert brought[0] > brought[9] > brought[30] > 0
    assert brought[-1] == 0
    assert accounts.all.size_bytes <= 2 * keys.retained_bytes + 100 * 11


def test_a_namespace_that_has_gone_gives_its_part_back():
    keys = KeyLimits(generations=1000, retained_bytes=10_000, namespaces=2)
    accounts = accounts_with(keys)
    open_one(accounts, b"large", 10_000)
    for _ in range(100):
        account = namespace_of(accounts, b"small")
        accounts.retain(account, 0, 0, 10)
        accounts.leave(account)
        assert b"small" in accounts.namespaces, "something of it is there"
        accounts.retain(account, 0, 0, -10)
        accounts.leave(account)
        accounts.leave(account)  # it has gone: another one may have its name
    assert {*accounts.namespaces} == {b"large"}
    assert accounts.usage(b"small") == Usage()
    assert accounts.usage(b"") is accounts.all
    assert retains_all_it_may(accounts, b"small", 10) == 125


def test_what_is_larger_than_the_bound_may_be_there_alone():
    bench = Bench(KeyLimits(retained_bytes=5))
    assert bench.ask(1, name=NAME) == []
    assert bench.accounts.may_retain(bench.work().account)
    assert bench.ask(2, name=KeyName(b"a", b"other")) == [(2, 0, "keys-full")]


def test_who_is_answered_after_the_key_was_forgotten_has_the_outcome_counted_again():
    bench = Bench()
    works, taken = bench.works, bench.accounts.all
    bench.ask(1, name=NAME)
    bench.run(bench.work(), bytes(1000))
    ticket = bench.session(1).tickets[0]
    assert ticket.kept is not None
    payload = ticket.kept.shared
    for _ in range(2):
        works._let_go(payload)  # the work of the key, and who was answered
    assert (taken.outcome_bytes, payload.holders) == (0, 0)
    works._hold(payload)  # the turn of others to be answered comes now
    works._hold(payload)
    assert taken.outcome_bytes == payload.size_bytes

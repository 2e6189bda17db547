"""The host lease: both sides, rule by rule."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_envserve.core.errors import ConfigError
from trio_envserve.core.lease import (
    FRESH_S,
    NO_LEASE_S,
    OVER_MOST,
    UNCONFIRMED_MOST,
    EarlierEpochs,
    EpochWait,
    HostLease,
    LeaseBeat,
    Leases,
    LeaseTerms,
    Reception,
    least_margin_s,
)

EPOCH, OTHER = b"e" * 16, b"o" * 16
T1, T2, T3, T4 = b"1" * 16, b"2" * 16, b"3" * 16, b"4" * 16
TERMS = LeaseTerms(fence_s=20.0)


def joined(membership: bytes = T1) -> HostLease:
    lease = HostLease(membership)
    assert lease.welcomed(lease.hello(), EPOCH, 20.0)
    return lease


def beat(number: int, answered: int) -> LeaseBeat:
    return LeaseBeat(number, answered, EPOCH)


def router(terms: LeaseTerms = TERMS) -> Leases:
    leases = Leases(terms, EPOCH)
    assert leases.hello("a", T1, 1, [], 0.0) == (Reception.WELCOME, None)
    return leases


def test_the_margin_is_the_whole_formula():
    assert least_margin_s(18.0) == pytest.approx(0.25 * 18 + 5)
    assert least_margin_s(2.0) > 0.25 * 2 + 5  # where a quarter and five would be too little
    assert TERMS.wait_s == pytest.approx(20 + 20 * 0.2 / 0.9 + 5.5)
    assert LeaseTerms(5.0, margin_s=10.0).wait_s == 15.0


@pytest.mark.parametrize(
    "wrong",
    [
        {"fence_s": 2.0, "margin_s": 5.5},
        {"margin_s": float("inf")},
        {"drift": 1.0},
        {"drift": -0.1},
        {"fence_s": 0.0},
        {"fence_s": float("nan")},
        {"guard_s": -1.0},
        {"guard_s": float("inf")},
    ],
)
def test_terms_that_cannot_hold_are_refused(wrong):
    with pytest.raises(ConfigError):
        LeaseTerms(**wrong)


@given(
    fence_s=st.floats(0.1, 1000), drift=st.floats(0, 0.9), guard_s=st.floats(0, 100),
    host=st.floats(-1, 1), its=st.floats(-1, 1), late=st.floats(0, 1),
)  # fmt: skip
def test_within_the_bound_the_router_never_waits_too_little(
    fence_s, drift, guard_s, host, its, late
):
    terms = LeaseTerms(fence_s, drift=drift, guard_s=guard_s)
    dead_s = fence_s / (1 + host * drift) + late * guard_s
    declared_s = terms.wait_s / (1 + its * drift)
    assert declared_s >= dead_s * (1 - 1e-9)


# -- the host -------------------------------------------------------------------------


def test_an_answer_renews_from_when_its_beat_was_read():
    lease = joined()
    assert lease.beat(1.0) == beat(1, 0)
    assert lease.beat(5.0) == beat(2, 0)
    assert lease.answer(T2, 1) is None, "that is another membership"
    assert not lease.holds(5.0), "no worker starts before the first answer"
    assert lease.answer(T1, 1) == 21.0
    assert lease.holds(20.9)
    assert not lease.holds(21.0)
    assert lease.beat(6.0) == beat(3, 1)
    assert lease.answer(T1, 3) == 26.0
    assert lease.answer(T1, 2) is None, "an older one changes nothing"
    assert lease.answer(T1, 3) is None, "nor does a doubled one"
    assert lease.answer(T1, 9) is None, "nor one to a beat that was never sent"
    assert lease.deadline_s == 26.0


def test_beats_that_could_not_renew_any_more_are_forgotten():
    lease = joined()
    for boot_s in range(100):
        lease.beat(float(boot_s))
    assert lease.answer(T1, 80) is None
    assert lease.answer(T1, 81) == 100.0


def test_with_another_router_the_membership_is_over():
    lease = joined()
    lease.beat(1.0)
    lease.answer(T1, 1)
    assert not lease.welcomed(lease.hello(), OTHER, 20.0)
    assert lease.over
    assert not lease.holds(2.0), "its workers end before the other router gets a beat"
    with pytest.raises(AssertionError):
        lease.beat(2.0)
    lease.begin(T2)
    assert lease.welcomed(lease.hello(), OTHER, 5.0)
    lease.beat(3.0)
    assert lease.answer(T1, 1) is None
    assert lease.answer(T2, 1) == 8.0


def test_only_the_newest_hello_is_answered():
    lease = HostLease(T1)
    first, second = lease.hello(), lease.hello()
    assert not lease.welcomed(first, EPOCH, 20.0)
    lease.refused(first)
    assert not lease.over
    assert lease.welcomed(second, EPOCH, 20.0)
    lease.refused(lease.hello())
    assert lease.over
    assert not lease.welcomed(lease.hellos, EPOCH, 20.0)


# -- the router -----------------------------------------------------------------------


def test_a_host_is_lost_by_the_last_beat_that_was_answered_and_never_answered_again():
    leases = router()
    assert leases.beat("a", T1, beat(1, 0), 5.0)
    assert leases.beat("a", T1, beat(2, 1), 10.0)
    assert leases.lost(10.0 + TERMS.wait_s - 0.01) == []
    (lost,) = leases.lost(10.0 + TERMS.wait_s)
    assert (lost.host, lost.membership) == ("a", T1)
    assert leases.lost(1e9) == []
    assert not leases.beat("a", T1, beat(2, 1), 100.0)
    assert leases.hello("a", T1, 2, [], 100.0) == (Reception.OVER, None)
    assert leases.hello("a", T2, 1, [], 100.0) == (Reception.WELCOME, None)
    assert not leases.beat("a", T1, beat(3, 1), 100.0)


def test_a_late_hello_of_a_membership_long_over_kept_its_host_out_for_ever():
    """Where there is no lease: the next router but one does not know that membership any more."""
    leases = router(LeaseTerms(NO_LEASE_S))
    assert leases.hello("a", T2, 7, [], 1.0) == (Reception.IN_USE, None)
    assert leases.lost(59.9) == []
    (over,) = leases.lost(60.0)
    assert over.membership == T1
    assert leases.hello("a", T2, 8, [], 61.0) == (Reception.WELCOME, None)


def test_an_id_in_use_is_refused_until_its_lease_has_ended():
    leases = router()
    leases.beat("a", T1, beat(1, 0), 1.0)
    assert leases.hello("a", T2, 1, [], 2.0) == (Reception.IN_USE, None)
    assert leases.hello("a", T2, 2, [T4], 2.0) == (Reception.IN_USE, None)
    assert leases.hello("b", T2, 3, [], 2.0)[0] is Reception.WELCOME
    assert leases.beat("a", T1, beat(2, 1), 3.0), "the first one is not disturbed"
    reception, ended = leases.hello("a", T3, 1, [T1], 4.0)
    assert reception is Reception.WELCOME
    assert ended is not None
    assert ended.membership == T1
    assert not leases.beat("a", T1, beat(3, 1), 5.0)


def test_a_host_leaves_and_its_hellos_are_numbered():
    leases = router()
    assert leases.hello("a", T1, 3, [], 1.0) == (Reception.WELCOME, None)
    for old in (3, 2):
        assert leases.hello("a", T1, old, [], 1.0) == (Reception.OLD, None)
    assert leases.leave("a", T2) is None
    assert leases.leave("b", T1) is None
    assert leases.leave("a", T1) is not None
    assert leases.leave("a", T1) is None
    assert leases.hello("a", T1, 9, [], 1.0)[0] is Reception.OVER
    assert leases.hello("a", T3, 1, [T2, T4], 1.0)[0] is Reception.WELCOME
    assert leases.leave("a", T3) is not None
    assert leases.hello("a", T4, 1, [], 2.0)[0] is Reception.OVER, "it was said to have ended"


def test_a_host_whose_answers_do_not_arrive_is_not_fresh():
    leases = router()
    holding = leases.holdings["a"]
    for number in range(1, 100):
        leases.beat("a", T1, beat(number, 0), number / 10)
        assert not leases.is_fresh(holding, number / 10), "no answer has arrived"
    assert len(holding.received) == UNCONFIRMED_MOST
    leases.beat("a", T1, beat(100, 99), 10.0)
    assert leases.is_fresh(holding, 9.9 + TERMS.fence_s / 2 - 0.1)
    assert not leases.is_fresh(holding, 10.0 + TERMS.fence_s / 2)
    leases.beat("a", T1, beat(101, 98), 10.1)
    assert holding.confirmed_s == 9.9, "an older statement takes nothing back"


def test_a_host_that_hears_nothing_is_lost_however_often_it_is_heard():
    leases = router()
    leases.beat("a", T1, beat(1, 0), 0.5)
    leases.beat("a", T1, beat(2, 1), 1.0)
    heard = [leases.beat("a", T1, beat(n, 1), float(n)) for n in range(3, 60)]
    assert heard == [n - 0.5 < TERMS.wait_s for n in range(3, 60)]
    (lost,) = leases.lost(59.0 + TERMS.wait_s)
    assert lost.membership == T1
    leases.hello("a", T2, 1, [], 100.0)
    assert not leases.beat("a", T2, beat(1, 0), 100.0 + TERMS.wait_s)


def test_a_late_hello_does_not_let_another_router_renew():
    """A hello of a membership that no router had welcomed came to the successor of the one that
    did: its answers renewed what was counted by the first one's time."""
    lease, successor = HostLease(T1), Leases(TERMS, OTHER)
    late = lease.hello()
    assert lease.welcomed(lease.hello(), EPOCH, 20.0)
    assert successor.hello("a", T1, late, [], 0.0)[0] is Reception.WELCOME
    assert not successor.beat("a", T1, lease.beat(1.0), 1.0)
    reception, _ = successor.hello("a", T1, lease.hello(), [], 2.0, with_epoch=EPOCH)
    assert reception is Reception.WELCOME
    assert not lease.welcomed(lease.hellos, OTHER, 20.0)
    assert lease.over


def test_memberships_that_are_over_are_remembered_within_a_bound():
    leases = router()
    for number in range(OVER_MOST + 1):
        membership = number.to_bytes(16, "big")
        leases.hello(f"h{number}", membership, 1, [], 0.0)
        leases.leave(f"h{number}", membership)
    assert leases.hello("h0", bytes(16), 2, [], 0.0)[0] is Reception.WELCOME
    assert leases.hello("h1", (1).to_bytes(16, "big"), 2, [], 0.0)[0] is Reception.OVER


# -- the routers before ---------------------------------------------------------------


def followed(now_s: float = 100.0) -> Leases:
    """A router that follows the one of EPOCH, whose hosts may live for 90 seconds."""
    return Leases(TERMS, OTHER, EarlierEpochs([EpochWait(EPOCH, 90.0)], now_s))


def test_a_membership_of_the_router_before_may_be_continued():
    leases = followed()
    assert leases.hello("a", T1, 3, (), 101.0, with_epoch=EPOCH) == (Reception.MOVED, None)
    assert not leases.holdings
    received = leases.hello("a", T2, 1, (), 102.0, with_epoch=EPOCH, continues=[T1], to=OTHER)
    assert received == (Reception.WELCOME, None)
    assert leases.lost(102.0 + TERMS.wait_s) == [], "by what the router before has written down"
    assert leases.lost(189.9) == []
    (lost,) = leases.lost(190.0)
    assert lost.membership == T2


def test_a_host_that_goes_on_keeps_its_deadline_and_nothing_else():
    lease = joined()
    lease.beat(100.0)
    assert lease.answer(T1, 1) == 120.0
    lease.beat(110.0)
    lease.go_on(T2)
    assert lease.holds(119.9)
    assert not lease.holds(120.0)
    assert lease.answer(T1, 2) is None, "what the router before has answered comes too late"
    assert lease.welcomed(lease.hello(), OTHER, 5.0)
    lease.beat(111.0)
    assert lease.answer(T2, 1) is None or lease.deadline_s == 120.0, "nothing makes it shorter"


def test_a_late_hello_to_the_next_router_does_not_prove_that_nothing_runs():
    """It was welcomed as a new one, and its membership was accounted for: so the router before was
    taken for dead while the workers of that membership, which it had welcomed, lived."""
    before = EarlierEpochs([EpochWait(OTHER, 30.0, frozenset([T1]))], 0.0)
    leases = Leases(TERMS, EPOCH, before)
    assert leases.hello("a", T1, 1, [], 1.0) == (Reception.OVER, None)
    assert before.take_dead(1.0) == []
    assert leases.hello("a", T2, 1, [T1], 2.0) == (Reception.WELCOME, None)
    assert before.take_dead(2.0) == [OTHER]


def test_without_a_lease_no_clock_says_that_a_host_is_dead():
    terms = LeaseTerms(NO_LEASE_S)
    assert not terms.proves
    assert TERMS.proves
    leases = router(terms)
    assert leases.beat("a", T1, beat(1, 0), 1.0)
    assert leases.beat("a", T1, beat(2, 1), 2.0)
    (holding,) = leases.holdings.values()
    assert leases.is_fresh(holding, 1.0 + FRESH_S - 0.1)
    assert not leases.is_fresh(holding, 1.0 + FRESH_S), "it gets no work meanwhile"
    a_year_s = 3600.0 * 24 * 365
    assert leases.lost(a_year_s) == []
    assert leases.beat("a", T1, beat(3, 1), a_year_s)
    assert leases.hello("a", T2, 1, [], a_year_s)[0] is Reception.IN_USE
    reception, ended = leases.hello("a", T2, 1, [T1], a_year_s)
    assert (reception, ended) == (Reception.WELCOME, holding)


# -- what a router knows of those before it whose hosts may still have workers ---------


def test_earlier_epochs_are_dead_after_the_longest_of_their_times():
    earlier = EarlierEpochs([EpochWait(b"long", 60.0), EpochWait(b"short", 10.0)], 100.0)
    assert earlier.take_dead(159.9) == [], "a host of the later one may live by the first one"
    own = EpochWait(b"own", 5.0)
    both = (*earlier.waits, own)
    assert earlier.record(own, 100.0) == both, "a successor waits for them, too"
    assert b"short" in earlier
    assert earlier.take_dead(160.0) == [b"long", b"short"]
    assert b"short" not in earlier
    assert earlier.record(own, 160.0) == (own,)
    assert earlier.take_dead(200.0) == []


def test_earlier_epochs_are_dead_once_all_of_their_hosts_are_accounted_for():
    known = EpochWait(EPOCH, 90.0, frozenset((T1, T2)))
    leases = Leases(TERMS, OTHER, EarlierEpochs([known], 100.0))
    earlier, own = leases.earlier, EpochWait(OTHER, TERMS.wait_s, frozenset())
    assert leases.own() == own
    assert earlier.take_dead(101.0) == []
    leases.hello("b", T3, 1, (T2,), 102.0)
    assert earlier.take_dead(102.0) == []
    leases.hello("a", T4, 1, (), 103.0, with_epoch=EPOCH, continues=[T1], to=OTHER)
    assert earlier.take_dead(103.0) == [EPOCH]
    # T4 may live by what the first one has said: so the next router waits as long.
    (written,) = earlier.record(leases.own(), 110.0)
    assert written == EpochWait(OTHER, 90.0, frozenset((T3, T4)))
    assert earlier.record(leases.own(), 190.0) == (leases.own(),)


def test_nothing_lives_of_earlier_epochs_once_their_times_are_over():
    earlier = EarlierEpochs([EpochWait(EPOCH, 60.0)], 100.0)
    assert not earlier.have_ended(159.9)
    assert earlier.have_ended(160.0)
    assert earlier.have_ended(161.0)
    assert EarlierEpochs((), 100.0).have_ended(100.0)

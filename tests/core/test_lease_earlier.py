"""What a router knows of those before it whose hosts may still have workers."""

from __future__ import annotations

from trio_envserve.core.lease import EarlierEpochs, EpochWait, Leases, LeaseTerms

EPOCH, OTHER = b"e" * 16, b"o" * 16
T1, T2, T3, T4 = b"1" * 16, b"2" * 16, b"3" * 16, b"4" * 16
TERMS = LeaseTerms(fence_s=20.0)


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

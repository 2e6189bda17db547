"""The killer's schedule, and the mix of calls: both follow from their seed."""

import random

import pytest

from trio_envserve.lab.soak.mix import ENDLESS_S, draw
from trio_envserve.lab.soak.schedule import KINDS, KINDS_OF_HOST, ROUND_S, schedule


@pytest.mark.parametrize("seed", range(20))
def test_each_round_has_every_kind_and_ends_in_its_time(seed):
    seconds = 10 * ROUND_S
    acts = schedule(seed, seconds)
    assert acts == schedule(seed, seconds)
    assert [act.at_s for act in acts] == sorted(act.at_s for act in acts)
    for number in range(10):
        begin_s = number * ROUND_S
        of_round = [act.kind for act in acts if begin_s <= act.at_s < begin_s + ROUND_S]
        assert {kind: of_round.count(kind) for kind in KINDS} == {
            name: kind.often for name, kind in KINDS.items()
        }
    assert all(0 <= act.choice < 1 for act in acts)
    assert all(
        KINDS[act.kind].least_s <= act.lasts_s <= KINDS[act.kind].most_s
        and KINDS[act.kind].least <= act.amount <= KINDS[act.kind].most
        for act in acts
    )
    # What lasts is over when the time is, or soon after; the calm waits for it.
    assert max(act.at_s + act.lasts_s for act in acts) < seconds + ROUND_S / 2


def test_another_seed_gives_another_order():
    kinds = {tuple(act.kind for act in schedule(seed, ROUND_S)) for seed in range(20)}
    assert len(kinds) == 20


def test_the_shortest_run_has_every_kind():
    acts = schedule(3, 0.1 * 60)
    assert {act.kind for act in acts} == set(KINDS)
    assert max(act.at_s for act in acts) < 6


def test_a_remote_host_has_faults_of_its_own():
    acts = schedule(3, 2 * ROUND_S, hosted=True)
    assert {act.kind for act in acts} == {*KINDS, *KINDS_OF_HOST}
    assert sum(act.kind == "host-kill" for act in acts) == 2


@pytest.mark.parametrize("seconds", [0, -1, float("nan")])
def test_no_time_is_no_schedule(seconds):
    with pytest.raises(ValueError, match="seconds must be positive"):
        schedule(0, seconds)


def test_the_mix_follows_from_its_seed_and_has_everything():
    rng, again = random.Random(5), random.Random(5)
    asks = [draw(rng) for _ in range(3000)]
    assert asks == [draw(again) for _ in range(3000)]
    assert {ask.rerun for ask in asks} == {True, False, None}
    assert {ask.max_executions for ask in asks} == {None, 1, 2, 10}
    assert any(ask.timeout_s for ask in asks)
    assert any(ask.pad for ask in asks)
    endless = [ask for ask in asks if ask.duration_s == ENDLESS_S]
    assert endless
    # Nobody waits for them to end.
    assert all(ask.withdraw_s is not None for ask in endless)
    assert sum(ask.withdraw_s is None for ask in asks) > 2500

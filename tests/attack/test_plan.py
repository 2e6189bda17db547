"""The plan of a siege: from its seed alone, and with every attack in it."""

from __future__ import annotations

import pytest

from tests.attack.attacks import ON_CLIENTS, ON_SERVERS
from tests.attack.plan import HELD, STAGES, make_plan
from trio_envserve.core.errors import ConfigError
from trio_envserve.doors.verifiers import VerifiersLimits


@pytest.mark.parametrize("seconds", [10.0, 30.0, 60.0, 7200.0])
@pytest.mark.parametrize("seed", range(5))
def test_every_attack_is_made_and_every_stage_has_a_round(seed, seconds):
    plan = make_plan(seed, seconds)
    made = {name for each in plan.rounds for name in each.attacks}
    assert made == {*ON_SERVERS, *ON_CLIENTS}
    assert plan.stages == list(STAGES)
    assert plan.held == HELD
    for each in plan.rounds:
        own = ON_CLIENTS if each.stage == "client" else ON_SERVERS
        assert set(each.attacks) <= set(own)
        assert len(set(each.attacks)) == len(each.attacks)
    assert [each.number for each in plan.rounds] == list(range(len(plan.rounds)))


def test_the_time_is_kept():
    for seconds in (30.0, 7200.0):
        plan = make_plan(1, seconds)
        taken_s = sum(each.siege_s + each.quiet_s for each in plan.rounds)
        assert 0.7 * seconds < taken_s < 1.4 * seconds


def test_a_seed_replays_its_plan():
    assert make_plan(3, 30.0) == make_plan(3, 30.0)
    assert make_plan(3, 30.0) != make_plan(4, 30.0)


def test_loops_are_held_for_a_minute_in_a_long_siege():
    assert make_plan(0, 30.0).held_s < 10
    assert make_plan(0, 7200.0).held_s == 60


def test_only_some_attacks():
    plan = make_plan(0, 20.0, ["twins", "vanish"])
    assert {each.attacks for each in plan.rounds} <= {("twins", "vanish"), ("vanish", "twins")}
    assert [stage.name for stage in plan.stages] == ["small", "descriptors", "default"]
    assert plan.held == ()


def test_only_attacks_on_the_client():
    plan = make_plan(0, 20.0, ["server-silence"])
    assert [stage.name for stage in plan.stages] == ["client"]


def test_only_a_held_loop():
    plan = make_plan(0, 20.0, ["held-server"])
    assert plan.rounds == ()
    assert plan.held == ("held-server",)


def test_wrong_wishes_are_refused():
    with pytest.raises(ConfigError, match="no attack is called nonsense"):
        make_plan(0, 20.0, ["nonsense"])
    with pytest.raises(ConfigError, match="at least 10 seconds"):
        make_plan(0, 1.0)
    with pytest.raises(ConfigError, match="at least 10 seconds"):
        make_plan(0, float("nan"))


def test_each_stage_says_what_its_processes_may_grow_by():
    for stage in STAGES:
        assert set(stage.allowed) == {"server", "worker", "client", "host"}
        assert min(stage.allowed.values()) > 0


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)
def test_the_doors_of_a_stage_have_limits_that_can_be_read(stage):
    http = pytest.importorskip("trio_envserve.doors.http")
    if stage.doors:
        limits = http.HttpLimits(**stage.doors["http"])
        VerifiersLimits(**stage.doors["verifiers"])
        # What it is judged by, which cannot be read there without the extra.
        assert (limits == http.HttpLimits()) is (stage.name == "default")
    assert bool(stage.doors) is (stage.name != "client")

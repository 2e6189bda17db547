"""The plan of a siege: from its seed alone, and with every attack in it."""

from __future__ import annotations

import pytest

from tests.attack.attacks import ATTACKS, HELD
from tests.attack.judge import FINDINGS
from tests.attack.run import STAGES, make_plan
from trio_envserve.core.errors import ConfigError
from trio_envserve.doors.verifiers import VerifiersLimits

GUARANTEES = {"G3", "G6"}


@pytest.mark.parametrize("seconds", [10.0, 30.0, 60.0, 7200.0])
@pytest.mark.parametrize("seed", range(5))
def test_plan_has_every_attack_and_a_round_of_each_stage(seed, seconds):
    plan = make_plan(seed, seconds)
    assert {name for each in plan.rounds for name in each.attacks} == set(ATTACKS)
    assert plan.stages == list(STAGES)
    assert plan.held == tuple(HELD)
    for each in plan.rounds:
        assert len(set(each.attacks)) == len(each.attacks)
        assert {ATTACKS[name].at == "client" for name in each.attacks} == {each.stage == "client"}


def test_plan_is_that_of_its_seed():
    assert make_plan(3, 60.0) == make_plan(3, 60.0)
    assert make_plan(3, 60.0) != make_plan(4, 60.0)


@pytest.mark.parametrize(("seconds", "held_s"), [(120.0, 6.0), (7200.0, 60.0)])
def test_plan_takes_about_as_long_as_it_is_told_to_and_holds_loops_for_longer_then(seconds, held_s):
    plan = make_plan(0, seconds)
    took_s = sum(each.siege_s + each.quiet_s for each in plan.rounds)
    assert took_s == pytest.approx(seconds, rel=0.2)
    assert plan.held_s == held_s


@pytest.mark.parametrize(
    ("only", "stages", "held"),
    [
        (["empty-frames"], ["small", "descriptors", "default"], ()),
        (["server-silence"], ["client"], ()),
        (["held-server"], [], ("held-server",)),
    ],
)
def test_plan_of_some_attacks_has_no_others(only, stages, held):
    plan = make_plan(0, 20.0, only)
    assert [stage.name for stage in plan.stages] == stages
    assert {name for each in plan.rounds for name in each.attacks} <= set(only)
    assert plan.held == held


@pytest.mark.parametrize(
    ("words", "seconds", "only"),
    [
        ("no attack is called nonsense", 20.0, ["nonsense"]),
        ("at least 10 seconds", 1.0, []),
        ("at least 10 seconds", float("nan"), []),
    ],
)
def test_wrong_plan_is_refused(words, seconds, only):
    with pytest.raises(ConfigError, match=words):
        make_plan(0, seconds, only)


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)
def test_stage_says_what_its_processes_may_grow_by_and_its_doors_have_limits(stage):
    http = pytest.importorskip("trio_envserve.doors.http")
    assert set(stage.allowed) == {"server", "worker", "client", "host"}
    assert min(stage.allowed.values()) > 0
    doors = stage.options.get("doors")
    assert bool(doors) is (stage.name != "client")
    if doors:
        VerifiersLimits(**doors["verifiers"])
        # What it is judged by, which cannot be read there without the extra.
        assert (http.HttpLimits(**doors["http"]) == http.HttpLimits()) is (stage.name == "default")


def test_row_of_each_attack_has_words_and_the_finding_that_it_is_about():
    rows = {(row.what, row.about) for row in ATTACKS.values()} | {
        (row.what, row.about) for row in HELD.values()
    }
    assert all(what and about in {*FINDINGS, *GUARANTEES} for what, about in rows)

"""Every mutant is caught, by a guarantee that it names, and leaves nothing behind.

The ledger has for each the seed that showed it last, so that this is quick.  A seed that shows it
no more (plans are drawn otherwise now) costs a hunt, not a failure; `python -m tests.oracles ledger
--rows NAME --checks fuzz --again` stores the new one.
"""

from __future__ import annotations

import re

import pytest

from tests.fuzzing.known import broken_by
from trio_envserve.core.work import WorkInput, Works, WorkState
from trio_envserve.lab.mutants import MUTANTS, NOT_BY_CHANCE, Mutant, Patches, find
from trio_envserve.lab.simulation.plan import ANY
from trio_envserve.lab.simulation.simulator import run
from trio_envserve.lab.simulation.target import Protocol
from trio_envserve.retrylab.target import hunt

BY_CHANCE = [mutant for mutant in MUTANTS if mutant.name not in NOT_BY_CHANCE]
AT_LEAST = {
    "sync-off-by-one", "finish-frees-a-running-request", "a-worker-takes-any-incarnation",
    "a-worker-names-what-it-was-not-told", "cancel-is-forgotten", "bytes-are-not-given-back",
    "reruns-without-consent", "a-new-session-resets-the-allowance",
}  # fmt: skip


@pytest.mark.mutants
@pytest.mark.parametrize("mutant", BY_CHANCE, ids=lambda mutant: mutant.name)
def test_a_broken_variant_is_caught_and_what_ships_is_not(mutant: Mutant):
    seed, _ = broken_by(mutant.name)
    plan = Protocol(mutant=mutant.name).plan(seed)
    assert not run(seed, plan=plan).violations


def test_there_are_enough_with_names_and_words():
    names = [mutant.name for mutant in MUTANTS]
    assert len(names) == len(set(names)) >= 30
    assert set(names) >= AT_LEAST
    for mutant in MUTANTS:
        assert re.fullmatch(r"[a-z]+(-[a-z]+)+", mutant.name)
        assert mutant.prose.endswith(".")
        assert len(mutant.prose) <= 90, mutant.prose
        assert set(mutant.guarantees) <= set(ANY)


def test_a_mutant_is_gone_after_its_block():
    cell = Works.TABLE[WorkInput.LEAVE][WorkState.RUNNING]
    before = run(1, harsh=True)
    with find("finish-frees-a-running-request").applied():
        assert Works.TABLE[WorkInput.LEAVE][WorkState.RUNNING] is not cell
        with pytest.raises(ZeroDivisionError), find("silence-is-death").applied():
            raise ZeroDivisionError
    assert Works.TABLE[WorkInput.LEAVE][WorkState.RUNNING] is cell
    assert run(1, harsh=True).digest == before.digest


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_leaves_no_trace(mutant: Mutant, monkeypatch: pytest.MonkeyPatch):
    """Whatever it sets, it sets back to the very same object."""
    changed, sources = [], set()
    attribute, item, code = Patches.attribute, Patches.item, Patches.code

    def note_attribute(self, target, name, value):
        changed.append((lambda: vars(target)[name], vars(target)[name]))
        attribute(self, target, name, value)

    def note_item(self, mapping, key, value):
        changed.append((lambda: mapping[key], mapping[key]))
        item(self, mapping, key, value)

    def note_code(self, function, other):
        if function not in sources:  # else it has been changed already
            changed.append((lambda: function.__code__, function.__code__))
        sources.add(function)
        code(self, function, other)

    monkeypatch.setattr(Patches, "code", note_code)
    monkeypatch.setattr(Patches, "attribute", note_attribute)
    monkeypatch.setattr(Patches, "item", note_item)
    with mutant.applied():
        assert all(now() is not before for now, before in changed)
    assert changed
    assert all(now() is before for now, before in changed)


def test_a_wrong_name_gets_the_near_ones():
    with pytest.raises(KeyError, match="did you mean silence-is-death"):
        find("silence-is-deth")


def test_only_seeds_with_what_a_mutant_needs_are_tried():
    target = Protocol(mutant="leases-run-while-it-is-stopped")
    assert target.mutant is not None
    for seed, _ in zip(target.seeds(0), range(3), strict=False):
        assert target.mutant.needs <= target.plan(seed).faults


def test_a_mutant_that_nobody_sees_is_not_caught():
    target = Protocol()
    target.mutant = Mutant("does-nothing", "Nothing.", ("G1",), frozenset(), lambda patches: None)
    catch = hunt(target, most_runs=3)
    assert (catch.caught, catch.runs, catch.seed) == (False, 3, None)

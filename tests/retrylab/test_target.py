"""A simulator of one's own: searched, made small, saved and shown as a system of actors is."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.cli.commands import run
from trio_envserve.retrylab import BrokenSystem, load_failure, replay, save_failure, search
from trio_envserve.retrylab.failure import find_target
from trio_envserve.retrylab.target import BaseShrinker, Target

SIMULATOR = '''
import dataclasses
import random

from trio_envserve.retrylab import Violation
from trio_envserve.retrylab.target import BaseRun, BaseShrinker, Target


@dataclasses.dataclass(frozen=True)
class Numbers:
    """Numbers to add up."""

    numbers: tuple

    def kinds(self):
        return ()

    def without(self, fault):
        return self

    def schedule(self):
        return [f"adds {self.numbers}"]

    def to_data(self):
        return {"numbers": self.numbers}


class Shrinker(BaseShrinker):
    def named(self, call):
        return str(call)

    def calls(self):
        return list(self.plan.numbers)

    def with_calls(self, kept):
        return Numbers(tuple(kept))

    def passes(self):
        return (self.drop_calls,)


class Adder(Target):
    def plan(self, seed):
        luck = random.Random(seed)
        return Numbers(tuple(luck.randrange(40) for _ in range(4)))

    def run(self, seed, *, plan=None, trace=False, until=""):
        plan = plan or self.plan(seed)
        high = (Violation("low", 1.0, f"{sum(plan.numbers)} is high"),)
        violations = high if sum(plan.numbers) >= 100 else ()
        return BaseRun(seed=seed, plan=plan, violations=violations, told={"told": 1})

    def shrinker(self, whole, guarantee, most_runs):
        return Shrinker(self, whole, guarantee, most_runs)

    def drawing(self, run, violation):
        return ["a sum"]

    def plan_from_data(self, data):
        return Numbers(tuple(data["numbers"]))


class Half(Target):
    """Has nothing that a target must have."""
'''


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "adding.py"
    path.write_text(SIMULATOR)
    return path


def module_of(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("adding", file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["adding"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_failure_of_a_simulator_is_made_small_saved_and_replayed(file: Path, tmp_path: Path):
    target = module_of(file).Adder()
    assert issubclass(module_of(file).Shrinker, BaseShrinker)
    failure = search(target)
    assert failure is not None
    assert failure.guarantee == "low"
    assert failure.requests == len(failure.plan.numbers) <= failure.before[0] == 4
    path = save_failure(failure, tmp_path)
    assert load_failure(target, path).plan == failure.plan
    assert [each.guarantee for each in replay(target, failure)] == ["low"]


def test_class_that_is_no_whole_target_is_refused_in_words(file: Path):
    assert isinstance(find_target(f"{file}:Adder", {}), Target)
    with pytest.raises(BrokenSystem, match="Half could not be made"):
        find_target(f"{file}:Half", {})


@pytest.mark.real
async def test_simulator_is_searched_from_a_shell(file: Path, tmp_path: Path):
    words = ("fuzz", "--protocol", f"{file}:Adder", "--seed", "0", "--runs", "300", "--json")
    done = await run(tmp_path, *words)
    assert done.code == 1, done.err
    (failure,) = done.last["failures"]
    assert failure["guarantee"] == "low"
    assert failure["drawing"] == ["a sum"]

"""The example: its planted double write is found, made small and drawn; the correct
store has nothing to find in the same seeds."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path

import pytest

from examples.kv_store import FORGETFUL, STORE, Client, Server
from tests.retrylab.small import of, whole
from trio_envserve.retrylab import (
    USUAL,
    Event,
    Fault,
    Plan,
    System,
    Violation,
    check,
    run,
    search,
)
from trio_envserve.retrylab.failure import Failure, examine

ROOT = Path(__file__).parent.parent.parent
EXAMPLE = ROOT / "examples" / "kv_store.py"
SEEDS = 100


@functools.cache
def failing() -> list[int]:
    return [seed for seed in range(SEEDS) if run(FORGETFUL, seed).violations]


def test_the_example_is_short():
    assert len(EXAMPLE.read_text().splitlines()) <= 160


def test_a_double_write_is_found_in_few_runs_and_in_one_request():
    seeds = failing()
    assert seeds[0] <= 10
    assert len(seeds) >= 10
    for seed in seeds[:10]:
        failure = examine(FORGETFUL, seed)
        assert failure is not None
        assert failure.guarantee == "at most once"
        assert len(failure.plan.asks) == 1
        assert len(failure.plan.kinds()) <= 3
        assert max(map(len, failure.text().splitlines())) <= 100
        assert failure.drawing[-1].endswith("~")


def test_the_correct_store_has_nothing_to_find_in_the_same_seeds():
    for seed in range(SEEDS):
        assert run(STORE, seed).violations == (), seed
    check(STORE, runs=3, seed=1000)


def test_the_runs_are_worth_something():
    ran = [run(STORE, seed) for seed in range(SEEDS)]
    assert {kind for each in ran for kind in each.faults} == {fault.value for fault in USUAL}
    asked = {entry.what[0] for each in ran for entry in of(each, "asked")}
    assert asked == {"put", "add", "get"}
    assert all(each.told["not told"] == 0 for each in ran)


def test_a_store_of_two_writes_is_killed_between_them():
    """The server has applied the request, and its answer is not on disk."""

    class TornServer(Server):
        def on_start(self) -> None:
            self.values = self.disk.get("values", {})
            self.answers = self.disk.get("answers", {})

        def keep(self) -> None:
            self.disk["values"] = self.values
            self.disk["answers"] = self.answers

    torn = dataclasses.replace(STORE, actors={**STORE.actors, "server": TornServer})
    failure = search(torn)
    assert failure is not None
    assert failure.guarantee == "right values"
    assert len(failure.plan.asks) <= 3
    assert "killed before it writes answers" in "\n".join(failure.drawing)
    check(dataclasses.replace(torn, faults=set(USUAL) - {Fault.KILL}))


def test_a_client_that_does_not_retry_is_found():
    class Patient(Client):
        def start_timer(self, timer: str, delay_s: float) -> None:
            """Waits for ever."""

    hasty = dataclasses.replace(STORE, actors={**STORE.actors, "c0": Patient, "c1": Patient})
    failure = search(hasty)
    assert failure is not None
    assert failure.guarantee == "one true answer"
    assert len(failure.plan.asks) == 1


def shown() -> Failure:
    failure = examine(FORGETFUL, next(iter(failing())))
    assert failure is not None
    return failure


def test_the_shrunk_schedule_is_the_same_each_time_and_fails_alone():
    one, again = shown(), shown()
    assert one == again
    assert isinstance(one.plan, Plan)
    ran = run(FORGETFUL, one.luck, plan=one.plan)
    assert ran.digest == one.digest
    assert ran.breaks(one.guarantee)
    assert not run(STORE, one.luck, plan=one.plan).violations, "it is the bug's"


@pytest.mark.parametrize("most_runs", [0, 5])
def test_the_work_is_bounded(most_runs: int):
    failure = examine(FORGETFUL, failing()[0], most_runs=most_runs)
    assert failure is not None
    assert failure.tried == most_runs


def test_only_the_first_of_several_guarantees_is_made_small():
    def judge(events: list[Event]) -> list[Violation]:
        return [Violation(name, 0.0, "always") for name in ("first", "second")]

    both: System = dataclasses.replace(STORE, judges=[whole(judge)])
    failure = search(both, runs=1)
    assert failure is not None
    assert (failure.guarantee, len(failure.plan.asks), failure.plan.kinds()) == ("first", 0, [])
    second = examine(both, 0, guarantee="second")
    assert second is not None
    assert second.guarantee == "second"
    assert examine(both, 0, guarantee="third") is None

"""Variants of the example of a store: what is found in them, and how failures are made small."""

from __future__ import annotations

import dataclasses

import pytest

from examples.kv_store import FORGETFUL, STORE, Server
from tests.retrylab.small import whole
from trio_envserve.retrylab import USUAL, Event, Fault, Plan, System, Violation, check, run, search
from trio_envserve.retrylab.failure import examine


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


def test_the_shrunk_schedule_is_the_same_each_time_and_fails_alone():
    one, again = (search(FORGETFUL) for _ in range(2))
    assert one is not None
    assert one == again
    assert isinstance(one.plan, Plan)
    ran = run(FORGETFUL, one.luck, plan=one.plan)
    assert ran.digest == one.digest
    assert ran.breaks(one.guarantee)
    assert not run(STORE, one.luck, plan=one.plan).violations, "it is the bug's"


@pytest.mark.parametrize("most_runs", [0, 5])
def test_the_work_is_bounded(most_runs: int):
    failure = examine(FORGETFUL, 0, most_runs=most_runs)
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

"""Runs with graces: rollouts are told when they are late, and what they give counts."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from trio_envserve.core import messages
from trio_envserve.core.terms import RequestId
from trio_envserve.lab.simulation.graces import SLACK_S, GraceJudge
from trio_envserve.lab.simulation.observed import Processes
from trio_envserve.lab.simulation.plan import FaultKind, is_harsh, plan_of
from trio_envserve.lab.simulation.simulator import run
from trio_envserve.retrylab.judges import Event

SEEDS = 40


def plan_with_graces(seed: int) -> Any:
    return plan_of(seed, harsh=is_harsh(seed), graces=True)


def test_no_seed_with_graces_violates_a_guarantee():
    plans = [plan_with_graces(seed) for seed in range(SEEDS)]
    runs = [run(seed, plan=plan) for seed, plan in enumerate(plans)]
    bad = [each for each in runs if each.violations]
    assert not bad, "\n".join(f"seed {each.seed}: {each.violations[0]}" for each in bad)
    told, late = Counter[str](), 0
    for each in runs:
        told.update(each.told)
        late += each.faults.get(FaultKind.GRACE.value, 0)
    assert late > 200
    assert told["error execution-limit"] > 1  # of code that ignores that it is late, or hangs


def test_a_seed_without_graces_is_as_it_was_before_there_were_any():
    for seed in range(20):
        plan, other = plan_of(seed, harsh=is_harsh(seed)), plan_with_graces(seed)
        assert (FaultKind.GRACE in plan.faults, FaultKind.GRACE in other.faults) == (False, True)
        without = other.without(FaultKind.GRACE)
        assert without.faults == plan.faults
        assert all(ask.grace_s is ask.execution_s is None for asks in without.asks for ask in asks)


def test_calls_that_ask_the_same_under_a_key_have_the_same_grace():
    seen: dict[bytes, set[Any]] = {}
    for ask in (ask for asks in plan_with_graces(2).asks for ask in asks):
        if ask.use is not None and ask.body:
            terms = ask.execution_s, ask.grace_s
            seen.setdefault(ask.body.partition(b"|")[0], set()).add(terms)
    assert len(seen) > 3
    assert all(len(terms) == 1 for terms in seen.values())


# -- the judge --------------------------------------------------------------------------


class Told:
    """What happened to one request, for a judge."""

    def __init__(self) -> None:
        self.processes = Processes()
        self.judge = GraceJudge(plan_of(0), self.processes)
        self.found: list[str] = []
        self.happened(0.0, "is", "w0", "", {"server": "s"})
        self.happened(0.0, "grace", "c0", "c0:1", "c0:1", 5.0, 2.0)
        self.happened(1.0, "heard", "s", "", "c0", self.request(9.0), b"c0:1|")

    @staticmethod
    def request(deadline_s: float) -> messages.Request:
        return messages.Request(b"s" * 16, 1, b"d" * 16, None, 1, deadline_s)

    def happened(self, at_s: float, kind: str, who: str, key: str, *what: Any) -> None:
        event = Event(at_s, kind, who, key, what)
        if kind == "is":
            self.processes.see(event)
        self.found += self.judge.see(event)

    def dispatch(self, at_s: float, late_s: float | None) -> None:
        message = messages.Dispatch(b"s" * 16, 1, 0, "c0", None, late_s)
        self.happened(at_s, "commanded", "w0", "", b"i" * 16, message, b"c0:1|")

    def began(self, at_s: float) -> None:
        self.happened(at_s, "began", "w0", "c0:1", RequestId(b"s" * 16, 1), 0)

    def late(self, at_s: float) -> None:
        self.happened(at_s, "late", "w0", "c0:1", 0)

    def ended(self, at_s: float) -> None:
        self.happened(at_s, "ended", "w0", "c0:1", 0, None, b"")


def test_judge_finds_nothing_where_a_rollout_is_told_in_time():
    told = Told()
    told.dispatch(2.0, 3.0)  # by its execution: from 2 s on five, less two
    told.began(2.1)
    told.dispatch(4.0, 1.0)
    told.late(5.1)
    told.ended(6.0)
    assert told.found == []


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        ([(2.0, None)], "the dispatch of c0:1 says no late moment"),
        ([(2.0, 2.9)], "c0:1 is to be told 0.100 s early that it is late"),
        ([(2.0, 3.5)], "c0:1 is to be told 0.500 s too late that it is late"),
        ([(2.0, 3.0), (4.0, 3.0)], "c0:1 is to be told 2.000 s too late that it is late"),
        ([(7.0, 3.0)], "c0:1 is to be told 2.000 s too late that it is late"),  # by its deadline
    ],
)
def test_judge_finds_what_a_dispatch_says_wrong(sent: list[tuple[float, float]], said: str):
    told = Told()
    for at_s, late_s in sent:
        told.dispatch(at_s, late_s)
    assert [violation.partition(": ")[2] for violation in told.found] == [said]


def test_judge_allows_a_server_that_stood_still_to_be_late_and_not_to_be_early():
    told = Told()
    told.dispatch(2.0, 3.0)
    told.happened(3.9, "is", "s", "", {"held_times": 1})
    told.dispatch(4.0, 2.5)
    assert told.found == []
    told.dispatch(4.1, 0.5)
    assert len(told.found) == 1


@pytest.mark.parametrize(
    ("late", "said"),
    [
        ([4.9], "c0:1 is told 0.100 s early that it is late"),
        ([5.1, 5.2], "c0:1 is told twice that it is late"),
        ([], "c0:1 ended, and was never told that it was late"),
    ],
)
def test_judge_finds_a_worker_that_tells_early_twice_or_never(late: list[float], said: str):
    told = Told()
    told.dispatch(2.0, 3.0)
    told.began(2.1)
    for at_s in late:
        told.late(at_s)
    told.ended(5.1 + SLACK_S + 0.1)
    assert [violation.partition(": ")[2] for violation in told.found] == [said]


def test_judge_finds_a_rollout_without_a_grace_that_is_told():
    told = Told()
    message = messages.Dispatch(b"s" * 16, 2, 1, "c0", None, 3.0)
    told.happened(2.0, "commanded", "w0", "", b"i" * 16, message, b"c0:2|")
    assert len(told.found) == 1
    assert "says that it is late, and has no grace" in told.found[0]

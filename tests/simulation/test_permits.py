"""Permits in the simulated world: what ships grants no more than there are, to nobody who is gone,
and leaves none behind."""

from __future__ import annotations

import pytest

from trio_envserve.core.messages import Granted
from trio_envserve.core.terms import RequestId, Status
from trio_envserve.lab.simulation.judges import Judges
from trio_envserve.lab.simulation.plan import FaultKind, plan_of
from trio_envserve.lab.simulation.simulator import run
from trio_envserve.lab.simulation.target import Protocol
from trio_envserve.retrylab.judges import Event

STRUCK = FaultKind.PERMITS.value


@pytest.mark.parametrize("hosts", [False, True], ids=["here", "hosts"])
def test_seeds_with_permits_break_no_guarantee(hosts: bool):
    target = Protocol(permits=True, hosts=hosts)
    runs = [target.run(seed) for seed in range(8)]
    assert [(each.seed, each.violations[0]) for each in runs if each.violations] == []
    assert sum(each.faults.get(STRUCK, 0) for each in runs) > 100


def test_permits_can_be_taken_out_of_a_plan():
    plan = plan_of(3, harsh=True, permits=True).without(FaultKind.PERMITS)
    assert plan.permits is None
    assert run(3, plan=plan).digest == Protocol().run(3).digest


class Watched:
    """A judge of two executions on two workers, which claim permits."""

    def __init__(self, most: int = 1, per_s: float | None = None) -> None:
        self.judge = Judges(plan_of(0, permits=True)).guarantees
        self.judge.plan = self.judge.plan.without(FaultKind.PERMITS)
        self.at_s, self.workers = 1.0, ("server0/w0-1", "server0/w1-1")
        for number, worker in enumerate(self.workers):
            self.see("is", worker, "", {"server": "server0"})
            self.see("began", worker, f"c0:{number}", RequestId(b"s" * 16, number), 0)
            self.see("claims", worker, f"c0:{number}", 0, number, "a", most, per_s)

    def see(self, kind: str, who: str, key: str = "", *what: object) -> list[str]:
        """The violations of G12 that an event shows."""
        found = self.judge.see(Event(self.at_s, kind, who, key, what))
        return [each.text for each in found if each.guarantee == "G12"]

    def holds(self, number: int) -> list[str]:
        return self.see("holds", self.workers[number], "", number)


def test_g12_two_that_hold_the_only_permit_are_seen():
    watched = Watched()
    assert watched.holds(0) == []
    (text,) = watched.holds(1)
    assert text == "2 permits of 'a' are held, of 1: by c0:0, c0:1"


@pytest.mark.parametrize("how", ["gives back", "ends", "dies"])
def test_g12_who_gives_back_or_is_gone_holds_nothing(how: str):
    watched = Watched()
    watched.holds(0)
    worker = watched.workers[0]
    if how == "gives back":
        watched.see("gives-back", worker, "", 0)
    elif how == "ends":
        watched.see("ended", worker, "c0:0", 0, Status.RESULT, b"")
    else:
        watched.see("is", worker, "", {"died_s": 1.0})
    assert watched.holds(1) == []


def test_g12_who_sleeps_holds_nothing_until_it_wakes():
    watched = Watched()
    watched.holds(0)
    watched.see("is", watched.workers[0], "", {"asleep": True})
    assert watched.holds(1) == []
    assert watched.see("woke", watched.workers[0]) != []


def test_g12_grants_of_a_rate_that_come_together_are_seen():
    watched = Watched(0, per_s=2.0)
    first, second = Granted([0, 1], 0.0), Granted([1, 2], 0.4)
    life = b"i" * 16
    assert watched.see("commanded", watched.workers[0], "", life, first, None) == []
    (text,) = watched.see("commanded", watched.workers[1], "", life, second, None)
    assert text == "two grants of 'a' are 0.400 s apart"

"""Resources in the simulated world: what ships destroys all of them, once, and none too early."""

from __future__ import annotations

import pytest

from trio_envserve.core.messages import ResourceAnswer
from trio_envserve.core.scope import ResourceState
from trio_envserve.core.terms import Status
from trio_envserve.lab.simulation.observed import Processes
from trio_envserve.lab.simulation.plan import FaultKind, plan_of
from trio_envserve.lab.simulation.resources import ResourceJudge
from trio_envserve.lab.simulation.target import Protocol
from trio_envserve.retrylab.judges import Event

STRUCK = FaultKind.RESOURCES.value


@pytest.mark.parametrize("hosts", [False, True], ids=["here", "hosts"])
def test_seeds_with_resources_break_no_guarantee(hosts: bool):
    target = Protocol(resources=True, hosts=hosts)
    runs = [target.run(seed) for seed in range(8)]
    assert [(each.seed, each.violations[0]) for each in runs if each.violations] == []
    assert sum(each.faults.get(STRUCK, 0) for each in runs) > 100


class Watched:
    """A judge of a resource that an execution on one of two workers has made."""

    def __init__(self, *, journal: bool = True, here: bool = False) -> None:
        plan = plan_of(0, resources=True)
        faults = plan.faults | {FaultKind.JOURNAL} if journal else plan.faults - {FaultKind.JOURNAL}
        object.__setattr__(plan, "faults", faults)
        self.processes = Processes()
        self.judge = ResourceJudge(plan, self.processes)
        for worker in ("w0", "w1", "w2"):
            host = "another" if worker == "w2" else "one"
            self.see("is", worker, {"server": "server0", "machine": host})
        self.see("makes", "w0", 0, "name", here)

    def see(self, kind: str, who: str, *what: object) -> list[str]:
        """The violations that an event shows."""
        event = Event(1.0, kind, who, "", what)
        if kind in ("is", "woke"):
            self.processes.see(event)
        return [each.text for each in self.judge.see(event)]

    def left(self) -> list[str]:
        return [each.text for each in self.judge.rest(2.0)]

    def ends(self) -> None:
        self.see("ended", "w0", 0, Status.RESULT, b"")


def test_g13_resource_that_is_left_is_seen_unless_it_is_stuck():
    watched = Watched()
    assert watched.left() == ["resource name is left"]
    watched.see("stuck", "server0", frozenset({"name"}))
    assert watched.left() == []


def test_g13_server_without_a_journal_takes_with_it_what_it_knew():
    watched = Watched(journal=False)
    assert watched.left() == ["resource name is left"]
    watched.see("is", "server0", {"died_s": 1.0})
    assert watched.left() == []


def test_g13_resource_of_an_execution_that_lives_is_destroyed_by_nobody_else():
    watched = Watched()
    (text,) = watched.see("destroys", "w1", "name")
    assert text == "resource name is destroyed by w1, and its execution lives"


@pytest.mark.parametrize("how", ["ended", "dead", "left"])
def test_g13_resource_of_an_execution_that_is_over_is_destroyed_by_another(how: str):
    watched = Watched()
    if how == "ended":
        watched.ends()
    elif how == "dead":
        watched.see("is", "w0", {"died_s": 1.0})
    else:
        watched.see("destroys", "w0", "name")
        watched.see("destroyed", "w0", "name", False)
    assert watched.see("destroys", "w1", "name") == []
    watched.see("destroyed", "w1", "name", True)
    assert watched.left() == []


def test_g13_two_destroys_at_once_are_seen_also_when_one_wakes():
    watched = Watched()
    watched.ends()
    watched.see("destroys", "w0", "name")
    watched.see("is", "w0", {"asleep": True})
    assert watched.see("destroys", "w1", "name") == []
    (text,) = watched.see("woke", "w0")
    assert text == "resource name is destroyed by w0 and w1 at the same time"


def test_g13_worker_of_a_host_counted_as_dead_as_it_had_no_process_when_it_was_wanted():
    """So nothing was ever said of two such workers that destroyed at once."""
    watched = Watched()
    for worker in ("w0", "w1"):
        watched.see("is", worker, {"died_s": 0.5})  # its host may never start it
        watched.see("is", worker, {"died_s": None})
    watched.ends()
    watched.see("destroys", "w0", "name")
    (text,) = watched.see("destroys", "w1", "name")
    assert text == "resource name is destroyed by w0 and w1 at the same time"


def test_g13_destroy_after_a_success_is_seen_unless_its_worker_died_before_it_was_known():
    watched = Watched()
    watched.see("destroys", "w0", "name")
    watched.see("destroyed", "w0", "name", True)
    text, *_ = watched.see("destroys", "w1", "name")
    assert text == "resource name is destroyed again by w1, and was known to be gone"
    watched.see("is", "w0", {"died_s": 1.0})
    watched.see("destroyed", "w1", "name", False)
    assert watched.see("destroys", "w1", "name") == []
    watched.see("commanded", "w0", b"", ResourceAnswer("name", ResourceState.GONE, ""), None)
    watched.see("destroyed", "w1", "name", False)
    assert watched.see("destroys", "w1", "name") != []


@pytest.mark.parametrize("journal", [True, False])
def test_g13_next_server_knows_what_is_gone_if_there_is_a_journal(journal: bool):
    watched = Watched(journal=journal)
    watched.see("destroys", "w0", "name")
    watched.see("destroyed", "w0", "name", True)
    watched.see("commanded", "w0", b"", ResourceAnswer("name", ResourceState.GONE, ""), None)
    watched.see("is", "w0", {"died_s": 1.0})
    watched.see("is", "server1", {"epoch": b""})
    assert bool(watched.see("destroys", "w1", "name")) is journal


@pytest.mark.parametrize("here", [False, True])
def test_g13_resource_of_a_host_that_is_destroyed_from_another_one_is_seen(here: bool):
    watched = Watched(here=here)
    watched.see("is", "w0", {"died_s": 1.0})
    found = ["resource name is destroyed by w2, which is not on its host"] if here else []
    assert watched.see("destroys", "w2", "name") == found
    assert Watched(here=here).see("destroys", "w1", "name") == [
        "resource name is destroyed by w1, and its execution lives"
    ]


def test_g13_name_that_is_given_twice_is_seen():
    assert Watched().see("makes", "w1", 0, "name", False) == ["the name name is given twice"]

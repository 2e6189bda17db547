"""Hosts of other machines in the simulated world: what ships holds its leases."""

from __future__ import annotations

import dataclasses

import pytest

from trio_envserve.core.lease import DRIFT, Leases, Reception
from trio_envserve.core.messages import WorkerHello
from trio_envserve.lab.simulation.judges import Judges
from trio_envserve.lab.simulation.plan import (
    FaultKind,
    HostPlan,
    SimulationPlan,
    is_harsh,
    kinds_of,
    plan_of,
)
from trio_envserve.lab.simulation.simulator import run
from trio_envserve.lab.simulation.target import Protocol
from trio_envserve.retrylab import load_failure, replay, save_failure, search
from trio_envserve.retrylab.judges import Event
from trio_envserve.retrylab.target import tried


def plan_with_hosts(seed: int) -> SimulationPlan:
    return plan_of(seed, harsh=is_harsh(seed), hosts=True)


def hosts_of(plan: SimulationPlan) -> HostPlan:
    assert plan.hosts is not None
    return plan.hosts


def test_hosted_seeds_break_no_guarantee_and_every_fault_of_hosts_strikes():
    runs = [Protocol(hosts=True).run(seed) for seed in range(16)]
    assert [(each.seed, each.violations[0]) for each in runs if each.violations] == []
    assert sum(each.executions for each in runs) > 160
    struck = {fault for each in runs for fault in each.faults}
    assert {fault.value for fault in kinds_of("host") if fault.times[1]} <= struck


def test_plans_without_hosts_have_none_of_their_faults():
    assert not any(plan_of(seed).faults & kinds_of("host") for seed in range(100))
    plan = plan_with_hosts(3)
    without = plan.without(FaultKind.HOSTS)
    assert without.hosts is None
    assert not without.faults & kinds_of("host")
    assert {fault for _, fault in without.moments}.isdisjoint(kinds_of("host"))
    assert not run(3, plan=without).violations


def test_clocks_of_leases_are_at_the_ends_of_the_bound_and_without_a_lease_anywhere():
    plans = [hosts_of(plan_with_hosts(seed)) for seed in range(100)]
    with_lease = {rate for each in plans if each.proves for rate in each.rates}
    without = {rate for each in plans if not each.proves for rate in each.rates}
    assert with_lease == {1 - DRIFT, 1.0, 1 + DRIFT}
    assert without == {0.5, 1.0, 2.0}


def test_g9_a_host_that_is_never_welcome_is_found(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Leases, "hello", lambda *hello, **more: (Reception.IN_USE, None))
    few = tuple(asks[:2] for asks in plan_with_hosts(0).asks)
    plan = dataclasses.replace(plan_with_hosts(0), workers=1, moments=(), asks=few)
    found = [each.text for each in run(0, plan=plan).violations if each.guarantee == "G9"]
    assert found == [f"host h{number} has not joined" for number in range(3)]


class BeyondTheBound(Protocol):
    """Hosts whose clocks differ by more than leases allow for, or whose guards are later."""

    def __init__(self, bound: str = "drift") -> None:
        super().__init__(hosts=True)
        self.bound = bound

    def plan(self, seed: int) -> SimulationPlan:
        plan = super().plan(seed)
        hosts = hosts_of(plan)
        if self.bound == "guard":
            hosts = dataclasses.replace(hosts, late_s=8 * hosts.guard_s)
        else:
            rates = {1 - DRIFT: 0.55, 1 + DRIFT: 1.45}
            hosts = dataclasses.replace(hosts, rates=tuple(rates.get(r, r) for r in hosts.rates))
        return dataclasses.replace(plan, hosts=hosts)


def test_a_guard_beyond_the_bound_is_found():
    target = BeyondTheBound("guard")
    found = next(found for _, found in tried(target, 0, 200) if found is not None)
    assert found.guarantee == "G1"


def test_a_clock_beyond_the_bound_is_found_and_made_small(tmp_path):
    target = BeyondTheBound("drift")
    failure = search(target, runs=200)
    assert failure is not None
    assert "G1" in failure.violation
    assert len(failure.plan.moments) <= len(target.plan(failure.seed).moments)
    path = save_failure(failure, tmp_path)
    assert load_failure(target, path) == failure
    assert replay(target, failure)


# -- the judge alone ----------------------------------------------------------------------

HOST, WORKER = "h0", "server0/w0-1"
MEMBERSHIP = b"t" * 16


def judged(*events: tuple[float, str, str, tuple[object, ...]]) -> list[str]:
    """What a judge says of a worker on a host whose beat of 1 s was answered with 2 s."""
    judge = Judges(plan_with_hosts(0)).guarantees
    before = [
        (0.0, "is", HOST, ({"rate": 0.5, "guard_s": 0.5},)),
        (0.0, "is", WORKER, ({"server": "server0", "machine": HOST},)),
        (1.0, "beat", HOST, (MEMBERSHIP, 1)),
        (1.5, "answered", HOST, (MEMBERSHIP, 1, 2.0)),
    ]
    found = []
    for at_s, kind, who, what in (*before, *events):
        found += judge.see(Event(at_s, kind, who, "", what))
    return [each.partition(":")[2].strip() for each in found]


def test_g1_a_worker_may_live_until_its_hosts_lease_has_ended_on_the_hosts_own_clock():
    assert judged((5.5, "ticked", "server0", ())) == []
    assert judged((5.6, "ticked", "server0", ())) != []


def test_g1_a_worker_of_a_machine_that_sleeps_is_judged_as_it_wakes():
    asleep = (2.0, "is", WORKER, ({"asleep": True},))
    lost = (9.0, "lost", WORKER, ())
    assert judged(asleep, (8.0, "ticked", "server0", ()), lost) == []
    assert len(judged(asleep, lost, (10.0, "woke", WORKER, ()))) == 2
    dead = (10.0, "is", WORKER, ({"died_s": 10.0},))
    assert judged(asleep, lost, dead, (10.0, "ticked", "server0", ())) == []


def test_g1_a_worker_that_lives_while_its_server_is_said_to_be_dead_is_found():
    epoch = (0.0, "is", "server0", ({"epoch": b"e" * 16},))
    dead = (2.0, "declares", "server1", ({b"e" * 16},))
    assert len(judged(epoch, dead)) == 1
    assert judged(epoch, (1.9, "back", WORKER, ("server1",)), dead) == []


@pytest.mark.parametrize(
    ("before", "declared"), [([], True), ([None], None)], ids=["alone", "behind garbage"]
)
def test_hello_behind_a_message_that_cannot_be_read_declares_nothing(
    before: list[None], declared: bool | None
):
    """A host brings many messages of a worker in one; the router ends that worker at the first
    that it cannot read."""
    model = Judges(plan_with_hosts(0)).model
    hello = WorkerHello(2, 1, "an environment", True, 4)
    model.see(Event(0.0, "begins", "server0", "", ()))
    for message in (*before, hello):
        model.see(Event(1.0, "reported", WORKER, "", (message, None)))
    model.see(Event(1.0, "turned", "server0", "", ()))
    assert model.declared is declared

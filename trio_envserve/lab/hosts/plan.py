"""The plan of a run, drawn before it: clocks, limits, and what strikes when."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from random import Random
from typing import Any

from ...core.lease import DRIFT, GUARD_S, NO_LEASE_S
from ...retrylab.draw import listed, timetable

HOSTS = 3
REQUESTS = 6
FENCES_S = (2.0, 5.0, 20.0, 60.0)
FAULTS_MOST = 10
FOR_GOOD_S = 1e6


class Fault(enum.Enum):
    """The faults that strike a host, or, of those at the end, the router."""

    CUT = "nothing passes between the host and the router"
    CUT_UP = "nothing passes to the router"
    CUT_DOWN = "nothing passes from the router"
    LATE = "messages between the host and the router take long"
    SLEEP = "the machine sleeps: no code runs, no timer fires, the time goes on"
    STOP_HOST = "the host's process is stopped"
    STOP_GUARD = "the guard is stopped"
    STOP_ALL = "all processes of the machine are stopped"
    KILL_HOST = "the host's process is killed, and started again"
    RECONNECT = "the connection is replaced"
    COPY = "the host is started on another machine, too, with the same id"
    STOP_ROUTER = "the router's process is stopped"
    KILL_ROUTER = "the router is killed, and replaced by one with other limits"


ON_TOP = (Fault.CUT, Fault.CUT_UP, Fault.LATE, Fault.KILL_ROUTER)
OF_HOSTS_FOR_GOOD = (Fault.COPY,)
"""The faults that keep a host out while another one has its name: without a lease for good."""
OF_THE_ROUTER = (Fault.STOP_ROUTER, Fault.KILL_ROUTER)


@dataclasses.dataclass(frozen=True, slots=True)
class Strike:
    """One fault."""

    at_s: float
    lasts_s: float
    fault: Fault
    host: int


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """Everything about a run but its luck."""

    seed: int
    fences_s: tuple[float, ...]
    """Of each router in turn."""
    rates: tuple[float, ...]
    """How fast the clock of each machine is, and, last, that of the router."""
    guard_s: float
    """A guard is at most so late."""
    lost: float
    """The share of messages that are lost, and of those that come twice."""
    late_s: float
    """Some messages are late by up to so much."""
    strikes: tuple[Strike, ...]
    calm_s: float
    """From then on nothing strikes."""
    journal: bool
    """Whether routers have one."""

    @property
    def lease(self) -> bool:
        """Whether there is one: without it nothing may rest on a clock."""
        return self.fences_s[0] < NO_LEASE_S

    def kinds(self) -> frozenset[Fault]:
        """Kinds of fault in the plan."""
        return frozenset(strike.fault for strike in self.strikes)

    def schedule(self) -> list[str]:
        """Plan in words: leases, clocks, messages; then faults in order."""
        fences = [f"{each:g} s" for each in self.fences_s] if self.lease else ["none"]
        along = [f"{self.lost:.0%} of messages lost, and as many doubled"] * bool(self.lost)
        along += [f"some messages {self.late_s:g} s late"] * bool(self.late_s)
        along += ["routers have a journal"] * self.journal
        return [
            *listed("leases of each router in turn", fences),
            *listed("rates of clocks, the router's last", [f"{rate:g}" for rate in self.rates]),
            *listed("all along", along),
            *timetable(
                (each.at_s, f"h{each.host % HOSTS}: {each.fault.value} ({each.lasts_s:.2f} s)")
                for each in self.strikes
            ),
        ]

    def to_data(self) -> dict[str, Any]:
        """Plan as plain data, for a file."""
        strikes = [dataclasses.asdict(each) | {"fault": each.fault.name} for each in self.strikes]
        return {"plan": dataclasses.asdict(self) | {"strikes": strikes}}


def from_data(data: Mapping[str, Any]) -> Plan:
    """The plan that this data is."""
    strikes = (Strike(**{**each, "fault": Fault[each["fault"]]}) for each in data["strikes"])
    lists = {name: tuple(data[name]) for name in ("fences_s", "rates")}
    return Plan(**{**data, **lists, "strikes": tuple(strikes)})


def plan_of(seed: int, *, beyond: str = "") -> Plan:
    """The plan of a seed.  ``beyond``: which bound is not kept, ``drift`` or ``guard``.
    Every eighth one has no lease, and then keeps none."""
    plan = _plan_with_lease(seed, beyond=beyond)
    if beyond or seed % 8 != 7:
        return plan
    luck = Random(seed)
    return dataclasses.replace(
        plan,
        fences_s=(NO_LEASE_S,) * len(plan.fences_s),
        rates=tuple(luck.choice((0.2, 1.0, 3.0)) for _ in plan.rates),
        guard_s=20 * GUARD_S,
        strikes=tuple(
            each for each in plan.strikes
            if each.fault not in OF_HOSTS_FOR_GOOD and each.lasts_s < FOR_GOOD_S
        ),
    )  # fmt: skip


def _plan_with_lease(seed: int, *, beyond: str) -> Plan:
    luck = Random(seed)
    fence_s = luck.choice(FENCES_S)
    fences_s = (fence_s, *(luck.choice(FENCES_S) for _ in range(8)))
    drift = 0.45 if beyond == "drift" else DRIFT
    extremes = (1 - drift, 1.0, 1 + drift)
    rates = [luck.choice(extremes) for _ in range(2 * HOSTS + 1)]
    calm_s = 4 * max(fence_s, 10.0) + luck.uniform(0, 60)
    strikes: list[Strike] = []
    for _ in range(luck.randint(1, FAULTS_MOST)):
        strikes.append(_strike(luck, fence_s, calm_s))
        if luck.random() < 0.4:
            strikes.append(_next(luck, fence_s, strikes[-1]))
    return Plan(
        seed,
        fences_s,
        tuple(rates),
        8 * GUARD_S if beyond == "guard" else GUARD_S,
        luck.choice((0.0, 0.02, 0.2)),
        luck.choice((0.0, 0.5 * fence_s, 2 * fence_s)),
        tuple(strikes),
        calm_s,
        luck.random() < 0.6,
    )


def _next(luck: Random, fence_s: float, strike: Strike) -> Strike:
    """Harm that comes on top of harm: there the rules meet."""
    at_s = strike.at_s + luck.random() * min(strike.lasts_s, 2 * fence_s)
    return Strike(at_s, 2.5 * fence_s * luck.random(), luck.choice(ON_TOP), strike.host)


def _strike(luck: Random, fence_s: float, calm_s: float) -> Strike:
    lasts_s = luck.choice((0.2, 0.5, 1.0, 1.5, 2.5)) * fence_s * luck.uniform(0.8, 1.2)
    at_s = luck.uniform(1.0, calm_s * 0.7)
    fault, host = luck.choice([*Fault]), luck.randrange(HOSTS)
    if fault is Fault.CUT_DOWN and host == 0 and luck.random() < 0.3:
        lasts_s = FOR_GOOD_S  # of one host, so that others can do all that there is
    return Strike(at_s, lasts_s, fault, host)

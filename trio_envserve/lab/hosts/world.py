"""The world: true time, the network, and what strikes."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from random import Random
from typing import Any, NamedTuple

from ...core.earlier_epochs import EpochWait
from ...core.lease import LeaseTerms
from ...retrylab.judges import Violation
from ...retrylab.mutants import Mutant
from ...retrylab.target import BaseShrinker, Target, ddmin
from .judge import Judge
from .machine import Machine, Worker
from .plan import HOSTS, REQUESTS, Plan, Strike, from_data, plan_of
from .router import Request, Router
from .surroundings import AroundMachine, AroundRouter

REST_S = 2000.0
"""So long after the last fault every request must be answered."""


class World(AroundMachine, AroundRouter):
    """One run of a plan."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.luck = Random(plan.seed ^ 0x5EED)
        self.now_s = 0.0
        self.events = 0
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._pushed = 0
        self._numbers = 0
        self.judge = Judge(self)
        self.requests = {index: self._new_request() for index in range(REQUESTS)}
        """Those that are not answered; until it is calm each answer makes a new one."""
        self.asked = REQUESTS
        """Number of requests so far."""
        self.disk: tuple[EpochWait, ...] = ()
        """The records of routers for their successors."""
        self._routers = 0
        self._late_s = [0.0] * (2 * HOSTS)
        """How late messages to and from each machine may be."""
        self._cuts = {"up": [0] * (2 * HOSTS), "down": [0] * (2 * HOSTS)}
        self.router = self._new_router()
        self.machines = [
            Machine(self, index, f"h{index % HOSTS}", plan.rates[index])
            for index in range(2 * HOSTS)
        ]
        for machine in self.machines[:HOSTS]:
            machine.start_host([])
        for strike in plan.strikes:
            self.after(strike.at_s, self._strike, strike)

    def run(self) -> None:
        """Until every request is answered, or it was calm for long."""
        end_s = self.plan.calm_s + REST_S
        while self._heap and self.now_s < end_s:
            if self.judge.violations or not self.requests:
                break
            self.now_s, _, act, args = heapq.heappop(self._heap)
            self.events += 1
            act(*args)
        if not self.judge.violations:
            self.judge.at_the_end(len(self.requests))

    def after(self, delay_s: float, act: Callable[..., None], *args: Any) -> None:
        """Call ``act(*args)`` in ``delay_s`` of true time."""
        self._pushed += 1
        heapq.heappush(self._heap, (self.now_s + delay_s, self._pushed, act, args))

    def new_id(self) -> bytes:
        """Random bits."""
        return self.luck.randbytes(16)

    def new_number(self) -> int:
        """Of an execution: in the world each has one of its own."""
        self._numbers += 1
        return self._numbers

    def lasts_s(self) -> float:
        """How long an execution takes."""
        return self.luck.choice((0.5, 5.0, 30.0, 150.0))

    def workers(self) -> Iterator[Worker]:
        """All that live."""
        for machine in self.machines:
            yield from machine.workers.values()

    def ended(self, number: int, done: bool) -> None:
        """A router was told that an execution has ended."""
        self.judge.reported(number)
        for index, request in [*self.requests.items()]:
            if request.number != number:
                continue
            request.number = None
            if done:
                del self.requests[index]
                if self.now_s < self.plan.calm_s:
                    self.requests[self.asked] = self._new_request()
                    self.asked += 1

    def _new_request(self) -> Request:
        return Request(keyed=self.plan.journal and self.luck.random() < 0.7)

    # -- the network ----------------------------------------------------------

    def to_router(self, machine: Machine, kind: str, *rest: Any) -> None:
        """Send a message of a host."""
        for delay_s in self._ways("up", machine):
            self.after(delay_s, self._at_router, machine, kind, *rest)

    def _at_router(self, machine: Machine, kind: str, *rest: Any) -> None:
        router = self.router
        router.queue.run(router.receive, machine, kind, *rest)

    def to_host(self, machine: Machine, kind: str, *rest: Any) -> None:
        """Send a message of the router."""
        for delay_s in self._ways("down", machine):
            self.after(delay_s, machine.host.run, machine.receive, machine.process, kind, *rest)

    def _ways(self, way: str, machine: Machine) -> list[float]:
        """How long each copy of a message takes."""
        luck, plan = self.luck, self.plan
        if self._cuts[way][machine.index] or luck.random() < plan.lost:
            return []
        copies = 1 + (luck.random() < plan.lost)
        late_s = [luck.uniform(0, plan.late_s) if luck.random() < 0.1 else 0.0 for _ in range(2)]
        if self._late_s[machine.index]:
            late_s = [luck.uniform(0.0, self._late_s[machine.index]) for _ in range(2)]
        return [luck.uniform(0.001, 0.1) + late_s[n] for n in range(copies)]

    # -- faults ---------------------------------------------------------------

    def _new_router(self) -> Router:
        fence_s = self.plan.fences_s[self._routers % len(self.plan.fences_s)]
        self._routers += 1
        return Router(self, LeaseTerms(fence_s))

    def _strike(self, strike: Strike) -> None:
        machine = self.machines[strike.host]
        getattr(self, f"_{strike.fault.name.lower()}")(machine, strike.lasts_s)

    def _cut(self, machine: Machine, lasts_s: float) -> None:
        self._cut_up(machine, lasts_s)
        self._cut_down(machine, lasts_s)

    def _cut_up(self, machine: Machine, lasts_s: float) -> None:
        self._cut_way("up", machine, lasts_s)

    def _cut_down(self, machine: Machine, lasts_s: float) -> None:
        self._cut_way("down", machine, lasts_s)

    def _cut_way(self, way: str, machine: Machine, lasts_s: float) -> None:
        cuts = self._cuts[way]

        def end() -> None:
            cuts[machine.index] -= 1

        cuts[machine.index] += 1
        self.after(lasts_s, end)

    def _late(self, machine: Machine, lasts_s: float) -> None:
        def end() -> None:
            self._late_s[machine.index] = 0.0

        self._late_s[machine.index] = lasts_s
        self.after(lasts_s, end)
        self.after(lasts_s * 0.7, self._cut_up, machine, lasts_s * 2)

    def _sleep(self, machine: Machine, lasts_s: float) -> None:
        machine.sleep()
        self.after(lasts_s, machine.wake)

    def _stop_host(self, machine: Machine, lasts_s: float) -> None:
        machine.host.stops += 1
        self.after(lasts_s, machine.host.go_on)

    def _stop_guard(self, machine: Machine, lasts_s: float) -> None:
        machine.guard.stops += 1
        self.after(lasts_s, machine.guard.go_on)

    def _stop_all(self, machine: Machine, lasts_s: float) -> None:
        def end() -> None:
            machine.frozen -= 1

        self._stop_guard(machine, lasts_s)
        self._stop_host(machine, lasts_s)
        machine.frozen += 1
        self.after(lasts_s, end)

    def _kill_host(self, machine: Machine, lasts_s: float) -> None:
        def again() -> None:
            past = [*machine.past, *machine.left.continues, machine.lease.tenure][-16:]
            machine.host.run(machine.start_host, past)

        if machine.is_running() and not machine.sleeps:
            machine.kill_host()
            self.after(lasts_s * 0.2, again)

    def _copy(self, machine: Machine, lasts_s: float) -> None:
        other = self.machines[machine.index + HOSTS]
        if not other.is_running():
            other.start_host([])

    def _reconnect(self, machine: Machine, lasts_s: float) -> None:
        if machine.is_running() and not machine.lease.over:
            machine.host.run(machine.hello)

    def _stop_router(self, machine: Machine, lasts_s: float) -> None:
        router, stands = self.router, self.luck.random() < 0.3

        def end() -> None:
            router.stood_s += lasts_s * stands
            router.queue.go_on()

        router.queue.stops += 1
        self.after(lasts_s, end)

    def _kill_router(self, machine: Machine, lasts_s: float) -> None:
        def again() -> None:
            self.router = self._new_router()

        if self.router.alive:
            self.router.alive = False
            self.after(self.luck.uniform(0.05, 0.5) * lasts_s, again)


class Run(NamedTuple):
    """The result of a seed."""

    seed: int
    plan: Plan
    violations: list[Violation]
    events: int
    virtual_s: float
    told: dict[str, int]
    """Number of requests that were answered, and of those that were not."""
    log: tuple[str, ...] = ()
    """Nothing: no trace is kept."""

    @property
    def digest(self) -> str:
        """Figures in which runs that are not the same differ."""
        return f"{self.events} events in {self.virtual_s!r} s, {self.told}"

    @property
    def faults(self) -> dict[str, int]:
        """Number of faults of each kind."""
        return dict(Counter(strike.fault.value for strike in self.plan.strikes))

    def breaks(self, guarantee: str) -> bool:
        """Whether this guarantee was broken."""
        return any(violation.guarantee == guarantee for violation in self.violations)


def run(seed: int, *, beyond: str = "", plan: Plan | None = None) -> Run:
    """Run a seed; the same one always comes to the same."""
    plan = plan or plan_of(seed, beyond=beyond)
    world = World(plan)
    world.run()
    left = len(world.requests)
    told = {"told": world.asked - left, "not told": left}
    return Run(seed, plan, world.judge.violations, world.events, world.now_s, told)


class Leases(Target[Plan, Run]):
    """Leases as a target of searches: :mod:`trio_envserve.retrylab.target`."""

    def __init__(self, *, beyond: str = "", mutant: Mutant | None = None) -> None:
        super().__init__(mutant)
        self.beyond = beyond
        """Bound that is not kept, ``drift`` or ``guard``; empty: all are."""

    def plan(self, seed: int) -> Plan:
        """The plan that a seed draws."""
        return plan_of(seed, beyond=self.beyond)

    def run(
        self, seed: int, *, plan: Plan | None = None, trace: bool = False, until: str = ""
    ) -> Run:
        """Run a seed, or another plan, which has its luck in it."""
        return run(seed, beyond=self.beyond, plan=plan)

    def shrinker(self, whole: Run, guarantee: str, most_runs: int) -> Shrinker:
        """A shrinker of the plan of a run."""
        return Shrinker(self, whole, guarantee, most_runs)

    def drawing(self, run: Run, violation: Violation) -> list[str]:
        """Nothing: the schedule says it all."""
        return []

    def plan_from_data(self, data: Mapping[str, Any]) -> Plan:
        """The plan in the data of a saved failure."""
        return from_data(data["plan"])

    def again(self, seed: int, plan: Plan) -> str:
        """The command that runs the whole seed again."""
        return f"trio-envserve fuzz --protocol {__name__}:Leases --seed {seed}"


class Shrinker(BaseShrinker[Plan, int]):
    """Shrinker of a plan: fewer faults, messages that are not late, clocks that are right."""

    def named(self, call: int) -> str:
        """No violation is of a request."""
        return str(call)

    def calls(self) -> list[int]:
        """None: whoever asks is not in the plan."""
        return []

    def with_calls(self, kept: Sequence[int]) -> Plan:
        """The plan as it is."""
        return self.plan

    def passes(self) -> Iterable[Callable[[], object]]:
        """Fewer faults first."""
        return (self._drop_strikes, self._plainer)

    def _drop_strikes(self) -> None:
        ddmin(list(self.plan.strikes), lambda kept: self.replace(strikes=tuple(kept)))

    def _plainer(self) -> None:
        self.replace(lost=0.0)
        self.replace(late_s=0.0)
        self.replace(journal=False)
        for index in range(len(self.plan.rates)):
            rates = list(self.plan.rates)
            rates[index] = 1.0
            self.replace(rates=tuple(rates))

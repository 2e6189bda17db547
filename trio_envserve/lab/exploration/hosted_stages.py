"""Hosts' machines and routers by number: what can happen to one, and what it then does.

Theory of operation
-------------------
They are those of the simulation of leases (:mod:`...hosts`), and so is what may be broken in
them.  Here each of them has surroundings of its own, which carry nothing out: what it sends,
and what its judge would be told, are effects of the step.  That something is to be done later
is forgotten, since the explorer knows what may be done, and does it at any time.

True time is given with each input.  Clocks read the same at its beginning, however fast they
are: so the rates are chosen when the time passes for the first time.
"""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Any, NamedTuple, TypeVar

from ...core.lease import LeaseTerms
from ...core.terms import Epoch, Tenure
from ...retrylab.values import Bag, form
from ..hosts.judge import Judge, Live
from ..hosts.machine import Machine
from ..hosts.plan import Plan
from ..hosts.router import Request, Router
from ..hosts.surroundings import AroundMachine, AroundRouter, Surroundings
from .hosted_rules import HOST_FORMS
from .machines import Catalogue

T = TypeVar("T")

TICK_S = 5.0
GUARD_S = TICK_S
"""A guard that is late is so for a part of a tick."""
DRIFT = 0.5
"""So much, that the lengths of time in which it matters are few ticks."""
SLOW, FAST = 1 - DRIFT, 1 + DRIFT
CLOCKS = (
    (SLOW, SLOW, FAST), (FAST, FAST, SLOW), (SLOW, FAST, FAST), (SLOW, SLOW, SLOW),
    (FAST, FAST, FAST), (FAST, SLOW, FAST), (SLOW, FAST, SLOW), (FAST, SLOW, SLOW),
)  # fmt: skip
"""The ways of the clocks: those of both hosts, and the router's."""


class Chosen(Random):
    """Luck as the explorer chooses it: which of the hosts gets each request in turn."""

    def __init__(self, choices: Sequence[int] = ()) -> None:
        super().__init__(0)
        self._choices = list(choices)

    def uniform(self, a: float, b: float) -> float:
        """The least."""
        return a

    def choice(self, seq: Any) -> Any:
        """The one that was chosen; without a choice the first."""
        index = self._choices.pop(0) if self._choices else 0
        return seq[min(index, len(seq) - 1)]


class Teller(Judge):
    """Stands for the judge, who knows all machines: what it is told are effects."""

    def __init__(self, effects: list[tuple[Any, ...]]) -> None:
        self._effects = effects

    def started(self, worker: Live) -> None:
        """A worker lives from now on."""
        self._effects.append(("started", worker.number))

    def woke(self, workers: Iterable[Live]) -> None:
        """A machine has woken."""
        self._effects.append(("woke",))

    def taken_over(self, number: int, tenure: Tenure, epoch: Epoch) -> None:
        """A router takes over an execution."""
        self._effects.append(("taken_over", number, tenure, epoch))

    def declared(self, tenure: Tenure, epoch: Epoch) -> None:
        """A router takes workers for dead."""
        self._effects.append(("declared", tenure, epoch))

    def reported(self, number: int) -> None:
        """A router was told that an execution has ended."""
        self._effects.append(("reported", number))


class Stage(Surroundings):
    """The surroundings of one machine in one step."""

    def __init__(self, name: bytes, plan: Plan) -> None:
        self.name = name
        self.plan = plan
        self.ids = 0
        self.enter(0.0)

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in vars(self).items() if k not in ("luck", "judge", "effects")}

    def enter(self, now_s: float, choices: Sequence[int] = ()) -> None:
        """A step begins."""
        self.now_s = now_s
        self.effects: list[tuple[Any, ...]] = []
        self.judge = Teller(self.effects)
        self.luck = Chosen(choices)

    @abstractmethod
    def form(self) -> Any:
        """The form of all that is there."""

    def after(self, delay_s: float, act: Callable[..., None], *args: Any) -> None:
        """The explorer knows what may be done."""

    def new_id(self) -> bytes:
        """The name of its owner, and which it is."""
        self.ids += 1
        return b"%s.%d" % (self.name, self.ids)


class HostStage(Stage, AroundMachine):
    """A machine with its host."""

    def __init__(self, index: int, name: str, plan: Plan) -> None:
        super().__init__(b"h%d" % index, plan)
        self.machine = Machine(self, index, name, plan.rates[index])

    def form(self) -> Any:
        """The form of the machine."""
        return form(self.machine, HOST_FORMS), self.ids

    def to_router(self, machine: Machine, kind: str, *rest: Any) -> None:
        """Send a message of the host."""
        self.effects.append(("up", (kind, *rest)))

    def lasts_s(self) -> float:
        """The explorer ends executions."""
        return 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class Peer:
    """A host, as a router knows it."""

    index: int
    name: str


class RouterStage(Stage, AroundRouter):
    """A router, the ones after it, and what they have in common."""

    router: Router

    def __init__(self, plan: Plan, requests: int, keyed: bool) -> None:
        super().__init__(b"e", plan)
        self.requests = {index: Request(keyed=keyed) for index in range(requests)}
        self.disk = ()
        self.lives = self.numbers = 0
        self.replace()

    def form(self) -> Any:
        """The form of the router, and of what its successor would have."""
        whole = self.router, self.requests, self.disk
        return form(whole, HOST_FORMS), self.lives, self.numbers, self.ids

    def replace(self) -> None:
        """Another router begins."""
        fence_s = self.plan.fences_s[self.lives % len(self.plan.fences_s)]
        self.lives += 1
        self.router = Router(self, LeaseTerms(fence_s, drift=DRIFT, guard_s=GUARD_S))

    def to_host(self, machine: Machine, kind: str, *rest: Any) -> None:
        """Send a message to a host."""
        self.effects.append(("down", machine.index, (kind, *rest)))

    def new_number(self) -> int:
        """The next one."""
        self.numbers += 1
        return self.numbers

    def ended(self, number: int, done: bool) -> None:
        """An execution has ended, and with a result its request is answered."""
        self.judge.reported(number)
        for index, request in [*self.requests.items()]:
            if request.number == number:
                request.number = None
                if done:
                    del self.requests[index]


# -- by number ---------------------------------------------------------------------------


class WorkerInfo(NamedTuple):
    """A worker that lives."""

    number: int
    request: int
    tenure: Tenure
    epoch: Epoch
    where: str
    sleeps: bool


class HostInfo(NamedTuple):
    """The facts about a machine that the explorer needs."""

    process: int
    runs: bool
    sleeps: bool
    stopped: bool
    """Whether its guard is."""
    dead_by_s: float | None
    """The guard's time has come: by then all workers are dead."""
    workers: tuple[WorkerInfo, ...]
    tenure: Tenure


class RouterInfo(NamedTuple):
    """The facts about the router that the explorer needs."""

    alive: bool
    waiting: int
    """So many requests are not answered."""


def _in_order(part: Any) -> Any:
    """The form with its bags sorted: equal sets may give their things in other orders, and in
    each process in another one."""
    if isinstance(part, Bag):
        return ("bag", *sorted(map(_in_order, part.values), key=repr))
    return tuple(map(_in_order, part)) if type(part) is tuple else part


class Stages(Catalogue):
    """Stages of one kind."""

    def key(self, machine: Stage) -> Any:
        """The form that tells it from others."""
        return _in_order(machine.form())

    def run(self, machine: Stage, given: tuple[Any, ...]) -> tuple[Any, ...]:
        """Hand in an input: true time, its kind, and what belongs to it."""
        now_s, name, *rest = given
        choices = rest.pop() if name == "turn" and isinstance(machine, RouterStage) else ()
        machine.enter(now_s, choices)
        getattr(self, f"_{name}")(machine, *rest)
        return tuple(machine.effects)

    def _clocks(self, stage: Stage, rates: tuple[float, ...]) -> None:
        stage.plan = dataclasses.replace(stage.plan, rates=rates)
        if isinstance(stage, HostStage):
            stage.machine.rate = rates[stage.machine.index]


class Hosts(Stages):
    """Machines with their hosts."""

    def new(self, index: int, name: str, plan: Plan) -> int:
        """One on which no host runs."""
        return self.add(HostStage(index, name, plan))

    def look(self, machine: HostStage) -> HostInfo:
        """Which actions there are."""
        its = machine.machine
        dead_by_s = None
        if its.doomed and its.deadline_s is not None:
            dead_by_s = its.true_s(its.deadline_s) + GUARD_S
        workers = tuple(
            WorkerInfo(w.number, w.request, w.tenure, w.epoch, its.name, w.sleeps)
            for w in its.workers.values()
        )
        return HostInfo(
            its.process, its.is_running(), its.sleeps > 0, its.guard.stops > its.sleeps, dead_by_s,
            workers, its.lease.tenure,
        )  # fmt: skip

    def _begin(self, stage: HostStage) -> None:
        its = stage.machine
        past = [*its.past, *its.left.continues, its.lease.tenure] if its.process else []
        its.start_host(past)

    def _turn(self, stage: HostStage) -> None:
        its = stage.machine
        its.host.run(its._turn, its.process)

    def _receive(self, stage: HostStage, process: int, *message: Any) -> None:
        its = stage.machine
        its.host.run(its.receive, process, *message)

    def _timer(self, stage: HostStage) -> None:
        its = stage.machine
        its.timer(its.guards)

    def _fire(self, stage: HostStage) -> None:
        its = stage.machine
        its._fire(its.guards)

    def _end(self, stage: HostStage, number: int) -> None:
        its = stage.machine
        its._end(its.workers[number])

    def _reconnect(self, stage: HostStage) -> None:
        its = stage.machine
        if not its.lease.over:
            its.host.run(its.hello)

    def _crash(self, stage: HostStage) -> None:
        stage.machine.kill_host()

    def _sleep(self, stage: HostStage) -> None:
        stage.machine.sleep()

    def _wake(self, stage: HostStage) -> None:
        stage.machine.wake()

    def _stop(self, stage: HostStage) -> None:
        stage.machine.guard.stops += 1

    def _resume(self, stage: HostStage) -> None:
        stage.machine.guard.go_on()


class HostRouters(Stages):
    """Routers of hosts."""

    def new(self, plan: Plan, requests: int, keyed: bool) -> int:
        """The first one."""
        return self.add(RouterStage(plan, requests, keyed))

    def look(self, machine: RouterStage) -> RouterInfo:
        """Which actions there are."""
        return RouterInfo(machine.router.alive, len(machine.requests))

    def _turn(self, stage: RouterStage) -> None:
        stage.router._tick()

    def _receive(self, stage: RouterStage, index: int, name: str, *message: Any) -> None:
        stage.router.receive(Peer(index, name), *message)  # type: ignore[arg-type]  # all it needs

    def _fall(self, stage: RouterStage) -> None:
        stage.router.alive = False

    def _replace(self, stage: RouterStage) -> None:
        stage.replace()

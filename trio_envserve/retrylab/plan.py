"""The plan of a run: drawn from its seed, or made smaller.

Each seed draws which *kinds* of fault occur ("swarm testing": a run with two kinds
reaches states that one with all of them never does), and how often.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from random import Random
from typing import Any, NamedTuple

from . import author
from .author import raised
from .draw import listed, timetable
from .system import Ask, BrokenSystem, Clock, Fault, System, unknown
from .values import plain, short
from .world import Rates

MOST_STRIKES = 3
"""Most faults of each kind in a run."""

AT_ONCE_S = 0.005
"""Pause in seconds below which an actor is told to be back at once."""

PLAIN_DELAY_S = (0.001, 0.001)
"""Least and most delay of messages in seconds, where it does not matter."""

AFTERWARDS_S = 1.0
"""Time in seconds after the last ask until which faults are drawn."""

RATES = {Fault.LOSE: "loss", Fault.DUPLICATE: "duplicate", Fault.REORDER: "mangle"}
"""Kinds of fault that strike messages, and the name of each rate in :class:`.Rates`."""


class Strike(NamedTuple):
    """Fault at a moment."""

    at_s: float
    """Time of the fault in seconds since the run began."""
    fault: Fault
    """Kind of the fault."""
    actor: str
    """Name of the actor that is struck; for a connection, of an actor that has it."""
    for_s: float
    """Duration of the fault in seconds: until the actor is there again, say."""
    act: int = 0
    """Number of the act (send, write, sync) before which a killed actor dies, in its next
    handler that has so many; 0: at once."""

    others: tuple[str, ...] = ()
    """Names of the other actors on its side of a partition."""

    def text(self) -> str:
        """Fault in words."""
        name, for_s = self.actor, f"{self.for_s:.2f} s"
        match self.fault:
            case Fault.KILL:
                back = "at once" if self.for_s < AT_ONCE_S else f"after {for_s}"
                return f"{name} is killed{_BEFORE[self.act]}, and back {back}"
            case Fault.POWER:
                back = "at once" if self.for_s < AT_ONCE_S else f"after {for_s}"
                return f"{name} loses power{_BEFORE[self.act]}, and is back {back}"
            case Fault.PARTITION:
                side = ", ".join([name, *self.others])
                return f"nothing passes between {side} and the others for {for_s}"
            case Fault.STOP:
                return f"{name} is stopped for {for_s}"
            case Fault.CUT:
                return f"a connection of {name} is cut, none for {for_s}"
            case _:
                return f"a connection of {name} is half open for {for_s}, then cut"


class Crash(NamedTuple):
    """Crash before a certain act of an actor."""

    actor: str
    """Name of the actor."""
    act: int
    """Number of the act (send, write, sync), counted from 1 at the beginning of the run."""
    loses: str = ""
    """Unsynced writes that are lost: ``all`` or ``all but the last``; empty: none."""

    def survives(self) -> Callable[[int], bool] | None:
        """Test whether an unsynced write survives, for :meth:`.Stored.lose`; None if all do."""
        match self.loses:
            case "all":
                return lambda number: False
            case "all but the last":
                return lambda number: number == -1
        return None

    def text(self) -> str:
        """Crash in words."""
        lost = f", and loses {self.loses} of its unsynced writes" if self.loses else ""
        return f"{self.actor} is killed before its act number {self.act}{lost}"


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """Everything about a run that is drawn before it starts."""

    asks: tuple[Ask, ...]
    """The asks of callers."""
    strikes: tuple[Strike, ...]
    """The faults that strike actors and connections."""
    rates: Rates
    """Rates of messages that are lost, duplicated and delayed."""
    busy_s: float
    """Time in seconds since the run began until which faults are drawn."""
    clocks: Mapping[str, Clock] = dataclasses.field(default_factory=dict)
    """Wrong clocks, by the name of the actor."""
    crash: Crash | None = None
    """Crash before a certain act; None: none."""

    def calm(self) -> Plan:
        """Copy of the plan without any fault."""
        return Plan(self.asks, (), Rates(delay_s=PLAIN_DELAY_S), self.busy_s)

    def kinds(self) -> list[Fault]:
        """Kinds of fault in the plan."""
        struck = {strike.fault for strike in self.strikes}
        struck |= {Fault.DRIFT} if self.clocks else set()
        if self.crash is not None:
            struck.add(Fault.POWER if self.crash.loses else Fault.KILL)
        return [fault for fault in Fault if fault in struck or self._rate(fault)]

    def _rate(self, fault: Fault) -> float:
        return getattr(self.rates, RATES[fault]) if fault in RATES else 0.0

    def to_data(self) -> dict[str, Any]:
        """Plan as plain data, for a file."""
        return {
            "asks": asks_data(self.asks),
            "plan": {
                "strikes": [{**each._asdict(), "fault": each.fault.name} for each in self.strikes],
                "rates": dataclasses.asdict(self.rates),
                "busy_s": self.busy_s,
                "clocks": {name: list(clock) for name, clock in self.clocks.items()},
                "crash": self.crash,
            },
        }

    def without(self, fault: Fault) -> Plan:
        """Copy of the plan without this kind of fault, but for the :attr:`crash`."""
        if fault in RATES:
            return self.with_rates({fault: 0.0})
        if fault is Fault.DRIFT:
            return dataclasses.replace(self, clocks={})
        strikes = tuple(strike for strike in self.strikes if strike.fault is not fault)
        return dataclasses.replace(self, strikes=strikes)

    def with_rates(self, of: Mapping[Fault, float]) -> Plan:
        """Copy of the plan with these rates of the faults of messages."""
        changes: dict[str, Any] = {RATES[fault]: rate for fault, rate in of.items()}
        return dataclasses.replace(self, rates=dataclasses.replace(self.rates, **changes))

    def schedule(self) -> list[str]:
        """Plan in words: rates, wrong clocks, the crash; then faults and asks in order."""
        rated = [(fault, self._rate(fault)) for fault in Fault]
        moments = [(strike.at_s, strike.text()) for strike in self.strikes]
        moments += [(a.at_s, f"{a.actor} asks {a.request}: {short(a.what)}") for a in self.asks]
        clocks = [
            f"{name}'s ({clock.rate:g} s in a second, set {clock.ahead_s:g} s ahead)"
            for name, clock in self.clocks.items()
        ]
        along = [f"{fault.value} ({rate:.0%})" for fault, rate in rated if rate]
        crash = [self.crash.text()] if self.crash is not None else []
        lines = listed("all along", along) + listed("clocks that are wrong", clocks)
        return lines + crash + timetable(moments)


def asks_data(asks: Iterable[Ask]) -> list[dict[str, Any]]:
    """Asks as plain data: what was asked for is drawn again when they are read."""
    return [{"request": a.request, "at_s": a.at_s, "what": plain(a.what)} for a in asks]


def draw(system: System, seed: int) -> Plan:
    """The plan of a seed.  BrokenSystem if the asks of callers cannot be drawn."""
    rng = Random(f"{seed}/plan")
    asks = asks_of(system, seed)
    busy_s = max((ask.at_s for ask in asks), default=0.0) + AFTERWARDS_S
    chance = rng.choice((0.2, 0.4, 0.7))
    kinds = [fault for fault in FIRST if rng.random() < chance and fault in system.faults]
    strikes = [
        strike
        for fault in kinds
        if fault in _FOR_S
        for _ in range(rng.randint(1, MOST_STRIKES))
        if (strike := _strike(system, rng, fault, busy_s)) is not None
    ]
    strikes += _more_strikes(system, seed, chance, busy_s)

    def rate(fault: Fault) -> float:
        drawn = rng.choice((0.02, 0.1, 0.3))
        return drawn if fault in kinds else 0.0

    rates = Rates(
        delay_s=(0.0005, 0.004) if rng.random() < 0.7 else (0.001, 0.06),
        loss=rate(Fault.LOSE),
        mangle=rate(Fault.REORDER),
        copies=(1,),
        duplicate=rate(Fault.DUPLICATE),
    )
    strikes.sort(key=lambda strike: strike.at_s)
    return Plan(asks, tuple(strikes), rates, busy_s, clocks=_clocks(system, seed, chance))


FIRST = tuple(fault for fault in Fault if fault not in (Fault.PARTITION, Fault.POWER, Fault.DRIFT))
"""Kinds of fault that are drawn from one source.  Each of the others has a source of its
own, so that a system with those has the same faults of these kinds."""


def _more_strikes(system: System, seed: int, chance: float, busy_s: float) -> Iterator[Strike]:
    """Partitions and losses of power."""
    for fault in (Fault.PARTITION, Fault.POWER):
        rng = Random(f"{seed}/{fault.name}")
        if rng.random() >= chance or fault not in system.faults:
            continue
        for _ in range(rng.randint(1, MOST_STRIKES)):
            strike = _strike(system, rng, fault, busy_s)
            if strike is not None and fault is Fault.PARTITION:
                others = [name for name in system.actors if name != strike.actor]
                side = rng.sample(others, rng.randint(0, max(0, len(others) - 1)))
                strike = strike._replace(others=tuple(sorted(side)))
            if strike is not None:
                yield strike


def _clocks(system: System, seed: int, chance: float) -> dict[str, Clock]:
    """Wrong clocks, by the name of the actor."""
    rng = Random(f"{seed}/{Fault.DRIFT.name}")
    if rng.random() >= chance or Fault.DRIFT not in system.faults:
        return {}
    clocks = {name: drawn_clock(system, rng) for name in system.actors}
    return {name: clock for name, clock in clocks.items() if clock != Clock()}


def drawn_clock(system: System, rng: Random) -> Clock:
    """A clock as wrong as it may be, or right."""
    rate = rng.choice((1.0, 1.0 - system.drift, 1.0 + system.drift))
    return Clock(rate, rng.choice((0.0, system.ahead_s)))


_FOR_S: dict[Fault, tuple[tuple[float, float], ...]] = {
    Fault.CUT: ((0.01, 0.1), (0.5, 4.0)),
    Fault.HALF_OPEN: ((0.2, 4.0),),
    Fault.KILL: ((0.005, 0.05), (0.2, 2.0)),
    Fault.STOP: ((0.2, 5.0),),
    Fault.PARTITION: ((0.2, 4.0),),
    Fault.POWER: ((0.005, 0.05), (0.2, 2.0)),
}
"""Ranges of the duration of each kind of fault in seconds, to draw one from."""

_ACTS = (0, 0, 1, 2, 2, 3)
"""Numbers of the act before which an actor is killed, to draw one from; 0: at once."""

_BEFORE = ["", *(f" before the {n} act of its next handler" for n in ("first", "second", "third"))]
"""Words for each number of an act."""


def _strike(system: System, rng: Random, fault: Fault, busy_s: float) -> Strike | None:
    deadly = fault in (Fault.KILL, Fault.POWER)
    spared = system.never_killed if deadly else ()
    names = [name for name in system.actors if name not in spared]
    if not names:
        return None
    act = rng.choice(_ACTS) if deadly else 0
    for_s = rng.uniform(*rng.choice(_FOR_S[fault]))
    return Strike(rng.uniform(0.0, busy_s), fault, rng.choice(names), for_s, act)


def asks_of(system: System, seed: int) -> tuple[Ask, ...]:
    """Asks of callers in the order of their times, each with a name."""
    ended = author.call(lambda: list(system.asks(Random(f"{seed}/asks"))))
    if ended.error is not None:
        raise BrokenSystem(f"asks raised (seed {seed}):\n{raised(ended.error)}")
    drawn: list[object] = ended.value
    asks = [_checked(system, ask) for ask in drawn]
    counts = dict.fromkeys(system.actors, 0)
    named = []
    for ask in sorted(asks, key=lambda ask: ask.at_s):
        counts[ask.actor] += 1
        named.append(ask._replace(request=f"{ask.actor}#{counts[ask.actor]}"))
    return tuple(named)


def _checked(system: System, ask: object) -> Ask:
    if not isinstance(ask, Ask):
        raise BrokenSystem(f"asks gives values of the class Ask, not {ask!r}")
    if ask.actor not in system.actors:
        raise BrokenSystem(f"asks: {unknown(ask.actor, system.actors)}")
    if not 0.0 <= ask.at_s < math.inf:
        raise BrokenSystem(f"asks: at_s is a time in seconds, not {ask.at_s!r}")
    try:
        plain(ask.what)
    except TypeError as error:
        raise BrokenSystem(f"asks: {error}") from None
    return ask

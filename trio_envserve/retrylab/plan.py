"""The plan of a run: drawn from its seed, or made smaller.

Each seed draws which *kinds* of fault occur ("swarm testing": a run with two kinds
reaches states that one with all of them never does), and how often.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from random import Random
from typing import Any, NamedTuple

from . import author
from .author import raised
from .draw import listed, timetable
from .system import Ask, BrokenSystem, Fault, System, unknown
from .values import plain, short
from .world import Rates

MOST_STRIKES = 3
"""Most faults of each kind in a run."""

AT_ONCE_S = 0.005
"""A shorter pause is not worth a word."""

AFTERWARDS_S = 1.0
"""Faults strike until so long after the last ask."""

RATES = {Fault.LOSE: "loss", Fault.DUPLICATE: "duplicate", Fault.REORDER: "mangle"}
"""The kinds that strike messages, and what their rate is called on a network."""


class Strike(NamedTuple):
    """A fault at a moment."""

    at_s: float
    """When, in seconds since the run began."""
    fault: Fault
    """Its kind."""
    actor: str
    """The actor that it strikes; for a connection, the actor that has it."""
    for_s: float
    """How long until it is over: until the actor is there again, say."""
    act: int = 0
    """When an actor that is killed dies.  0: at once; n: in its next handler that has so
    many acts (sends, writes), before the n-th."""

    def text(self) -> str:
        """In words."""
        name, for_s = self.actor, f"{self.for_s:.2f} s"
        match self.fault:
            case Fault.KILL:
                back = "at once" if self.for_s < AT_ONCE_S else f"after {for_s}"
                return f"{name} is killed{_BEFORE[self.act]}, and back {back}"
            case Fault.STOP:
                return f"{name} is stopped for {for_s}"
            case Fault.CUT:
                return f"a connection of {name} is cut, none for {for_s}"
            case _:
                return f"a connection of {name} is half open for {for_s}, then cut"


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """Everything about a run that is drawn before it starts."""

    asks: tuple[Ask, ...]
    """The asks of callers."""
    strikes: tuple[Strike, ...]
    """The faults that strike actors and connections."""
    rates: Rates
    """How often messages are lost, duplicated and delayed."""
    busy_s: float
    """When the last fault may strike."""

    def kinds(self) -> list[Fault]:
        """Which kinds of fault it has."""
        struck = {strike.fault for strike in self.strikes}
        return [fault for fault in Fault if fault in struck or self._rate(fault)]

    def _rate(self, fault: Fault) -> float:
        return getattr(self.rates, RATES[fault]) if fault in RATES else 0.0

    def without(self, fault: Fault) -> Plan:
        """The same without this kind of fault."""
        if fault in RATES:
            return self.with_rates({fault: 0.0})
        strikes = tuple(strike for strike in self.strikes if strike.fault is not fault)
        return dataclasses.replace(self, strikes=strikes)

    def with_rates(self, of: Mapping[Fault, float]) -> Plan:
        """The same, with messages lost and so on as often as this."""
        changes: dict[str, Any] = {RATES[fault]: rate for fault, rate in of.items()}
        return dataclasses.replace(self, rates=dataclasses.replace(self.rates, **changes))

    def schedule(self) -> list[str]:
        """In words, in order."""
        rated = [(fault, self._rate(fault)) for fault in Fault]
        moments = [(strike.at_s, strike.text()) for strike in self.strikes]
        moments += [(a.at_s, f"{a.actor} asks {a.request}: {short(a.what)}") for a in self.asks]
        along = [f"{fault.value} ({rate:.0%})" for fault, rate in rated if rate]
        return listed("all along", along) + timetable(moments)


def draw(system: System, seed: int) -> Plan:
    """The plan of a seed.  BrokenSystem if what callers ask for cannot be drawn."""
    rng = Random(f"{seed}/plan")
    asks = _asks(system, seed)
    busy_s = max((ask.at_s for ask in asks), default=0.0) + AFTERWARDS_S
    chance = rng.choice((0.2, 0.4, 0.7))
    kinds = [fault for fault in Fault if rng.random() < chance and fault in system.faults]
    strikes = [
        strike
        for fault in kinds
        if fault in _FOR_S
        for _ in range(rng.randint(1, MOST_STRIKES))
        if (strike := _strike(system, rng, fault, busy_s)) is not None
    ]

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
    return Plan(asks, tuple(sorted(strikes, key=lambda strike: strike.at_s)), rates, busy_s)


_FOR_S: dict[Fault, tuple[tuple[float, float], ...]] = {
    Fault.CUT: ((0.01, 0.1), (0.5, 4.0)),
    Fault.HALF_OPEN: ((0.2, 4.0),),
    Fault.KILL: ((0.005, 0.05), (0.2, 2.0)),
    Fault.STOP: ((0.2, 5.0),),
}
"""How long each takes: one of these ranges."""

_ACTS = (0, 0, 1, 2, 2, 3)
"""Before which act of a handler an actor is killed; 0: between two handlers."""

_BEFORE = ["", *(f" before the {n} act of its next handler" for n in ("first", "second", "third"))]
"""In words."""


def _strike(system: System, rng: Random, fault: Fault, busy_s: float) -> Strike | None:
    spared = system.never_killed if fault is Fault.KILL else ()
    names = [name for name in system.actors if name not in spared]
    if not names:
        return None
    act = rng.choice(_ACTS) if fault is Fault.KILL else 0
    for_s = rng.uniform(*rng.choice(_FOR_S[fault]))
    return Strike(rng.uniform(0.0, busy_s), fault, rng.choice(names), for_s, act)


def _asks(system: System, seed: int) -> tuple[Ask, ...]:
    """The asks of callers, each with a name."""
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

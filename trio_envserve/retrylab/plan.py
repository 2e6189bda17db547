"""The plan of a run: drawn from its seed, or made smaller.

Each seed draws which *kinds* of fault occur ("swarm testing": a run with two kinds
reaches states that one with all of them never does), and how often.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from random import Random
from typing import Any, NamedTuple

from . import author
from .author import raised
from .draw import listed, timetable
from .system import Ask, BrokenSystem, Clock, Fault, System, unknown
from .values import as_data, from_data, plain, short
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
    """Number of the act (send, write, sync), counted from then, before which a killed actor
    dies; 0: at once."""
    others: tuple[str, ...] = ()
    """Names of the other actors on its side of a partition."""
    loses: str = ""
    """Unsynced writes that are lost with the power: ``all`` or ``all but the last``; empty:
    those that luck says."""

    def text(self) -> str:
        """Fault in words."""
        name, for_s = self.actor, f"{self.for_s:.2f} s"
        act = f" before act {self.act} of those to come" if self.act else ""
        back = "at once" if self.for_s < AT_ONCE_S else f"after {for_s}"
        match self.fault:
            case Fault.KILL:
                return f"{name} is killed{act}, and back {back}"
            case Fault.POWER:
                lost = f" with {self.loses} of its unsynced writes" if self.loses else ""
                return f"{name} loses power{lost}{act}, and is back {back}"
            case Fault.PARTITION:
                side = ", ".join([name, *self.others])
                return f"nothing passes between {side} and the others for {for_s}"
            case Fault.STOP:
                return f"{name} is stopped for {for_s}"
            case Fault.CUT:
                return f"a connection of {name} is cut, none for {for_s}"
            case _:
                return f"a connection of {name} is half open for {for_s}, then cut"

    def survives(self, luck: Random) -> Callable[[int], bool]:
        """Test whether an unsynced write survives, for :meth:`.Stored.lose`.

        Args:
            luck: Random source.
        """
        last = {"all": 0, "all but the last": -1}.get(self.loses)
        return lambda number: luck.random() < 0.5 if last is None else number == last


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

    def calm(self) -> Plan:
        """Copy of the plan without any fault."""
        return Plan(self.asks, (), Rates(delay_s=PLAIN_DELAY_S), self.busy_s)

    def kinds(self) -> list[Fault]:
        """Kinds of fault in the plan."""
        struck = {strike.fault for strike in self.strikes}
        struck |= {Fault.DRIFT} if self.clocks else set()
        return [fault for fault in Fault if fault in struck or self._rate(fault)]

    def _rate(self, fault: Fault) -> float:
        return getattr(self.rates, RATES[fault]) if fault in RATES else 0.0

    def to_data(self) -> dict[str, Any]:
        """Plan as plain data, for a file."""
        plan = as_data(dataclasses.replace(self, asks=()))
        del plan["asks"]
        return {"asks": asks_data(self.asks), "plan": plan}

    @classmethod
    def from_data(cls, data: Mapping[str, Any], asks: tuple[Ask, ...]) -> Plan:
        """Plan in the data of a file; what was asked for is given.

        Args:
            data: The data.
            asks: Asks of the plan.
        """
        plan: Plan = from_data(cls, {"asks": [], **data["plan"]})
        return dataclasses.replace(plan, asks=asks)

    def without(self, fault: Fault) -> Plan:
        """Copy of the plan without this kind of fault."""
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

    def _delay_of(self, strike: Strike) -> str:
        """Note that a strike comes later than planned, for its actor is away; empty if not."""
        is_away = any(
            each.fault in _AWAY and each.actor == strike.actor and each is not strike
            and each.at_s <= strike.at_s < each.at_s + each.for_s
            for each in self.strikes
        )  # fmt: skip
        return ", once it is there again" if is_away and strike.fault is not Fault.PARTITION else ""

    def schedule(self) -> list[str]:
        """Plan in words: rates, wrong clocks; then faults and asks in order."""
        rated = [(fault, self._rate(fault)) for fault in Fault]
        moments = [(each.at_s, each.text() + self._delay_of(each)) for each in self.strikes]
        moments += [(a.at_s, f"{a.actor} asks {a.request}: {short(a.what)}") for a in self.asks]
        clocks = [
            f"{name}'s ({clock.rate:g} s in a second, set {clock.ahead_s:g} s ahead)"
            for name, clock in self.clocks.items()
        ]
        along = [f"{fault.value} ({rate:.0%})" for fault, rate in rated if rate]
        lines = listed("all along", along) + listed("clocks that are wrong", clocks)
        return lines + timetable(moments)


_AWAY = (Fault.STOP, Fault.KILL, Fault.POWER)
"""Kinds of fault that take an actor away for a time."""


def asks_data(asks: Iterable[Ask]) -> list[dict[str, Any]]:
    """Asks as plain data: what was asked for is drawn again when they are read."""
    return [{"request": a.request, "at_s": a.at_s, "what": plain(a.what)} for a in asks]


def draw(system: System, seed: int) -> Plan:
    """The plan of a seed.  BrokenSystem if the asks of callers cannot be drawn."""
    rng = Random(f"{seed}/plan")
    asks = asks_of(system, seed)
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
    strikes.sort(key=lambda strike: strike.at_s)
    delay_s = (0.0005, 0.004) if rng.random() < 0.7 else (0.001, 0.06)
    rates: dict[str, Any] = {
        RATES[fault]: rng.choice((0.02, 0.1, 0.3)) for fault in kinds if fault in RATES
    }
    clocks = {name: _clock(system, rng) for name in system.actors} if Fault.DRIFT in kinds else {}
    wrong = {name: clock for name, clock in clocks.items() if clock != Clock()}
    return Plan(asks, tuple(strikes), Rates(delay_s, copies=(1,), **rates), busy_s, wrong)


def _clock(system: System, rng: Random) -> Clock:
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


def _strike(system: System, rng: Random, fault: Fault, busy_s: float) -> Strike | None:
    """A fault of this kind; None if it may strike nobody."""
    deadly = fault in (Fault.KILL, Fault.POWER)
    spared = system.never_killed if deadly else ()
    names = [name for name in system.actors if name not in spared]
    if not names:
        return None
    at_s, actor = rng.uniform(0.0, busy_s), rng.choice(names)
    act = rng.choice(_ACTS) if deadly else 0
    for_s = rng.uniform(*rng.choice(_FOR_S[fault]))
    side: list[str] = []
    if fault is Fault.PARTITION:
        others = [name for name in system.actors if name != actor]
        side = sorted(rng.sample(others, rng.randint(0, max(0, len(others) - 1))))
    return Strike(at_s, fault, actor, for_s, act, tuple(side))


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

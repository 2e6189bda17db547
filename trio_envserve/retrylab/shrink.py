"""Shrinkers: a failing plan is made small, as long as it still fails.

Theory of operation
-------------------
A *plan* is a frozen dataclass: everything about a run that is drawn before it starts.
A subclass of :class:`BaseShrinker` says what its *calls* are (whatever callers ask
for), and what else may be taken away from it.

Each pass takes something away, or makes it plain, and keeps that if the plan still fails.
The passes are repeated until none of them changes anything.  The *luck* (the seed of all
that is not in the plan) stays the same, except where calls are left out: a failure that
needs the luck of one message is often there with another luck.

Nothing here depends on time: the same case always shrinks to the same plan.  The
work is bounded by the number of runs.

:class:`ActorShrinker` does it for any system.  In this order: all asks but the one that it
broke for, kinds of fault, faults at moments, asks, what faults are like, when things
happen.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

from .plan import AFTERWARDS_S, PLAIN_DELAY_S, RATES, Plan, Strike
from .system import Ask, BrokenSystem
from .target import P, Ran, Target

MOST_RUNS = 700
"""Most smaller plans that are tried, by default."""

MOST_CALLS = 12
"""Most calls of a plan from which one is left out with another luck."""

C = TypeVar("C")
T = TypeVar("T")


class BaseShrinker(ABC, Generic[P, C]):
    """The smallest failing plan so far, and the luck that it fails with."""

    lucks = 6
    """Number of lucks that are tried where another may help."""

    def __init__(
        self, target: Target[P, Any], whole: Ran, guarantee: str, most_runs: int
    ) -> None:  # fmt: skip
        self.plan: P = whole.plan
        self.luck = whole.seed
        self.tried = 0
        self.guarantee = guarantee
        self._target = target
        self._most_runs = most_runs
        keys = [each.key for each in whole.violations if each.guarantee == guarantee]
        self.broken = [call for call in self.calls() if self.named(call) == keys[0]]
        """Call that it broke for, if it is one's."""

    def fails(self, plan: P, luck: int) -> bool:
        """Whether the same guarantee breaks.  A judge may raise where nothing is asked
        for any more, say: then this plan is not the failure that is made small."""
        try:
            ran: Ran = self._target.run(luck, plan=plan, until=self.guarantee)
            return ran.breaks(self.guarantee)
        except BrokenSystem:
            return False

    @abstractmethod
    def named(self, call: C) -> str:
        """The name of a call, as violations have it."""

    @abstractmethod
    def calls(self) -> list[C]:
        """All calls of the plan."""

    @abstractmethod
    def with_calls(self, kept: Sequence[C]) -> P:
        """The plan with these calls only."""

    @abstractmethod
    def passes(self) -> Iterable[Callable[[], object]]:
        """Functions that take something away by :meth:`take`, the largest part first."""

    def shrink(self) -> None:
        """Run all passes until none of them helps; first with the broken call alone."""
        if self.broken:
            self.take_with_some_luck(self.with_calls(self.broken))
        while self.tried < self._most_runs:
            before = self.plan
            for one in self.passes():
                one()
            if self.plan == before and not self._one_call_less():
                return

    def take(self, plan: P, luck: int | None = None) -> bool:
        """Try a plan; returns whether it fails, too, and so is the one to go on with."""
        luck = self.luck if luck is None else luck
        if plan == self.plan or self.tried >= self._most_runs:
            return False
        self.tried += 1
        if not self.fails(plan, luck):
            return False
        self.plan, self.luck = plan, luck
        return True

    def replace(self, **changes: Any) -> bool:
        """Take the plan with these fields changed."""
        plan: Any = self.plan
        return self.take(dataclasses.replace(plan, **changes))

    def drop_calls(self) -> None:
        """Leave out calls, half of them at first."""
        ddmin(self.calls(), lambda kept: self.take(self.with_calls(kept)))

    def _one_call_less(self) -> bool:
        """Leave out a call with another luck."""
        calls = self.calls()
        if len(calls) > MOST_CALLS:
            return False
        return any(
            self.take_with_some_luck(self.with_calls(calls[:index] + calls[index + 1 :]))
            for index in range(len(calls))
        )

    def take_with_some_luck(self, plan: P) -> bool:
        """Try a plan with several lucks; returns whether it fails with one of them."""
        return any(self.take(plan, luck) for luck in range(self.luck, self.luck + self.lucks))


def ddmin(items: list[T], take: Callable[[Sequence[T]], bool]) -> list[T]:
    """Smaller list that ``take`` accepts: by leaving out halves, quarters, and in the
    end single items.  ``take`` is asked for the empty list first."""
    if items and take([]):
        return []
    parts = 2
    while len(items) >= 2:
        size = max(1, len(items) // parts)
        for start in range(0, len(items), size):
            fewer = items[:start] + items[start + size :]
            if fewer and take(fewer):
                items = fewer
                parts = max(2, parts - 1)
                break
        else:
            if size == 1:
                return items
            parts = min(len(items), parts * 2)
    return items


OFTEN = 0.5
"""Rate of each fault of messages, where a high one may help."""


class ActorShrinker(BaseShrinker[Plan, Ask]):
    """Shrinker of the plan of a run that breaks a guarantee."""

    lucks = 30  # a run is short

    def named(self, call: Ask) -> str:
        """Name of the request."""
        return call.request

    def calls(self) -> list[Ask]:
        """All asks."""
        return list(self.plan.asks)

    def with_calls(self, kept: Sequence[Ask]) -> Plan:
        """Plan with these asks only, which keep their names."""
        return dataclasses.replace(self.plan, asks=tuple(kept))

    def passes(self) -> Iterable[Callable[[], object]]:
        """Passes in the order that the top of this file gives."""
        return (
            self._likelier, self._drop_kinds, self._drop_strikes, self._drop_clocks,
            self.drop_calls, self._plainer_strikes, self._plainer_world, self._rounder_times,
        )  # fmt: skip

    def _likelier(self) -> None:
        """Try the asks that it broke for alone, with messages that are often lost: luck in
        one of few messages may have needed many."""
        if len(self.plan.asks) > len(self.broken) > 0:
            often = {fault: OFTEN for fault in self.plan.kinds() if fault in RATES}
            self.take_with_some_luck(self.with_calls(self.broken).with_rates(often))

    def _drop_kinds(self) -> None:
        for fault in self.plan.kinds():
            self.take(self.plan.without(fault))

    def _drop_strikes(self) -> None:
        ddmin(list(self.plan.strikes), lambda kept: self.replace(strikes=tuple(kept)))

    def _drop_clocks(self) -> None:
        for name in self.plan.clocks:
            self.replace(clocks={n: c for n, c in self.plan.clocks.items() if n != name})

    def _plainer_strikes(self) -> None:
        for index, strike in enumerate(self.plan.strikes):
            if strike.act:
                self._with_strike(index, strike._replace(at_s=0.0))
                self._with_strike(index, strike._replace(act=0))

    def _plainer_world(self) -> None:
        moments = [ask.at_s for ask in self.plan.asks]
        moments += [strike.at_s for strike in self.plan.strikes]
        self.replace(busy_s=round(max(moments, default=0.0) + AFTERWARDS_S, 1))
        self.replace(rates=dataclasses.replace(self.plan.rates, delay_s=PLAIN_DELAY_S))

    def _rounder_times(self) -> None:
        for digits in (1, 2):
            for index in range(len(self.plan.strikes)):
                for field in ("at_s", "for_s"):
                    strike = self.plan.strikes[index]
                    rounder = round(getattr(strike, field), digits)
                    self._with_strike(index, strike._replace(**{field: rounder}))
            for index, ask in enumerate(self.plan.asks):
                asks = list(self.plan.asks)
                asks[index] = ask._replace(at_s=round(ask.at_s, digits))
                self.replace(asks=tuple(asks))

    def _with_strike(self, index: int, strike: Strike) -> None:
        strikes = list(self.plan.strikes)
        strikes[index] = strike
        self.replace(strikes=tuple(strikes))

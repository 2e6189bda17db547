"""Shrinking a plan: parts are taken away, or made plain, while the same guarantee breaks.

In this order: all asks but the one that it broke for, kinds of fault, faults at
moments, asks, what faults are like, when things happen.  How that is done is said in
:mod:`..kit.shrink`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence

from ..kit.shrink import BaseShrinker, ddmin
from .interface import Ask, BrokenProtocol, Protocol
from .plan import AFTERWARDS_S, RATES, Plan, Strike
from .run import Run, run

PLAIN_DELAY_S = (0.001, 0.001)

OFTEN = 0.5
"""How often what may happen to a message does, where that may help."""


class ActorShrinker(BaseShrinker[Plan, Ask]):
    """Makes small the plan of a run that breaks a guarantee."""

    lucks = 30  # a run is short

    def __init__(self, protocol: Protocol, whole: Run, guarantee: str, most_runs: int) -> None:
        super().__init__(whole.plan, whole.seed, most_runs)
        self._protocol = protocol
        self._guarantee = guarantee
        keys = [each.key for each in whole.violations if each.guarantee == guarantee]
        self._broken = [ask for ask in whole.plan.asks if ask.request == keys[0]]

    def shrink(self) -> None:
        """All of it."""
        self.work(self._broken)

    def fails(self, plan: Plan, luck: int) -> bool:
        """Whether the same guarantee breaks.  A judge may raise where nothing is asked
        for any more, say: then this plan is not the failure that is made small."""
        try:
            return run(self._protocol, luck, plan=plan).breaks(self._guarantee)
        except BrokenProtocol:
            return False

    def calls(self) -> list[Ask]:
        """All asks."""
        return list(self.plan.asks)

    def with_calls(self, kept: Sequence[Ask]) -> Plan:
        """They keep their names."""
        return dataclasses.replace(self.plan, asks=tuple(kept))

    def passes(self) -> Iterable[Callable[[], object]]:
        """See the top of this file."""
        return (
            self._likelier, self._drop_kinds, self._drop_strikes, self.drop_calls,
            self._plainer_strikes, self._plainer_world, self._rounder_times,
        )  # fmt: skip

    def _likelier(self) -> None:
        """The asks that it broke for alone, and messages that are often lost: luck in one
        of few messages may have needed many."""
        if len(self.plan.asks) > len(self._broken) > 0:
            often = {fault: OFTEN for fault in self.plan.kinds() if fault in RATES}
            self.take_with_some_luck(self.with_calls(self._broken).with_rates(often))

    def _drop_kinds(self) -> None:
        for fault in self.plan.kinds():
            self.take(self.plan.without(fault))

    def _drop_strikes(self) -> None:
        ddmin(list(self.plan.strikes), lambda kept: self.replace(strikes=tuple(kept)))

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

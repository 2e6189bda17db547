"""The shrinker of systems of actors.

The passes, in their order: all asks but the one that it broke for, kinds of fault, faults at
moments, asks, what faults are like, when things happen.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence

from .plan import AFTERWARDS_S, PLAIN_DELAY_S, RATES, Plan
from .system import Ask
from .target import BaseShrinker

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
            self._likelier, self.drop_kinds, self._drop_strikes, self._drop_clocks,
            self.drop_calls, self._plainer_strikes, self._plainer_world, self._rounder_times,
        )  # fmt: skip

    def _likelier(self) -> None:
        """Try the asks that it broke for alone, with messages that are often lost: luck in
        one of few messages may have needed many."""
        if len(self.plan.asks) > len(self.broken) > 0:
            often = {fault: OFTEN for fault in self.plan.kinds() if fault in RATES}
            self.take_with_some_luck(self.with_calls(self.broken).with_rates(often))

    def _drop_strikes(self) -> None:
        self.drop_items("strikes")

    def _drop_clocks(self) -> None:
        for name in self.plan.clocks:
            self.replace(clocks={n: c for n, c in self.plan.clocks.items() if n != name})

    def _plainer_strikes(self) -> None:
        for index, strike in enumerate(self.plan.strikes):
            if strike.act:
                acts = range(1, strike.act + 1)
                early = (strike._replace(at_s=0.0, act=act) for act in acts)
                for each in (*early, strike._replace(act=0)):
                    if self.replace_item("strikes", index, each):
                        break

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
                    self.replace_item("strikes", index, strike._replace(**{field: rounder}))
            for index, ask in enumerate(self.plan.asks):
                self.replace_item("asks", index, ask._replace(at_s=round(ask.at_s, digits)))

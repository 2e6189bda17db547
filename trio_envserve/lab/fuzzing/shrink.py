"""Shrinking a plan: parts are taken away, or made plain, while the same guarantee breaks.

In this order: all calls but the one that it broke for, fault kinds, clients,
moments, calls, workers, what the world and single calls are like, when things
happen.  How that is done is said in :mod:`trio_envserve.retrylab.shrink`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

from ...retrylab.shrink import MOST_RUNS, BaseShrinker, ddmin
from ..simulation.faults import PLAIN_BOUNDS, PLAIN_LEASE_S, Ask, Fault, Plan, body_of
from ..simulation.simulator import Run, run

PLAIN_DELAY_S = (0.001, 0.001)
PLAIN_CAPACITY = 3

Call: TypeAlias = tuple[int, Ask]
"""The number of a client, and what it asks for."""


@dataclasses.dataclass(frozen=True, slots=True)
class Shrunk:
    """The smallest plan found, and what its run came to, with its trace."""

    plan: Plan
    luck: int
    """The seed whose luck it needs: the first one's, or one soon after it."""
    run: Run
    tried: int


def shrink(seed: int, plan: Plan, guarantee: str, *, most_runs: int = MOST_RUNS) -> Shrunk:
    """The smallest plan found that breaks the guarantee, too, with this seed's luck."""
    shrinker = _Shrinker(seed, plan, guarantee, most_runs)
    shrinker.work(shrinker.broken_calls())
    plan, luck = shrinker.plan, shrinker.luck
    last = run(luck, harsh=plan.harsh, plan=plan, trace=True, until=guarantee)
    return Shrunk(plan, luck, last, shrinker.tried)


class _Shrinker(BaseShrinker[Plan, Call]):
    def __init__(self, seed: int, plan: Plan, guarantee: str, most_runs: int) -> None:
        super().__init__(plan, seed, most_runs)
        self._guarantee = guarantee

    def fails(self, plan: Plan, luck: int) -> bool:
        """Whether the same guarantee breaks."""
        one = run(luck, harsh=plan.harsh, plan=plan, until=self._guarantee)
        return one.breaks(self._guarantee)

    def passes(self) -> Iterable[Callable[[], object]]:
        """See the top of this file."""
        return (
            self._drop_kinds, self._drop_clients, self._drop_moments, self.drop_calls,
            self._fewer_workers, self._plainer_world, self._plainer_asks, self._rounder_times,
        )  # fmt: skip

    # -- calls ----------------------------------------------------------------

    def broken_calls(self) -> list[Call]:
        """The call that it broke for, if it is one's."""
        whole = run(self.luck, harsh=self.plan.harsh, plan=self.plan, until=self._guarantee)
        keys = [v.key for v in whole.violations if v.guarantee == self._guarantee]
        return [(c, ask) for c, ask in self.calls() if keys and ask.key == keys[0]]

    def calls(self) -> list[Call]:
        """Client by client."""
        return [(client, ask) for client, asks in enumerate(self.plan.asks) for ask in asks]

    def with_calls(self, kept: Sequence[Call]) -> Plan:
        """Each stays with its client."""
        clients = range(len(self.plan.asks))
        asks = tuple(tuple(ask for owner, ask in kept if owner == client) for client in clients)
        return dataclasses.replace(self.plan, asks=asks)

    def _with_ask(self, client: int, index: int, ask: Ask) -> bool:
        asks = [list(each) for each in self.plan.asks]
        asks[client][index] = ask
        return self.replace(asks=tuple(map(tuple, asks)))

    # -- passes ---------------------------------------------------------------

    def _drop_kinds(self) -> None:
        for fault in Fault:
            if fault in self.plan.faults:
                self.take(self.plan.without(fault))

    def _drop_clients(self) -> None:
        for index, asks in enumerate(self.plan.asks):
            if asks:
                self.take(self.with_calls([each for each in self.calls() if each[0] != index]))
        asking = tuple(asks for asks in self.plan.asks if asks) or ((),)
        if self.replace(asks=asking, clients=len(asking)):
            return
        kept = list(self.plan.asks)
        while len(kept) > 1 and not kept[-1]:
            kept.pop()
        self.replace(asks=tuple(kept), clients=len(kept))

    def _drop_moments(self) -> None:
        ddmin(list(self.plan.moments), lambda kept: self.replace(moments=tuple(kept)))

    def _fewer_workers(self) -> None:
        for workers in range(1, self.plan.workers):
            if self.replace(workers=workers):
                return

    def _plainer_world(self) -> None:
        plan = self.plan
        latest_s = max(
            [at_s for at_s, _ in plan.moments] + [ask.at_s for asks in plan.asks for ask in asks],
            default=0.0,
        )
        self.replace(busy_s=round(latest_s + 0.5, 1))
        self.replace(delay_s=PLAIN_DELAY_S)
        self.replace(linger_s=0.05)
        self.replace(declares_rerun=False)
        plain = {**PLAIN_BOUNDS, "lease_s": PLAIN_LEASE_S, "recycle_executions": None}
        for name, value in (*plain.items(), ("worker_capacity", PLAIN_CAPACITY)):
            changes: dict[str, Any] = {name: value}
            self.replace(server=dataclasses.replace(self.plan.server, **changes))

    def _plainer_asks(self) -> None:
        for client, asks in enumerate(self.plan.asks):
            for index in range(len(asks)):
                for change in _plainer(self.plan.asks[client][index]):
                    ask = self.plan.asks[client][index]
                    plainer = dataclasses.replace(ask, **change)  # type: ignore[arg-type]  # by name
                    if ask.use is not None:  # others ask the same, byte for byte
                        self._with_ask(client, index, plainer)
                        continue
                    body = body_of(plainer.key, plainer.behaviour, plainer.duration_s)
                    self._with_ask(client, index, dataclasses.replace(plainer, body=body))

    def _rounder_times(self) -> None:
        for digits in (1, 2):
            for index, (at_s, fault) in enumerate(self.plan.moments):
                moments = list(self.plan.moments)
                moments[index] = (round(at_s, digits), fault)
                self.replace(moments=tuple(sorted(moments, key=lambda moment: moment[0])))
            for client, asks in enumerate(self.plan.asks):
                for index in range(len(asks)):
                    ask = self.plan.asks[client][index]
                    rounder = dataclasses.replace(ask, at_s=round(ask.at_s, digits))
                    self._with_ask(client, index, rounder)


def _plainer(ask: Ask) -> Iterator[dict[str, object]]:
    """The fields of a call that may be made plain, one at a time."""
    if ask.use is None:
        yield from _plainer_work(ask)
    if ask.cancel_after_s is not None:
        yield {"cancel_after_s": None}
        yield {"cancel_after_s": round(ask.cancel_after_s, 1)}
    if ask.limit_s is not None:
        yield {"limit_s": None}
        yield {"limit_s": round(ask.limit_s, 1) or 0.1}


def _plainer_work(ask: Ask) -> Iterator[dict[str, object]]:
    """The same of what environment code is to do."""
    yield {}  # only its padding goes
    if ask.behaviour != "return":
        yield {"behaviour": "return"}
    if ask.rerun is None:
        yield {"rerun": False}
    for duration_s in (0.1, round(ask.duration_s, 1) or 0.1):
        yield {"duration_s": duration_s}

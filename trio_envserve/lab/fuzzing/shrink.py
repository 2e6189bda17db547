"""Makes a failing plan small: as long as the same guarantee breaks.

Theory of operation
-------------------
Each pass takes something away, or makes it plain, and keeps that if the same
guarantee still breaks: all calls but the one that it broke for, fault kinds, then
moments and calls by halves and quarters (*ddmin*), then workers, then what single
calls are like, then when things happen.  The passes are repeated until none of
them changes anything.  The seed's luck stays, but where calls go all at once: a
failure that needs the luck of one message is often there with another luck.

Nothing here depends on time: the same case always shrinks to the same plan.  The
work is bounded by the number of runs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from ..simulation.faults import PLAIN_BOUNDS, PLAIN_LEASE_S, Ask, Fault, Plan, body_of
from ..simulation.simulator import Run, run

MOST_RUNS = 700
"""How many smaller plans are tried by default."""

PLAIN_DELAY_S = (0.001, 0.001)
PLAIN_CAPACITY = 3

LUCKS = 6
"""How many seeds' lucks are tried where that may help."""

MOST_CALLS = 12
"""With more calls than this, none is left out with another luck."""

T = TypeVar("T")


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
    shrinker.work()
    plan, luck = shrinker.plan, shrinker.luck
    last = run(luck, harsh=plan.harsh, plan=plan, trace=True, until=guarantee)
    return Shrunk(plan, luck, last, shrinker.tried)


class _Shrinker:
    def __init__(self, seed: int, plan: Plan, guarantee: str, most_runs: int) -> None:
        self.plan = plan
        self.luck = seed
        self.tried = 0
        self._guarantee = guarantee
        self._most_runs = most_runs

    def work(self) -> None:
        """All passes, until none of them helps."""
        self._only_the_call()
        while self.tried < self._most_runs:
            before = self.plan
            self._drop_kinds()
            self._drop_clients()
            self._drop_moments()
            self._drop_asks()
            self._fewer_workers()
            self._plainer_world()
            self._plainer_asks()
            self._rounder_times()
            if self.plan == before and not self._one_call_less():
                return

    def _take(self, plan: Plan, luck: int | None = None) -> bool:
        """Whether this plan fails, too: then it is the one to go on with."""
        luck = self.luck if luck is None else luck
        if plan == self.plan or self.tried >= self._most_runs:
            return False
        self.tried += 1
        one = run(luck, harsh=self.plan.harsh, plan=plan, until=self._guarantee)
        if not one.breaks(self._guarantee):
            return False
        self.plan, self.luck = plan, luck
        return True

    def _replace(self, **changes: Any) -> bool:
        return self._take(dataclasses.replace(self.plan, **changes))

    # -- passes ---------------------------------------------------------------

    def _only_the_call(self) -> None:
        """Nothing but the call that it broke for, with some lucks."""
        whole = run(self.luck, harsh=self.plan.harsh, plan=self.plan, until=self._guarantee)
        keys = [v.key for v in whole.violations if v.guarantee == self._guarantee]
        only = [(c, ask) for c, ask in self._all_asks() if keys and ask.key == keys[0]]
        if only:
            plan = self._plan_with(only)
            any(self._take(plan, luck) for luck in self._lucks())

    def _one_call_less(self) -> bool:
        """Leave out a call with another luck."""
        everything = self._all_asks()
        if len(everything) > MOST_CALLS:
            return False
        return any(
            self._take(self._plan_with(everything[:index] + everything[index + 1 :]), luck)
            for index in range(len(everything))
            for luck in self._lucks()
        )

    def _lucks(self) -> range:
        return range(self.luck, self.luck + LUCKS)

    def _drop_kinds(self) -> None:
        for fault in Fault:
            if fault in self.plan.faults:
                self._take(self.plan.without(fault))

    def _drop_clients(self) -> None:
        for index, asks in enumerate(self.plan.asks):
            if asks:
                self._with_asks([each for each in self._all_asks() if each[0] != index])
        asking = tuple(asks for asks in self.plan.asks if asks) or ((),)
        if self._replace(asks=asking, clients=len(asking)):
            return
        kept = list(self.plan.asks)
        while len(kept) > 1 and not kept[-1]:
            kept.pop()
        self._replace(asks=tuple(kept), clients=len(kept))

    def _drop_moments(self) -> None:
        def take(moments: Sequence[tuple[float, Fault]]) -> bool:
            return self._replace(moments=tuple(moments))

        ddmin(list(self.plan.moments), take)

    def _drop_asks(self) -> None:
        ddmin(self._all_asks(), self._with_asks)

    def _fewer_workers(self) -> None:
        for workers in range(1, self.plan.workers):
            if self._replace(workers=workers):
                return

    def _plainer_world(self) -> None:
        plan = self.plan
        latest_s = max(
            [at_s for at_s, _ in plan.moments] + [ask.at_s for asks in plan.asks for ask in asks],
            default=0.0,
        )
        self._replace(busy_s=round(latest_s + 0.5, 1))
        self._replace(delay_s=PLAIN_DELAY_S)
        self._replace(linger_s=0.05)
        self._replace(declares_rerun=False)
        plain = {**PLAIN_BOUNDS, "lease_s": PLAIN_LEASE_S, "recycle_executions": None}
        for name, value in (*plain.items(), ("worker_capacity", PLAIN_CAPACITY)):
            changes: dict[str, Any] = {name: value}
            self._replace(server=dataclasses.replace(self.plan.server, **changes))

    def _plainer_asks(self) -> None:
        for client, asks in enumerate(self.plan.asks):
            for index in range(len(asks)):
                for change in _plainer(self.plan.asks[client][index]):
                    ask = self.plan.asks[client][index]
                    plainer = dataclasses.replace(ask, **change)  # type: ignore[arg-type]  # by name
                    body = body_of(plainer.key, plainer.behaviour, plainer.duration_s)
                    self._with_ask(client, index, dataclasses.replace(plainer, body=body))

    def _rounder_times(self) -> None:
        for digits in (1, 2):
            for index, (at_s, fault) in enumerate(self.plan.moments):
                moments = list(self.plan.moments)
                moments[index] = (round(at_s, digits), fault)
                self._replace(moments=tuple(sorted(moments, key=lambda moment: moment[0])))
            for client, asks in enumerate(self.plan.asks):
                for index in range(len(asks)):
                    ask = self.plan.asks[client][index]
                    rounder = dataclasses.replace(ask, at_s=round(ask.at_s, digits))
                    self._with_ask(client, index, rounder)

    # -- calls ----------------------------------------------------------------

    def _all_asks(self) -> list[tuple[int, Ask]]:
        return [(client, ask) for client, asks in enumerate(self.plan.asks) for ask in asks]

    def _plan_with(self, kept: Sequence[tuple[int, Ask]]) -> Plan:
        clients = range(len(self.plan.asks))
        asks = tuple(tuple(ask for owner, ask in kept if owner == client) for client in clients)
        return dataclasses.replace(self.plan, asks=asks)

    def _with_asks(self, kept: Sequence[tuple[int, Ask]]) -> bool:
        return self._take(self._plan_with(kept))

    def _with_ask(self, client: int, index: int, ask: Ask) -> bool:
        asks = [list(each) for each in self.plan.asks]
        asks[client][index] = ask
        return self._replace(asks=tuple(map(tuple, asks)))


def _plainer(ask: Ask) -> Iterator[dict[str, object]]:
    """What may be made plain about a call, one thing at a time."""
    yield {}  # only its padding goes
    if ask.behaviour != "return":
        yield {"behaviour": "return"}
    if ask.cancel_after_s is not None:
        yield {"cancel_after_s": None}
        yield {"cancel_after_s": round(ask.cancel_after_s, 1)}
    if ask.limit_s is not None:
        yield {"limit_s": None}
        yield {"limit_s": round(ask.limit_s, 1) or 0.1}
    if ask.rerun is None:
        yield {"rerun": False}
    for duration_s in (0.1, round(ask.duration_s, 1) or 0.1):
        yield {"duration_s": duration_s}


def ddmin(items: list[T], take: Callable[[Sequence[T]], bool]) -> list[T]:
    """A smaller list that ``take`` still takes: by leaving out halves, quarters, and
    in the end single items.  ``take`` is asked for the empty list first."""
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

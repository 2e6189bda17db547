"""Whole systems whose routers have a journal: each takes over what the hosts of the one before
run.

A router is killed, and what was not safe by then is lost; the next one reads the rest, and its
hosts come back to it with what runs.  Two of three calls name keys, each its own; the others
have no key, and what runs of them is to be stopped.  All else is as in :mod:`.whole`.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import Any

from trio_envserve.core.client_inputs import CallKey
from trio_envserve.core.earlier_epochs import EarlierEpochs
from trio_envserve.core.host_pool import Hosts
from trio_envserve.core.journal import Record
from trio_envserve.core.key_records import KeyAct, KeyName, input_digest
from trio_envserve.core.router import Router
from trio_envserve.core.router_effects import Save
from trio_envserve.core.router_inputs import (
    HostsLive,
    PoolOpened,
    Restored,
    RouterInput,
    Saved,
    WorkerBack,
)
from trio_envserve.core.worker_inputs import BeatDue

from .whole import CALM_S, World

MORE_DEATHS = 4
"""Routers that are killed besides."""


class FollowedWorld(World):
    """One run."""

    def __init__(self, seed: int) -> None:
        self.disk: list[Record] = []
        """All records of all routers, of which the last may not be safe."""
        self.safe = self.before = 0
        """So many of them are; and were there when this router began."""
        self.under_way: deque[tuple[float, int]] = deque()
        """When how many records of this router will be safe."""
        self.epochs: list[bytes] = []
        """Of the routers before."""
        self.came_back = 0
        """Workers that a router has taken back, with something that runs."""
        super().__init__(seed)
        self.faults += [
            (
                self.luck.uniform(5, CALM_S * 0.7),
                "router",
                0,
                self.luck.choice((0.5, 1.0, 2.0, 3.0)),
            )
            for _ in range(MORE_DEATHS)
        ]
        self.faults.sort()
        self.hosts = self.new_hosts()

    def new_hosts(self) -> Hosts:
        """As the server has them; ``earlier`` are the routers of which hosts may come back."""
        earlier = self.earlier
        return Hosts(self.router.pool, self.terms, self.router.epoch, earlier=earlier)

    def new_router(self) -> Router:
        # Names of workers have the beginning of an epoch: so each has bits of its own.
        return Router(
            epoch=self.luck.randbytes(16), slots=self.slots, now_s=self.now_s, new_id=self.ids,
            limits=self.server_limits, wire=self.wire, heartbeats=self.heartbeats, journaled=True,
        )  # fmt: skip

    def submit(self, body: bytes = b"body", **how: Any) -> int:
        if int(body.removeprefix(b"body")) % 3:
            digest = input_digest(body, how.get("rerun"))
            how["key"] = CallKey(KeyAct.ASK, KeyName(b"default", body), digest)
        return super().submit(body, **how)

    def give(self, *inputs: RouterInput) -> None:
        self.came_back += sum(
            isinstance(each, WorkerBack) and bool(each.running) for each in inputs
        )
        super().give(*inputs)

    def _carry_out(self, effect: Any) -> None:
        if isinstance(effect, Save):
            self.disk += effect.records
            late_s = self.luck.choice((0.0, 0.0, 0.25, 1.0))
            self.under_way.append((self.now_s + late_s, effect.upto))
        else:
            super()._carry_out(effect)

    def tick_hosts(self) -> list[RouterInput]:
        unknown = self.router.dispatcher.dispatches.unknown.live_executions
        return self.hosts.tick(self.now_s, unknown=unknown)

    def step(self) -> None:
        while self.opened and self.under_way and self.under_way[0][0] <= self.now_s:
            _, upto = self.under_way.popleft()
            self.safe = self.before + upto
            self.give(Saved(upto, self.now_s))
        self.settle()
        if self.now_s.is_integer():
            for worker, core in list(self.workers.items()):
                self.work(worker, core.take(BeatDue({})))
        super().step()

    def kill_router(self, lasts_s: float) -> None:
        """The next one has its journal."""
        self.epochs.append(self.router.epoch)
        if self.under_way and self.luck.random() < 0.5:  # it had just become safe
            self.safe = self.before + self.under_way[0][1]
        del self.disk[self.safe :]
        self.under_way.clear()
        own = self.hosts.leases.own()
        waits = self.earlier.record(own, self.now_s)
        self.router_gone_s, self.opened = self.now_s + lasts_s, False
        self.earlier = EarlierEpochs(waits, self.router_gone_s)
        self.router = self.new_router()
        self.hosts = self.new_hosts()
        self.before = self.safe
        self._said.clear()
        for machine in self.machines:
            machine.up.clear()
            machine.down.clear()

    def end_tenure(self, route: bytes, frames: Any) -> None:
        """There is nobody yet."""

    def open(self) -> None:
        if self.opened:
            return
        self.opened = True
        self.give(Restored(list(self.disk), self.now_s))
        waiting = {each.epoch for each in self.earlier.waits}
        if waiting:
            self.give(HostsLive(self.now_s))
        dead = [epoch for epoch in self.epochs if epoch not in waiting]
        self.give(PoolOpened(dead, self.now_s))
        for machine in self.machines:
            machine.do(partial(machine.reconnect))

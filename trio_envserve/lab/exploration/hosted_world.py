"""Two hosts, their leases, and the router that counts them, in every order.

Theory of operation
-------------------
The leases are the machines that ship (:mod:`...core.lease`), in the machines and the router of
their simulation (:mod:`...hosts`).  Nothing has a moment of its own here but what a clock says:
messages arrive, hosts and routers have their turns, and executions end whenever it is chosen.
The time passes by ticks, which are few, and each clock is as slow or as fast as the terms allow.
A guard whose time has come kills at any time before the terms say that it has.

States are compared by the machines' numbers, and with them by all that they hold: the time goes
on, so there are no two moments that are the same but for what a clock says.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from itertools import product
from typing import Any, ClassVar

from ...core.lease import NO_LEASE_S
from ..hosts.judge import Past
from ..hosts.plan import Plan
from .actions import Action
from .explored import Explored
from .hosted_configurations import HostConfiguration
from .hosted_stages import CLOCKS, GUARD_S, TICK_S, HostRouters, Hosts
from .hosted_state import HostPart, HostsState
from .hosted_step import HostsStep

HOSTS = 2
WAYS = ("up", "down")
TURNS_OF_A_TICK = 4
"""On the way to rest; the last of them is the tick."""
LINK_MOST = 2
"""A host has no turn while so many of its messages are under way."""


class HostsWorld(Explored[HostsState]):
    """A configuration with hosts."""

    rounds: ClassVar = 60

    def __init__(self, configuration: HostConfiguration, *, merge: bool = True) -> None:
        self.configuration = configuration
        self.routers = HostRouters()
        self.machines = Hosts()
        self.routers.merge = self.machines.merge = merge
        self.names = ["h0", "h0" if configuration.one_id else "h1"]
        super().__init__({"router": self.routers, "machine": self.machines})
        asked = configuration
        fences_s: tuple[float, ...] = (NO_LEASE_S,)
        if asked.lease:
            fences_s = float(asked.fence_s), float(asked.next_fence_s)
        self._plan = Plan(
            seed=0, fences_s=fences_s, rates=CLOCKS[0],
            guard_s=GUARD_S, lost=0.0, late_s=0.0, strikes=(), calm_s=0.0, journal=asked.journal,
        )  # fmt: skip
        self._choices = [*product(range(HOSTS), repeat=asked.requests)]

    # -- states -------------------------------------------------------------------

    def blank(self) -> HostsState:
        """A router, and machines on which no host runs."""
        keyed = self.configuration.journal and self.configuration.keyed
        stages = [self.machines.new(h, self.names[h], self._plan) for h in range(HOSTS)]
        router = self.routers.new(self._plan, self.configuration.requests, keyed)
        left = tuple(self.configuration.bounds.values())
        return HostsState(0, router, tuple(map(HostPart, stages)), left, Past())

    def opening(self) -> Iterator[Action]:
        """To the first state: both hosts are welcome, and known to hear the router."""
        for h in range(1 if self.configuration.one_id else HOSTS):
            yield ("begin", h)
            if not h and self.configuration.late_hello:
                yield ("leave", h, "up")
            yield from (("up", h), ("down", h))
            for _ in range(2):
                yield from (("idle_turn", h), ("up", h), ("down", h))
        if self.configuration.running:
            yield ("rule", self._choices[0])
            yield from (("idle_turn", 0), ("up", 0), ("down", 0))

    def step(self, state: HostsState) -> HostsStep:
        """The step that takes one action from this state."""
        return HostsStep(self, state)

    # -- what can happen ----------------------------------------------------------

    def certain(self, state: HostsState) -> list[Action]:
        """Actions that come by themselves, sooner or later, in no certain order."""
        actions: list[Action] = []
        for h, part in enumerate(state.hosts):
            info = self.machines.info[part.stage]
            if part.up:
                actions.append(("up", h))
            if part.down and not info.sleeps:
                actions.append(("down", h))
            actions += [
                ("late", h, n)
                for n, (way, _) in enumerate(part.late)
                if way == "up" or not info.sleeps
            ]
            if not self.configuration.lasting:
                actions += [("heal", h, way) for way in part.cut]
            if info.sleeps:
                actions.append(("wake", h))
                continue
            if not info.runs:
                actions.append(("begin", h))
            if info.stopped:
                actions.append(("resume", h))
            if info.dead_by_s is not None:
                actions.append(("fire", h))
            actions += [("end", h, worker.number) for worker in info.workers]
        if self.routers.info[state.router].alive:
            actions += self._rules(state)
        else:
            actions.append(("replace",))
        return actions

    def _rules(self, state: HostsState) -> Iterator[Action]:
        """The turns of the router of which something comes."""
        routers, now_s = self.routers, state.tick * TICK_S
        found: list[tuple[Any, ...]] = [(routers.form[state.router], ())]
        for choices in self._choices:
            after, effects = routers.step(state.router, (now_s, "turn", choices))
            what = routers.form[after], effects
            if what not in found:
                found.append(what)
                yield ("rule", choices)

    def trouble(self, state: HostsState) -> list[Action]:
        """Actions that may come as well, as often as their bounds allow."""
        left = dict(zip(self.configuration.BOUNDED, state.left, strict=True))
        actions: list[Action] = []
        if left["ticks"]:
            actions += [("tick", clocks) for clocks in self._clocks(state)]
        if left["falls"] and self.routers.info[state.router].alive:
            actions.append(("fall",))
        for h, part in enumerate(state.hosts):
            info = self.machines.info[part.stage]
            for way in WAYS:
                if part.link(way):
                    actions += [("lose", h, way)] * bool(left["losses"])
                    actions += [("stray", h, way), ("copy", h, way)] * bool(left["strays"])
                if left["cuts"] and way not in part.cut:
                    actions.append(("cut", h, way))
            if not info.runs or info.sleeps:
                continue
            if left["turns"] and len(part.up) < LINK_MOST:
                actions.append(("turn", h))
            if left["reconnects"]:
                actions.append(("reconnect", h))
            if left["crashes"]:
                actions.append(("crash", h))
            if left["sleeps"]:
                actions.append(("sleep", h))
            if left["stops"] and not info.stopped:
                actions.append(("stop", h))
        return actions

    def _clocks(self, state: HostsState) -> range:
        return range(1 if state.tick else self.configuration.clocks)

    # -- rest ---------------------------------------------------------------------

    def is_unwanted(self, state: HostsState, action: Action) -> bool:
        """A message that was left behind may never arrive."""
        return bool(action[0] == "late")

    def repairs(self, state: HostsState, count: int) -> list[Action]:
        """Some turns of each host, and then the time passes."""
        if count % TURNS_OF_A_TICK == TURNS_OF_A_TICK - 1:
            return [("idle_tick", 0)]
        infos = [self.machines.info[part.stage] for part in state.hosts]
        return [("idle_turn", h) for h, info in enumerate(infos) if info.runs]

    def left(self, state: HostsState) -> list[str]:
        """The requests that wait."""
        waiting = self.routers.info[state.router].waiting
        return [f"G9: {waiting} requests are never answered"] if waiting else []

    # -- which states are the same --------------------------------------------------

    def sizes(self) -> dict[str, int]:
        """How many local states there are of each kind."""
        return {"router": len(self.routers), "machine": len(self.machines)}

    def canonical(self, state: HostsState) -> bytes:
        """8 bytes that are the same for the same states, and for no others."""
        past = state.past
        kept = sorted(past.dead), past.taken, sorted(past.started)
        whole: tuple[Any, ...] = (*state[:-1], kept)
        return blake2b(repr(whole).encode(), digest_size=8).digest()

"""A leader's lease on skewed clocks: two that lead at the same time.

Who grants leases counts one by its clock, and the leader counts it by its own. BROKEN
counts the whole lease, from when the grant arrived: on a slow clock, or after a slow grant,
it still leads when the next one does. LEASE counts from when it asked, and less: so much
that clocks may run apart by a tenth each.

    trio-envserve fuzz --protocol examples/protocols/leaders_lease.py:BROKEN --exhaustive
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random

from trio_envserve.retrylab import Actor, Ask, Bounds, Fault, OneHolder, System

LEASE_S = 1.0
DRIFT = 0.1
SAFE_S = LEASE_S * (1 - DRIFT) / (1 + DRIFT) * 0.99
RETRY_S = 0.3


class Node(Actor):
    """Leads while it has the lease: once for each ask."""

    def on_start(self) -> None:
        self.wants = self.asked = self.leads = ""
        self.round = 0

    def on_ask(self, request: str, what: str) -> None:
        self.wants = request
        self.on_timer("ask")

    def on_timer(self, timer: str) -> None:
        if timer == "over":
            self.asked = ""
            self.stop_leading()
        if self.wants and not self.asked:
            self.asked = self.wants
            self.round += 1  # a grant of an earlier one is too old
            self.start_timer("over", SAFE_S)  # from now on: the grant may be slow
            self.send("granter", (self.asked, self.round))

    def on_message(self, sender: str, message: tuple[str, int]) -> None:
        if message == (self.asked, self.round) and not self.leads:
            self.lead(self.asked)

    def lead(self, request: str) -> None:
        self.wants, self.leads = "", request
        self.began("the lead")
        self.tell(request, "led")

    def stop_leading(self) -> None:
        if self.leads:
            self.leads = ""
            self.ended("the lead")


class BrokenNode(Node):
    """Counts the lease from its grant, and all of it."""

    def on_timer(self, timer: str) -> None:
        if timer == "over":
            self.stop_leading()
        if self.wants:
            self.asked = self.wants
            self.send("granter", (self.asked, self.round))
            self.start_timer("ask", RETRY_S)

    def lead(self, request: str) -> None:
        self.start_timer("over", LEASE_S)
        super().lead(request)


class Granter(Actor):
    """Grants one lease at a time. It remembers none, so it begins by waiting for one."""

    def on_start(self) -> None:
        self.taken = True
        self.start_timer("free", LEASE_S)

    def on_timer(self, timer: str) -> None:
        self.taken = False

    def on_message(self, sender: str, message: tuple[str, int]) -> None:
        if not self.taken:
            self.taken = True
            self.start_timer("free", LEASE_S)
            self.send(sender, message)


def asks(random: Random) -> Iterator[Ask]:
    yield Ask(random.uniform(0.0, 3.0), "a", "lead")
    yield Ask(random.uniform(0.0, 3.0), "b", "lead")


LEASE = System(
    actors={"a": Node, "granter": Granter, "b": Node}, asks=asks, judges=[OneHolder],
    faults={Fault.LOSE, Fault.DRIFT}, drift=DRIFT,
    quiet_s=1.5, bounds=Bounds(asks=2, faults=1),
)  # fmt: skip

BROKEN = replace(LEASE, actors={**LEASE.actors, "a": BrokenNode, "b": BrokenNode})

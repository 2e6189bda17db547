"""A protocol of another kind, to see that the interface is not made for one: a lock with
a lease, whose holder is stopped until the lease has ended, and writes nevertheless."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from random import Random
from typing import Any

from trio_envserve.retrylab import (
    USUAL,
    Actor,
    Ask,
    Fault,
    History,
    Plan,
    System,
    Violation,
    check,
    search,
    whole,
)

LEASE_S = 1.0
RETRY_S = 0.3
INSIDE_S = 0.4


class Lock(Actor):
    """Grants the lock to one request at a time, for as long as its lease."""

    def on_start(self) -> None:
        self.holder, self.until_s = self.disk.get("lease", ("", 0.0))

    def on_message(self, sender: str, message: tuple[str, str]) -> None:
        verb, request = message
        if verb == "release" and request == self.holder:
            self.grant("", 0.0)
        elif verb == "acquire" and (self.now_s >= self.until_s or request == self.holder):
            self.grant(request, self.now_s + LEASE_S)
            self.send(sender, ("granted", request))

    def grant(self, request: str, until_s: float) -> None:
        self.holder, self.until_s = request, until_s
        self.disk["lease"] = request, until_s


class Holder(Actor):
    """Acquires the lock, is inside for a while, releases it."""

    def __init__(self) -> None:
        self.waiting: set[str] = set()

    def on_ask(self, request: str, what: Any) -> None:
        self.waiting.add(request)
        self.on_timer(f"acquire {request}")

    def on_timer(self, timer: str) -> None:
        verb, request = timer.split()
        if verb == "acquire":
            self.send("lock", ("acquire", request))
            self.start_timer(timer, RETRY_S)
        else:
            self.did(request, "leaves")
            self.send("lock", ("release", request))
            self.tell(request, "done")

    def on_message(self, sender: str, message: tuple[str, str]) -> None:
        _, request = message
        if request in self.waiting:
            self.waiting.discard(request)
            self.stop_timer(f"acquire {request}")
            self.did(request, "enters")
            self.start_timer(f"leave {request}", INSIDE_S)


def asks(random: Random) -> Iterator[Ask]:
    for _ in range(random.randint(2, 8)):
        yield Ask(random.uniform(0.0, 4.0), random.choice(["c0", "c1"]), "lock")


def judge(history: History) -> Iterator[Violation]:
    """One at a time is inside; a process that was killed is not inside any more."""
    inside: dict[str, str] = {}
    for entry in history.events:
        if entry.kind == "died":
            inside = {name: actor for name, actor in inside.items() if actor != entry.actor}
        elif entry.what == "enters":
            for other in inside:
                text = f"{entry.request} is inside with {other}"
                yield Violation("one at a time", entry.at_s, text, entry.request)
            inside[entry.request] = entry.actor
        elif entry.what == "leaves":
            inside.pop(entry.request, None)


LEASE = System(actors={"c0": Holder, "lock": Lock, "c1": Holder}, asks=asks, judges=[whole(judge)])


def test_a_holder_that_is_stopped_outlives_its_lease():
    failure = search(LEASE)
    assert failure is not None
    assert failure.guarantee == "one at a time"
    assert failure.plan.kinds() == [Fault.STOP]
    assert isinstance(failure.plan, Plan)
    assert (len(failure.plan.asks), len(failure.plan.strikes)) == (2, 1)
    assert any("is stopped" in line for line in failure.drawing)


def test_who_is_late_is_inside_with_another_one_without_any_stop():
    """A grant that arrives after the lease has ended is believed, too."""
    late = dataclasses.replace(LEASE, faults=set(USUAL) - {Fault.STOP})
    failure = search(late, runs=400)
    assert failure is not None
    assert Fault.REORDER in failure.plan.kinds() or Fault.DUPLICATE in failure.plan.kinds()


def test_on_links_that_keep_their_order_nobody_is_late():
    check(dataclasses.replace(LEASE, faults={Fault.LOSE, Fault.CUT, Fault.KILL}), runs=200)

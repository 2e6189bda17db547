"""The judge of resources: each one is destroyed, once, and not too early.

Theory of operation
-------------------
The environment's own log tells when a resource may exist, when a destroy of it begins, and how that
ends.  Beside the log the judge believes one thing: a server that answers that a resource is gone
has written that down.  So a destroy may be repeated only if its worker died before the success was
written down.  A process that sleeps destroys nothing until it wakes.  A worker of another host
destroys nothing that is of its host: it would find nothing.

At the end every resource is destroyed, but those that the last server calls stuck.  A server
without a journal loses its knowledge: the next one may have a resource destroyed again that the
worker of a host, which lives on and has not heard of its end, still states.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import final

from ...core import messages
from ...core.scope import ResourceState
from ...retrylab.judges import Event, Judge, Violation
from .observed import Processes
from .plan import FaultKind, SimulationPlan


@dataclasses.dataclass(slots=True)
class MadeResource:
    """A resource in the environment's log."""

    maker: str = ""
    """Worker whose execution may have made it; empty: none ever has."""
    number: int = -1
    """Number of the execution at that worker."""
    host: str | None = None
    """Host whose workers alone can destroy it; None: any worker can."""
    exists: bool = False
    is_left: bool = False
    """Whether the execution has failed to destroy it."""
    is_over: bool = False
    """Whether a server has answered that it is gone."""
    destroyed_by: str = ""
    """Worker of the last successful destroy."""
    destroying: Counter[str] = dataclasses.field(default_factory=Counter)
    """Workers with unfinished destroys."""


@final
class ResourceJudge(Judge):
    """Judges the destroys of resources, and what is left at the end."""

    SEEN = frozenset({
        "is", "woke", "ended", "makes", "destroys", "destroyed", "commanded", "stuck",
    })  # fmt: skip

    def __init__(self, plan: SimulationPlan, processes: Processes) -> None:
        self._durable = plan.has(FaultKind.JOURNAL)
        self._processes = processes
        self._made: dict[str, MadeResource] = {}
        self._ended: set[tuple[str, int]] = set()
        """Executions whose code has ended."""
        self._stuck: frozenset[str] = frozenset()

    def see(self, event: Event) -> list[Violation]:
        """Violations shown by an event."""
        who, what = event.actor, event.what
        match event.kind:
            case "is" if "epoch" in what[0] and not self._durable:
                for made in self._made.values():  # another server, which knows nothing of it
                    made.is_over, made.destroyed_by = False, ""
            case "woke":
                return [
                    violation for name, made in self._made.items() if made.destroying[who]
                    for violation in self._twice(event, name, made)
                ]  # fmt: skip
            case "ended":
                self._ended.add((who, what[0]))
            case "makes":
                number, name, here = what
                if name in self._made:
                    return [Violation("G13", event.at_s, f"the name {name} is given twice")]
                host = self._host_of(who) if here else None
                self._made[name] = MadeResource(who, number, host, exists=True)
            case "destroys":
                return self._destroys(event, what[0])
            case "destroyed":
                self._destroyed(who, *what)
            case "commanded" if isinstance(what[1], messages.ResourceAnswer):
                answered = self._made.get(what[1].name)
                if answered is not None and what[1].state == ResourceState.GONE:
                    answered.is_over |= not answered.exists
            case "stuck":
                self._stuck = what[0]
        return []

    def _host_of(self, worker: str) -> str:
        """Name of the host that a worker is on; empty: it is on the server's machine."""
        machine = self._processes[worker].machine
        return "" if machine is None else machine.name.rstrip("'")  # of two with one name

    def _runs(self, worker: str) -> bool:
        return bool(worker) and self._processes[worker].runs()

    def _twice(self, event: Event, name: str, made: MadeResource) -> list[Violation]:
        busy = sorted(filter(self._runs, made.destroying.elements()))
        if len(busy) < 2:
            return []
        text = f"resource {name} is destroyed by {' and '.join(busy)} at the same time"
        return [Violation("G13", event.at_s, text)]

    def _destroys(self, event: Event, name: str) -> list[Violation]:
        who, at_s, found = event.actor, event.at_s, []
        made = self._made.setdefault(name, MadeResource())
        made.destroying[who] += 1
        if made.is_over or self._runs(made.destroyed_by):
            text = f"resource {name} is destroyed again by {who}, and was known to be gone"
            found.append(Violation("G13", at_s, text))
        lives = self._runs(made.maker) and (made.maker, made.number) not in self._ended
        if made.maker != who and lives and not made.is_left:
            text = f"resource {name} is destroyed by {who}, and its execution lives"
            found.append(Violation("G13", at_s, text))
        if made.host not in (None, self._host_of(who)):
            text = f"resource {name} is destroyed by {who}, which is not on its host"
            found.append(Violation("G13", at_s, text))
        return found + self._twice(event, name, made)

    def _destroyed(self, who: str, name: str, works: bool) -> None:
        made = self._made[name]
        made.destroying[who] -= 1
        if works:
            made.exists, made.destroyed_by = False, who
        elif who == made.maker:
            made.is_left = True

    def rest(self, at_s: float) -> list[Violation]:
        """Violations by resources that are left at the end of the run."""
        return [
            Violation("G13", at_s, f"resource {name} is left")
            for name, made in self._made.items()
            if made.exists and name not in self._stuck
            and (self._durable or self._processes[made.maker].home.alive)
        ]  # fmt: skip

"""The processes of a run, as events tell of them: the one record, which all judges read."""

from __future__ import annotations

import dataclasses
import math

from ...retrylab.judges import Event


@dataclasses.dataclass(slots=True, eq=False)
class Observed:
    """A process, as events tell of it."""

    name: str
    died_s: float | None = None
    held_s: float = 0.0
    """Time for which it was held up in all, in seconds."""
    held_times: int = 0
    stood_s: float = -math.inf
    """Time at which it was last seen to stand still, or to go on after that."""
    continued_s: float = -math.inf
    """Time at which it was last continued after a stop."""
    stopped_s: float | None = None
    """Time at which it was stopped; None if it is not."""
    asleep: bool = False
    """Whether its machine sleeps: then no code of it runs."""
    # Of a machine with a host.
    rate: float = 1.0
    """How fast its clock is."""
    guard_s: float = 0.0
    """Most time from the deadline of its guard to the death of its workers, in seconds."""
    membership: bytes = b""
    """That of its newest beat."""
    beats: dict[int, float] = dataclasses.field(default_factory=dict)
    """When each beat of that membership was sent."""
    until_s: float = -math.inf
    """By then all its workers are dead, by what its server has answered."""
    # Of a worker.
    machine: Observed | None = None
    """The machine of its host, if it is on one."""
    server: Observed | None = None
    slot: int = 0
    set_up_s: float | None = None
    """Time at which its environment was set up."""
    reaped: bool = False
    junk: str = ""
    """Way in which its messages are spoilt; empty if they are not."""
    known_s: float | None = None
    """Time at which its router first had its hello, which is a sign of life, too."""
    told_to_stop: set[int] = dataclasses.field(default_factory=set)
    """Dispatches that are to stop, of which the router has not heard the end."""
    sent: int = 0
    """Number of dispatches to it."""
    unreported: set[int] = dataclasses.field(default_factory=set)
    """Those of them of which the router has neither the outcome nor its size."""
    displaced: bool = False
    """Whether another worker has its place, and it gives the outcomes that it holds."""
    # Of a server.
    epoch: bytes = b""
    locked: bool = False
    workers: dict[str, Observed] = dataclasses.field(default_factory=dict)
    empty_since_s: dict[int, float] = dataclasses.field(default_factory=dict)
    """The slots that nobody is in, and since when."""
    most_workers: int = 0
    """The most that were there at once."""

    @property
    def alive(self) -> bool:
        """Whether it has not died."""
        return self.died_s is None

    @property
    def home(self) -> Observed:
        """The server of a worker."""
        assert self.server is not None
        return self.server

    def moved_s(self, now_s: float) -> float:
        """Time since it was last continued, in seconds; 0 while stopped."""
        return 0.0 if self.stopped_s is not None else now_s - self.continued_s

    def quiet_s(self, now_s: float) -> float:
        """Time for which its router has had no sign of life: it is stopped, or dead."""
        since_s = (now_s if self.stopped_s is None else self.stopped_s) if self.alive else None
        quiet_s = now_s - (since_s if since_s is not None else self.died_s or 0.0)
        return quiet_s if self.known_s is None else min(quiet_s, now_s - self.known_s)

    def runs(self) -> bool:
        """Whether it is alive, and its machine does not sleep."""
        return self.alive and not self.asleep


class Processes(dict[str, Observed]):
    """All processes by name; each is there when it is asked for."""

    def __missing__(self, name: str) -> Observed:
        made = self[name] = Observed(name)
        return made

    def see(self, event: Event) -> None:
        """Take in facts about a process (``is``), or that its machine has woken (``woke``)."""
        process = self[event.actor]
        if event.kind == "woke":
            process.asleep = False
            return
        (facts,) = event.what
        for name, value in facts.items():
            setattr(process, name, self[value] if name in ("server", "machine") else value)
        if "held_times" in facts or facts.get("stopped_s") is not None:
            process.stood_s = event.at_s

"""One life of an actor, whichever engine runs it.

Theory of operation
-------------------
A life is from a start to a crash: it makes the actor, calls its handlers, and checks what
they do.  Messages, timers and events are handed to the engine, which subclasses
:class:`BaseLife`.  An *act* outlives the process: a send, a write, a sync.  A life may be
told to end before one of its next acts: that is a crash between two writes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from random import Random
from typing import Any

from .author import call, raised
from .judges import Event, Judge, Kind, Violation
from .system import Actor, BrokenSystem, Disk, Stored, System, unknown
from .values import plain, short

CRASH = "CRASH"
"""The guarantee that is broken when an actor raises."""

VERBS: dict[str, str] = {
    "did": "does", "told": "is told", "began": "begins", "ended": "ends", "has": "has",
}  # fmt: skip


class Killed(BaseException):
    """Ends a handler whose process is dead; no ``except Exception`` stops it."""


class BaseLife(ABC):
    """One life of an actor."""

    name: str

    def __init__(self, system: System, stored: Stored) -> None:
        self.system = system
        self.stored = stored
        self.disk = Disk(stored, self._before_write)
        self.actor: Actor | None = None
        self.acts = 0
        """Number of acts (sends, writes, syncs) of this life so far."""
        self.dies_before = 0
        """Number of the act before which the actor is killed; 0: none."""
        self.resting = False
        """Whether the run is over, and the actor only says what it has."""

    # -- for an engine to write -----------------------------------------------------

    @property
    @abstractmethod
    def alive(self) -> bool:
        """Whether the process has not died."""

    @abstractmethod
    def now_s(self) -> float:
        """Time of the actor's clock in seconds."""

    @abstractmethod
    def luck(self) -> Random:
        """The actor's random source."""

    @abstractmethod
    def note(self, what: str) -> None:
        """Note an event in the trace."""

    @abstractmethod
    def transmit(self, to: str, message: Any) -> None:
        """Put a message on its way."""

    @abstractmethod
    def pass_on(self, to: str, what: Any) -> None:
        """Put a notice on its way."""

    @abstractmethod
    def set_timer(self, timer: str, delay_s: float) -> None:
        """Set a timer."""

    @abstractmethod
    def stop_timer(self, timer: str) -> None:
        """See :meth:`.Actor.stop_timer`."""

    @abstractmethod
    def happened(self, kind: Kind, request: str, what: Any) -> None:
        """Pass an event to the judges; ValueError if no caller has asked for this request."""

    @abstractmethod
    def die(self, how: str) -> None:
        """End the process."""

    @abstractmethod
    def crashed(self, what: str, why: str = "") -> None:
        """Report a violation: the actor has raised."""

    # -- its life ---------------------------------------------------------------------

    def start(self) -> None:
        """Make the actor."""
        self.note("starts")
        ended = call(self.system.actors[self.name])
        if ended.error is not None:
            self.crashed(f"{self.name} could not be made", raised(ended.error))
        elif not isinstance(ended.value, Actor):
            self.crashed(f"{self.name} is made as {ended.value!r}, which is not an Actor")
        elif ended.value._life is not None:
            self.crashed(f"{self.name} is made as an object that was an actor before")
        else:
            self.actor = ended.value
            self.actor._life = self
            self.call("on_start")

    def call(self, handler: str, *args: Any) -> None:
        """Call a handler."""
        ended = call(getattr(self.actor, handler), *args)
        if not self.alive:
            return  # a dead process has no effects, whatever its code does on its way out
        where = f"{self.name}.{handler}({', '.join(map(repr, args))})"
        if ended.error is not None:
            self.crashed(f"{where} raised", raised(ended.error))
        elif ended.value is not None:
            if hasattr(ended.value, "close"):
                ended.value.close()  # a coroutine would complain that nobody awaits it
            what = type(ended.value).__name__
            self.crashed(f"{where} returned a {what}; a handler is a function of no result")

    def rest(self) -> None:
        """Call ``on_rest`` of an actor that has one: the run is over."""
        if self.actor is not None and type(self.actor).on_rest is not Actor.on_rest:
            self.resting = True
            self.call("on_rest")

    # -- what it does -------------------------------------------------------------------

    def before_act(self, what: str) -> None:
        """Count an act, which outlives the process; raises Killed if the process is dead, or
        dies before this act."""
        if self.resting:
            raise RuntimeError("in on_rest an actor only says what it has")
        self.acts += 1
        if self.acts == self.dies_before:
            self.die(f"killed before it {what}")
        if not self.alive:
            raise Killed

    def _before_write(self, what: str) -> None:
        self.before_act(what)
        self.note(what)

    def send(self, to: str, message: Any) -> None:
        """See :meth:`.Actor.send`."""
        self._check(to, message)
        self.before_act(f"sends to {to}")
        self.transmit(to, message)

    def notify(self, to: str, what: Any) -> None:
        """See :meth:`.Actor.notify`."""
        self._check(to, what)
        self.before_act(f"notifies {to}")
        self.pass_on(to, what)

    def _check(self, to: str, value: Any) -> None:
        """Raise an error if this cannot be sent."""
        if to not in self.system.actors:
            raise ValueError(unknown(to, self.system.actors))
        if to == self.name:
            raise ValueError(f"{to} sends to itself")
        plain(value)

    def start_timer(self, timer: str, delay_s: float) -> None:
        """See :meth:`.Actor.start_timer`."""
        if not delay_s >= 0.0:
            raise ValueError(f"a timer of {delay_s!r} s")
        self.set_timer(timer, delay_s)

    def say(self, kind: Kind, request: str, what: Any) -> None:
        """Tell the judges of an event."""
        plain(what)
        if not self.alive:
            raise Killed
        self.happened(kind, request, what)

    def in_words(self, kind: Kind, request: str, what: Any) -> str:
        """Event in words, for the trace."""
        parts = [request, "" if what is None else short(what)]
        return f"{VERBS[kind]} {': '.join(filter(None, parts))}"


# -- judges, as an engine asks them -----------------------------------------------------


def made_judges(system: System) -> list[Judge]:
    """New judges of the system; BrokenSystem if one cannot be made."""
    made = []
    for make in system.judges:
        ended = call(make)
        if ended.error is not None:
            raise BrokenSystem(f"a judge could not be made:\n{raised(ended.error)}")
        if not isinstance(ended.value, Judge):
            raise BrokenSystem(f"a judge is of the class Judge, not {ended.value!r}")
        made.append(ended.value)
    return made


def judged(judges: Iterable[Judge], event: Event | float, where: str) -> list[Violation]:
    """Violations that judges find in an event, or at rest at this time; BrokenSystem if a
    judge raises, or returns something else.  ``where`` names the run."""
    found: list[Violation] = []
    for judge in judges:
        see: Callable[[Any], Any] = judge.rest if isinstance(event, float) else judge.see
        ended = call(lambda see=see: list(see(event) or ()))
        if ended.error is not None:
            raise BrokenSystem(f"the judge raised ({where}):\n{raised(ended.error)}")
        for violation in ended.value:
            if not isinstance(violation, Violation):
                raise BrokenSystem(
                    f"a judge gives values of the class Violation, not {violation!r}"
                )
        found += ended.value
    return found

"""A system: actors, what callers ask them for, which faults strike, what must hold.

Everything here is public, for authors; the page ``docs/another-protocol.md`` shows it at
work.
"""

from __future__ import annotations

import copy
import dataclasses
import difflib
import enum
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableMapping
from random import Random
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from .judges import Violation
from .values import plain, short

if TYPE_CHECKING:
    from .run import ActorProcess


FAULT = "fault"
"""The name in a trace of faults that strike no actor."""


class BrokenSystem(Exception):
    """The system itself is not right: its judge raises, say, or it never ends.

    The message says what is wrong, with the traceback of the code that it is in.
    """


class Envelope(NamedTuple):
    """A message on its way."""

    sender: str
    to: str
    message: Any

    def to_bytes(self) -> bytes:
        """For the digest."""
        return f"{self.sender} {self.to} {plain(self.message)}".encode()


class Fault(enum.Enum):
    """The faults; the values are for people."""

    LOSE = "messages lost"
    DUPLICATE = "messages duplicated"
    REORDER = "messages delayed past others"
    CUT = "connection cut"
    HALF_OPEN = "connection half open"
    KILL = "actor killed and started again"
    STOP = "actor stopped and continued"


class Disk(MutableMapping[str, Any]):
    """The state that an actor finds again after it was killed; it forgets everything else.

    A value is copied whenever it is written or read, so nothing is kept but what was
    written.  One assignment is one write: an actor may be killed between two.
    """

    def __init__(self, kept: dict[str, Any], before_write: Callable[[str], object]) -> None:
        self._kept = kept
        self._before_write = before_write

    def __getitem__(self, name: str) -> Any:
        return copy.deepcopy(self._kept[name])

    def __setitem__(self, name: str, value: Any) -> None:
        self._before_write(f"writes {name}")
        self._kept[name] = copy.deepcopy(value)

    def __delitem__(self, name: str) -> None:
        self._before_write(f"deletes {name}")
        del self._kept[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._kept)

    def __len__(self) -> int:
        return len(self._kept)


class Actor:
    """A process of the system: subclass it, and write what it does when something
    happens to it.

    An object of it lives from a start to a crash, and is then made anew: what is in
    its attributes is gone, what is in :attr:`disk` is there.  Handlers are plain
    functions that return nothing; they take time and randomness from :attr:`now_s` and
    :attr:`random` and from nowhere else, so that a seed is always the same run.
    """

    _process: ActorProcess | None = None

    # -- what happens to it: to be overridden -----------------------------------

    def on_start(self) -> None:
        """It has started, for the first time or after a crash."""

    def on_ask(self, request: str, what: Any) -> None:
        """A caller in this process asks.

        Args:
            request: Its name, which is never used again.
            what: What it asks for.
        """

    def on_message(self, sender: str, message: Any) -> None:
        """A message has arrived.

        Args:
            sender: Name of the actor that sent it.
            message: The value.
        """

    def on_timer(self, timer: str) -> None:
        """A timer has fired.

        Args:
            timer: Its name.
        """

    def on_cut(self, peer: str) -> None:
        """The connection to this actor is gone, and whatever was on its way.  The next
        :meth:`send` makes another one as soon as there can be one.

        Args:
            peer: Name of the other actor.
        """

    # -- what it can do ---------------------------------------------------------

    @property
    def name(self) -> str:
        """Its name in :attr:`System.actors`."""
        return self._itself.name

    @property
    def now_s(self) -> float:
        """The time, in seconds since the run began."""
        return self._itself.events.now_s

    @property
    def random(self) -> Random:
        """A random source of its own."""
        return self._itself.rng

    @property
    def disk(self) -> Disk:
        """The memory that survives a crash."""
        return self._itself.disk

    def send(self, to: str, message: Any) -> None:
        """Send a message, an immutable value, to the actor of this name.  The sender does
        not learn whether it arrives; without a connection it is lost.

        Args:
            to: Name of the actor.
            message: An immutable value.
        """
        self._itself.send(to, message)

    def start_timer(self, timer: str, delay_s: float) -> None:
        """Call :meth:`on_timer` in ``delay_s``; one of the same name is replaced.

        Args:
            timer: Its name.
            delay_s: Seconds from now.
        """
        self._itself.start_timer(timer, delay_s)

    def stop_timer(self, timer: str) -> None:
        """Cancel a timer; one that has fired, or was never started, is no error.

        Args:
            timer: Its name.
        """
        self._itself.stop_timer(timer)

    def did(self, request: str, what: Any) -> None:
        """Write into the history that something was done for a request: what must not
        happen twice, say.

        Args:
            request: Its name.
            what: An immutable value.
        """
        self._itself.did(request, what)

    def tell(self, request: str, answer: Any) -> None:
        """Tell the caller.

        Args:
            request: Its name.
            answer: An immutable value.
        """
        self._itself.tell(request, answer)

    @property
    def _itself(self) -> ActorProcess:
        if self._process is None:
            raise RuntimeError("an actor can do nothing in its __init__; use on_start")
        return self._process


class Ask(NamedTuple):
    """A caller will ask for something."""

    at_s: float
    """When, in seconds since the run began."""
    actor: str
    """In which process."""
    what: Any
    """An immutable value."""
    request: str = ""
    """Its name, which is made: ``c0#1`` is the first of the actor ``c0``."""


class Entry(NamedTuple):
    """Something that happened."""

    at_s: float
    """When, in seconds since the run began."""
    kind: Literal["asked", "did", "told", "died"]
    """What happened."""
    actor: str
    """In which process."""
    request: str
    """Empty where an actor died."""
    what: Any
    """The value that goes with it."""


@dataclasses.dataclass(frozen=True, slots=True)
class History:
    """All that was asked, done and told in a run, in order; and who was killed."""

    entries: tuple[Entry, ...]
    """All of them."""
    end_s: float
    """When the run was over."""

    def asked(self, request: str | None = None) -> list[Entry]:
        """The asks of callers: all of them, or those of this request.

        Args:
            request: Name of the request; None: all of them.
        """
        return self._of("asked", request)

    def did(self, request: str | None = None) -> list[Entry]:
        """The deeds of actors: all of them, or those for this request.

        Args:
            request: Name of the request; None: all of them.
        """
        return self._of("did", request)

    def told(self, request: str | None = None) -> list[Entry]:
        """The answers to callers: all of them, or those to this request.

        Args:
            request: Name of the request; None: all of them.
        """
        return self._of("told", request)

    def _of(self, kind: str, request: str | None) -> list[Entry]:
        return [
            entry
            for entry in self.entries
            if entry.kind == kind and (request is None or entry.request == request)
        ]


@dataclasses.dataclass(frozen=True, kw_only=True)
class System:
    """A system that can be tried: who takes part, what callers ask for, what must hold."""

    actors: Mapping[str, Callable[[], Actor]]
    """The function that makes each actor, by name; in a diagram they stand in this order."""
    asks: Callable[[Random], Iterable[Ask]]
    """The asks of callers, drawn from the seed."""
    judge: Callable[[History], Iterable[Violation]]
    """The violations in a history; a :class:`~trio_envserve.lab.kit.violation.Violation`
    begins with the name of the guarantee that did not hold."""
    faults: Collection[Fault] = frozenset(Fault)
    """The faults that there may be; of these each seed draws some."""
    never_killed: Collection[str] = ()
    """Actors that live to the end, with all of their callers."""
    describe: Callable[[Any], str] = short
    """How a message reads in a diagram; one that is "" there is left out."""
    quiet_s: float = 5.0
    """A run is over when every caller was told and nothing was done or told for so long:
    longer than any timer that matters."""
    patience_s: float = 60.0
    """How long after the last fault that may take; then the run is over anyway."""

    def __post_init__(self) -> None:
        if not self.actors:
            raise BrokenSystem("a system needs actors: a mapping of names to what makes them")
        for name, make in self.actors.items():
            if not isinstance(name, str) or not name.isidentifier() or name == FAULT:
                raise BrokenSystem(f"an actor has a name like c0 or server_1, not {name!r}")
            if not callable(make):
                raise BrokenSystem(f"{name} is made by a class or a function, not by {make!r}")
        for name in self.never_killed:
            if name not in self.actors:
                raise BrokenSystem(f"never_killed: {unknown(name, self.actors)}")
        for fault in self.faults:
            if not isinstance(fault, Fault):
                raise BrokenSystem(f"faults are members of Fault, not {fault!r}")
        for field in ("asks", "judge", "describe"):
            if not callable(getattr(self, field)):
                raise BrokenSystem(f"{field} is a function, not {getattr(self, field)!r}")


def unknown(name: object, actors: Iterable[str]) -> str:
    """The message that there is no such actor, with the near names."""
    near = difflib.get_close_matches(str(name), list(actors), n=3)
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(actors)}"
    return f"no actor {name!r}; {hint}"

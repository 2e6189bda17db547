"""A system: actors, what callers ask them for, which faults strike, what must hold.

Everything here is public, for authors; the page ``docs/another-protocol.md`` shows it at
work.
"""

from __future__ import annotations

import copy
import dataclasses
import difflib
import enum
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableMapping
from random import Random
from typing import Any, Literal, NamedTuple

from .judges import Judge
from .values import Forms, plain, short

SETTLED = "settled"
"""Value of the event at the end of a move after which all has arrived."""

FAULT = "fault"
"""The name in a trace of faults that strike no actor."""


class BrokenSystem(Exception):
    """The system itself is not right: its judge raises, say, or it never ends.

    The message says what is wrong, with the traceback of the code that it is in.
    """


class Piece(NamedTuple):
    """A piece of a stream on its way between two programs."""

    stream: str
    data: bytes | None
    """Bytes that were sent; empty to open the stream, None when this end has sent all."""

    def text(self) -> str:
        """Piece in words, for a diagram."""
        if not self.data:
            return f"{'ends' if self.data is None else 'opens'} {self.stream}"
        try:
            return f"{self.stream}: {self.data.decode()}"
        except UnicodeDecodeError:
            return f"{self.stream}: {self.data!r}"


class Envelope(NamedTuple):
    """A message on its way."""

    sender: str
    to: str
    message: Any
    text: bytes = b""
    """Bytes of the message when it was sent."""

    def to_bytes(self) -> bytes:
        """Sender, receiver and message as bytes, for the digest."""
        return f"{self.sender} {self.to} {plain(self.message)}".encode()


class Fault(enum.Enum):
    """Kinds of fault; the values are for people."""

    LOSE = "messages lost"
    DUPLICATE = "messages duplicated"
    REORDER = "messages delayed past others"
    CUT = "connection cut"
    HALF_OPEN = "connection half open"
    KILL = "actor killed and started again"
    STOP = "actor stopped and continued"
    PARTITION = "some actors apart from the others"
    POWER = "power lost, and what was not synced"
    DRIFT = "clocks fast, slow or set wrong"


USUAL = frozenset(Fault) - {Fault.POWER, Fault.DRIFT}
"""Kinds of fault that every system has to survive: all but those of a disk and of clocks."""


class Clock(NamedTuple):
    """The clock of one actor."""

    rate: float = 1.0
    """Seconds that the clock counts in a true second."""
    ahead_s: float = 0.0
    """Time that the clock shows when the run begins, in seconds."""

    def shows_s(self, now_s: float) -> float:
        """Time that the clock shows at a moment of the run, in seconds.

        Args:
            now_s: Seconds since the run began.
        """
        return self.ahead_s + self.rate * now_s

    def takes_s(self, delay_s: float) -> float:
        """True time in which the clock counts a delay, in seconds.

        Args:
            delay_s: Seconds that the clock counts.
        """
        return delay_s / self.rate


GONE = object()
"""Marker of a value that was deleted."""


class Stored:
    """Disk of an actor over all of its lives: what a reader finds, and what is safe."""

    def __init__(self) -> None:
        self.found: dict[str, Any] = {}
        """Values that a reader finds."""
        self.safe: dict[str, Any] = {}
        """Values that survive a loss of power."""
        self.unsynced: list[tuple[str, Any]] = []
        """Writes since the last sync, in order."""

    def write(self, name: str, value: Any) -> None:
        """Write a value, which is not safe yet."""
        self.unsynced.append((name, value))
        _apply(self.found, name, value)

    def sync(self) -> None:
        """Make all writes safe."""
        self.safe = dict(self.found)
        self.unsynced.clear()

    def lose(self, survives: Callable[[int], bool]) -> None:
        """Lose the power, and all unsynced writes but those whose numbers ``survives`` accepts,
        counted from the end: -1 is the last."""
        for number, (name, value) in enumerate(self.unsynced, -len(self.unsynced)):
            if survives(number):
                _apply(self.safe, name, value)
        self.found = dict(self.safe)
        self.unsynced.clear()

    def copy(self) -> Stored:
        """Copy of the disk; the values are shared, since they never change."""
        other = Stored()
        other.found, other.safe = dict(self.found), dict(self.safe)
        other.unsynced = list(self.unsynced)
        return other


def _apply(names: dict[str, Any], name: str, value: Any) -> None:
    if value is GONE:
        names.pop(name, None)
    else:
        names[name] = value


class Disk(MutableMapping[str, Any]):
    """State that an actor finds again after it was killed; everything else is forgotten.

    A value is copied whenever it is written or read, so nothing is kept but what was
    written.  One assignment is one write: an actor may be killed between two.  Power that
    is lost (``Fault.POWER``) takes with it any of the writes since the last :meth:`sync`.
    """

    def __init__(self, stored: Stored, before_write: Callable[[str], object]) -> None:
        self._stored = stored
        self._before_write = before_write

    def sync(self) -> None:
        """Make all writes safe."""
        self._before_write("syncs")
        self._stored.sync()

    def __getitem__(self, name: str) -> Any:
        return copy.deepcopy(self._stored.found[name])

    def __setitem__(self, name: str, value: Any) -> None:
        self._before_write(f"writes {name}")
        self._stored.write(name, copy.deepcopy(value))

    def __delitem__(self, name: str) -> None:
        if name not in self._stored.found:
            raise KeyError(name)
        self._before_write(f"deletes {name}")
        self._stored.write(name, GONE)

    def __iter__(self) -> Iterator[str]:
        return iter(self._stored.found)

    def __len__(self) -> int:
        return len(self._stored.found)


class Choice(NamedTuple):
    """Input that an actor may be given besides asks, messages and timers, in a search of every
    order: its own code ends, a caller gives up, a lease ends."""

    name: str
    """Name, for :meth:`Actor.on_choice`."""
    args: tuple[Any, ...] = ()
    """Arguments of :meth:`Actor.on_choice`: immutable values."""
    bound: str = ""
    """Name of the bound in :attr:`Bounds.each` that it uses up, as a fault does; empty: it comes
    by itself, sooner or later."""
    when: Literal["", "idle", "patient", "rest"] = ""
    """``idle``: it comes by itself only where nothing else does, to repair what was lost;
    ``rest``: likewise, but only on the way to rest, so no state is found by it;
    ``patient``: nobody counts on it but a caller who waits."""


class Actor:
    """A process of the system: subclass it, and write its handlers, ``on_start`` to
    ``on_rest``.

    An object of it lives from a start to a crash, and is then made anew: its attributes
    are gone, its :attr:`disk` is there.  Handlers are plain
    functions that return nothing; they take time and randomness from :attr:`now_s` and
    :attr:`random` and from nowhere else, so that a seed is always the same run.
    """

    _life: Any = None  # a BaseLife, which stands on this file

    def __init_subclass__(cls, **more: Any) -> None:
        """Raises BrokenSystem for what looks like a handler and is none: nobody would call it."""
        super().__init_subclass__(**more)
        handlers = [name for name in vars(Actor) if name.startswith("on_")]
        for name in vars(cls):
            if not name.startswith("on_") or name in handlers:
                continue
            for near in difflib.get_close_matches(name, handlers, n=1, cutoff=0.8):
                if getattr(cls, near) is getattr(Actor, near):
                    raise BrokenSystem(f"no handler is called {name}; did you mean {near}?")

    # -- its handlers: to be overridden -----------------------------------------

    def on_start(self) -> None:
        """Handle the start of the actor, its first one or one after a crash."""

    def on_ask(self, request: str, what: Any) -> None:
        """Handle the ask of a caller in this process.

        Args:
            request: Name of the request, which is never used again.
            what: Value that the caller asks for.
        """

    def on_message(self, sender: str, message: Any) -> None:
        """Handle a message that has arrived.

        Args:
            sender: Name of the actor that sent it.
            message: Value that was sent.
        """

    def on_timer(self, timer: str) -> None:
        """Handle a timer that has fired.

        Args:
            timer: Name of the timer.
        """

    def on_cut(self, peer: str) -> None:
        """Handle the end of a connection, with the loss of all messages on their way.  The
        next :meth:`send` makes another one as soon as there can be one.

        Args:
            peer: Name of the other actor.
        """

    def on_notice(self, peer: str, what: Any) -> None:
        """Handle a notice, see :meth:`notify`.

        Args:
            peer: Name of the actor that gave it.
            what: Value that was given.
        """

    def on_settled(self) -> None:
        """Handle the end of a move after which all has arrived, in a search that has
        :attr:`Bounds.instant`."""

    def choices(self) -> Iterable[Choice]:
        """Return the inputs that the actor may be given now; only a search of every order
        asks, and not in every order of time: so it must not look at the clock."""
        return ()

    def on_choice(self, name: str, *args: Any) -> None:
        """Handle an input that was chosen among :meth:`choices`.

        Args:
            name: Name of the choice.
            *args: Its arguments.
        """

    def on_rest(self) -> None:
        """Say by :meth:`has` what is there at the end of the run; nothing else counts any more."""

    # -- its methods ------------------------------------------------------------

    @property
    def name(self) -> str:
        """Name of the actor in :attr:`System.actors`."""
        return str(self._itself.name)

    @property
    def now_s(self) -> float:
        """Time of the actor's clock in seconds: since the run began, unless the clock is wrong."""
        now_s: float = self._itself.now_s()
        return now_s

    @property
    def random(self) -> Random:
        """Random source of this actor."""
        luck: Random = self._itself.luck()
        return luck

    @property
    def disk(self) -> Disk:
        """Disk of this actor, which survives a crash."""
        disk: Disk = self._itself.disk
        return disk

    def send(self, to: str, message: Any) -> None:
        """Send a message, an immutable value, to the actor of this name.  The sender does
        not learn whether it arrives; without a connection it is lost.

        Args:
            to: Name of the actor.
            message: An immutable value.
        """
        self._itself.send(to, message)

    def notify(self, to: str, what: Any) -> None:
        """Give another actor a notice, an immutable value, by means that lose nothing and are
        apart from messages: a signal, the end of a process, a lock of one machine.  Notices
        between two actors keep their order; those to an actor that is killed are lost.

        Args:
            to: Name of the actor.
            what: An immutable value.
        """
        self._itself.notify(to, what)

    def start_timer(self, timer: str, delay_s: float) -> None:
        """Call :meth:`on_timer` in ``delay_s``; one of the same name is replaced.

        Args:
            timer: Name of the timer.
            delay_s: Seconds from now, on the actor's clock.
        """
        self._itself.start_timer(timer, delay_s)

    def stop_timer(self, timer: str) -> None:
        """Cancel a timer; one that has fired, or was never started, is no error.

        Args:
            timer: Name of the timer.
        """
        self._itself.stop_timer(timer)

    def did(self, request: str, what: Any) -> None:
        """Tell the judges that work was done for a request: work that must not happen
        twice, say.

        Args:
            request: Name of the request.
            what: An immutable value.
        """
        self._itself.say("did", request, what)

    def began(self, what: Any, request: str = "") -> None:
        """Tell the judges that the actor holds something from now on, or runs it: a lock, say.

        Args:
            what: Thing that is held: an immutable value.
            request: Name of the request that it is for; empty if for none.
        """
        self._itself.say("began", request, what)

    def ended(self, what: Any, request: str = "") -> None:
        """Tell the judges that the actor does not hold something any more.

        Args:
            what: Thing that was held.
            request: Name of the request that it is for; empty if for none.
        """
        self._itself.say("ended", request, what)

    def has(self, request: str, what: Any = None) -> None:
        """Tell the judges that the actor has what was done for a request.

        Args:
            request: Name of the request.
            what: An immutable value.
        """
        self._itself.say("has", request, what)

    def tell(self, request: str, answer: Any) -> None:
        """Tell the caller of a request its answer.

        Args:
            request: Name of the request.
            answer: An immutable value.
        """
        self._itself.say("told", request, answer)

    @property
    def _itself(self) -> Any:
        if self._life is None:
            raise RuntimeError("an actor can do nothing in its __init__; use on_start")
        return self._life


class Ask(NamedTuple):
    """Ask of a caller, at a moment of the run."""

    at_s: float
    """Time of the ask in seconds since the run began."""
    actor: str
    """Name of the actor that is asked."""
    what: Any
    """Value that the caller asks for: an immutable one."""
    request: str = ""
    """Name of the request, which is made: ``c0#1`` is the first of the actor ``c0``."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Bounds of a search of every order."""

    asks: int = 2
    """Number of asks, the first ones of the seed."""
    faults: int = 2
    """Most faults on one path; a message that is slower than a timer is one, too."""
    pause: int = 3
    """Most timers of others that may fire while an actor is stopped."""
    each: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Most faults and choices of each kind on one path, by the names of :class:`Fault` and the
    bounds of choices; of a kind that is not here as many as ``faults``."""
    settled: bool = False
    """Whether a search begins where all is at rest after the start, before any ask."""
    instant: bool = False
    """Whether messages and notices arrive at once, in the order in which they were sent; after
    each move judges see an event of the kind ``did`` for :data:`SETTLED`."""
    prompt: bool = False
    """Whether notices alone arrive at once, in the order in which they were given."""
    seed: int = 0
    """Seed that the asks are drawn from."""
    most_states: int = 200_000
    """Number of states at which the search gives up."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class System:
    """System that can be tried: its actors, the asks of callers, the judges, the faults."""

    actors: Mapping[str, Callable[[], Actor]]
    """Functions that make the actors, by name; a diagram has the actors in this order."""
    asks: Callable[[Random], Iterable[Ask]]
    """Function that draws the asks of callers, from a random source of the seed."""
    judges: Collection[Callable[[], Judge]]
    """Classes of the judges, or functions that make them."""
    faults: Collection[Fault] = USUAL
    """Kinds of fault that may strike; each seed draws some.  :data:`USUAL` leaves out
    those of a disk that must be synced and of clocks."""
    never_killed: Collection[str] = ()
    """Names of the actors that live to the end, with all of their callers."""
    drift: float = 0.1
    """Largest error of a clock's rate: ``1 - drift`` to ``1 + drift`` seconds in a second."""
    ahead_s: float = 0.0
    """Time in seconds by which a clock may be set ahead."""
    describe: Callable[[Any], str] = short
    """Function that describes a message in a diagram; one described as "" is left out."""
    quiet_s: float = 5.0
    """Time without an event after which a run is over, if every caller was told, in seconds:
    longer than any timer that matters."""
    patience_s: float = 60.0
    """Time after the last fault in which a run may come to rest, in seconds; then it is over."""
    bounds: Bounds = Bounds()
    """Bounds of a search of every order."""
    alike: Collection[Collection[str]] = ()
    """Groups of actors that differ in nothing but their names: a search of every order takes
    states for one that differ only by an exchange of names.  A name is found in texts and bytes
    where it stands between characters that are neither letters nor digits."""
    forms: Forms = dataclasses.field(default_factory=dict)
    """Rules by which a search of every order compares instances of a class: attributes that are
    left out, or replaced, each with its reason."""

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
        for name in itertools.chain(*self.alike):
            if name not in self.actors:
                raise BrokenSystem(f"alike: {unknown(name, self.actors)}")
        for fault in self.faults:
            if not isinstance(fault, Fault):
                raise BrokenSystem(f"faults are members of Fault, not {fault!r}")
        for field in ("asks", "describe"):
            if not callable(getattr(self, field)):
                raise BrokenSystem(f"{field} is a function, not {getattr(self, field)!r}")
        if not isinstance(self.judges, Collection):
            raise BrokenSystem(f"judges is a list of classes, not {self.judges!r}")
        for judge in self.judges:
            if not callable(judge):
                raise BrokenSystem(f"a judge is made by a class or a function, not by {judge!r}")
        if not 0.0 <= self.drift < 1.0:
            raise BrokenSystem(f"drift is a part of a second, like 0.1, not {self.drift!r}")


def unknown(name: object, actors: Iterable[str]) -> str:
    """Message that there is no such actor, with the names that are near."""
    near = difflib.get_close_matches(str(name), list(actors), n=3)
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(actors)}"
    return f"no actor {name!r}; {hint}"

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
from typing import Any, NamedTuple

from .judges import Judge
from .values import plain, short

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
    text: bytes = b""
    """What it was when it was sent."""

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
    PARTITION = "some actors apart from the others"
    POWER = "power lost, and what was not synced"
    DRIFT = "clocks fast, slow or set wrong"


USUAL = frozenset(Fault) - {Fault.POWER, Fault.DRIFT}
"""The faults that every system has to survive: all but those of a disk and of clocks."""


class Clock(NamedTuple):
    """The clock of one actor."""

    rate: float = 1.0
    """Seconds that it counts in a second."""
    ahead_s: float = 0.0
    """Seconds that it shows when the run begins."""

    def shows_s(self, now_s: float) -> float:
        """Its time at a moment of the run.

        Args:
            now_s: Seconds since the run began.
        """
        return self.ahead_s + self.rate * now_s

    def takes_s(self, delay_s: float) -> float:
        """How long it takes to count so many seconds.

        Args:
            delay_s: Seconds that it counts.
        """
        return delay_s / self.rate


GONE = object()
"""In the place of a value that was deleted."""


class Stored:
    """The disk of an actor, whoever lives: what a reader finds, and what is safe."""

    def __init__(self) -> None:
        self.found: dict[str, Any] = {}
        """What a reader finds."""
        self.safe: dict[str, Any] = {}
        """What was there when it was last synced."""
        self.unsynced: list[tuple[str, Any]] = []
        """The writes since."""

    def write(self, name: str, value: Any) -> None:
        """A write, not safe yet."""
        self.unsynced.append((name, value))
        _apply(self.found, name, value)

    def sync(self) -> None:
        """All that was written is safe."""
        self.safe = dict(self.found)
        self.unsynced.clear()

    def lose(self, survives: Callable[[int], bool]) -> None:
        """The power is gone: of what is not safe the writes of these numbers survive, counted
        from the end: -1 is the last."""
        for number, (name, value) in enumerate(self.unsynced, -len(self.unsynced)):
            if survives(number):
                _apply(self.safe, name, value)
        self.found = dict(self.safe)
        self.unsynced.clear()

    def copy(self) -> Stored:
        """The same once more; its values never change."""
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
    """The state that an actor finds again after it was killed; it forgets everything else.

    A value is copied whenever it is written or read, so nothing is kept but what was
    written.  One assignment is one write: an actor may be killed between two.  Power that
    is lost (``Fault.POWER``) takes with it any of the writes since the last :meth:`sync`.
    """

    def __init__(self, stored: Stored, before_write: Callable[[str], object]) -> None:
        self._stored = stored
        self._before_write = before_write

    def sync(self) -> None:
        """Make safe what was written."""
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


class Actor:
    """A process of the system: subclass it, and write what it does when something
    happens to it.

    An object of it lives from a start to a crash, and is then made anew: what is in
    its attributes is gone, what is in :attr:`disk` is there.  Handlers are plain
    functions that return nothing; they take time and randomness from :attr:`now_s` and
    :attr:`random` and from nowhere else, so that a seed is always the same run.
    """

    _life: Any = None  # a BaseLife, which stands on this file

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

    def on_rest(self) -> None:
        """The run is over: say what is there, by :meth:`has`; nothing else counts any more."""

    # -- what it can do ---------------------------------------------------------

    @property
    def name(self) -> str:
        """Its name in :attr:`System.actors`."""
        return str(self._itself.name)

    @property
    def now_s(self) -> float:
        """What its clock shows: the seconds since the run began, unless it is wrong."""
        now_s: float = self._itself.now_s()
        return now_s

    @property
    def random(self) -> Random:
        """A random source of its own."""
        luck: Random = self._itself.luck()
        return luck

    @property
    def disk(self) -> Disk:
        """The memory that survives a crash."""
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

    def start_timer(self, timer: str, delay_s: float) -> None:
        """Call :meth:`on_timer` in ``delay_s``; one of the same name is replaced.

        Args:
            timer: Its name.
            delay_s: Seconds from now, on its clock.
        """
        self._itself.start_timer(timer, delay_s)

    def stop_timer(self, timer: str) -> None:
        """Cancel a timer; one that has fired, or was never started, is no error.

        Args:
            timer: Its name.
        """
        self._itself.stop_timer(timer)

    def did(self, request: str, what: Any) -> None:
        """Tell the judges that something was done for a request: what must not happen
        twice, say.

        Args:
            request: Its name.
            what: An immutable value.
        """
        self._itself.say("did", request, what)

    def began(self, what: Any, request: str = "") -> None:
        """Tell the judges that it holds something from now on, or runs it: a lock, say.

        Args:
            what: What it holds: an immutable value.
            request: For which request; empty if for none.
        """
        self._itself.say("began", request, what)

    def ended(self, what: Any, request: str = "") -> None:
        """Tell the judges that it does not hold it any more.

        Args:
            what: What it held.
            request: For which request; empty if for none.
        """
        self._itself.say("ended", request, what)

    def has(self, request: str, what: Any = None) -> None:
        """Tell the judges that it has what was done for a request.

        Args:
            request: Its name.
            what: An immutable value.
        """
        self._itself.say("has", request, what)

    def tell(self, request: str, answer: Any) -> None:
        """Tell the caller.

        Args:
            request: Its name.
            answer: An immutable value.
        """
        self._itself.say("told", request, answer)

    @property
    def _itself(self) -> Any:
        if self._life is None:
            raise RuntimeError("an actor can do nothing in its __init__; use on_start")
        return self._life


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


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How far a search of every order goes."""

    asks: int = 2
    """So many asks of callers, the first ones of the seed."""
    faults: int = 2
    """So many faults on one way; a message that is slower than a timer is one, too."""
    pause: int = 3
    """So many timers of others may fire while an actor is stopped."""
    seed: int = 0
    """The seed that the asks are drawn from."""
    most_states: int = 200_000
    """The search gives up at so many states."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class System:
    """A system that can be tried: who takes part, what callers ask for, what must hold."""

    actors: Mapping[str, Callable[[], Actor]]
    """The function that makes each actor, by name; in a diagram they stand in this order."""
    asks: Callable[[Random], Iterable[Ask]]
    """The asks of callers, drawn from the seed."""
    judges: Collection[Callable[[], Judge]]
    """The classes of the judges, or functions that make them."""
    faults: Collection[Fault] = USUAL
    """The faults that there may be; of these each seed draws some.  :data:`USUAL` leaves out
    those of a disk that must be synced and of clocks."""
    never_killed: Collection[str] = ()
    """Actors that live to the end, with all of their callers."""
    drift: float = 0.1
    """How wrong clocks may run: from ``1 - drift`` to ``1 + drift`` seconds in a second."""
    ahead_s: float = 0.0
    """How far ahead a clock may be set."""
    describe: Callable[[Any], str] = short
    """How a message reads in a diagram; one that is "" there is left out."""
    quiet_s: float = 5.0
    """A run is over when every caller was told and nothing was done or told for so long:
    longer than any timer that matters."""
    patience_s: float = 60.0
    """How long after the last fault that may take; then the run is over anyway."""
    bounds: Bounds = Bounds()
    """How far a search of every order goes."""

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
    """The message that there is no such actor, with the near names."""
    near = difflib.get_close_matches(str(name), list(actors), n=3)
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(actors)}"
    return f"no actor {name!r}; {hint}"

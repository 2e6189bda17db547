"""What happened, and what must hold: events, judges, violations.

Theory of operation
-------------------
An :class:`Event` is something that was asked, done or told.  A :class:`Judge` is a fold over
events: it sees each in order, keeps a small state in its attributes, and returns the
:class:`Violation` of what does not hold; at rest it says what is missing.  So one judge
serves every engine: a run, a search of every order (which copies and compares a judge's
state like an actor's), and the log of real processes (:func:`judge_log`).

Ready judges: :class:`AtMostOnce`, :class:`OneTrueAnswer`, :class:`OneHolder`,
:class:`NoLostAcknowledgement`.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, Literal, NamedTuple, Self, TypeAlias, get_args


class Violation(str):
    """A guarantee that did not hold: a line for people, and its parts."""

    guarantee: str
    """Its name: ``G1``, say, or ``at most once``."""
    at_s: float
    """When, in seconds since the run began."""
    text: str
    """What happened, for people."""
    key: str
    """The request that it happened to, or the empty string."""

    def __new__(cls, guarantee: str, at_s: float, text: str, key: str = "") -> Self:
        """The line is made of the parts."""
        self = super().__new__(cls, f"{guarantee} at {at_s:.3f} s: {text}")
        self.guarantee, self.at_s, self.text, self.key = guarantee, at_s, text, key
        return self


Kind: TypeAlias = Literal["asked", "did", "told", "began", "ended", "has", "died"]


class Event(NamedTuple):
    """Something that happened."""

    at_s: float
    """When, in seconds since the run began."""
    kind: Kind
    """``asked`` by a caller, ``did`` for it, ``told`` to it; ``began`` and ``ended`` to hold
    or to run something; ``has`` a request on its disk; ``died`` with all that it held."""
    actor: str
    """In which process."""
    request: str
    """Empty where it was for none."""
    what: Any
    """The value that goes with it."""

    def breaks(self, guarantee: str, text: str) -> Violation:
        """The violation that shows with this event.

        Args:
            guarantee: Name of what does not hold.
            text: What happened, for people.
        """
        return Violation(guarantee, self.at_s, text, self.request)


@dataclasses.dataclass(frozen=True, slots=True)
class History:
    """All events of a run, in order."""

    events: tuple[Event, ...]
    """All of them."""
    end_s: float
    """When the run was over."""

    def asked(self, request: str | None = None) -> list[Event]:
        """The asks of callers: all of them, or those of this request.

        Args:
            request: Name of the request; None: all of them.
        """
        return self._of("asked", request)

    def did(self, request: str | None = None) -> list[Event]:
        """The deeds of actors: all of them, or those for this request.

        Args:
            request: Name of the request; None: all of them.
        """
        return self._of("did", request)

    def told(self, request: str | None = None) -> list[Event]:
        """The answers to callers: all of them, or those to this request.

        Args:
            request: Name of the request; None: all of them.
        """
        return self._of("told", request)

    def _of(self, kind: str, request: str | None) -> list[Event]:
        return [
            event
            for event in self.events
            if event.kind == kind and (request is None or event.request == request)
        ]


class Judge:
    """A judge of events: subclass it, and write what must hold.

    Its attributes are its state: numbers, text, tuples, lists, sets, dicts.
    """

    def see(self, event: Event) -> Iterable[Violation] | None:
        """An event, in its order; returns what does not hold any more, if anything.

        Args:
            event: The event.
        """
        return None

    def rest(self, at_s: float) -> Iterable[Violation] | None:
        """Nothing more will happen; returns what should have happened, and has not.

        Args:
            at_s: When the run is over.
        """
        return None


def whole(judge: Callable[[History], Iterable[Violation]]) -> type[Judge]:
    """A judge that looks at all events at the end: handy, but in a search of every order no
    two states are the same to it.

    Args:
        judge: The violations in a history.
    """

    class Whole(Judge):
        def __init__(self) -> None:
            self.events: list[Event] = []

        def see(self, event: Event) -> None:
            self.events.append(event)

        def rest(self, at_s: float) -> Iterable[Violation]:
            return judge(History(tuple(self.events), at_s))

    return Whole


# -- ready judges -----------------------------------------------------------------------


class AtMostOnce(Judge):
    """What is done for a request is done once."""

    def __init__(self) -> None:
        self.done: set[str] = set()

    def see(self, event: Event) -> Iterator[Violation]:
        """A second deed for one request."""
        if event.kind == "did":
            if event.request in self.done:
                yield event.breaks("at most once", f"{event.request} is done again")
            self.done.add(event.request)


class OneTrueAnswer(Judge):
    """Every caller is told one thing, and what it is told was done for it.

    A caller in a process that died need not be told anything.
    """

    def __init__(self, *, as_done: bool = True) -> None:
        self.as_done = as_done
        """Whether the answer is what :meth:`.Actor.did` was given."""
        self.waiting: dict[str, str] = {}
        self.done: dict[str, set[Any]] = {}
        self.told: dict[str, Any] = {}

    def see(self, event: Event) -> Iterator[Violation]:
        """An answer that is another than before, or not what was done."""
        request, what = event.request, event.what
        match event.kind:
            case "asked":
                self.waiting[request] = event.actor
            case "did":
                self.done.setdefault(request, set()).add(what)
            case "told":
                self.waiting.pop(request, None)
                if self.as_done and what not in self.done.get(request, ()):
                    text = f"{request} is told {what!r}, which was not done for it"
                    yield event.breaks("one true answer", text)
                elif self.told.setdefault(request, what) != what:
                    text = f"{request} is told {what!r}, and {self.told[request]!r} before"
                    yield event.breaks("one true answer", text)
            case "died":
                self.waiting = {r: a for r, a in self.waiting.items() if a != event.actor}

    def rest(self, at_s: float) -> Iterator[Violation]:
        """Callers that nobody will answer."""
        for request in self.waiting:
            yield Violation("one true answer", at_s, f"{request} is never told", request)


class OneHolder(Judge):
    """What one has begun to hold, nobody else begins until it has ended or its process died."""

    def __init__(self) -> None:
        self.holders: dict[Any, list[tuple[str, str]]] = {}
        """For what is held the actors, and the requests that they hold it for."""

    def see(self, event: Event) -> Iterator[Violation]:
        """A second holder."""
        holder = event.actor, event.request
        match event.kind:
            case "began":
                others = self.holders.setdefault(event.what, [])
                for actor, _ in others:
                    text = f"{event.actor} holds {event.what!r} with {actor}"
                    yield event.breaks("one holder", text)
                others.append(holder)
            case "ended" if holder in self.holders.get(event.what, ()):
                self._left(event.what, [h for h in self.holders[event.what] if h != holder])
            case "died":
                for what, holders in list(self.holders.items()):
                    self._left(what, [h for h in holders if h[0] != event.actor])

    def _left(self, what: Any, holders: list[tuple[str, str]]) -> None:
        if holders:
            self.holders[what] = holders
        else:
            self.holders.pop(what, None)


class NoLostAcknowledgement(Judge):
    """What a caller was told is done is there at the end: some actor says in its
    :meth:`.Actor.on_rest` that it has the request.

    ``refuses`` are answers that acknowledge nothing.
    """

    def __init__(self, *, refuses: Collection[Any] = ()) -> None:
        self.refuses = tuple(refuses)
        self.told: set[str] = set()
        self.there: dict[str, set[str]] = {}

    def see(self, event: Event) -> None:
        """Collects who was told, and who has what."""
        match event.kind:
            case "told" if event.what not in self.refuses:
                self.told.add(event.request)
            case "has":
                self.there.setdefault(event.actor, set()).add(event.request)
            case "died":
                self.there.pop(event.actor, None)

    def rest(self, at_s: float) -> Iterator[Violation]:
        """Acknowledged requests that nobody has."""
        there: set[str] = set().union(*self.there.values())
        for request in sorted(self.told - there):
            text = f"{request} was acknowledged, and nobody has it"
            yield Violation("no lost acknowledgement", at_s, text, request)


# -- the logs of real processes -----------------------------------------------------------


def judge_log(
    judges: Iterable[Callable[[], Judge]], events: Iterable[Event], *, at_rest: bool = True
) -> list[Violation]:
    """The violations that judges find in events.

    Args:
        judges: The classes of the judges.
        events: The events, in their order.
        at_rest: Whether the log is complete, so that what is missing will never come.
    """
    found: list[Violation] = []
    made = [make() for make in judges]
    end_s = 0.0
    for event in events:
        end_s = event.at_s
        for judge in made:
            found += judge.see(event) or ()
    if at_rest:
        for judge in made:
            found += judge.rest(end_s) or ()
    return found


def read_log(lines: Iterable[str]) -> Iterator[Event]:
    """Events from lines of JSON: ``{"at_s": 1.5, "kind": "told", "actor": "c0", "request":
    "c0#1", "what": 7}``.  ValueError names the line that is none.

    Args:
        lines: The lines.
    """
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            data = json.loads(line)
            event = Event(
                float(data["at_s"]), data["kind"], str(data["actor"]),
                str(data.get("request", "")), _fixed(data.get("what")),
            )  # fmt: skip
        except (TypeError, ValueError, KeyError) as error:
            raise ValueError(f"line {number} is no event: {error!r}") from error
        if event.kind not in get_args(Kind):
            raise ValueError(f"line {number} is no event: of the kind {event.kind!r}")
        yield event


def _fixed(value: Any) -> Any:
    """JSON as immutable values."""
    if isinstance(value, list):
        return tuple(map(_fixed, value))
    if isinstance(value, dict):
        return tuple(sorted((name, _fixed(each)) for name, each in value.items()))
    return value

"""Events of a run, judges of what must hold, violations.

Theory of operation
-------------------
An :class:`Event` is an ask, a deed of an actor, or an answer, say.  A :class:`Judge` is a fold over
events: it sees each in order, has a small state in its attributes, and returns the
:class:`Violation` of what does not hold; at rest it returns those of what is missing.  So one judge
serves every engine: a run, a search of every order (which copies and compares a judge's
state like an actor's), and the log of real processes (:func:`judge_log`).

Ready judges: :class:`AtMostOnce`, :class:`OneTrueAnswer`, :class:`OneHolder`,
:class:`NoLostAcknowledgement`.  Each has the name of its guarantee, which a subclass may change.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, Literal, NamedTuple, Self, TypeAlias, get_args


class Violation(str):
    """A guarantee that did not hold: a line for people, and its parts."""

    guarantee: str
    """Name of the guarantee: ``G1``, say, or ``at most once``."""
    at_s: float
    """Time of the violation in seconds since the run began."""
    text: str
    """Description for people."""
    key: str
    """Name of the request that it concerns; empty if it concerns none."""

    def __new__(cls, guarantee: str, at_s: float, text: str, key: str = "") -> Self:
        """Make the line from its parts."""
        self = super().__new__(cls, f"{guarantee} at {at_s:.3f} s: {text}")
        self.guarantee, self.at_s, self.text, self.key = guarantee, at_s, text, key
        return self


Kind: TypeAlias = Literal[
    "asked", "did", "told", "withdrawn", "began", "ended", "has", "died",
    "serving", "linked", "sent", "arrived", "harmed", "phase", "sampled",
]  # fmt: skip


class Event(NamedTuple):
    """Event of a run, as the judges see it."""

    at_s: float
    """Time of the event in seconds since the run began."""
    kind: str
    """Kind: ``asked`` by a caller, ``did`` for it, ``told`` to it, ``withdrawn`` by it; ``began``
    and ``ended`` to hold or to run something; ``has`` a request on its disk; ``died`` with all
    that it held.  Of real processes also: ``serving``, or ``linked`` anew; a message ``sent`` or
    ``arrived``; ``harmed`` by a fault; a ``phase`` of the run, which is the actor; and ``sampled``
    then.  A simulator of one's own may have others."""
    actor: str
    """Name of the actor: the process that it happened in."""
    request: str
    """Name of the request; empty if the event is for none."""
    what: Any
    """Value that was asked for, done, told, held or run."""

    def breaks(self, guarantee: str, text: str) -> Violation:
        """Violation that this event shows.

        Args:
            guarantee: Name of the guarantee.
            text: Description for people.
        """
        return Violation(guarantee, self.at_s, text, self.request)


class Judge:
    """A judge of events: subclass it, and write what must hold.

    Its attributes are its state: numbers, text, tuples, lists, sets, dicts.
    """

    def see(self, event: Event) -> Iterable[Violation] | None:
        """See the next event; returns the violations that it shows, if any.

        Args:
            event: The event.
        """
        return None

    def rest(self, at_s: float) -> Iterable[Violation] | None:
        """See the end of the run; returns the violations by what has not happened, if any.

        Args:
            at_s: Time of the end, in seconds since the run began.
        """
        return None


# -- ready judges -----------------------------------------------------------------------


class AtMostOnce(Judge):
    """The work of a request is done at most once."""

    guarantee = "at most once"
    """Name of the guarantee."""

    def __init__(self) -> None:
        self.done: set[str] = set()

    def see(self, event: Event) -> Iterator[Violation]:
        """Violation by a second deed for one request."""
        if event.kind == "did":
            if event.request in self.done:
                yield event.breaks(self.guarantee, f"{event.request} is done again")
            self.done.add(event.request)


class OneTrueAnswer(Judge):
    """Every caller is told one answer, a value that was done for its request.

    A caller that has withdrawn, or in a process that died, need not be told anything.
    """

    guarantee = "one true answer"
    """Name of the guarantee."""

    def __init__(self, *, as_done: bool = True) -> None:
        self.as_done = as_done
        """Whether the answer must be a value that :meth:`.Actor.did` was given."""
        self.waiting: dict[str, str] = {}
        self.done: dict[str, set[Any]] = {}
        self.told: dict[str, Any] = {}

    def see(self, event: Event) -> Iterator[Violation]:
        """Violation by an answer that is another than before, or not what was done."""
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
                    yield event.breaks(self.guarantee, text)
                elif self.told.setdefault(request, what) != what:
                    text = f"{request} is told {what!r}, and {self.told[request]!r} before"
                    yield event.breaks(self.guarantee, text)
            case "withdrawn":
                self.waiting.pop(request, None)
            case "died":
                self.waiting = {r: a for r, a in self.waiting.items() if a != event.actor}

    def rest(self, at_s: float) -> Iterator[Violation]:
        """Violations by callers that are never told."""
        for request in self.waiting:
            yield Violation(self.guarantee, at_s, f"{request} is never told", request)


class OneHolder(Judge):
    """Everything held has one holder at a time, until that has ended or its process died."""

    guarantee = "one holder"
    """Name of the guarantee."""

    def __init__(self) -> None:
        self.holders: dict[Any, list[tuple[str, str]]] = {}
        """Holders of each value: actors, and the requests that they hold it for."""

    def see(self, event: Event) -> Iterator[Violation]:
        """Violation by a second holder."""
        holder = event.actor, event.request
        match event.kind:
            case "began":
                others = self.holders.setdefault(event.what, [])
                for actor, _ in others:
                    text = f"{event.actor} holds {event.what!r} with {actor}"
                    yield event.breaks(self.guarantee, text)
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
    """Every acknowledged request is there at the end: some actor says in its
    :meth:`.Actor.on_rest` that it has the request.

    ``refuses`` are answers that acknowledge nothing.
    """

    guarantee = "no lost acknowledgement"
    """Name of the guarantee."""

    def __init__(self, *, refuses: Collection[Any] = ()) -> None:
        self.refuses = tuple(refuses)
        self.told: set[str] = set()
        self.there: dict[str, set[str]] = {}

    def see(self, event: Event) -> Iterable[Violation] | None:
        """Collect the acknowledged requests, and those that each actor has."""
        match event.kind:
            case "told" if event.what not in self.refuses:
                self.told.add(event.request)
            case "has":
                self.there.setdefault(event.actor, set()).add(event.request)
            case "died":
                self.there.pop(event.actor, None)
        return None

    def rest(self, at_s: float) -> Iterator[Violation]:
        """Violations by acknowledged requests that no actor has."""
        there: set[str] = set().union(*self.there.values())
        for request in sorted(self.told - there):
            text = f"{request} was acknowledged, and nobody has it"
            yield Violation(self.guarantee, at_s, text, request)


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
    "c0#1", "what": 7}``.  ValueError names the line that is no event.

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

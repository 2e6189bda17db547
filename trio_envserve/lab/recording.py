"""Recordings of servers, read and replayed: an incident as a regression test.

::

    from trio_envserve.lab.recording import replay

    played = replay("incident.rec")
    assert played.identical

Theory of operation
-------------------
What a router did follows from its inputs, so :class:`Player` gives them to a
new one, with the ids that the first had drawn, and compares the hashes of the
effects and of the state wherever there is one.  Bodies that were not recorded are
replaced by as many zeros, which the router cannot tell.
"""

from __future__ import annotations

import dataclasses
import os
from collections import deque
from collections.abc import Iterator
from hashlib import blake2b
from typing import Any, NamedTuple

from ..core.errors import ConfigError
from ..core.limits import KeyLimits, ServerLimits, WireLimits
from ..core.router import Router
from ..core.router_effects import RouterEffect
from ..core.terms import ID_BYTES
from ..server.recording import records
from .recording_files import BadRecording, Mark, RecordedInput, read

__all__ = [
    "BadRecording",
    "Difference",
    "Moment",
    "Player",
    "RecordedInput",
    "Replayed",
    "load",
    "replay",
]


class Moment(NamedTuple):
    """An input and what came of it."""

    input: RecordedInput
    effects: list[RouterEffect]
    router: Router
    """In the state after it."""


class Difference(NamedTuple):
    """The first place where a replay did something else than the recorded router."""

    after: int
    """The last step up to which they are known to agree."""
    step: int
    """The step at which the difference shows."""
    what: str

    def __str__(self) -> str:
        where = f"step {self.step}"
        if self.step > self.after + 1:
            where = f"steps {self.after + 1} to {self.step}"
        return f"{where}: {self.what}"


class Player:
    """Plays a recording, once.  BadRecording if it is no recording."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = str(path)
        self.about, self._parts = read(path)
        """The header: the server, its limits."""
        self.router = self._new_router()
        """In the state after the last input."""
        self.step = 0
        """The last input that was played."""
        self.at_s = 0.0
        """Seconds from the making of the recorded router to that input."""
        self.checks = 0
        self.checked = 0
        """The step of the last check that agreed."""
        self.difference: Difference | None = None
        self.raised: Exception | None = None
        """The error that the router raised; nothing was played after that."""
        self.ended = False
        """The server ended in order, and the recording with it."""
        self.stopped = ""
        """Why the recording ends before the server did, if it says so."""
        self._hash = records.EffectsHash()
        self._drawn: deque[bytes] = deque()
        self._made = 0
        """Ids that the recorded router had not drawn."""

    @property
    def identical(self) -> bool | None:
        """Whether all that was played did what was recorded; None if nothing says so."""
        if self.difference is not None:
            return False
        return True if self.checks else None

    def moments(
        self, *, until_step: int | None = None, until_s: float | None = None
    ) -> Iterator[Moment]:
        """Play, input by input, up to the last one that is wanted, or the end."""
        before: RecordedInput | None = None
        for part in self._parts:
            if before is not None:
                yield self._play(before, last=False)
                before = None
                if self.raised is not None:
                    return
            if isinstance(part, Mark):
                self._compare(part)
                continue
            too_far = until_step is not None and part.step > until_step
            if too_far or (until_s is not None and part.at_s > until_s):
                return
            before = part
        if before is not None:
            yield self._play(before, last=not before.raised)

    def _compare(self, mark: Mark) -> None:
        if mark.code == records.END:
            self.ended, self.stopped = not mark.what, mark.what
            return
        if self.difference is not None:
            return
        effects = mark.code == records.CHECK
        found = self._hash.digest() if effects else records.state_digest(self.router)
        if found == mark.what:
            self.checks += 1
            self.checked = mark.step
        else:
            self._differ("the effects differ" if effects else "the state differs")

    def _differ(self, what: str) -> None:
        if self.difference is None:
            self.difference = Difference(self.checked, self.step, what)

    def _play(self, one: RecordedInput, *, last: bool) -> Moment:
        """``last``: the file ends after it, so what belongs to it may be missing."""
        self.step, self.at_s = one.step, one.at_s
        known = self.difference
        self._drawn.extend(one.drawn)
        effects: list[RouterEffect] = []
        try:
            effects = self.router.take(one.given)
        except Exception as error:  # whatever a flaw makes it raise is what is looked for
            self.raised = error
            if type(error).__name__ != one.raised:
                self._differ(f"the router raises {type(error).__name__}: {error}")
        else:
            if one.raised:
                self._differ(f"the router raised {one.raised}, and does not now")
        if self._drawn:
            self._differ("the router draws fewer ids")
            self._drawn.clear()
        if last:
            self.difference = known
        self._hash.add(effects)
        return Moment(one, effects, self.router)

    def _new_id(self) -> bytes:
        if self._drawn:
            return self._drawn.popleft()
        self._differ("the router draws more ids")
        self._made += 1
        return blake2b(self._made.to_bytes(8, "big"), digest_size=ID_BYTES).digest()

    def _new_router(self) -> Router:
        """As the recorded one was when it was new."""
        about = self.about
        try:
            return Router(
                epoch=about["epoch"], slots=records.slots_of(about["slots"]),
                now_s=about["began_s"],
                new_id=self._new_id, limits=_limits(ServerLimits, about["limits"]),
                wire=_limits(WireLimits, about["wire"]),
                keys=_limits(KeyLimits, about.get("keys", {})), heartbeats=about["heartbeats"],
                journaled=about.get("journaled", False), resting=about.get("resting", False),
            )  # fmt: skip
        except ConfigError as error:
            raise BadRecording(f"{self.path}: a limit is not right: {error}") from None


def _limits(kind: Any, given: dict[str, Any]) -> Any:
    """Limits of another version may have other names: those are left out."""
    return kind(**{name: value for name, value in given.items() if name in kind.__slots__})


# -- in one call ----------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class Replayed:
    """The result of a replay."""

    router: Router
    """In its last state."""
    inputs: int
    """How many were played."""
    seconds: float
    """From the making of the recorded router to the last input."""
    epoch: bytes
    identical: bool | None
    """Whether it did what was recorded; None if nothing was there to compare with."""
    difference: Difference | None
    raised: Exception | None
    """The error that the router raised; the replay ends there."""


def load(path: str | os.PathLike[str]) -> Iterator[RecordedInput]:
    """The inputs of a recording, in order; nothing is played.

    BadRecording (a ConfigError) if it is none, as soon as that is known.
    """
    _, parts = read(path)
    return (part for part in parts if isinstance(part, RecordedInput))


def replay(
    path: str | os.PathLike[str], *, until_step: int | None = None, until_s: float | None = None
) -> Replayed:
    """Play a recording, up to a step or a time if one is given, through this version.

    A replay by another version goes on after the first difference: what it comes
    to can be looked at.  BadRecording (a ConfigError) if it is no recording.
    """
    player = Player(path)
    for _ in player.moments(until_step=until_step, until_s=until_s):
        pass
    return Replayed(
        router=player.router, inputs=player.step, seconds=player.at_s,
        epoch=player.about["epoch"], identical=player.identical, difference=player.difference,
        raised=player.raised,
    )  # fmt: skip

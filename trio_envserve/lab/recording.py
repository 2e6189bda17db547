"""Recordings of servers, read and replayed: an incident as a regression test.

::

    from trio_envserve.lab.recording import replay

    played = replay("incident.rec")
    assert played.identical

Theory of operation
-------------------
What a router did follows from its inputs, so :class:`Player` gives them to a
new one, with the ids that the first had drawn, and compares the hash of the
effects with the recorded ones wherever there is one.  Bodies that were not
recorded are replaced by as many zeros, which the router cannot tell.

A recording is one file or several (FILE.2, FILE.1, FILE, the oldest first).
Where the first of them are gone, it begins with the first state that is in the
rest; what comes before that are inputs without effects.  So it is after a gap.
"""

from __future__ import annotations

import dataclasses
import os
from collections import deque
from collections.abc import Iterator
from hashlib import blake2b
from typing import Any, NamedTuple

from ..core.errors import ConfigError
from ..core.limits import ServerLimits, WireLimits
from ..core.router import Router
from ..core.terms import ID_BYTES
from ..server.recording import records, snapshot
from ..server.recording.masks import Masks
from ..server.recording.records import EffectsHash
from .recording_files import BadRecording, read

__all__ = ["BadRecording", "Difference", "Input", "Moment", "Player", "Replayed", "load", "replay"]


@dataclasses.dataclass(slots=True)
class Input:
    """One input of the router."""

    step: int
    """Its number, from 1."""
    at_s: float
    """Seconds since the router was made."""
    name: str
    """The router's method."""
    arguments: tuple[Any, ...]
    """What it was given, less the time.  An unrecorded frame is its length."""
    now_s: float
    """The server's monotonic clock."""
    code: int
    drawn: list[bytes] = dataclasses.field(default_factory=list)
    """Ids that the router drew for it."""
    stats: dict[str, Any] = dataclasses.field(default_factory=dict)
    """The shell's own statistics, where it asked for them."""
    raised: str = ""
    """The type of what the router raised."""

    def give(self, router: Router) -> None:
        """Give it to a router."""
        records.INPUTS[self.code].give(router, self.now_s, self._given())

    def _given(self) -> list[Any]:
        arguments = list(self.arguments)
        if self.code in (records.CLIENT, records.WORKER):
            arguments[-1] = records.filled(arguments[-1])
        return arguments


class Moment(NamedTuple):
    """An input and what came of it."""

    input: Input
    effects: list[Any]
    router: Router | None
    """In the state after it; None where the state is not known."""


class Difference(NamedTuple):
    """Where a replay first did something else than the recorded router."""

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
    """Plays a recording, from its beginning or its first state, once.

    ``path``: a file of it, which is played to its end, after the older ones that
    are there.  ``blind``: no router is played with, the inputs are only passed by.
    BadRecording if it is no recording.
    """

    def __init__(self, path: str | os.PathLike[str], *, blind: bool = False) -> None:
        self._blind = blind
        self.files, self._records = read(path)
        self.about = self.files[0].about
        """The header of the oldest file: the server, its limits."""
        self.router: Router | None = None
        """In the state after the last input; None while it is not known."""
        self.step = int(self.about["step"])
        """The last input that was played or passed by."""
        self.inputs = 0
        """How many were."""
        self.now_s = float(self.about["now_s"])
        self.known_from: int | None = None
        """The first step after which the state was known."""
        self.checks = 0
        self.checked = 0
        """The step of the last check that agreed."""
        self.difference: Difference | None = None
        self.raised: Exception | None = None
        """What the router raised; nothing was played after that."""
        self.lost = 0
        """Inputs that were not recorded."""
        self.ended = False
        """The server ended in order, and the recording with it."""
        self._masks = Masks()
        self._hash = EffectsHash(self._masks)
        self._drawn: deque[bytes] = deque()
        self._stats: dict[str, Any] = {}
        self._cut = False
        """The last record: what belongs to it may be missing, and proves nothing."""
        self._made = 0
        """Ids that the recorded router had not drawn."""

    @property
    def at_s(self) -> float:
        """Seconds from the making of the recorded router to the last input."""
        return self.now_s - float(self.about["began_s"])

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
        pending: Input | None = None
        for record in self._records:
            code = record[0]
            if pending is not None:
                if code == records.DRAW:
                    pending.drawn.append(record[1])
                    continue
                if code == records.STATS:
                    pending.stats = record[1]
                    continue
                if code == records.RAISED:
                    pending.raised = record[1]
                    continue
                if code != records.GAP:  # else what belongs to it may be lost
                    yield self._play(pending)
                pending = None
                if self.raised is not None:
                    return
            if code in records.INPUTS:
                pending = self._input(record)
                too_far = until_step is not None and pending.step > until_step
                if too_far or (until_s is not None and pending.at_s > until_s):
                    return
            else:
                self._mark(code, record)
        if pending is not None:
            self._cut = not pending.raised
            yield self._play(pending)

    # -- records --------------------------------------------------------------

    def _input(self, record: list[Any]) -> Input:
        code, now_s, *arguments = record
        step = self.step + 1
        at_s = now_s - self.about["began_s"]
        return Input(step, at_s, records.INPUTS[code].name, tuple(arguments), now_s, code)

    def _mark(self, code: int, record: list[Any]) -> None:
        if code == records.HEADER:
            self._file(record[3])
        elif code == records.CHECK:
            self._check(record[1], record[2])
        elif code == records.STATE:
            self._state(record)
        elif code == records.GAP:
            self.lost += record[1] - self.step
            self.step = record[1]
            self.router = None
        elif code == records.END:
            self.ended = True

    def _file(self, about: dict[str, Any]) -> None:
        if about["file"] == 0 and not self._blind:
            self.router = self._new_router()
            self.known_from = 0
        elif about["step"] != self.step:
            raise BadRecording(
                f"file {about['file']} of the recording begins after step {about['step']}, "
                f"and the one before it ends with step {self.step}"
            )

    def _check(self, step: int, digest: bytes) -> None:
        if self.router is None or self.difference is not None:
            return
        if self._hash.digest() == digest:
            self.checks += 1
            self.checked = step
        else:
            self._differ("the effects differ")

    def _state(self, record: list[Any]) -> None:
        _, step, now_s, frozen = record
        self.step, self.now_s = step, now_s
        self._hash.reset()
        if self._blind:
            return
        if self.router is None:
            self.router = self._thawed(step, frozen)
            if self.known_from is None:
                self.known_from = step
        elif self.difference is None:
            what = snapshot.difference(snapshot.freeze(self.router, self._masks), frozen)
            if what:
                self._differ(f"the state differs: {what}")
            else:
                self.checks += 1
        self.checked = step

    def _thawed(self, step: int, frozen: Any) -> Router:
        """A router in that state, which must be one that a router can be in."""
        try:
            router = snapshot.thaw(frozen, self._new_router())
            again = snapshot.freeze(router, self._masks)
            router.stats()
        except snapshot.SnapshotError as error:
            raise BadRecording(f"the state after step {step}: {error}") from None
        except Exception as error:  # whatever one raises that is made of wrong parts
            what = f"{type(error).__name__}: {error}"
            raise BadRecording(f"the state after step {step} is damaged: {what}") from None
        what = snapshot.difference(again, frozen)
        if what:
            raise BadRecording(f"the state after step {step} is damaged: {what}")
        return router

    def _differ(self, what: str) -> None:
        if self.difference is None and not self._cut:
            self.difference = Difference(self.checked, self.step, what)

    # -- playing --------------------------------------------------------------

    def _play(self, one: Input) -> Moment:
        self.step, self.now_s = one.step, one.now_s
        self.inputs += 1
        router = self.router
        if router is None:
            return Moment(one, [], None)
        self._drawn.extend(one.drawn)
        self._stats = one.stats
        try:
            one.give(router)
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
        effects = router.take()
        self._hash.add(effects)
        return Moment(one, effects, router)

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
            router = Router(
                epoch=about["epoch"], slots=about["slots"], now_s=about["began_s"],
                new_id=self._new_id, limits=_limits(ServerLimits, about["limits"]),
                wire=_limits(WireLimits, about["wire"]), pulses=about["pulses"],
            )  # fmt: skip
        except ConfigError as error:
            raise BadRecording(f"{self.files[0].path}: a limit is not right: {error}") from None
        router.shell_stats = self._shell_stats
        return router

    def _shell_stats(self) -> dict[str, Any]:
        return self._stats


def _limits(kind: Any, given: dict[str, Any]) -> Any:
    """Limits of another version may have other names: those are left out."""
    return kind(**{name: value for name, value in given.items() if name in kind.__slots__})


# -- in one call ----------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class Replayed:
    """What came of a replay."""

    router: Router | None
    """In its last state; None if no state is known there."""
    inputs: int
    """How many were played, or passed by where the state is not known."""
    seconds: float
    """From the making of the recorded router to the last input."""
    epoch: bytes
    identical: bool | None
    """Whether it did what was recorded; None if nothing was there to compare with."""
    difference: Difference | None
    raised: Exception | None
    """What the router raised; the replay ends there."""


def load(path: str | os.PathLike[str]) -> Iterator[Input]:
    """The inputs of a recording, in order; nothing is played.

    BadRecording (a ConfigError) if it is none, as soon as that is known.
    """
    return (moment.input for moment in Player(path, blind=True).moments())


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
        router=player.router, inputs=player.inputs, seconds=player.at_s,
        epoch=player.about["epoch"], identical=player.identical, difference=player.difference,
        raised=player.raised,
    )  # fmt: skip

"""The outcomes that are kept, and which of them make room.  Pure."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator
from typing import Final, final

from ..shares import Shared
from .limits import VerifiersLimits
from .places import Places
from .records import Outcome, Run, Stage

RECORD_BYTES: Final = 4096
"""An outcome counts so many bytes besides its own."""


@final
class Keeping:
    """The kept outcomes, by place.  One may go if it was sent to all that wait, or nobody waits."""

    def __init__(self, limits: VerifiersLimits) -> None:
        self.sent = Places()
        """Those whose outcome was sent to all that wait."""
        self.orphans = Places()
        """Those for which nobody waits, whether their outcomes are there or not."""
        self.bytes = Shared(limits.kept_bytes, limits.place_share)

    def is_full(self, place: str) -> bool:
        """Whether a place has used up its share."""
        return not self.bytes.has_room(place, 0)

    def keep(self, run: Run, outcome: Outcome) -> None:
        """A run has an outcome: the messages that say it."""
        name, wire = run.name, run.wire
        run.stage, run.forget = Stage.KEPT, outcome.ran
        if outcome.error:
            run.messages = (wire.failed(name, outcome.error),)
        else:
            deltas = [wire.delta(name, each) for each in outcome.deltas]
            run.messages = (*deltas, wire.ended(name, outcome.reply))
            run.afresh = [wire.discard(name, each) for each in outcome.traces]
        frames = itertools.chain.from_iterable(run.messages)
        run.size_bytes = RECORD_BYTES + sum(map(len, frames))
        self.bytes.take(run.place, run.size_bytes)

    def give_up(self, run: Run) -> None:
        """Keep the run's outcome no longer."""
        self.bytes.give(run.place, run.size_bytes)

    def kept_orphans(self, place: str) -> list[Run]:
        """The orphans of a place whose outcomes are there."""
        return [run for run in self.orphans.at(place) if run.messages]

    def first(self, place: str) -> Run | None:
        """The run that makes room at a place, if any may go."""
        return next(self._may_go(place), None)

    def half(self) -> list[Run]:
        """Half of what may go, in bytes: of the places that have most."""
        places = self.sent.all() | self.orphans.all()
        going = {place: list(self._may_go(place)) for place in places}
        left = sum(run.size_bytes for runs in going.values() for run in runs) / 2
        lines = [(-self.bytes.by(place), place, iter(runs)) for place, runs in going.items()]
        heapq.heapify(lines)
        found: list[Run] = []
        while lines and left > 0:
            minus_bytes, place, runs = lines[0]
            run = next(runs, None)
            if run is None:
                heapq.heappop(lines)
                continue
            found.append(run)
            left -= run.size_bytes
            heapq.heapreplace(lines, (minus_bytes + run.size_bytes, place, runs))
        return found

    def _may_go(self, place: str) -> Iterator[Run]:
        kept = (run for run in self.orphans.at(place) if run.messages)
        return itertools.chain(self.sent.at(place), kept)

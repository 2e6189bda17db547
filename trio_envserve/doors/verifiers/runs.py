"""The runs of the door: who waits for which, and what is kept for whom.  Pure.

Theory of operation
-------------------
A run is named by its request id.  The same id again, from whatever connection, joins it
or gets its outcome; with another payload it is refused.  What is over is remembered by
its id, so that it is refused and not run again.

A client of this wire acknowledges nothing.  Its outcome counts as received when the
connection has lasted for ``unsure_s`` since it was sent.  If the connection is lost
before, the run is an *orphan*: for as long as a lease it goes on, its outcome is kept,
and whoever repeats the request gets it.  The library's own client repeats nothing, but
connects again and goes on waiting.  So, where that is wanted, the outcome of an orphan is
offered to every connection from the same place that was opened later than the one that
was lost, once to each: a place is a machine, or a user of this one.  An offer proves
nothing, so the orphan stays one until its lease ends.

The deltas of a run go on to those that wait for it, as they come.  None of them is kept
or sent again.  Whoever was sent all of them, and in their order, gets the rest with the
outcome; whoever has missed one gets the outcome afresh.

What is kept is bounded, and each place has a share.  Past it room is made of what was
sent, then of orphans, the oldest first; if that is not enough, runs of this place wait.
The server retains what is kept here, and may have less room than this door: if somebody
waits for a run for which it has none, room is made in the same way, at every place.
Orphans wait behind the others.

Inputs are method calls, with the time, which counts only while the loop was awake.  Each
returns what must be done, in order.
"""

from __future__ import annotations

import bisect
import hashlib
import math
from collections.abc import Iterable
from typing import Final, final

from ...net import Frame
from ..shares import Shared
from .asks import Ask, Cancel, Health, NotUnderstood, Wire
from .asks import Run as RunAsk
from .keeping import Keeping
from .limits import VerifiersLimits
from .peers import Peers
from .places import Line
from .records import (
    Deliver,
    Effect,
    Forget,
    Outcome,
    Peer,
    Run,
    Send,
    Stage,
    Start,
    Stop,
    Stream,
)
from .remembered import Remembered
from .wires import WIRES, understand

CROWDED_S: Final = 0.5
"""After this time there may be room at the server, and refused runs are tried again."""

CONFLICT: Final = "the id of this run was used for another one (it did not run)"
FULL: Final = "there are too many runs here, or too many of this client's (it did not run)"
TOO_LARGE: Final = "the run has {} bytes, {} allowed (it did not run)"
EARLY: Final = "it was cancelled before it came (it did not run)"
NEVER: Final = "it was cancelled before it was started (it did not run)"
CANCELLED: Final = "it was cancelled (it may have run)"
CLOSED: Final = "the server was closed (it may have run)"
LOST: Final = "nobody came for it within the lease, and it was cancelled (it may have run)"
OVER: Final = "it has ended, its outcome is kept no longer, and it is not run again (it ran)"


@final
class Runs:
    """All runs of one door."""

    def __init__(self, limits: VerifiersLimits, *, redeliver: bool) -> None:
        self._limits = limits
        self._redeliver = redeliver
        self._peers = Peers()
        self._runs: dict[bytes, Run] = {}
        self._waiting = Line()
        """Runs that wait for room."""
        self._keeping = Keeping(limits)
        self._sent, self._orphans = self._keeping.sent, self._keeping.orphans
        self._crowded_s = -math.inf
        """When room was last made for the server."""
        self._remembered = Remembered(limits)
        share = limits.place_share
        self._count = Shared(limits.runs, share)
        self._asked = Shared(limits.runs_bytes, share)
        self.not_understood = 0
        """Messages that were dropped."""

    def __len__(self) -> int:
        return len(self._runs)

    def find(self, name: bytes) -> Run | None:
        """The run with this id, if it is not over."""
        return self._runs.get(name)

    # -- connections ----------------------------------------------------------

    def opened(self, route: bytes, place: str) -> list[Effect]:
        """A connection was opened."""
        self._peers.opened(route, place)
        if not self._redeliver:
            return []
        names = tuple(each.name for each in self._keeping.kept_orphans(place))
        return [Deliver(route, names, True)] if names else []

    def closed(self, route: bytes, now_s: float) -> list[Effect]:
        """A connection was lost."""
        peer = self._peers.closed(route, now_s)
        left = list(peer.runs.values())
        peer.runs.clear()
        effects: list[Effect] = []
        orphans: dict[str, list[Run]] = {}
        for run in left:
            del run.waiters[route]
            run.streaming.followers.discard(route)
            if not run.waiters:
                self._orphan(run, now_s)
                orphans.setdefault(run.place, []).append(run)
        for run in left:  # now that it waits for none: any of them may make room, and end
            if run.waiters and run.name in self._runs:
                effects += self._settle(run, now_s)
        for place, runs in orphans.items():
            effects += self._offer(place, runs)
            effects += self._make_room(place)  # of them, if there is need: no other may end soon
        return effects

    def _orphan(self, run: Run, now_s: float) -> None:
        """Nobody waits for it any more."""
        self._waiting.move(run)
        self._sent.drop(run)
        run.since_s = now_s
        self._orphans.add(run)

    def _offer(self, place: str, orphans: list[Run]) -> list[Effect]:
        """Offer the outcomes of orphans to who came after those that were lost: thousands
        of them to a thousand others take one turn, so each gets one list."""
        kept = sorted((run for run in orphans if run.messages), key=_newest)
        names = tuple(run.name for run in kept)
        effects: list[Effect] = []
        for each in self._peers.at(place) if self._redeliver and names else ():
            count = bisect.bisect_left(kept, each.number, key=_newest)
            if count:
                effects.append(Deliver(each.route, names[:count], True))
        return effects

    # -- messages -------------------------------------------------------------

    def said(self, route: bytes, frames: list[Frame], now_s: float, *, ready: bool) -> list[Effect]:
        """A message has come.  ``ready``: whether the server can run something."""
        peer = self._peers.find(route)
        if peer is None:
            return []
        try:
            understood = understand(frames)
        except NotUnderstood as error:
            self.not_understood += 1
            return [Send(route, WIRES[0].failed(error.name, f"{error.why} (it did not run)"))]
        if understood is None:
            self.not_understood += 1
            return []
        return self._do(peer, *understood, now_s, ready)

    def _do(self, peer: Peer, wire: Wire, ask: Ask, now_s: float, ready: bool) -> list[Effect]:
        match ask:
            case Health():
                # A client takes a failure for the end, and silence for "not yet".
                return [Send(peer.route, wire.healthy(ask.name))] if ready else []
            case Cancel():
                return self._cancel(peer, wire, ask)
            case RunAsk():
                return self._ask(peer, wire, ask, now_s)

    def _ask(self, peer: Peer, wire: Wire, ask: RunAsk, now_s: float) -> list[Effect]:
        size = len(ask.payload)
        most = self._limits.run_bytes
        if size > most:
            return _refuse(peer, wire, ask, TOO_LARGE.format(size, most))
        digest = hashlib.blake2b(ask.payload, digest_size=16).digest()
        run, over = self._runs.get(ask.name), self._remembered.over(ask.name)
        known = run or over
        if known is not None and known.digest != digest:
            return _refuse(peer, wire, ask, CONFLICT)
        if run is not None:
            return self._join(peer, run)
        if over is not None:
            return _refuse(peer, wire, ask, over.why)
        if self._remembered.take_cancel(peer.place, ask.name):
            self._remembered.add(ask.name, digest, EARLY)
            return _refuse(peer, wire, ask, EARLY)
        if not (self._count.has_room(peer.place, 1) and self._asked.has_room(peer.place, size)):
            return _refuse(peer, wire, ask, FULL)
        return self._enter(peer, wire, ask, digest, now_s)

    def _join(self, peer: Peer, run: Run) -> list[Effect]:
        """One more connection asks for a run, or the same one again."""
        if peer.closed_s is not None:
            return []
        is_queued = run.waiters.get(peer.route) is False
        self._orphans.drop(run)
        self._sent.drop(run)
        run.newest = max(run.newest, peer.number)
        run.waiters[peer.route] = False
        peer.runs[run.name] = run
        self._waiting.move(run)
        return [Deliver(peer.route, (run.name,), True)] if run.messages and not is_queued else []

    def _enter(
        self, peer: Peer, wire: Wire, ask: RunAsk, digest: bytes, now_s: float
    ) -> list[Effect]:
        size = len(ask.payload)
        run = Run(ask.name, digest, wire, peer.place, size, bytes(ask.payload), peer.number)
        self._runs[run.name] = run
        self._count.take(run.place, 1)
        self._asked.take(run.place, size)
        if peer.closed_s is None:
            run.waiters[peer.route] = False
            run.streaming.followers.add(peer.route)
            peer.runs[run.name] = run
        else:
            self._orphan(run, now_s)
        self._waiting.add(run)
        return self._start(run.place)

    def _start(self, place: str) -> list[Effect]:
        """Start what waits at this place, while there is room for outcomes."""
        effects: list[Effect] = []
        while not self._keeping.is_full(place):
            run = self._waiting.first(place)
            if run is None:
                break
            self._waiting.drop(run)
            assert run.payload is not None
            effects.append(Start(run.name, run.wire, run.payload))
            run.stage, run.payload = Stage.RUNNING, None
        return effects

    def _cancel(self, peer: Peer, wire: Wire, ask: Cancel) -> list[Effect]:
        run = self._runs.get(ask.target)
        if run is not None and run.place == peer.place and not run.messages:
            done = Send(peer.route, wire.cancelled(ask.name, True))
            return [*self._end(run, _stopped(run, CANCELLED)), done]
        if run is None:
            self._remembered.add_cancel(peer.place, ask.target)
        return [Send(peer.route, wire.cancelled(ask.name, False))]

    # -- outcomes -------------------------------------------------------------

    def delta(self, name: bytes, number: int, delta: Frame) -> list[Effect]:
        """A delta of a run has come, the one with this number of its execution."""
        run = self._runs.get(name)
        if run is None or not run.streaming.add(number, delta, self._limits):
            return []
        message = run.wire.delta(name, bytes(delta))
        return [Stream(route, name, message) for route in run.streaming.followers]

    def missed(self, route: bytes, name: bytes) -> None:
        """A delta could not be sent."""
        self._runs[name].streaming.followers.discard(route)

    def ended(self, name: bytes, outcome: Outcome, now_s: float) -> list[Effect]:
        """A run has an outcome."""
        run = self._runs.get(name)
        if run is None:  # it was cancelled, which came too late
            return [Forget(name)] if outcome.ran else []
        self._release(run)
        self._keeping.keep(run, outcome)
        streaming, failed = run.streaming, bool(outcome.error)
        follows = not failed and streaming.has_begun(outcome.deltas)
        effects: list[Effect] = []
        for route in run.waiters:
            has = streaming.count if follows and route in streaming.followers else 0
            afresh = streaming.count > 0 and not has and not failed
            effects.append(Deliver(route, (name,), afresh, has))
        streaming.followers.clear()
        if not run.waiters:
            run.since_s = now_s
            effects += self._offer(run.place, [run])
        return effects + self._make_room(run.place)

    def delivered(self, route: bytes, name: bytes, now_s: float) -> list[Effect]:
        """The outcome of a run was sent to one that waits for it."""
        run = self._runs.get(name)
        if run is None or route not in run.waiters or not run.messages:
            return []  # it was only an offer, or the connection is lost
        run.waiters[route] = True
        return self._settle(run, now_s)

    def _settle(self, run: Run, now_s: float) -> list[Effect]:
        """If all that wait were sent the outcome, it makes room when there is need."""
        if not (run.messages and all(run.waiters.values())):
            return []
        if run not in self._sent:
            run.since_s = now_s
            self._sent.add(run)
        return self._make_room(run.place)

    def _make_room(self, place: str) -> list[Effect]:
        """Of what is kept, drop what is most likely not wanted; start what may start."""
        effects: list[Effect] = []
        while self._keeping.is_full(place):
            run = self._keeping.first(place)
            if run is None:
                break
            effects += self._end(run, OVER)
        return effects + self._start(place)

    def may_wait(self, name: bytes) -> bool:
        """Whether others come before this run where there is little room."""
        run = self._runs.get(name)
        return run is None or not run.waiters

    def crowded(self, names: Iterable[bytes], now_s: float) -> list[Effect]:
        """The server has no room for these runs, and will be asked again.  How much room it
        needs, nobody knows; so half of what may go makes room, until that is enough."""
        if now_s < self._crowded_s + CROWDED_S or all(map(self.may_wait, names)):
            return []
        self._crowded_s = now_s
        return [effect for run in self._keeping.half() for effect in self._end(run, OVER)]

    # -- time -----------------------------------------------------------------

    def tick(self, now_s: float) -> list[Effect]:
        """Time has passed."""
        effects: list[Effect] = []
        limits = self._limits
        for run in self._sent.older(now_s - limits.unsure_s):
            effects += self._end(run, OVER)
        self._hold_orphans(now_s)
        for run in self._orphans.older(now_s - limits.lease_s):
            effects += self._end(run, OVER if run.messages else _stopped(run, LOST))
        self._peers.tick(now_s)
        for place in self._waiting.places():
            effects += self._start(place)  # others have given room back
        return effects

    def _hold_orphans(self, now_s: float) -> None:
        """The lease of an orphan does not run while it may still be waited for: its client
        has connected again, and says nothing."""
        if not self._redeliver:
            return
        for place, runs in self._orphans.all().items():
            latest = max((each.number for each in self._peers.at(place)), default=-1)
            for run in runs.values():
                if latest > run.newest and not run.messages:
                    run.since_s = now_s

    def close(self) -> list[Effect]:
        """The door closes: nobody waits in vain."""
        # Those that wait come first: the end of another one would start them.
        runs = sorted(self._runs.values(), key=lambda run: run.stage is not Stage.WAITING)
        return [effect for run in runs for effect in self._end(run, _stopped(run, CLOSED))]

    # -- the end of a run -----------------------------------------------------

    def _end(self, run: Run, why: str) -> list[Effect]:
        """It is over; who repeats it is told why."""
        del self._runs[run.name]
        for kind in (self._waiting, self._sent, self._orphans):
            kind.drop(run)
        effects: list[Effect] = []
        for route in run.waiters:
            del self._peers[route].runs[run.name]
            if run.stage is not Stage.KEPT:
                effects.append(Send(route, run.wire.failed(run.name, why)))
        if run.stage is Stage.KEPT:
            self._keeping.give_up(run)
            effects += [Forget(run.name)] if run.forget else []
        else:
            self._release(run)
            effects += [Stop(run.name)] if run.stage is Stage.RUNNING else []
        self._remembered.add(run.name, run.digest, why)
        return effects + self._start(run.place)

    def _release(self, run: Run) -> None:
        """Give back what a run takes until it has an outcome."""
        self._count.give(run.place, 1)
        self._asked.give(run.place, run.asked_bytes)


def _newest(run: Run) -> int:
    return run.newest


def _stopped(run: Run, why: str) -> str:
    return NEVER if run.stage is Stage.WAITING else why


def _refuse(peer: Peer, wire: Wire, ask: RunAsk, why: str) -> list[Effect]:
    return [Send(peer.route, wire.failed(ask.name, why))]

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

An outcome is kept here and nowhere else: only the door knows when it may go, and the
server forgets it as soon as it is here.  What is kept is bounded, and each place has a
share.  Past it room is made of what was sent, then of orphans, the oldest first; if that
is not enough, runs of this place wait.  Orphans wait behind the others.

Inputs are method calls, with the time, which counts only while the loop was awake.  Each
returns what must be done, in order.
"""

from __future__ import annotations

import bisect
import dataclasses
import hashlib
import itertools
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias, final

from ...net import Frame
from ..bounds import Bound
from ..limits import VerifiersLimits
from . import wire
from .wire import Ask, CancelAsk, HealthAsk, Message, NotUnderstood, RunAsk

RECORD_BYTES: Final = 4096
"""An outcome counts so many bytes besides its own."""

GONE_S: Final = 5.0
"""Time after the loss of a connection in which something that it had said may still come in."""

CONFLICT: Final = "the id of this run was used for another one (it did not run)"
FULL: Final = "there are too many runs here, or too many of this client's (it did not run)"
TOO_LARGE: Final = "the run has {} bytes, {} allowed (it did not run)"
EARLY: Final = "it was cancelled before it came (it did not run)"
NEVER: Final = "it was cancelled before it was started (it did not run)"
CANCELLED: Final = "it was cancelled (it may have run)"
CLOSED: Final = "the server was closed (it may have run)"
LOST: Final = "nobody came for it within the lease, and it was cancelled (it may have run)"
OVER: Final = "it has ended, its outcome is kept no longer, and it is not run again (it ran)"


# -- records ------------------------------------------------------------------------------


@dataclasses.dataclass(slots=True, eq=False)
class Peer:
    """One connection."""

    route: bytes
    origin: Origin
    number: int
    """The larger, the later it was opened."""
    closed_s: float | None = None
    """Moment of its loss; what it had said before may still come in."""
    runs: dict[bytes, VerifiersRun] = dataclasses.field(default_factory=dict)
    """Runs that it waits for."""


@dataclasses.dataclass(slots=True, eq=False)
class VerifiersRun:
    """One run, from its request until its outcome is taken to have arrived."""

    name: bytes
    digest: bytes
    origin: Origin
    asked_bytes: int
    payload: bytes | None
    """The run's payload, until it is started: there is no room for another outcome."""
    newest: int
    """The number of the last connection that asked for it."""
    waiters: dict[bytes, bool] = dataclasses.field(default_factory=dict)
    """The open connections that asked for it, by route, and whether they were sent its
    outcome."""
    streaming: Streaming = dataclasses.field(default_factory=lambda: Streaming())
    """Its deltas, as they come."""
    messages: Sequence[Message] = ()
    """Messages of the outcome, once it is there and not known to have arrived: the deltas, and the
    reply."""
    afresh: Sequence[Message] = ()
    """The messages before them for a client that may have some of them."""
    size_bytes: int = 0
    """Bytes of the outcome."""
    since_s: float = 0.0
    """Moment at which it was sent to all that wait, or at which the last of them was lost."""


@dataclasses.dataclass(slots=True, eq=False)
class Origin:
    """A machine, or a user of this one: its connections, and its runs by what they wait for, of
    each the oldest first."""

    name: str
    """The address of the machine, or the user."""
    peers: dict[bytes, Peer] = dataclasses.field(default_factory=dict)
    """Its open connections."""
    wanted: OrderedDict[bytes, VerifiersRun] = dataclasses.field(default_factory=OrderedDict)
    """Runs that wait for room, and for which somebody waits."""
    unwanted: OrderedDict[bytes, VerifiersRun] = dataclasses.field(default_factory=OrderedDict)
    """Runs that wait for room, and for which nobody waits."""
    sent: OrderedDict[bytes, VerifiersRun] = dataclasses.field(default_factory=OrderedDict)
    """Runs whose outcome was sent to all that wait."""
    orphans: OrderedDict[bytes, VerifiersRun] = dataclasses.field(default_factory=OrderedDict)
    """Runs for which nobody waits, whether their outcomes are there or not."""

    def put(self, run: VerifiersRun, now_s: float) -> None:
        """Put a run where it belongs, now that this may be elsewhere."""
        waits, is_sent = run.payload is not None, run.messages and all(run.waiters.values())
        for runs, is_here in (
            (self.wanted, waits and run.waiters),
            (self.unwanted, waits and not run.waiters),
            (self.sent, run.waiters and is_sent),
            (self.orphans, not run.waiters),
        ):
            if not is_here:
                runs.pop(run.name, None)
            elif run.name not in runs:
                runs[run.name] = run
                run.since_s = now_s

    def drop(self, run: VerifiersRun) -> None:
        """A run waits for nothing any more."""
        for runs in (self.wanted, self.unwanted, self.sent, self.orphans):
            runs.pop(run.name, None)


class RunOutcome(NamedTuple):
    """The outcome of a run."""

    reply: bytes = b""
    deltas: Sequence[bytes] = ()
    traces: Sequence[str] = ()
    """The traces that the deltas are of."""
    error: str = ""
    """Why there is nothing of this; the verdict is part of it."""


# -- effects ------------------------------------------------------------------------------


class Send(NamedTuple):
    """Send this at once, if it can be sent."""

    route: bytes
    message: Message


class StreamDelta(NamedTuple):
    """Send one delta of a run now, or say at once that it could not be sent."""

    route: bytes
    name: bytes
    message: Message


class Deliver(NamedTuple):
    """Send the outcomes of runs, message by message, as the peer takes them, and say of
    each when that is done.  Those that are over by then are left out."""

    route: bytes
    names: tuple[bytes, ...]
    afresh: bool
    """Whether the peer may have a part of them."""
    has: int = 0
    """Number of messages of each that it has, if not."""


class StartRun(NamedTuple):
    """Run this."""

    name: bytes
    payload: bytes


class StopRun(NamedTuple):
    """Nobody waits for the run any more."""

    name: bytes


Effect: TypeAlias = Send | StreamDelta | Deliver | StartRun | StopRun


# -- the parts of the table ---------------------------------------------------------------


@final
class Streaming:
    """The deltas streamed of one run, and their receivers.  Only a hash of them is kept."""

    def __init__(self) -> None:
        self.followers: set[bytes] = set()
        """The routes of those that were sent every delta that was streamed."""
        self.count = 0
        """Number of deltas that were streamed."""
        self._hash, self._size_bytes = hashlib.blake2b(digest_size=16), 0
        """The hash of these, and how many bytes they had."""
        self._goes_on = True
        """Whether there is room for further ones."""

    def add(self, number: int, delta: Frame, limits: VerifiersLimits) -> bool:
        """Whether this delta goes on to the followers; it has this number of its execution."""
        if not (self.followers and self._goes_on):
            return False
        if number != self.count or len(delta) > limits.frame_bytes:
            self.followers.clear()  # one is missing, or the run has begun anew
            return False
        self._goes_on = self._size_bytes + len(delta) <= limits.streamed_bytes
        if not self._goes_on:
            return False
        self.count += 1
        self._size_bytes += len(delta)
        _hash_delta(self._hash, delta)
        return True

    def has_begun(self, deltas: Sequence[bytes]) -> bool:
        """Whether something was streamed, and the deltas of the outcome begin so."""
        begins = hashlib.blake2b(digest_size=16)
        for delta in deltas[: self.count]:
            _hash_delta(begins, delta)
        return self.count > 0 and begins.digest() == self._hash.digest()


def _hash_delta(into: hashlib.blake2b, delta: Frame) -> None:
    into.update(len(delta).to_bytes(8))
    into.update(delta)


# -- the table ----------------------------------------------------------------------------


class Over(NamedTuple):
    """A run that is over."""

    digest: bytes
    why: str
    """The reason that a repeated one is told."""


@final
class Runs:
    """All runs of one door."""

    def __init__(self, limits: VerifiersLimits, *, redeliver: bool) -> None:
        self._limits = limits
        self._redeliver = redeliver
        self._peers: dict[bytes, Peer] = {}
        """Connections that are open, and those that were lost a moment ago, by route."""
        self._origins: dict[str, Origin] = {}
        self._opened = itertools.count()
        self._runs: dict[bytes, VerifiersRun] = {}
        self._over: OrderedDict[bytes, Over] = OrderedDict()
        """The latest runs that are over."""
        self._early: OrderedDict[tuple[str, bytes], None] = OrderedDict()
        """The latest cancels that came before their runs."""
        share = limits.origin_share
        self._count = Bound(limits.runs, share)
        self._asked = Bound(limits.runs_bytes, share)
        self._kept = Bound(limits.kept_bytes, share)
        self.not_understood = 0
        """Messages that were dropped."""

    def find(self, name: bytes) -> VerifiersRun | None:
        """The run with this id, if it is not over."""
        return self._runs.get(name)

    # -- connections ----------------------------------------------------------

    def opened(self, route: bytes, origin: str) -> list[Effect]:
        """A connection was opened."""
        at = self._origins.setdefault(origin, Origin(origin))
        self._peers[route] = at.peers[route] = Peer(route, at, next(self._opened))
        if not self._redeliver:
            return []
        names = tuple(run.name for run in at.orphans.values() if run.messages)
        return [Deliver(route, names, True)] if names else []

    def closed(self, route: bytes, now_s: float) -> list[Effect]:
        """A connection was lost."""
        peer = self._peers[route]
        peer.closed_s = now_s
        del peer.origin.peers[route]
        left = list(peer.runs.values())
        peer.runs.clear()
        effects: list[Effect] = []
        orphans: dict[Origin, list[VerifiersRun]] = {}
        for run in left:
            del run.waiters[route]
            run.streaming.followers.discard(route)
            run.origin.put(run, now_s)
            orphans.setdefault(run.origin, []).extend([] if run.waiters else [run])
        for origin, runs in orphans.items():  # now that it waits for none: any of them may end
            effects += self._offer(origin, runs) + self._drop_oldest(origin)
        return effects

    def _offer(self, origin: Origin, orphans: list[VerifiersRun]) -> list[Effect]:
        """Offer the outcomes of orphans to who came after those that were lost: thousands
        of them to a thousand others take one turn, so each gets one list."""
        kept = sorted((run for run in orphans if run.messages), key=_newest)
        names = tuple(run.name for run in kept)
        effects: list[Effect] = []
        for each in origin.peers.values() if self._redeliver and names else ():
            count = bisect.bisect_left(kept, each.number, key=_newest)
            if count:
                effects.append(Deliver(each.route, names[:count], True))
        return effects

    # -- messages -------------------------------------------------------------

    def received(
        self, route: bytes, frames: list[Frame], now_s: float, *, ready: bool
    ) -> list[Effect]:
        """A message has come.  ``ready``: whether the server can run something."""
        peer = self._peers.get(route)
        if peer is None:
            return []
        try:
            ask = wire.read(frames)
        except NotUnderstood as error:
            self.not_understood += 1
            return [Send(route, wire.failed(error.name, f"{error.why} (it did not run)"))]
        if ask is None:
            self.not_understood += 1
            return []
        return self._do(peer, ask, now_s, ready)

    def _do(self, peer: Peer, ask: Ask, now_s: float, ready: bool) -> list[Effect]:
        match ask:
            case HealthAsk():
                # A client takes a failure for the end, and silence for "not yet".
                return [Send(peer.route, wire.healthy(ask.name))] if ready else []
            case CancelAsk():
                return self._cancel(peer, ask)
            case RunAsk():
                return self._ask(peer, ask, now_s)

    def _ask(self, peer: Peer, ask: RunAsk, now_s: float) -> list[Effect]:
        size = len(ask.payload)
        most = self._limits.run_bytes
        if size > most:
            return _refuse(peer, ask, TOO_LARGE.format(size, most))
        digest = hashlib.blake2b(ask.payload, digest_size=16).digest()
        run, over = self._runs.get(ask.name), self._over.get(ask.name)
        known = run or over
        if known is not None and known.digest != digest:
            return _refuse(peer, ask, CONFLICT)
        if run is not None:
            return self._join(peer, run, now_s)
        if over is not None:
            return _refuse(peer, ask, over.why)
        origin = peer.origin
        early = origin.name, ask.name
        if early in self._early:
            del self._early[early]
            self._remember(ask.name, digest, EARLY)
            return _refuse(peer, ask, EARLY)
        if not (self._count.allows(1, origin.name) and self._asked.allows(size, origin.name)):
            return _refuse(peer, ask, FULL)
        return self._enter(peer, ask, digest, now_s)

    def _join(self, peer: Peer, run: VerifiersRun, now_s: float) -> list[Effect]:
        """One more connection asks for a run, or the same one again."""
        if peer.closed_s is not None:
            return []
        is_queued = run.waiters.get(peer.route) is False
        run.newest = max(run.newest, peer.number)
        run.waiters[peer.route] = False
        peer.runs[run.name] = run
        run.origin.put(run, now_s)
        return [Deliver(peer.route, (run.name,), True)] if run.messages and not is_queued else []

    def _enter(self, peer: Peer, ask: RunAsk, digest: bytes, now_s: float) -> list[Effect]:
        size = len(ask.payload)
        run = VerifiersRun(ask.name, digest, peer.origin, size, bytes(ask.payload), peer.number)
        self._runs[run.name] = run
        self._count.take(1, run.origin.name)
        self._asked.take(size, run.origin.name)
        if peer.closed_s is None:
            run.waiters[peer.route] = False
            run.streaming.followers.add(peer.route)
            peer.runs[run.name] = run
        run.origin.put(run, now_s)
        return self._start(run.origin)

    def _start(self, origin: Origin) -> list[Effect]:
        """Start what waits at this place, while there is room for outcomes."""
        effects: list[Effect] = []
        while (origin.wanted or origin.unwanted) and self._kept.allows(0, origin.name):
            name, run = (origin.wanted or origin.unwanted).popitem(last=False)
            assert run.payload is not None
            effects.append(StartRun(name, run.payload))
            run.payload = None
        return effects

    def _cancel(self, peer: Peer, ask: CancelAsk) -> list[Effect]:
        run = self._runs.get(ask.target)
        if run is not None and run.origin == peer.origin and not run.messages:
            done = Send(peer.route, wire.cancelled(ask.name, True))
            return [*self._end(run, _stopped(run, CANCELLED)), done]
        if run is None and ask.target not in self._over:  # what is over will not come
            self._early[peer.origin.name, ask.target] = None
            if len(self._early) > self._limits.early_cancels:
                self._early.popitem(last=False)
        return [Send(peer.route, wire.cancelled(ask.name, False))]

    # -- outcomes -------------------------------------------------------------

    def delta(self, name: bytes, number: int, delta: Frame) -> list[Effect]:
        """A delta of a run has come, the one with this number of its execution."""
        run = self._runs.get(name)
        if run is None or not run.streaming.add(number, delta, self._limits):
            return []
        message = wire.delta(name, bytes(delta))
        return [StreamDelta(route, name, message) for route in run.streaming.followers]

    def missed(self, route: bytes, name: bytes) -> None:
        """A delta could not be sent."""
        self._runs[name].streaming.followers.discard(route)

    def ended(self, name: bytes, outcome: RunOutcome, now_s: float) -> list[Effect]:
        """A run has an outcome."""
        run = self._runs.get(name)
        if run is None:  # it was cancelled, which came too late
            return []
        self._give_back(run)
        self._keep(run, outcome)
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
            effects += self._offer(run.origin, [run])
        return effects + self._drop_oldest(run.origin)

    def _keep(self, run: VerifiersRun, outcome: RunOutcome) -> None:
        """Keep the messages that say an outcome."""
        name = run.name
        if outcome.error:
            run.messages = (wire.failed(name, outcome.error),)
        else:
            deltas = [wire.delta(name, each) for each in outcome.deltas]
            run.messages = (*deltas, wire.ended(name, outcome.reply))
            run.afresh = [wire.discard(name, each) for each in outcome.traces]
        frames = itertools.chain.from_iterable(run.messages)
        run.size_bytes = RECORD_BYTES + sum(map(len, frames))
        self._kept.take(run.size_bytes, run.origin.name)

    def delivered(self, route: bytes, name: bytes, now_s: float) -> list[Effect]:
        """The outcome of a run was sent to one that waits for it."""
        run = self._runs.get(name)
        if run is None or route not in run.waiters or not run.messages:
            return []  # it was only an offer, or the connection is lost
        run.waiters[route] = True
        run.origin.put(run, now_s)
        return self._drop_oldest(run.origin)

    def _drop_oldest(self, origin: Origin) -> list[Effect]:
        """Drop kept outcomes that are most likely not wanted; start runs that have room then."""
        effects: list[Effect] = []
        while not self._kept.allows(0, origin.name):
            orphans = (run for run in origin.orphans.values() if run.messages)
            run = next(itertools.chain(origin.sent.values(), orphans), None)
            if run is None:
                break
            effects += self._end(run, OVER)
        return effects + self._start(origin)

    # -- time -----------------------------------------------------------------

    def tick(self, now_s: float) -> list[Effect]:
        """Time has passed."""
        effects: list[Effect] = []
        limits, origins = self._limits, list(self._origins.values())
        for origin in origins:
            for run in _older(origin.sent, now_s - limits.unsure_s):
                effects += self._end(run, OVER)
            if self._redeliver:
                _hold_orphans(origin, now_s)
            for run in _older(origin.orphans, now_s - limits.lease_s):
                effects += self._end(run, OVER if run.messages else _stopped(run, LOST))
        self._forget(now_s)
        for origin in origins:
            effects += self._start(origin)  # others have given room back
        return effects

    def _forget(self, now_s: float) -> None:
        """Drop connections that were lost so long ago that nothing of them comes any more."""
        for peer in list(self._peers.values()):
            if peer.closed_s is not None and peer.closed_s + GONE_S < now_s:
                del self._peers[peer.route]
        if not all(origin.peers for origin in self._origins.values()):
            used: list[Peer | VerifiersRun] = [*self._peers.values(), *self._runs.values()]
            self._origins = {each.origin.name: each.origin for each in used}

    def close(self) -> list[Effect]:
        """The door closes: nobody waits in vain."""
        # Those that wait come first: the end of another one would start them.
        runs = sorted(self._runs.values(), key=lambda run: run.payload is None)
        return [effect for run in runs for effect in self._end(run, _stopped(run, CLOSED))]

    # -- the end of a run -----------------------------------------------------

    def _end(self, run: VerifiersRun, why: str) -> list[Effect]:
        """End a run; who repeats it is told why."""
        del self._runs[run.name]
        run.origin.drop(run)
        effects: list[Effect] = []
        for route in run.waiters:
            del self._peers[route].runs[run.name]
            if not run.messages:
                effects.append(Send(route, wire.failed(run.name, why)))
        if run.messages:
            self._kept.give(run.size_bytes, run.origin.name)
        else:
            self._give_back(run)
            effects += [StopRun(run.name)] if run.payload is None else []
        self._remember(run.name, run.digest, why)
        return effects + self._start(run.origin)

    def _give_back(self, run: VerifiersRun) -> None:
        """Give back what a run takes until it has an outcome."""
        self._count.give(1, run.origin.name)
        self._asked.give(run.asked_bytes, run.origin.name)

    def _remember(self, name: bytes, digest: bytes, why: str) -> None:
        self._over[name] = Over(digest, why)
        if len(self._over) > self._limits.known:
            self._over.popitem(last=False)


def _newest(run: VerifiersRun) -> int:
    return run.newest


def _older(runs: Mapping[bytes, VerifiersRun], than_s: float) -> list[VerifiersRun]:
    """Runs that have been in this state since a moment, or for longer."""
    return [run for run in runs.values() if run.since_s <= than_s]


def _hold_orphans(origin: Origin, now_s: float) -> None:
    """The lease of an orphan does not run while it may still be waited for: its client
    has connected again, and says nothing."""
    latest = max((each.number for each in origin.peers.values()), default=-1)
    for run in origin.orphans.values():
        if latest > run.newest and not run.messages:
            run.since_s = now_s


def _stopped(run: VerifiersRun, why: str) -> str:
    return why if run.payload is None else NEVER


def _refuse(peer: Peer, ask: RunAsk, why: str) -> list[Effect]:
    return [Send(peer.route, wire.failed(ask.name, why))]

"""The records of a recording, and the hash of the router's effects.

Theory of operation
-------------------
A recording is a CBOR sequence (RFC 8742).  Each record is an array that begins
with its code.  An *input* is ``[code, now_s, argument...]``, one for each method
of the router that changes anything; its *step* is its number, from 1.  What the
router took from outside while it dealt with an input follows it, each as a
record of its own.  The rest are marks:

========= ============================================== =========================
HEADER    [0, "trio-envserve recording", format, about]  first record of a file
DRAW      [20, id]                                       the input took a new id
STATS     [21, record]                                   it took the shell's counts
RAISED    [22, type, text]                               the router raised
CHECK     [30, step, hash]                               of the effects since the last state
STATE     [31, step, now_s, frozen]                      see :mod:`.snapshot`
GAP       [32, inputs]                                   so many could not be noted
END       [33, step]                                     the server ended in order
========= ============================================== =========================

A frame of a message that nobody recorded stands as its length.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import cbor2

from ...core.closing import Closed, ClosingStage, Flush
from ...core.lives import Kill, Lost, Report, Spawn
from ...core.router import Router, ToClient
from ...core.terms import Body
from ...core.workforce import ToWorker
from .masks import Masks

NAME = "trio-envserve recording"
FORMAT = 2
MAX_DEPTH = 32
"""Of a record: the deepest is a state, with a worker's statistics in it."""

HEADER = 0
CLIENT, WORKER, PULSE, SPAWNED, EXITED, TICK = 1, 2, 3, 4, 5, 6
OPEN_POOL, CLOSE, FLUSHED, STARTING = 7, 8, 9, 12
DRAW, STATS, RAISED = 20, 21, 22
CHECK, STATE, GAP, END = 30, 31, 32, 33


class Kind(NamedTuple):
    """An input: the router's method, how many arguments a record has besides the
    time, and how they are given to the router."""

    name: str
    arguments: int
    give: Callable[[Router, float, Sequence[Any]], Any]


def _set_starting(router: Router, text: str) -> None:
    router.starting = text


INPUTS: dict[int, Kind] = {
    CLIENT: Kind("client_message", 2, lambda r, s, a: r.client_message(a[0], a[1], s)),
    WORKER: Kind("worker_message", 1, lambda r, s, a: r.worker_message(a[0], s)),
    PULSE: Kind("pulse", 4, lambda r, s, a: r.pulse(a[0], s, *a[1:])),
    SPAWNED: Kind("spawned", 2, lambda r, s, a: r.spawned(a[0], a[1])),
    EXITED: Kind("exited", 2, lambda r, s, a: r.exited(a[0], s, a[1])),
    TICK: Kind("tick", 0, lambda r, s, a: r.tick(s)),
    OPEN_POOL: Kind("open_pool", 1, lambda r, s, a: r.open_pool(a[0], s)),
    CLOSE: Kind("close", 2, lambda r, s, a: r.close(s, ClosingStage(a[0]), a[1])),
    FLUSHED: Kind("flushed", 0, lambda r, s, a: r.flushed(s)),
    STARTING: Kind("starting", 1, lambda r, s, a: _set_starting(r, a[0])),
}
"""All that changes a router."""


# -- writing, where it must be quick -------------------------------------------

_SHORT = 1024
_BYTES = [cbor2.dumps(bytes(n))[: -n or None] for n in range(_SHORT)]
_UINTS = [cbor2.dumps(n) for n in range(_SHORT)]
_ARRAYS = [cbor2.dumps([0] * n)[: -n or None] for n in range(_SHORT)]
_pack_s = struct.Struct(">d").pack
_pack_size = struct.Struct(">Q").pack
_CLIENT = bytes((0x84, CLIENT, 0xFB))
_WORKER = bytes((0x83, WORKER, 0xFB))


def item(value: bytes | int) -> bytes:
    """A byte string or a length, encoded; short ones quicker than cbor2 does."""
    if isinstance(value, int):
        return _UINTS[value] if value < _SHORT else cbor2.dumps(value)
    size = len(value)
    return _BYTES[size] + value if size < _SHORT else cbor2.dumps(value)


def _array(count: int) -> bytes:
    return _ARRAYS[count] if count < _SHORT else cbor2.dumps([0] * count)[:-count]


def client_record(now_s: float, route: bytes, frames: Sequence[bytes | int]) -> bytes:
    """The record of a client's message."""
    start = (_CLIENT, _pack_s(now_s), item(route), _array(len(frames)))
    return b"".join([*start, *[item(frame) for frame in frames]])


def worker_record(now_s: float, frames: Sequence[bytes | int]) -> bytes:
    """The record of a worker's message."""
    start = (_WORKER, _pack_s(now_s), _array(len(frames)))
    return b"".join([*start, *[item(frame) for frame in frames]])


# -- effects ------------------------------------------------------------------


class EffectsHash:
    """A rolling hash of effects: headers byte for byte, bodies by their length."""

    def __init__(self, masks: Masks) -> None:
        self._masks = masks
        self.reset()

    def reset(self) -> None:
        """Begin anew, as after a state."""
        self._hash = blake2b(digest_size=8)

    def add(self, effects: Iterable[Any]) -> None:
        """Fold in effects, in order; how they are grouped makes no difference."""
        masks = self._masks
        parts: list[bytes] = []
        for effect in effects:
            kind = type(effect)
            if kind is ToClient:
                header, *bodies = effect.frames
                parts += (b"C", effect.route, masks.header(header))
            elif kind is ToWorker:
                incarnation, header, *bodies = effect.frames
                parts += (b"W", effect.worker, masks[incarnation], masks.header(header))
            else:
                parts.append(cbor2.dumps(self._plain(effect)))
                continue
            for body in bodies:
                parts.append(_pack_size(len(body)))
        self._hash.update(b"".join(parts))

    def digest(self) -> bytes:
        """The hash of all since the last :meth:`reset`."""
        return self._hash.digest()

    def _plain(self, effect: Any) -> tuple[Any, ...]:
        match effect:
            case Spawn(slot, worker, incarnation):
                return "spawn", slot, worker, self._masks[incarnation]
            case Kill(worker, why):
                return "kill", worker, _encodable(why)
            case Lost(worker, why):
                return "lost", worker, _encodable(why)
            case Report(level, text):
                return "report", level, _encodable(text)
            case Flush():
                return ("flush",)
            case Closed(left):
                return "closed", *left
            case _:
                raise TypeError(f"an effect of an unknown type: {type(effect).__name__}")


def _encodable(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def filled(frames: Iterable[Any]) -> list[Body]:
    """The frames of a record; where one has only a length, as many zeros."""
    return [bytes(frame) if type(frame) is int else frame for frame in frames]

"""The messages of a worker that speaks junk.

A rollout has changed something that its worker's process speaks with: from some moment on nothing
that it says can be understood, while its code, its loop and its heartbeat go on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Final, TypeAlias

import cbor2

from ...core.messages import Announced, WorkerOutcome, encode, read
from ...core.terms import ID_BYTES
from .network import HEADER_BYTES, Frames

Spoil: TypeAlias = Callable[[list[bytes], Random], Frames]
"""From a message of a worker, incarnation first, what it sends instead."""


def _cut_short(frames: list[bytes], rng: Random) -> Frames:
    header = frames[len(frames) // 2]
    frames[len(frames) // 2] = header[: rng.randrange(len(header))]
    return frames


def _wrong_type(frames: list[bytes], rng: Random) -> Frames:
    """No field is a list of lists."""
    fields = cbor2.loads(frames[len(frames) // 2])
    fields[rng.randrange(len(fields))] = [[]]
    frames[len(frames) // 2] = cbor2.dumps(fields)
    return frames


def _impossible_ids(frames: list[bytes], rng: Random) -> Frames:
    """Reports of another session's request; the rest as a kind that there is not."""
    at = len(frames) // 2
    message, _ = read(frames[at:], most_bytes=HEADER_BYTES)[0]
    if isinstance(message, WorkerOutcome | Announced):
        frames[at] = encode(message._replace(session=rng.randbytes(ID_BYTES)))
    else:
        frames[at] = cbor2.dumps([*cbor2.loads(frames[at])[:1], 200, rng.randrange(-1000, 0)])
    return frames


def _wrong_number_of_frames(frames: list[bytes], rng: Random) -> Frames:
    return rng.choice((frames[:-1], [*frames, b"more"], frames[:1]))


def _spoilt_name(frames: list[bytes], rng: Random) -> Frames:
    return [frames[0][: rng.randrange(1, ID_BYTES)], *frames[1:]]


def _another_name(frames: list[bytes], rng: Random) -> Frames:
    return [rng.randbytes(ID_BYTES), *frames[1:]]


def _nothing(frames: list[bytes], rng: Random) -> Frames:
    return ()


KINDS: Final[Mapping[str, Spoil]] = {
    "headers cut short": _cut_short,
    "fields of a wrong type": _wrong_type,
    "impossible ids": _impossible_ids,
    "a wrong number of frames": _wrong_number_of_frames,
    "a spoilt incarnation": _spoilt_name,
    "another incarnation": _another_name,
    "nothing": _nothing,
}
"""Ways in which the messages of such a worker are spoilt, by name."""


def spoilt(frames: Frames, kind: str, rng: Random) -> Frames:
    """Frames that are sent in the place of a message; none if nothing is sent."""
    return KINDS[kind]([bytes(each) for each in frames], rng)

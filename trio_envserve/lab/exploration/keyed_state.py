"""The state of a system whose callers share a key."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

from . import names
from .keyed_judge import KeyPast, Told
from .state import WorkerPart

INPUT, OTHER = b"x", b"y"
"""The input that is asked under the key, and another one."""


class Said(NamedTuple):
    """A request of a caller that is not over for it."""

    sequence: int
    message: int
    input: bytes
    """Empty if it did not send any."""
    told: Told | None = None


class CallerPart(NamedTuple):
    """A caller: a process, or the next one that has its name."""

    sessions: int = 0
    """How many it has had."""
    here: bool = False
    """Whether the last of them is in use."""
    next: int = 0
    """Its next sequence there."""
    asked: int = 0
    """How often it has asked, what was issued again not counted."""
    said: tuple[Said, ...] = ()
    lost: bool = False
    """Whether it has asked in a session that is over, and has no outcome."""
    left: tuple[bytes, ...] = ()
    """Sessions of processes that died, whose leases have not ended."""


Row: TypeAlias = "tuple[Any, ...]"
"""A record as plain values, its kind first: records of two kinds may be equal tuples."""


class Group(NamedTuple):
    """Records that were written together, and are not safe."""

    rows: tuple[Row, ...]
    due: tuple[tuple[Any, Told], ...]
    """The answers to callers once they are."""


class DiskPart(NamedTuple):
    """The journal of keys."""

    safe: tuple[Row, ...] = ()
    written: tuple[Group, ...] = ()
    """The groups that a fall of the server may lose, from any of them on."""


class KeyState(NamedTuple):
    """The whole system at one moment."""

    router: int
    worker: WorkerPart | None
    callers: tuple[CallerPart, ...]
    commands: tuple[tuple[int, bytes], ...]
    """The acts and tags that were used."""
    left: tuple[int, ...]
    """How often each kind of trouble may still come."""
    past: KeyPast
    disk: DiskPart = DiskPart()
    life: int = 0
    """Which life of the server this is."""


def token(c: int) -> bytes:
    """How a caller is known again."""
    return b"c%d" % c + b"." * 14


def session_of(c: int, caller: CallerPart, life: int = 0) -> bytes:
    """The session that it uses, with this life of the server."""
    return names.session(life, names.nonce(c, caller.sessions))

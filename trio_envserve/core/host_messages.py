"""Every message between a host of another machine and its router.

Each class is the schema of a header, as in :mod:`.messages`: its fields in their order, each
annotated with its check.  This link has kinds of its own.

Reports of the host and orders of the router travel as *items* (:mod:`.host_link`): a message has a
batch of them in columns, and the frames of all items follow the header in order.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple, TypeAlias

import cbor2

from .errors import ProtocolError
from .limits import PROTOCOL_VERSION
from .messages import (
    Bool,
    Bytes,
    Field,
    ForeignVersion,
    Id,
    Record,
    Text,
    Uint,
    fields_of,
    is_ranges,
    is_uint,
    open_header,
)
from .terms import ID_BYTES, Body

ENDED_MOST = 16
"""Most earlier memberships that a hello names."""
LONGEST_S = 1e9
"""Bound of a lease in seconds, exclusive: a timer of the kernel must hold it."""
_WORKER = re.compile(rb"[A-Za-z0-9._-]{1,64}")
"""Allowed names of workers: they appear in logs and metric labels."""


class ForeignHost(ForeignVersion):
    """A hello, or a welcome, of another version."""

    hello: tuple[bytes, int, str] | None = None
    """The membership, the number and the name of the host whose hello is to be answered."""


def _is_list_of(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: type(value) is list and all(map(check, value))


def _is_ids(value: Any) -> bool:
    if type(value) is not list or len(value) > ENDED_MOST:
        return False
    return all(type(each) is bytes and len(each) == ID_BYTES for each in value)


def _is_life(value: Any) -> bool:
    if type(value) is not list or len(value) != 7:
        return False
    worker, incarnation, pid, hello, seen, running, slot = value
    return (
        _is_worker(worker) and type(incarnation) is type(hello) is bytes
        and len(incarnation) == ID_BYTES and is_uint(pid) and is_ranges(seen)
        and is_ranges(running) and is_uint(slot)
    )  # fmt: skip


def _is_length(value: Any) -> bool:
    return type(value) in (int, float) and 0 < value < LONGEST_S


def _is_worker(value: Any) -> bool:
    return type(value) is bytes and _WORKER.fullmatch(value) is not None


Ids: TypeAlias = Annotated["list[bytes]", Field("[* id]", _is_ids)]
Uints: TypeAlias = Annotated["list[int]", Field("[* uint]", _is_list_of(is_uint))]
Names: TypeAlias = Annotated["list[bytes]", Field("[* bstr]", _is_list_of(_is_worker))]
Lives: TypeAlias = Annotated[
    "list[list[Any]]",
    Field("[* [bstr, id, uint, bstr, [* uint], [* uint], uint]]", _is_list_of(_is_life)),
]
Length: TypeAlias = Annotated[float, Field("seconds", _is_length)]


class HostHello(NamedTuple):
    """A host joins, or is back over another connection.  ``hello`` counts those of its
    membership, ``ended`` are earlier ones whose workers it knows to be dead, and ``epoch`` is the
    router that this one is with, if there is one."""

    version: Uint
    host: Text
    membership: Id
    hello: Uint
    ended: Ids
    epoch: Bytes
    workers: Uint
    """How many it may have at most, and at least: more than that as there is work for them."""
    least: Uint
    offers: Record
    continues: Ids
    to: Bytes
    lives: Lives
    """Workers that live on from the memberships that it continues, for router ``to``."""


class HostBeat(NamedTuple):
    """A beat of the host lease.  ``sent``: so many items were sent before it; ``have``: so
    many of the router's are here.  ``leaving``: it is to be drained.  ``machine``: how busy it
    is, for people, as numbers by name."""

    membership: Id
    beat: Uint
    answered: Uint
    epoch: Id
    sent: Uint
    have: Uint
    leaving: Bool
    machine: Record


class HostLeaves(NamedTuple):
    """All workers of the membership have ended, and the host goes.  ``sent``: so many items are
    there for the router, which takes no leave of it before all of them have come."""

    membership: Id
    sent: Uint


class HostWelcome(NamedTuple):
    """The answer to a hello; the first beat may come.  ``serves``: what is to be run there,
    as far as the host was not told another thing."""

    version: Uint
    membership: Id
    hello: Uint
    epoch: Id
    fence_s: Length
    serves: Record


class HostRefused(NamedTuple):
    """The answer to a hello of a membership that is over (``over``), or was with a router before
    and may be continued (``moved``), or of a host whose id another one has (``in-use``), that
    the router has no use for (``unfit``) or no room for (``full``), or that speaks another
    version (``version``)."""

    membership: Id
    hello: Uint
    epoch: Id
    code: Text
    text: Text


class HostAnswer(NamedTuple):
    """The answer to a beat, which renews the lease; ``sent`` and ``have`` as in that.  ``safe``: so
    many of the host's items are of no use to a later router: its journal has what they said."""

    membership: Id
    beat: Uint
    sent: Uint
    have: Uint
    safe: Uint


class Items(NamedTuple):
    """Items in either direction, numbered from ``first`` in their order, the first of a
    membership is 1.  In columns: what each is, whose, and how many of the frames are its.
    With ``first`` 0 they have no number, may be lost, and are not sent again."""

    membership: Id
    first: Uint
    what: Uints
    workers: Names
    frames: Uints


HostMessage: TypeAlias = (
    HostHello | HostBeat | HostLeaves | HostWelcome | HostRefused | HostAnswer | Items
)

OVER, MOVED, IN_USE, UNFIT, VERSION = "over", "moved", "in-use", "unfit", "version"
FULL = "full"
"""Codes of :class:`HostRefused`, with those above."""

KINDS: dict[Any, int] = {
    HostHello: 128, HostBeat: 129, HostLeaves: 130, Items: 136,
    HostWelcome: 144, HostRefused: 145, HostAnswer: 146,
}  # fmt: skip
"""Kind of each message class: the first element of its header."""

FIELDS: dict[Any, tuple[tuple[str, Field], ...]] = {cls: fields_of(cls) for cls in KINDS}
"""Fields of each message class, with their checks and CDDL."""

_BY_KIND = {kind: cls for cls, kind in KINDS.items()}
_WITH_VERSION = (HostHello, HostWelcome)


def encode(message: HostMessage) -> bytes:
    """The header frame of a message."""
    return cbor2.dumps([KINDS[message.__class__], *message])


def decode(frames: Sequence[Body], *, most_bytes: int) -> tuple[HostMessage, list[Body]]:
    """The message of these frames, with every field checked, and the frames after its header.
    ProtocolError if it is malformed."""
    if not frames:
        raise ProtocolError("no frames")
    array = open_header(frames[0], most_bytes)
    cls = _BY_KIND.get(array[0])
    if cls is None:
        raise ProtocolError(f"unknown kind {array[0]}")
    if cls in _WITH_VERSION and array[1:2] != [PROTOCOL_VERSION]:
        raise _foreign(cls, array)
    fields = FIELDS[cls]
    if len(array) != 1 + len(fields):
        raise ProtocolError(f"{cls.__name__} with {len(array) - 1} fields, not {len(fields)}")
    for (name, field), value in zip(fields, array[1:], strict=True):
        if not field.check(value):
            raise ProtocolError(f"{cls.__name__}.{name} is not {field.cddl}")
    message: HostMessage = cls(*array[1:])
    rest = list(frames[1:])
    if isinstance(message, HostHello):
        for name, value in (("epoch", message.epoch), ("to", message.to)):
            if len(value) not in (0, ID_BYTES):
                raise ProtocolError(f"HostHello.{name} is not an id, nor empty")
    _check_frames(message, len(rest))
    return message, rest


def without_environment(header: Body) -> Body:
    """The header of a message to a host, less what a welcome says of the environment: its
    variables may be secret."""
    if bytes(header[1:3]) != bytes((0x18, KINDS[HostWelcome])):
        return header
    return cbor2.dumps(cbor2.loads(header)[:-1])


def _foreign(cls: Any, array: list[Any]) -> ForeignHost:
    """The error for another version, with the sender if it is a hello that begins like ours."""
    version = array[1] if array[1:] and is_uint(array[1]) else 0
    error = ForeignHost(f"protocol version {version} is not spoken, {PROTOCOL_VERSION} is")
    if cls is HostHello and len(array) > 4 and _is_ids([array[3]]) and is_uint(array[4]):
        name = array[2] if type(array[2]) is str else ""
        error.hello = array[3], array[4], name
    return error


def _check_frames(message: HostMessage, count: int) -> None:
    told = 0
    if isinstance(message, Items):
        told = sum(message.frames)
        if not len(message.what) == len(message.workers) == len(message.frames):
            raise ProtocolError("the columns of Items are not of one length")
    if told != count:
        raise ProtocolError(f"{type(message).__name__} with {count} frames, not {told}")

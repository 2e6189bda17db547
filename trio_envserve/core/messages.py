"""All messages of both links, and the codec of their headers.

Theory of operation
-------------------
A header is one CBOR array: the message's kind, then its fields in the order
of its class (:mod:`.client_messages`, :mod:`.worker_messages`).  The class *is* the
schema: each annotation carries a checker and the CDDL of the field, so that decoding,
the protocol document and the tests read the same lines.  A body, if a message has one,
is a frame of its own that nobody here looks into.

``decode`` believes nothing: definite lengths only, shallow, no tags, the right
number of fields, each of exactly the right type and size.  Anything else is a
:class:`~trio_envserve.core.errors.ProtocolError`, and nothing has changed.

Three shapes are frozen for all versions to come, so that strangers can refuse
each other politely: the kind and version of :class:`Hello` and of
:class:`WorkerHello`, and :class:`Error`.
"""

from __future__ import annotations

import operator
import typing
from collections.abc import Callable
from typing import Any, TypeAlias

import cbor2

from . import strict_cbor
from .client_messages import (
    AskKeys,
    AskRunning,
    AskStack,
    AskStats,
    Cancel,
    Cancelled,
    Delta,
    Error,
    Finish,
    Goodbye,
    Hello,
    KeyedCancel,
    KeyedRequest,
    KnownKeys,
    Notes,
    Outcome,
    Refused,
    Request,
    Running,
    Stack,
    Stats,
    Sync,
    Synced,
    Unknown,
    Welcome,
)
from .errors import ProtocolError
from .fields import Field, is_uint
from .limits import PROTOCOL_VERSION
from .terms import ID_BYTES, Status
from .worker_messages import (
    UNLOADABLE,
    Announced,
    Beat,
    Declined,
    Dispatch,
    Fetch,
    Missing,
    Retire,
    Start,
    Statement,
    Stop,
    WorkerBroken,
    WorkerDelta,
    WorkerHello,
    WorkerNotes,
    WorkerOutcome,
)

__all__ = [
    "EDGE_BYTES",
    "FEWEST_ITEMS",
    "FIELDS",
    "KINDS",
    "MESSAGES",
    "UNLOADABLE",
    "Announced",
    "AskKeys",
    "AskRunning",
    "AskStack",
    "AskStats",
    "Beat",
    "Cancel",
    "Cancelled",
    "Declined",
    "Delta",
    "Dispatch",
    "Error",
    "Fetch",
    "Finish",
    "ForeignVersion",
    "Goodbye",
    "Hello",
    "KeyedCancel",
    "KeyedRequest",
    "KnownKeys",
    "Message",
    "Missing",
    "Notes",
    "Outcome",
    "Refused",
    "Request",
    "Retire",
    "Running",
    "Stack",
    "Start",
    "Statement",
    "Stats",
    "Stop",
    "Sync",
    "Synced",
    "Unknown",
    "Welcome",
    "WorkerBroken",
    "WorkerDelta",
    "WorkerHello",
    "WorkerNotes",
    "WorkerOutcome",
    "decode",
    "encode",
    "encode_record",
    "is_status",
    "readdressed",
]  # fmt: skip

Message: TypeAlias = (
    Hello | Request | Finish | Sync | Cancel | AskStats | Goodbye
    | KeyedRequest | KeyedCancel | AskKeys | AskRunning | AskStack
    | Welcome | Outcome | Synced | Refused | Unknown | Cancelled | Stats | Error | KnownKeys
    | Delta | Notes | Running | Stack
    | WorkerHello | WorkerBroken | Beat | WorkerOutcome | Missing | Declined | Announced
    | WorkerDelta | WorkerNotes
    | Dispatch | Stop | Statement | Retire | Start | Fetch
)  # fmt: skip

MESSAGES: tuple[Any, ...] = typing.get_args(Message)
"""Every message class, in the order of the protocol document."""

KINDS: dict[Any, int] = {
    Hello: 0, Request: 1, Finish: 2, Sync: 3, Cancel: 4, AskStats: 5, Goodbye: 6,
    KeyedRequest: 7, KeyedCancel: 8, AskKeys: 9, AskRunning: 10,
    AskStack: 11,
    Welcome: 16, Outcome: 17, Synced: 18, Refused: 19, Unknown: 20, Cancelled: 21, Stats: 22,
    Error: 23, KnownKeys: 24, Delta: 25, Notes: 26, Running: 27, Stack: 28,
    WorkerHello: 64, WorkerBroken: 65, Beat: 66, WorkerOutcome: 67, Missing: 68, Declined: 69,
    Announced: 70, WorkerDelta: 71, WorkerNotes: 72,
    Dispatch: 80, Stop: 81, Statement: 82, Retire: 83, Start: 84, Fetch: 85,
}  # fmt: skip
"""The kind of each message class: the first element of its header."""

FIELDS: dict[Any, tuple[tuple[str, Field], ...]] = {
    cls: tuple(
        (name, annotation.__metadata__[0])
        for name, annotation in typing.get_type_hints(cls, include_extras=True).items()
    )
    for cls in MESSAGES
}
"""The fields of each message with their checkers and CDDL."""

_BY_KIND: dict[int, tuple[Any, tuple[Callable[[Any], bool], ...]]] = {
    KINDS[cls]: (cls, tuple(field.check for _, field in FIELDS[cls] if not field.optional))
    for cls in MESSAGES
}

_WITH_OPTIONAL: dict[Any, tuple[Callable[[Any], bool], ...]] = {
    cls: tuple(field.check for _, field in fields)
    for cls, fields in FIELDS.items()
    if any(field.optional for _, field in fields)
}
"""Of the messages whose last field may be left out, which is None then: all of their checks."""

_HELLOS = (Hello, WorkerHello)

EDGE_BYTES = 9
"""The edge of a span has at most so many bytes: so spans that fill a header have no more
items than one for each, and a header of shorter ones that many at most, too."""
FEWEST_ITEMS = 64
"""Any header may have so many items besides."""


def encode(message: Message) -> bytes:
    """The header frame of a message."""
    header = [KINDS[message.__class__], *message]
    if header[-1] is None and message.__class__ in _WITH_OPTIONAL:
        del header[-1]
    return cbor2.dumps(header)


def readdressed(outcome: bytes, session: bytes, sequence: int) -> bytes:
    """The header of an :class:`Outcome`, made by :func:`encode`, for another request.

    Whoever waits for a key gets the same outcome, and only its first two fields differ: so
    the others are copied, which takes a tenth of what it takes to read and write them."""
    after = _SEQUENCE_AT + _UINT_BYTES.get(outcome[_SEQUENCE_AT], 1)
    return b"".join((outcome[:_SESSION_AT], session, cbor2.dumps(sequence), outcome[after:]))


_SESSION_AT = 2 + 1
"""In the header of an outcome: behind the head of the array, the kind, and the head of an id."""
_SEQUENCE_AT = _SESSION_AT + ID_BYTES
_UINT_BYTES = {0x18: 2, 0x19: 3, 0x1A: 5, 0x1B: 9}
"""How long an integer is, by its first byte; else it is that byte."""


def decode(header: bytes | memoryview, *, most_bytes: int) -> Message:
    """The message of a header frame, every field checked.

    ProtocolError says what is wrong; it never quotes the peer's bytes at
    length.
    """
    if len(header) > most_bytes:
        raise ProtocolError(f"header of {len(header)} bytes, {most_bytes} allowed")
    try:
        array = strict_cbor.loads(header, most_items=FEWEST_ITEMS + most_bytes // EDGE_BYTES)
    except strict_cbor.Costly as error:
        raise ProtocolError(f"header of {error}") from None
    except Exception as error:  # cbor2 documents no complete list of what hostile bytes raise
        raise ProtocolError(f"header is not CBOR: {type(error).__name__}") from None
    if type(array) is not list or not array or not is_uint(array[0]):
        raise ProtocolError("header is not an array that begins with a kind")
    known = _BY_KIND.get(array[0])
    if known is None:
        raise ProtocolError(f"unknown kind {array[0]}")
    cls, checks = known
    if cls in _HELLOS and (len(array) < 2 or array[1] != PROTOCOL_VERSION):
        version = array[1] if len(array) > 1 and is_uint(array[1]) else "?"
        raise ForeignVersion(f"protocol version {version} is not spoken, {PROTOCOL_VERSION} is")
    if len(array) != len(checks) + 1:
        checks = _WITH_OPTIONAL.get(cls, checks)
        if len(array) != len(checks) + 1:
            raise ProtocolError(f"{cls.__name__} with {len(array) - 1} fields, not {len(checks)}")
    fields = array[1:]
    if not all(map(operator.call, checks, fields)):  # by C code: each message comes by here
        raise _wrong_field(cls, fields)
    message: Message = cls(*fields)
    return message


def _wrong_field(cls: Any, fields: list[Any]) -> ProtocolError:
    """What is said of the first field that is not what it must be."""
    checked = zip(FIELDS[cls], fields, strict=False)  # the last one may be left out
    name, cddl = next((name, f.cddl) for (name, f), value in checked if not f.check(value))
    return ProtocolError(f"{cls.__name__}.{name} is not {cddl}")


class ForeignVersion(ProtocolError):
    """The peer speaks another major version."""


def encode_record(record: dict[str, Any]) -> bytes:
    """The body of statistics, and of a page of keys."""
    return cbor2.dumps(record)


def is_status(value: int) -> bool:
    """Whether a worker's status is one that the protocol knows."""
    return value in Status._value2member_map_

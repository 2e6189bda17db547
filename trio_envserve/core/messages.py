"""All messages of both links, and the codec of their headers.

Theory of operation
-------------------
A header is one CBOR array: the message's kind, then its fields in the order
of its class (:mod:`.client_messages`, :mod:`.worker_messages`).  The class *is* the
schema: each annotation carries a checker and the CDDL of the field, so that decoding,
the protocol document and the tests read the same lines.  A body, if a message has one,
is a frame of its own that nobody here looks into.

What a peer is sent much of travels in *batches*: the messages of one kind in
:data:`BATCHED` are rows, as many as :data:`BATCH_ROWS`, and one is a batch of one.  Their
header has the sizes of their bodies behind the kind, and then their fields as columns: an
array has an item for each row, and anything else is the same in all rows.  (None of their
fields is an array by itself.)  The bodies are one frame, in the same order.  Of one row the
sizes may be null: its body is the frame.

``decode`` and ``read`` believe nothing: definite lengths only, shallow, no tags, the right
number of fields, each of exactly the right type and size.  Anything else is a
:class:`~trio_envserve.core.errors.ProtocolError`, and nothing has changed.

Three shapes are frozen for all versions to come, so that strangers can refuse
each other politely: the kind and version of :class:`Hello` and of
:class:`WorkerHello`, and :class:`Error`.
"""

from __future__ import annotations

import operator
import re
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import accumulate, repeat
from typing import Any, TypeAlias

import cbor2

from . import strict_cbor
from .client_messages import (
    Cancel,
    Cancelled,
    Delta,
    Error,
    Finish,
    Goodbye,
    Hello,
    Notes,
    Outcome,
    Query,
    QueryAnswer,
    Refused,
    Request,
    Sync,
    Synced,
    Unknown,
    Welcome,
)
from .errors import ProtocolError
from .fields import Field, fields_of, is_uint
from .limits import BATCH_BYTES, KIB, PROTOCOL_VERSION
from .terms import Body, SentBody, Status
from .worker_messages import (
    UNCOUNTED,
    UNLOADABLE,
    Announced,
    Beat,
    Claim,
    ClaimsEnded,
    Clean,
    Dispatch,
    Fetch,
    Granted,
    ResourceAnswer,
    ResourceIntended,
    ResourceStated,
    Retire,
    RouterChanged,
    SaveAnswer,
    Start,
    Stop,
    WorkerBroken,
    WorkerDelta,
    WorkerHello,
    WorkerNotes,
    WorkerOutcome,
    WorkerSave,
)

__all__ = [
    "BATCHED", "BATCH_BYTES", "BATCH_ROWS", "EDGE_BYTES", "FEWEST_ITEMS", "FIELDS", "KINDS",
    "MESSAGES", "UNCOUNTED", "UNLOADABLE", "Announced", "Beat", "Cancel",
    "Cancelled", "Claim", "ClaimsEnded", "Clean", "Delta", "Dispatch", "Error",
    "Fetch", "Finish", "ForeignVersion", "Goodbye", "Granted", "Hello", "Message",
    "Notes", "Outcome", "Query", "QueryAnswer", "Refused", "Request", "ResourceAnswer",
    "ResourceIntended", "ResourceStated", "Retire", "RouterChanged",
    "SaveAnswer", "Start", "Stop", "Sync", "Synced", "Unknown", "Welcome",
    "WorkerBroken", "WorkerDelta", "WorkerHello", "WorkerNotes", "WorkerOutcome", "WorkerSave",
    "decode", "encode", "encode_record", "in_batches", "is_status", "one_by_one", "read",
    "refused_class",
    "rows_claimed",
]  # fmt: skip

Message: TypeAlias = (
    Hello | Request | Finish | Sync | Cancel | Query | Goodbye
    | Welcome | Outcome | Synced | Refused | Unknown | Cancelled | QueryAnswer | Error
    | Delta | Notes
    | WorkerHello | WorkerBroken | Beat | WorkerOutcome | Announced
    | WorkerDelta | WorkerNotes | Claim | ClaimsEnded | WorkerSave
    | ResourceIntended | ResourceStated
    | Dispatch | Stop | RouterChanged | Retire | Start | Fetch | Granted | SaveAnswer
    | ResourceAnswer | Clean
)  # fmt: skip

MESSAGES: tuple[Any, ...] = typing.get_args(Message)
"""Every message class, in the order of the protocol document."""

KINDS: dict[Any, int] = {
    Hello: 0, Request: 1, Finish: 2, Sync: 3, Cancel: 4, Query: 5, Goodbye: 6,
    Welcome: 16, Outcome: 17, Synced: 18, Refused: 19, Unknown: 20, Cancelled: 21,
    QueryAnswer: 22, Error: 23, Delta: 25, Notes: 26,
    WorkerHello: 64, WorkerBroken: 65, Beat: 66, WorkerOutcome: 67,
    Announced: 70, WorkerDelta: 71, WorkerNotes: 72, Claim: 73, ClaimsEnded: 74, WorkerSave: 75,
    ResourceIntended: 76, ResourceStated: 77,
    Dispatch: 80, Stop: 81, RouterChanged: 82, Retire: 83, Start: 84, Fetch: 85,
    Granted: 86, SaveAnswer: 87, ResourceAnswer: 88, Clean: 89,
}  # fmt: skip
"""The kind of each message class: the first element of its header."""

FIELDS: dict[Any, tuple[tuple[str, Field], ...]] = {cls: fields_of(cls) for cls in MESSAGES}
"""The fields of each message with their checkers and CDDL."""

Check: TypeAlias = Callable[[Any], bool]


def _check_of(field: Field) -> Check:
    check = field.check
    return (lambda value: value is None or check(value)) if field.optional else check


_BY_KIND: dict[int, tuple[Any, tuple[Check, ...]]] = {
    KINDS[cls]: (cls, tuple(_check_of(field) for _, field in FIELDS[cls])) for cls in MESSAGES
}

_FEWEST: dict[Any, int] = {
    cls: sum(not field.optional for _, field in fields) for cls, fields in FIELDS.items()
}
"""The number of fields that cannot be left out; the others are null where they are."""

_HELLOS = (Hello, WorkerHello)

BATCHED: frozenset[Any] = frozenset({Request, Outcome, Dispatch, WorkerOutcome})
"""The kinds whose messages are rows of batches."""

_WITH_BODY = BATCHED | {Delta, QueryAnswer, WorkerDelta, WorkerSave, Start}

BATCH_ROWS = 64
"""Most rows of a batch."""

KEYED_ROW_BYTES = 170
"""A row with a key has so much more in the header, at most."""

ROW_BYTES = 4 * KIB
"""A larger body is sent in a batch of one: to copy it would cost more."""

Said: TypeAlias = "tuple[Message, Body | None]"
"""A message and its body, if it has one."""

ToSay: TypeAlias = "tuple[Message, SentBody | None]"
"""A message to be sent, with its body."""

EDGE_BYTES = 9
"""The edge of a span has at most so many bytes: so spans that fill a header have no more
items than one for each, and a header of shorter ones that many at most, too."""
FEWEST_ITEMS = 64
"""Any header may have so many items besides."""


def encode(message: Message) -> bytes:
    """The header frame of a message; of a batch of one."""
    cls = message.__class__
    header = [KINDS[cls], None, *message] if cls in BATCHED else [KINDS[cls], *message]
    return cbor2.dumps(_without_nulls(cls, header))


def _without_nulls(cls: Any, header: list[Any]) -> list[Any]:
    """The header, less what may be left out at its end."""
    if header[-1] is None:
        least = _FEWEST[cls] + 1 + (cls in BATCHED)
        while len(header) > least and header[-1] is None:
            del header[-1]
    return header


@typing.overload
def in_batches(said: Iterable[Said]) -> Iterator[tuple[Body, ...]]: ...


@typing.overload
def in_batches(said: Iterable[ToSay]) -> Iterator[tuple[SentBody, ...]]: ...


def in_batches(said: Iterable[ToSay]) -> Iterator[tuple[SentBody, ...]]:
    """The frames of these messages, in this order.  Neighbours of one kind share a batch,
    as many as may."""
    kind: Any = None
    """Class of the rows; None if there are none."""
    rows: list[Message] = []
    bodies: list[SentBody] = []
    left_bytes = 0
    for message, body in said:
        cls = message.__class__
        if cls is not kind or body is None:  # else its kind has batches
            if rows:
                yield _batch(kind, rows, bodies)
                kind, rows, bodies = None, [], []
            if body is None or cls not in BATCHED:
                yield (encode(message),) if body is None else (encode(message), body)
                continue
        size_bytes = len(body)
        if isinstance(message, Request) and message.key is not None:
            size_bytes += KEYED_ROW_BYTES + len(message.namespace or b"") + len(message.key)
        if size_bytes > ROW_BYTES:
            size_bytes = BATCH_BYTES + 1  # it goes alone
        if rows and (size_bytes > left_bytes or len(rows) == BATCH_ROWS):
            yield _batch(kind, rows, bodies)
            rows, bodies = [], []
        if not rows:
            kind, left_bytes = cls, BATCH_BYTES
        rows.append(message)
        bodies.append(body)
        left_bytes -= size_bytes
    if rows:
        yield _batch(kind, rows, bodies)


def _batch(cls: Any, rows: list[Message], bodies: list[SentBody]) -> tuple[SentBody, ...]:
    if len(rows) == 1:
        return encode(rows[0]), bodies[0]
    header = [KINDS[cls], list(map(len, bodies))]
    for column in zip(*rows, strict=True):
        first = column[0]
        header.append(first if column.count(first) == len(column) else column)
    return cbor2.dumps(_without_nulls(cls, header)), b"".join(bodies)  # type: ignore[arg-type]  # none is BodyParts: those are large


def decode(header: bytes | memoryview, *, most_bytes: int) -> Message:
    """The message of a header frame, or the only row of a batch, every field checked.

    ProtocolError says what is wrong; it never quotes the peer's bytes at
    length.
    """
    cls, checks, fields = _opened(header, most_bytes)
    if cls in BATCHED and _sizes_of(cls, fields) is not None:
        raise ProtocolError(f"{cls.__name__} in a batch, where one is expected")
    return _row(cls, checks, fields)


def read(frames: Sequence[Body], *, most_bytes: int) -> Sequence[Said]:
    """The message of these frames, with its body if it has one; or the rows of a batch.

    A header may have ``most_bytes``, and that of a batch as many as it may need.
    Raises as :func:`decode` does, also for the wrong number of frames.
    """
    if not frames:
        raise ProtocolError("no frames")
    cls, checks, fields = _opened(frames[0], max(most_bytes, BATCH_BYTES))
    if len(frames) != 1 + (cls in _WITH_BODY):
        raise ProtocolError(f"{cls.__name__} with {len(frames)} frames")
    if cls not in BATCHED:
        return ((_row(cls, checks, fields), frames[1] if len(frames) > 1 else None),)
    sizes = _sizes_of(cls, fields)
    if sizes is None:
        return ((_row(cls, checks, fields), frames[1]),)
    return _rows(cls, checks, fields, sizes, frames[1])


def one_by_one(frames: Sequence[Body], *, most_bytes: int) -> Iterator[tuple[Body, ...]]:
    """The rows of a batch, each in one of its own; another message is as it was, in the form
    in which this project writes it.  Raises as :func:`read`."""
    for message, body in read(frames, most_bytes=most_bytes):
        yield (encode(message),) if body is None else (encode(message), body)


def rows_claimed(header: Body) -> int:
    """Number of rows that a header claims by its first bytes; 1 if it claims none."""
    at = 1 + (header[1:2] == b"\x18") + 1  # behind the head of the array, and the kind
    head = header[at : at + 2]
    if len(head) < 2 or not 0x81 <= head[0] <= 0x98:
        return 1
    return head[0] - 0x80 if head[0] < 0x98 else head[1]


def _opened(header: Body, most_bytes: int) -> tuple[Any, tuple[Check, ...], list[Any]]:
    """The class of a message, its checks, and its fields, not checked yet."""
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
    more = 2 if cls in BATCHED else 1
    count, fewest = len(array) - more, _FEWEST[cls]
    if not fewest <= count <= len(checks):
        right = f"{fewest} to {len(checks)}" if fewest < len(checks) else str(fewest)
        raise ProtocolError(f"{cls.__name__} with {count} fields, not {right}")
    return cls, checks, array[1:]


def _sizes_of(cls: Any, fields: list[Any]) -> list[int] | None:
    """The sizes of the bodies of a batch, which are taken from its fields; None of one."""
    sizes = fields.pop(0)
    if sizes is None:
        return None
    if type(sizes) is not list or not 1 <= len(sizes) <= BATCH_ROWS:
        raise ProtocolError(f"{cls.__name__} in a batch of none, or of more than {BATCH_ROWS}")
    if not all(map(is_uint, sizes)):
        raise ProtocolError(f"{cls.__name__} with a size that is not uint")
    checked: list[int] = sizes
    return checked


def _row(cls: Any, checks: tuple[Check, ...], fields: list[Any]) -> Message:
    if not all(map(operator.call, checks, fields)):  # by C code: each message comes by here
        raise _wrong_field(cls, fields)
    message: Message = cls(*fields)
    return message


def _rows(
    cls: Any, checks: tuple[Check, ...], fields: list[Any], sizes: list[int], blob: Body
) -> Sequence[Said]:
    count, ends = len(sizes), list(accumulate(sizes, initial=0))
    if ends[-1] != len(blob):
        raise ProtocolError(f"{cls.__name__} with {len(blob)} bytes of bodies, not {ends[-1]}")
    columns: list[Iterable[Any]] = []
    for field, (name, spec), check in zip(fields, FIELDS[cls], checks, strict=False):
        if type(field) is not list:
            is_right = check(field)
            columns.append(repeat(field, count))
        elif len(field) != count:
            raise ProtocolError(f"{cls.__name__}.{name} of {len(field)} rows, not {count}")
        else:
            is_right = all(map(check, field))
            columns.append(field)
        if not is_right:
            raise ProtocolError(f"{cls.__name__}.{name} is not {spec.cddl}")
    columns += [repeat(None, count) for _ in checks[len(columns) :]]
    rows = map(partial(tuple.__new__, cls), zip(*columns, strict=True))  # by C code, too
    # Of bytes of their own: what is kept of one must not hold those of all.
    view = memoryview(blob)
    bodies = map(bytes, map(view.__getitem__, map(slice, ends, ends[1:])))
    return list(zip(rows, bodies, strict=True))


def _wrong_field(cls: Any, fields: list[Any]) -> ProtocolError:
    """The error about the first field that is wrong."""
    checked = zip(FIELDS[cls], fields, strict=False)  # the last ones may be left out
    name, cddl = next((name, f.cddl) for (name, f), value in checked if not _check_of(f)(value))
    return ProtocolError(f"{cls.__name__}.{name} is not {cddl}")


class ForeignVersion(ProtocolError):
    """The peer speaks another major version."""


def refused_class(text: str) -> Any:
    """The class of the messages that a :class:`ProtocolError` of :func:`read` with this text is
    about; None if it does not say that."""
    found = re.match(r"unknown kind (\d{1,3})|(\w+)", text)
    if found is None:
        return None
    kind = -1 if found[1] is None else int(found[1])
    return next((cls for cls, n in KINDS.items() if n == kind or cls.__name__ == found[2]), None)


def encode_record(record: dict[str, Any]) -> bytes:
    """The body of an answer to a query."""
    return cbor2.dumps(record)


def is_status(value: int) -> bool:
    """Whether a worker's status is one that the protocol knows."""
    return value in Status._value2member_map_

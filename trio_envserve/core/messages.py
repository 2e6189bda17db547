"""Every message of both links, and the codec of their headers.

Theory of operation
-------------------
A header is one CBOR array: the message's kind, then its fields in the order
of the class below.  The class *is* the schema: each annotation carries a
checker and the CDDL of the field, so that decoding, the protocol document and
the tests read the same lines.  A body, if a message has one, is a frame of its
own that nobody here looks into.

``decode`` believes nothing: definite lengths only, shallow, no tags, the right
number of fields, each of exactly the right type and size.  Anything else is a
:class:`~trio_envserve.core.errors.ProtocolError`, and nothing has changed.

Three shapes are frozen for all versions to come, so that strangers can refuse
each other politely: the kind and version of :class:`Hello` and of
:class:`WorkerHello`, and :class:`Error`.
"""

from __future__ import annotations

import typing
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import cbor2

from . import strict_cbor
from .errors import ProtocolError
from .fields import (
    Act,
    Bool,
    Bytes,
    Choice,
    Count,
    Digest,
    Field,
    Id,
    Record,
    Seconds,
    Spans,
    Tag,
    Text,
    Uint,
    is_uint,
)
from .limits import PROTOCOL_VERSION
from .terms import ID_BYTES, Status

# -- client to router ---------------------------------------------------------


class Hello(NamedTuple):
    """Asks for a session.  The same nonce gets the same session, while that is open."""

    version: Uint
    nonce: Id
    connection: Uint
    name: Text
    message_bytes: Uint


class Request(NamedTuple):
    """Asks for one execution.  Every transmission has the same bytes.

    ``digest`` is any 16 bytes that differ when body or options differ.
    ``rerun`` is consent (null: as the environment declares); ``allowance`` the
    most executions this session may start for it.  Body: the encoded value.
    """

    session: Id
    sequence: Uint
    digest: Id
    rerun: Choice
    allowance: Uint
    deadline_s: Seconds


class KeyedRequest(NamedTuple):
    """Asks something of a key.  ``act``: 0 ask, 1 attach, 2 cancel, 3 forget, 4 withdraw.

    ``digest`` is a strong hash of input and consent (:func:`~.key_records.input_digest`).
    ``caller`` is the same in all sessions of who asks.  ``allowance`` is the key's, for all
    of its life.  ``tag`` says what a cancel or a forget hits.  ``earlier``: the request is
    issued again, and so many executions may have been started for it in sessions that were
    lost; ``gone``: nothing of those runs any more.  Body: of an ask the encoded value, else
    empty.
    """

    session: Id
    sequence: Uint
    digest: Digest
    rerun: Choice
    allowance: Uint
    deadline_s: Seconds
    caller: Id
    act: Act
    namespace: Bytes
    key: Bytes
    tag: Tag
    earlier: Count
    gone: Bool


class Finish(NamedTuple):
    """The client has the outcomes of these sequences, or wants none."""

    session: Id
    finished: Spans


class Sync(NamedTuple):
    """States what the client holds: all below ``next`` and not in ``pending``
    is finished.  Also the ping; answered by :class:`Synced` or :class:`Unknown`."""

    session: Id
    epoch: Id
    connection: Uint
    probe: Uint
    next: Uint
    pending: Spans


class Cancel(NamedTuple):
    """Finishes one sequence and asks whether it ever started."""

    session: Id
    sequence: Uint


class KeyedCancel(NamedTuple):
    """The same of a :class:`KeyedRequest`, for whose work others may wait."""

    session: Id
    sequence: Uint


class AskStats(NamedTuple):
    """Asks for the server's statistics; needs no session."""

    probe: Uint


class AskKeys(NamedTuple):
    """Asks for a page of the keys of a namespace (empty: of all), from the generation with
    the number ``first`` on; needs no session."""

    probe: Uint
    namespace: Bytes
    first: Uint


class Goodbye(NamedTuple):
    """Ends the session: whatever is not finished is cancelled.  ``session`` is its id,
    or, where no welcome has come yet, the nonce of the hello."""

    session: Id


# -- router to client ---------------------------------------------------------


class Welcome(NamedTuple):
    """Grants a session.  ``server`` is the status record of :class:`Synced`."""

    version: Uint
    nonce: Id
    session: Id
    epoch: Id
    window: Uint
    message_bytes: Uint
    server: Record


class Outcome(NamedTuple):
    """The outcome of a request, byte for byte the same however often sent.

    Body: the encoded value if ``status`` is a result, else an error record.
    """

    session: Id
    sequence: Uint
    status: Uint
    worker: Text
    duration_s: Seconds
    executions: Uint


class Synced(NamedTuple):
    """Answers a sync: ``missing`` are the pending sequences never seen here."""

    session: Id
    probe: Uint
    missing: Spans
    server: Record


class Refused(NamedTuple):
    """A request was not taken.  With ``delay_s``: for now, try again then.
    Without: for good.  Nothing has run for this transmission."""

    session: Id
    sequence: Uint
    code: Text
    text: Text
    delay_s: Seconds


class Unknown(NamedTuple):
    """The session is not known.  ``gone``: it is proven that nothing of it
    runs any more and nothing of it ever will.  ``settled``: besides, nothing of it was
    unfinished when it was forgotten; so what its client still has pending never ran."""

    session: Id
    gone: Bool
    epoch: Id
    settled: Bool


class Cancelled(NamedTuple):
    """Answers a cancel.  ``started`` false: it never ran and never will."""

    session: Id
    sequence: Uint
    started: Bool


class Stats(NamedTuple):
    """Answers :class:`AskStats`.  Body: an encoded record."""

    probe: Uint


class KnownKeys(NamedTuple):
    """Answers :class:`AskKeys`.  Body: an encoded record."""

    probe: Uint


class Error(NamedTuple):
    """A message could not be taken at all (malformed, foreign version)."""

    version: Uint
    code: Text
    text: Text


# -- worker to router ---------------------------------------------------------


class WorkerHello(NamedTuple):
    """The worker's environment is set up; repeated until a :class:`Statement` comes."""

    version: Uint
    pid: Uint
    environment: Text
    rerun: Bool


UNLOADABLE = "unloadable"
"""Code of a :class:`WorkerBroken`: the environment cannot be found, imported or made, and
another start would do no better."""


class WorkerBroken(NamedTuple):
    """The environment could not be set up; the worker exits."""

    error: Record


class Beat(NamedTuple):
    """A sign of life of the worker's loop; answered by :class:`Statement`.
    ``seen`` are the numbers of the dispatches that have arrived."""

    beat: Uint
    seen: Spans
    stats: Record


class WorkerOutcome(NamedTuple):
    """The outcome of a dispatch.  Exactly five frames for the router: its worker's id
    is put before these."""

    session: Id
    sequence: Uint
    number: Uint
    status: Uint
    duration_s: Seconds


class Missing(NamedTuple):
    """Dispatches that :class:`Statement` named live and that never arrived."""

    numbers: Spans


class Declined(NamedTuple):
    """Dispatches that never arrived and are cancelled: they will not be run,
    should they arrive yet."""

    numbers: Spans


class Announced(NamedTuple):
    """A dispatch has ended, with an outcome whose body has so many bytes.  The worker
    keeps it until :class:`Fetch` asks for it."""

    session: Id
    sequence: Uint
    number: Uint
    size_bytes: Uint


# -- router to worker ---------------------------------------------------------


class Dispatch(NamedTuple):
    """Runs a request.  ``number`` counts per incarnation; each runs at most once."""

    session: Id
    sequence: Uint
    number: Uint
    client: Text


class Stop(NamedTuple):
    """Cancels these dispatches, also those that have not arrived yet."""

    numbers: Spans


class Statement(NamedTuple):
    """States what the router holds: of all numbers below ``next`` only ``live``
    still want an outcome, and of those ``cancelled`` want it at once.
    ``beat`` is the beat that it answers, 0 for a hello."""

    beat: Uint
    next: Uint
    live: Spans
    cancelled: Spans


class Retire(NamedTuple):
    """The worker will get no more work and is to tear down and exit."""


class Start(NamedTuple):
    """The first message to a worker: its id.  Body: an encoded record, what it is to
    host and by which limits."""

    version: Uint
    worker: Text


class Fetch(NamedTuple):
    """Asks for announced outcomes: for those of ``numbers`` there is room.  For those of
    ``later`` there is none yet; their announcements have arrived."""

    numbers: Spans
    later: Spans


Message: TypeAlias = (
    Hello | Request | Finish | Sync | Cancel | AskStats | Goodbye
    | KeyedRequest | KeyedCancel | AskKeys
    | Welcome | Outcome | Synced | Refused | Unknown | Cancelled | Stats | Error | KnownKeys
    | WorkerHello | WorkerBroken | Beat | WorkerOutcome | Missing | Declined | Announced
    | Dispatch | Stop | Statement | Retire | Start | Fetch
)  # fmt: skip

MESSAGES: tuple[Any, ...] = typing.get_args(Message)
"""Every message class, in the order of the protocol document."""

KINDS: dict[Any, int] = {
    Hello: 0, Request: 1, Finish: 2, Sync: 3, Cancel: 4, AskStats: 5, Goodbye: 6,
    KeyedRequest: 7, KeyedCancel: 8, AskKeys: 9,
    Welcome: 16, Outcome: 17, Synced: 18, Refused: 19, Unknown: 20, Cancelled: 21, Stats: 22,
    Error: 23, KnownKeys: 24,
    WorkerHello: 64, WorkerBroken: 65, Beat: 66, WorkerOutcome: 67, Missing: 68, Declined: 69,
    Announced: 70,
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
    KINDS[cls]: (cls, tuple(field.check for _, field in FIELDS[cls])) for cls in MESSAGES
}

_HELLOS = (Hello, WorkerHello)

EDGE_BYTES = 9
"""The edge of a span has at most so many bytes: so spans that fill a header have no more
items than one for each, and a header of shorter ones that many at most, too."""
FEWEST_ITEMS = 64
"""Any header may have so many items besides."""


def encode(message: Message) -> bytes:
    """The header frame of a message."""
    return cbor2.dumps((KINDS[type(message)], *message))


def readdressed(outcome: bytes, session: bytes, sequence: int) -> bytes:
    """The header of an :class:`Outcome`, made by :func:`encode`, for another request.

    Whoever waits for a key gets the same outcome, and only its first two fields differ: so
    the others are copied, which takes a tenth of what it takes to read and write them."""
    after = _SEQUENCE_AT + _UINT_BYTES.get(outcome[_SEQUENCE_AT], 1)
    return b"".join((outcome[:2], cbor2.dumps(session), cbor2.dumps(sequence), outcome[after:]))


_SEQUENCE_AT = 2 + 1 + ID_BYTES
"""In the header of an outcome: behind the head of the array, the kind, and the session."""
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
        raise ProtocolError(f"{cls.__name__} with {len(array) - 1} fields, not {len(checks)}")
    for index, check in enumerate(checks, 1):
        if not check(array[index]):
            name = FIELDS[cls][index - 1][0]
            raise ProtocolError(f"{cls.__name__}.{name} is not {FIELDS[cls][index - 1][1].cddl}")
    message: Message = cls(*array[1:])
    return message


class ForeignVersion(ProtocolError):
    """The peer speaks another major version."""


def encode_record(record: dict[str, Any]) -> bytes:
    """The body of statistics, and of a page of keys."""
    return cbor2.dumps(record)


def is_status(value: int) -> bool:
    """Whether a worker's status is one that the protocol knows."""
    return value in Status._value2member_map_

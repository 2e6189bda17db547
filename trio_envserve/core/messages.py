"""All messages of both links, and the codec of their headers.

Theory of operation
-------------------
A header is one CBOR array: the message's kind, then its fields in the order
of its class.  The class *is* the schema: each annotation carries a checker and the CDDL
of the field, so that decoding, the protocol document and the tests read the same lines.
A body, if a message has one, is a frame of its own that nobody here looks into.

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

import dataclasses
import operator
import re
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, repeat, starmap
from typing import Annotated, Any, Final, NamedTuple, TypeAlias

import cbor2

from . import strict_cbor
from .errors import ProtocolError
from .limits import BATCH_BYTES, KIB, PROTOCOL_VERSION
from .ranges import is_flat
from .terms import DIGEST_BYTES, ID_BYTES, NOTE_BYTES, TAG_BYTES, Body, SentBody, Status

# -- fields: the check of each type, and its notation in the protocol document --------------

MAX_UINT = 2**63
"""Exclusive bound of every integer on the wire."""


ABOUT = ("statistics", "keys", "running", "stack")
"""The records that a client can ask for."""

ABOUT_CDDL = " / ".join(f'"{each}"' for each in ABOUT)
"""The same in CDDL."""


@dataclasses.dataclass(frozen=True, slots=True)
class Field:
    """The check of a field, and its notation in the protocol document."""

    cddl: str
    """Notation in CDDL."""
    check: Callable[[Any], bool]
    """Whether a decoded value is allowed."""
    optional: bool = False
    """Whether it may be null, and left out at the end of a header; optional fields come last."""


def fields_of(message: type) -> tuple[tuple[str, Field], ...]:
    """The names and fields of a message class, in order."""
    hints = typing.get_type_hints(message, include_extras=True)
    return tuple((name, annotation.__metadata__[0]) for name, annotation in hints.items())


def is_uint(value: Any) -> bool:
    """Whether a value is a non-negative integer below :data:`MAX_UINT`."""
    return type(value) is int and 0 <= value < MAX_UINT


def _is_positive(value: Any) -> bool:
    return is_uint(value) and value > 0


def _is_id(value: Any) -> bool:
    return type(value) is bytes and len(value) == ID_BYTES


def _is_digest(value: Any) -> bool:
    return type(value) is bytes and len(value) in (ID_BYTES, DIGEST_BYTES)


def _is_tag(value: Any) -> bool:
    return is_uint(value) or (type(value) is bytes and 0 < len(value) <= TAG_BYTES)


def is_seconds(value: Any) -> bool:
    """Whether a value is None or a number of seconds below 10¹²."""
    return value is None or (type(value) in (int, float) and 0 <= value < 1e12)


def _is_record(value: Any) -> bool:
    return type(value) is dict and all(type(key) is str for key in value)


def is_ranges(value: Any) -> bool:
    """Whether a value is the wire form of :class:`~.ranges.Ranges`."""
    if type(value) is not list or not {int}.issuperset(map(type, value)):
        return False
    return not value or (is_flat(value) and is_uint(value[-1]))


def _is_notes(value: Any) -> bool:
    if type(value) is not list:
        return False
    return all(type(each) is bytes and len(each) <= NOTE_BYTES for each in value)


def _of_type(kind: type) -> Callable[[Any], bool]:
    """A check for instances of a type.  The decoder makes no instances of subclasses, but for
    bool."""
    return kind.__instancecheck__


_TRACEPARENT = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


def is_traceparent(value: Any) -> bool:
    """Whether a value is a traceparent of version 00 of W3C's Trace Context."""
    return type(value) is str and _TRACEPARENT.fullmatch(value) is not None


Uint: TypeAlias = Annotated[int, Field("uint", is_uint)]
Positive: TypeAlias = Annotated[int, Field("positive", _is_positive)]
Id: TypeAlias = Annotated[bytes, Field("id", _is_id)]
Digest: TypeAlias = Annotated[bytes, Field("digest", _is_digest)]
Bytes: TypeAlias = Annotated[bytes, Field("bstr", _of_type(bytes))]
Name: TypeAlias = Annotated["bytes | None", Field("bstr", _of_type(bytes), optional=True)]
Act: TypeAlias = Annotated[
    "int | None", Field("1..4", lambda v: type(v) is int and 0 < v < 5, optional=True)
]
About: TypeAlias = Annotated[str, Field(ABOUT_CDDL, ABOUT.__contains__)]
Tag: TypeAlias = Annotated["int | bytes | None", Field("tag", _is_tag, optional=True)]
Count: TypeAlias = Annotated["int | None", Field("uint", is_uint, optional=True)]
Text: TypeAlias = Annotated[str, Field("tstr", _of_type(str))]
Bool: TypeAlias = Annotated[bool, Field("bool", _of_type(bool))]
Choice: TypeAlias = Annotated[
    "bool | None", Field("bool / null", lambda v: v is None or type(v) is bool)
]
Seconds: TypeAlias = Annotated["float | None", Field("seconds / null", is_seconds)]
OptionalSeconds: TypeAlias = Annotated["float | None", Field("seconds", is_seconds, optional=True)]
Spans: TypeAlias = Annotated["list[int]", Field("spans", is_ranges)]
NoteList: TypeAlias = Annotated["list[bytes]", Field("[* note]", _is_notes)]
Record: TypeAlias = Annotated[dict[str, Any], Field("{* tstr => any}", _is_record)]
Traceparent: TypeAlias = Annotated[
    "str | None", Field("traceparent", is_traceparent, optional=True)
]
"""The parent of this work's spans; no decision depends on it."""

# -- client to router ---------------------------------------------------------


class Hello(NamedTuple):
    """Asks for a session.  The same nonce gets the same session, while that is open.

    ``caller`` is the same in all sessions of one that asks for keys.
    """

    version: Uint
    nonce: Id
    connection: Uint
    name: Text
    message_bytes: Uint
    caller: Id


class Request(NamedTuple):
    """Asks for one execution, or something of a key.  Every transmission has the same fields
    and the same body.

    ``digest``, without a key: any 16 bytes that differ when body or options differ; with one:
    32 bytes, a strong hash of input and consent (:func:`~.key_records.input_digest`).
    ``rerun`` is consent (null: as the environment declares); ``allowance`` the
    most executions that may be started for it, in all its sessions.  ``deadline_s`` is when it
    is answered at the latest, counted from its arrival; ``execution_s`` how long each execution
    may last, counted from its dispatch (null: as long as the server lets any).  ``grace_s`` is the
    end of that time in which the rollout is late: it has been told, and is to give what it has.
    ``traceparent`` is the caller's span, and no part of what ``digest`` is about.

    ``namespace`` and ``key`` name work that others may ask for, too; of such ``allowance``,
    ``execution_s`` and ``grace_s`` are those of the request that begins it.  ``act``: null ask,
    1 attach, 2 cancel, 3 forget, 4 leave.  ``tag`` says what a cancel or a forget hits.
    ``earlier``: the request is issued again, since its session was unknown, and of its allowance so
    many may have been started or may still run; all of it, where nothing proves that they have
    ended.
    Body: of an ask the encoded value, else empty.
    """

    session: Id
    sequence: Uint
    digest: Digest
    rerun: Choice
    allowance: Uint
    deadline_s: Seconds
    execution_s: Seconds = None
    traceparent: Traceparent = None
    namespace: Name = None
    key: Name = None
    act: Act = None
    tag: Tag = None
    earlier: Count = None
    grace_s: OptionalSeconds = None


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


class Query(NamedTuple):
    """Asks for a record about the server; needs no session.

    ``about``: ``statistics``; ``keys``, a page of the known keys of ``namespace`` (null: of all),
    from the generation with the number ``first`` on; ``running``, a page of the running
    executions, the oldest first, from the execution with the number ``first`` on; ``stack``, the
    stack of the execution with the number ``first``.  Null as ``first`` is 0."""

    probe: Uint
    about: About
    first: Count = None
    namespace: Name = None


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
    """The outcome of a request: the same fields and the same body however often it is sent,
    and in whatever batch.

    Body: the encoded value if ``status`` is a result, else an error record.
    """

    session: Id
    sequence: Uint
    status: Uint
    worker: Text
    duration_s: Seconds
    executions: Uint


class Delta(NamedTuple):
    """A delta of a request's outcome, that of the :class:`WorkerDelta` with this
    number.  The outcome has all of it, so a client may ignore deltas."""

    session: Id
    sequence: Uint
    delta: Uint


class Notes(NamedTuple):
    """The last notes of these requests' executions, in the order
    of the sequences.  It may be lost, so a client may ignore this."""

    session: Id
    sequences: Spans
    notes: NoteList


class Synced(NamedTuple):
    """Answers a sync: ``missing`` are the pending sequences never seen here."""

    session: Id
    probe: Uint
    missing: Spans
    server: Record


SESSION_FULL: Final = b""
"""The account in :class:`Refused` if no request of its session has room."""


class Refused(NamedTuple):
    """A request was not taken.  With ``delay_s``: for now, try again then.
    Without: for good.  Nothing has run for this transmission.

    ``full``, for now: the account that has no room.  A namespace; empty: that of the session,
    and no request has room; null: none, other requests may have room."""

    session: Id
    sequence: Uint
    code: Text
    text: Text
    delay_s: Seconds
    full: Name = None


class Unknown(NamedTuple):
    """The session is not known.  ``gone``: it is proven that nothing of it
    runs any more and nothing of it ever will.  ``settled``: besides, nothing of it was
    unfinished when it was forgotten; so what its client still has pending never ran.  What was
    cancelled and may have run counts as unfinished: the client may not have heard that."""

    session: Id
    gone: Bool
    epoch: Id
    settled: Bool


class Cancelled(NamedTuple):
    """Answers a cancel.  ``started`` false: it never ran and never will; null: its request
    never came, and will not be taken."""

    session: Id
    sequence: Uint
    started: Choice


class QueryAnswer(NamedTuple):
    """Answers :class:`Query`.  Body: an encoded record."""

    probe: Uint


class Error(NamedTuple):
    """A message could not be taken at all (malformed, foreign version)."""

    version: Uint
    code: Text
    text: Text


# -- worker to router ---------------------------------------------------------


class WorkerHello(NamedTuple):
    """The worker's environment is set up.  ``capacity`` is how many executions it takes at once: it
    is never given more.  ``epoch``: the router of the last :class:`RouterChanged`, empty before
    the first: the first answer to that."""

    version: Uint
    pid: Uint
    environment: Text
    rerun: Bool
    capacity: Positive
    epoch: Bytes = b""


UNLOADABLE = "unloadable"
"""Code of a :class:`WorkerBroken`: the environment cannot be found, imported or made, and
another start would do no better."""


class WorkerBroken(NamedTuple):
    """The environment could not be set up; the worker exits."""

    error: Record


class Beat(NamedTuple):
    """A sign of life of the worker's loop.  ``epoch`` is that of its last hello.  ``received`` is
    the number of the router's messages that have arrived since then, and ``sent`` that of the
    worker's own, from that hello on, but for beats and those that a host may lose.  ``live`` are
    the numbers of the dispatches that run here, or whose outcomes are announced and were not sent.
    A router that knows it otherwise ends the worker."""

    epoch: Bytes
    received: Uint
    sent: Uint
    live: Spans
    stats: Record


class WorkerOutcome(NamedTuple):
    """The outcome of a dispatch.  Exactly five frames for the router: its worker's id
    is put before these.  All rows of a batch are of one client."""

    session: Id
    sequence: Uint
    number: Uint
    status: Uint
    duration_s: Seconds


class Announced(NamedTuple):
    """A dispatch has ended, with an outcome whose body has so many bytes.  The worker
    keeps it until a :class:`Fetch` names it."""

    session: Id
    sequence: Uint
    number: Uint
    size_bytes: Uint


class WorkerDelta(NamedTuple):
    """One piece of what a dispatch will come to: its deltas are numbered from 0.  A host may
    lose them, and nobody asks for them again: the outcome has all of it.  Framed as
    :class:`WorkerOutcome`."""

    session: Id
    sequence: Uint
    number: Uint
    delta: Uint


class WorkerSave(NamedTuple):
    """A state that a dispatch saves for further executions of its request.  ``save`` counts those
    of this dispatch, from 1.  The next one is sent after its :class:`SaveAnswer`.  Framed as
    :class:`WorkerOutcome`; the body is the workers' own."""

    session: Id
    sequence: Uint
    number: Uint
    save: Positive


class WorkerNotes(NamedTuple):
    """The last notes of these dispatches, in the order of their numbers.
    A host may lose it, and nobody asks for it again: the next one says more."""

    numbers: Spans
    notes: NoteList


class Claim(NamedTuple):
    """An execution claims a permit of a name: of at most ``most`` that are held at once, or
    (``most`` is 0) of at most ``per_s`` that are granted in a second.  ``number`` is its dispatch;
    ``claim`` counts per incarnation.  ``held``: 1 if a router before this one has granted it."""

    number: Uint
    claim: Uint
    name: Text
    most: Uint
    per_s: Seconds
    held: Count = None


class ClaimsEnded(NamedTuple):
    """These claims have ended: their permits come back, or are not wanted any more."""

    claims: Spans


class ResourceIntended(NamedTuple):
    """The execution ``number`` is about to create a resource, outside of the worker, of a ``kind``;
    ``destroy`` refers to the function that destroys it.  ``resource`` counts per incarnation.
    ``here``: 1 if only workers of this host can destroy it."""

    number: Uint
    resource: Uint
    kind: Text
    destroy: Text
    here: Count = None


class ResourceStated(NamedTuple):
    """The holder of a resource states that it is created (``state`` 1) and has this ``handle``,
    that it is left, and why (2), or that it is gone (3).  ``turn``: the :class:`Clean` whose result
    that is.  :class:`ResourceAnswer` answers it."""

    name: Text
    state: Uint
    handle: Bytes
    why: Text
    turn: Count = None


UNCOUNTED = Beat, WorkerDelta, WorkerNotes
"""Messages that ``sent`` of a :class:`Beat` does not count: beats, and what a host may lose."""


# -- router to worker ---------------------------------------------------------


class Dispatch(NamedTuple):
    """Runs a request.  ``number`` counts per incarnation; each runs at most once.
    ``traceparent`` is the span of the execution, or that of the request's caller.  ``late_s``,
    counted from the arrival of the dispatch: when the rollout is late, and is to give what it has
    (null: never).  Of the body so many last bytes (``saved_bytes``) are the newest save of an
    earlier execution, if there is one."""

    session: Id
    sequence: Uint
    number: Uint
    client: Text
    traceparent: Traceparent = None
    late_s: OptionalSeconds = None
    saved_bytes: Count = None


class Stop(NamedTuple):
    """Cancels these dispatches; those that have ended here are ignored."""

    numbers: Spans


class RouterChanged(NamedTuple):
    """The first message of another router, with this ``epoch``, which takes the worker over.  The
    worker says again, once, what the router before may not have: its hello, then the announced
    outcomes, the saves without an answer, the claims that have not ended, and the intents and
    statements of resources that are not over.  A beat follows."""

    epoch: Id


class Retire(NamedTuple):
    """The worker will get no more work and is to tear down and exit."""


class Start(NamedTuple):
    """The first message to a worker: its id.  Body: an encoded record, what it is to
    host and by which limits."""

    version: Uint
    worker: Text


class Fetch(NamedTuple):
    """Asks for the announced outcomes of ``numbers``; those of ``unwanted`` are dropped."""

    numbers: Spans
    unwanted: Spans


class Granted(NamedTuple):
    """Grants these claims.  ``after_s``: those of a rate, whose code goes on after that time; they
    have ended with that."""

    claims: Spans
    after_s: Seconds


class SaveAnswer(NamedTuple):
    """Save ``save`` of a dispatch is safe.  With a text in ``refused`` nothing of it is kept, for
    this reason, and the save before it stays."""

    number: Uint
    save: Positive
    refused: Text


class ResourceAnswer(NamedTuple):
    """With ``resource``: the answer to a :class:`ResourceIntended`: the resource may be created
    under this ``name``, or (with a text in ``refused``) not at all.  Else the answer to a
    :class:`ResourceStated` with these ``name``, ``state`` and ``turn``."""

    name: Text
    state: Uint
    refused: Text
    resource: Count = None
    turn: Count = None


class Clean(NamedTuple):
    """Destroys a resource within so many seconds, and states the result; another router may send
    it again, and it is done once.  ``turn`` counts those of a resource.  Without a ``handle``
    nobody knows whether it was created."""

    name: Text
    turn: Positive
    kind: Text
    destroy: Text
    within_s: Seconds
    handle: Name = None


# -- the codec ---------------------------------------------------------------------------

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

OF_WORKERS = frozenset(cls for cls, kind in KINDS.items() if 64 <= kind < 80)
"""The messages of workers to their router."""

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

MessageRow: TypeAlias = "tuple[Message, Body | None]"
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
def in_batches(sent: Iterable[MessageRow]) -> Iterator[tuple[Body, ...]]: ...


@typing.overload
def in_batches(sent: Iterable[ToSay]) -> Iterator[tuple[SentBody, ...]]: ...


def in_batches(sent: Iterable[ToSay]) -> Iterator[tuple[SentBody, ...]]:
    """The frames of these messages, in this order.  Neighbours of one kind share a batch,
    as many as may."""
    kind: Any = None
    """Class of the rows; None if there are none."""
    rows: list[Message] = []
    bodies: list[SentBody] = []
    left_bytes = 0
    for message, body in sent:
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


def read(frames: Sequence[Body], *, most_bytes: int) -> Sequence[MessageRow]:
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


def kind_claimed(header: Body) -> Any:
    """Class of the message whose header begins so; None if there is none.  Nothing of it is
    checked."""
    first = header[1] if len(header) > 1 else 0  # behind the head of a short array
    kind = header[2] if first == 0x18 and len(header) > 2 else first
    return _BY_KIND.get(kind, (None,))[0]


def rows_claimed(header: Body) -> int:
    """Number of rows that a header claims by its first bytes; 1 if it claims none."""
    at = 1 + (header[1:2] == b"\x18") + 1  # behind the head of the array, and the kind
    head = header[at : at + 2]
    if len(head) < 2 or not 0x81 <= head[0] <= 0x98:
        return 1
    return head[0] - 0x80 if head[0] < 0x98 else head[1]


def open_header(header: Body, most_bytes: int) -> list[Any]:
    """The array of a header: the kind of its message, then fields that are not checked yet."""
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
    return array


def _opened(header: Body, most_bytes: int) -> tuple[Any, tuple[Check, ...], list[Any]]:
    """The class of a message, its checks, and its fields, not checked yet."""
    array = open_header(header, most_bytes)
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
) -> Sequence[MessageRow]:
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
    rows = starmap(cls, zip(*columns, strict=True))
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

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

import dataclasses
import io
import re
import typing
from collections.abc import Callable
from typing import Annotated, Any, Final, NamedTuple, TypeAlias, TypeVar

import cbor2

from .cbor_heads import head
from .errors import ErrorInfo, ProtocolError
from .limits import PROTOCOL_VERSION
from .ranges import increase
from .terms import ID_BYTES, Status, Verdict

T = TypeVar("T")

MAX_UINT = 2**63
"""Exclusive bound of every integer on the wire."""


@dataclasses.dataclass(frozen=True, slots=True)
class Field:
    """How a field is checked, and how the protocol document spells it."""

    cddl: str
    check: Callable[[Any], bool]


def _is_uint(value: Any) -> bool:
    return type(value) is int and 0 <= value < MAX_UINT


def _is_id(value: Any) -> bool:
    return type(value) is bytes and len(value) == ID_BYTES


def _is_seconds(value: Any) -> bool:
    return value is None or (type(value) in (int, float) and 0 <= value < 1e12)


def _is_record(value: Any) -> bool:
    return type(value) is dict and all(type(key) is str for key in value)


def _is_ranges(value: Any) -> bool:
    if type(value) is not list or len(value) % 2 or not {int}.issuperset(map(type, value)):
        return False
    return not value or (increase(value) and value[0] >= 0 and _is_uint(value[-1]))


Uint: TypeAlias = Annotated[int, Field("uint", _is_uint)]
Id: TypeAlias = Annotated[bytes, Field("id", _is_id)]
Text: TypeAlias = Annotated[str, Field("tstr", lambda v: type(v) is str)]
Bool: TypeAlias = Annotated[bool, Field("bool", lambda v: type(v) is bool)]
Choice: TypeAlias = Annotated[
    "bool | None", Field("bool / null", lambda v: v is None or type(v) is bool)
]
Seconds: TypeAlias = Annotated["float | None", Field("seconds / null", _is_seconds)]
Spans: TypeAlias = Annotated["list[int]", Field("spans", _is_ranges)]
Record: TypeAlias = Annotated["dict[str, Any]", Field("{* tstr => any}", _is_record)]


KINDS: dict[type, int] = {}
"""The kind of each message class: the first element of its header."""


def _kind(number: int) -> Callable[[type[T]], type[T]]:
    def mark(cls: type[T]) -> type[T]:
        KINDS[cls] = number
        return cls

    return mark


# -- client to router ---------------------------------------------------------


@_kind(0)
class Hello(NamedTuple):
    """Asks for a session.  The same nonce gets the same session, while that is open."""

    version: Uint
    nonce: Id
    connection: Uint
    name: Text
    message_bytes: Uint


@_kind(1)
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


@_kind(2)
class Finish(NamedTuple):
    """The client has the outcomes of these sequences, or wants none."""

    session: Id
    finished: Spans


@_kind(3)
class Sync(NamedTuple):
    """States what the client holds: all below ``next`` and not in ``pending``
    is finished.  Also the ping; answered by :class:`Synced` or :class:`Unknown`."""

    session: Id
    epoch: Id
    connection: Uint
    probe: Uint
    next: Uint
    pending: Spans


@_kind(4)
class Cancel(NamedTuple):
    """Finishes one sequence and asks whether it ever started."""

    session: Id
    sequence: Uint


@_kind(5)
class AskStats(NamedTuple):
    """Asks for the server's statistics; needs no session."""

    probe: Uint


@_kind(6)
class Goodbye(NamedTuple):
    """Ends the session: whatever is not finished is cancelled.  ``session`` is its id,
    or, where no welcome has come yet, the nonce of the hello."""

    session: Id


# -- router to client ---------------------------------------------------------


@_kind(16)
class Welcome(NamedTuple):
    """Grants a session.  ``server`` is the status record of :class:`Synced`."""

    version: Uint
    nonce: Id
    session: Id
    epoch: Id
    window: Uint
    message_bytes: Uint
    server: Record


@_kind(17)
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


@_kind(18)
class Synced(NamedTuple):
    """Answers a sync: ``missing`` are the pending sequences never seen here."""

    session: Id
    probe: Uint
    missing: Spans
    server: Record


@_kind(19)
class Refused(NamedTuple):
    """A request was not taken.  With ``delay_s``: for now, try again then.
    Without: for good.  Nothing has run for this transmission."""

    session: Id
    sequence: Uint
    code: Text
    text: Text
    delay_s: Seconds


@_kind(20)
class Unknown(NamedTuple):
    """The session is not known.  ``gone``: it is proven that nothing of it
    runs any more and nothing of it ever will.  ``settled``: besides, nothing of it was
    unfinished when it was forgotten; so what its client still has pending never ran."""

    session: Id
    gone: Bool
    epoch: Id
    settled: Bool


@_kind(21)
class Cancelled(NamedTuple):
    """Answers a cancel.  ``started`` false: it never ran and never will."""

    session: Id
    sequence: Uint
    started: Bool


@_kind(22)
class Stats(NamedTuple):
    """Answers :class:`AskStats`.  Body: an encoded record."""

    probe: Uint


@_kind(23)
class Error(NamedTuple):
    """A message could not be taken at all (malformed, foreign version)."""

    version: Uint
    code: Text
    text: Text


# -- worker to router ---------------------------------------------------------


@_kind(64)
class WorkerHello(NamedTuple):
    """The worker's environment is set up; repeated until a :class:`State` comes."""

    version: Uint
    pid: Uint
    environment: Text
    rerun: Bool


@_kind(65)
class WorkerBroken(NamedTuple):
    """The environment could not be set up; the worker exits."""

    error: Record


@_kind(66)
class Beat(NamedTuple):
    """A sign of life of the worker's loop; answered by :class:`State`.
    ``seen`` are the numbers of the dispatches that have arrived."""

    beat: Uint
    seen: Spans
    stats: Record


@_kind(67)
class WorkerOutcome(NamedTuple):
    """The outcome of a dispatch.  Exactly five frames for the router: its worker's id
    is put before these."""

    session: Id
    sequence: Uint
    number: Uint
    status: Uint
    duration_s: Seconds


@_kind(68)
class Missing(NamedTuple):
    """Dispatches that :class:`State` named live and that never arrived."""

    numbers: Spans


@_kind(69)
class Declined(NamedTuple):
    """Dispatches that never arrived and are cancelled: they will not be run,
    should they arrive yet."""

    numbers: Spans


@_kind(70)
class Announced(NamedTuple):
    """A dispatch has ended, with an outcome whose body has so many bytes.  The worker
    keeps it until :class:`Fetch` asks for it."""

    session: Id
    sequence: Uint
    number: Uint
    size_bytes: Uint


# -- router to worker ---------------------------------------------------------


@_kind(80)
class Dispatch(NamedTuple):
    """Runs a request.  ``number`` counts per incarnation; each runs at most once."""

    session: Id
    sequence: Uint
    number: Uint
    client: Text


@_kind(81)
class Stop(NamedTuple):
    """Cancels these dispatches, also those that have not arrived yet."""

    numbers: Spans


@_kind(82)
class State(NamedTuple):
    """States what the router holds: of all numbers below ``next`` only ``live``
    still want an outcome, and of those ``cancelled`` want it at once.
    ``beat`` is the beat that it answers, 0 for a hello."""

    beat: Uint
    next: Uint
    live: Spans
    cancelled: Spans


@_kind(83)
class Retire(NamedTuple):
    """The worker will get no more work and is to tear down and exit."""


@_kind(84)
class Start(NamedTuple):
    """The first message to a worker: its id.  Body: an encoded record, what it is to
    host and by which limits."""

    version: Uint
    worker: Text


@_kind(85)
class Fetch(NamedTuple):
    """Asks for announced outcomes: for those of ``numbers`` there is room.  For those of
    ``later`` there is none yet; their announcements have arrived."""

    numbers: Spans
    later: Spans


Message: TypeAlias = (
    Hello | Request | Finish | Sync | Cancel | AskStats | Goodbye
    | Welcome | Outcome | Synced | Refused | Unknown | Cancelled | Stats | Error
    | WorkerHello | WorkerBroken | Beat | WorkerOutcome | Missing | Declined | Announced
    | Dispatch | Stop | State | Retire | Start | Fetch
)  # fmt: skip

MESSAGES: tuple[Any, ...] = typing.get_args(Message)
"""Every message class, in the order of the protocol document."""

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


class _NoTags(dict[int, Any]):
    """No tag but those of large integers: others make cbor2 build what is no plain
    data, among it values that contain themselves and cannot be encoded again."""

    def __missing__(self, tag: int) -> typing.NoReturn:
        if tag in (2, 3):
            raise KeyError(tag)  # says: use your own
        raise ValueError(f"tag {tag}")


_NO_TAGS = _NoTags()


def encode(message: Message) -> bytes:
    """The header frame of a message."""
    return cbor2.dumps((KINDS[type(message)], *message))


def decode(header: bytes | memoryview, *, most_bytes: int) -> Message:
    """The message of a header frame, every field checked.

    ProtocolError says what is wrong; it never quotes the peer's bytes at
    length.
    """
    if len(header) > most_bytes:
        raise ProtocolError(f"header of {len(header)} bytes, {most_bytes} allowed")
    if len(header) > _LEAST_LOOKED_AT and not _mostly_numbers(memoryview(header)):
        raise ProtocolError(f"header of more than {_MOST_OTHERS} items that are not numbers")
    try:
        stream = io.BytesIO(header)
        array = cbor2.load(
            stream, max_depth=8, allow_indefinite=False, allow_duplicate_keys=False,
            # Other keys can be chosen so that their hashes collide.
            strict_hashable_types=True, semantic_decoders=_NO_TAGS, read_size=len(header) or 1,
        )  # fmt: skip
        if stream.tell() != len(header):  # cbor2 itself does not mind what follows
            raise ValueError("bytes after the array")
    except Exception as error:  # cbor2 documents no complete list of what hostile bytes raise
        raise ProtocolError(f"header is not CBOR: {type(error).__name__}") from None
    if type(array) is not list or not array or not _is_uint(array[0]):
        raise ProtocolError("header is not an array that begins with a kind")
    known = _BY_KIND.get(array[0])
    if known is None:
        raise ProtocolError(f"unknown kind {array[0]}")
    cls, checks = known
    if cls in _HELLOS and (len(array) < 2 or array[1] != PROTOCOL_VERSION):
        version = array[1] if len(array) > 1 and _is_uint(array[1]) else "?"
        raise ForeignVersion(f"protocol version {version} is not spoken, {PROTOCOL_VERSION} is")
    if len(array) != len(checks) + 1:
        raise ProtocolError(f"{cls.__name__} with {len(array) - 1} fields, not {len(checks)}")
    for index, check in enumerate(checks, 1):
        if not check(array[index]):
            name = FIELDS[cls][index - 1][0]
            raise ProtocolError(f"{cls.__name__}.{name} is not {FIELDS[cls][index - 1][1].cddl}")
    message: Message = cls(*array[1:])
    return message


_NUMBERS: Final = re.compile(rb"(?:[\x00-\x17]|\x18.|\x19..|\x1a....|\x1b........)++", re.DOTALL)
_LEAST_LOOKED_AT: Final = 64 * 1024
_MOST_ERROR_BYTES: Final = 1024 * 1024
"""An error record: six texts of 128 KiB are less."""
_MOST_OTHERS: Final = 4096
"""A long header is long for its numbers.  One of a million arrays would take half a
second, and the router has one loop."""


def _mostly_numbers(header: memoryview) -> bool:
    """Whether a header has few items that are not natural numbers."""
    position = 0
    for _ in range(_MOST_OTHERS):
        run = _NUMBERS.match(header, position)
        if run is not None:
            position = run.end()
        if position >= len(header):
            return True
        major, argument, position = head(header, position)
        if argument < 0:
            return True  # it is malformed, and decoding it ends here
        if major in (2, 3):
            position += argument
    return False


class ForeignVersion(ProtocolError):
    """The peer speaks another major version."""


# -- error records ------------------------------------------------------------


def error_record(info: ErrorInfo, *, most_bytes: int = 128 * 1024) -> dict[str, Any]:
    """An error as plain data that can be encoded, whatever its texts hold.

    A text of more than ``most_bytes`` keeps its beginning and its end.
    """
    record = dataclasses.asdict(info)
    record["verdict"] = info.verdict.name
    for name, value in record.items():
        if isinstance(value, str):
            record[name] = _clipped(value, most_bytes)
    return record


def _clipped(text: str, most_bytes: int) -> str:
    """Valid UTF-8 of about ``most_bytes`` at most, less out of the middle."""
    raw = text.encode("utf-8", "backslashreplace")
    if len(raw) <= most_bytes:
        return raw.decode()
    half = most_bytes // 2
    first, last = raw[:half].decode(errors="ignore"), raw[-half:].decode(errors="ignore")
    return f"{first}\n[... {len(raw) - 2 * half} bytes left out ...]\n{last}"


def encode_error(info: ErrorInfo, *, most_bytes: int = 128 * 1024) -> bytes:
    """The body of an error outcome; see :func:`error_record`."""
    return cbor2.dumps(error_record(info, most_bytes=most_bytes))


def decode_error(body: bytes | memoryview) -> ErrorInfo:
    """The error record of an outcome.  A record that cannot be read is still
    an error, and of a request that ran or may have run: it says so."""
    try:
        if len(body) > _MOST_ERROR_BYTES or not _mostly_numbers(memoryview(body)):
            raise ValueError("too large")
        record = cbor2.loads(
            body, max_depth=8, allow_indefinite=False, strict_hashable_types=True,
            semantic_decoders=_NO_TAGS,
        )  # fmt: skip
        names = {field.name for field in dataclasses.fields(ErrorInfo)}
        known = {key: value for key, value in record.items() if key in names}
        known["verdict"] = Verdict[known["verdict"]]
        info = ErrorInfo(**known)
        texts = (info.code, info.message, info.type, info.traceback, info.worker, info.incarnation)
        if not all(type(text) is str for text in texts):
            raise TypeError("a text field is not text")
        if not (_is_seconds(info.duration_s) and _is_uint(info.executions)):
            raise TypeError("a number field is not a number")
        return info
    except Exception as error:  # whatever a broken record raises, the caller must be told
        return ErrorInfo(
            code="unreadable",
            verdict=Verdict.MAY_HAVE_RUN,
            message=f"the error record of the outcome cannot be read: {type(error).__name__}",
        )


def encode_record(record: dict[str, Any]) -> bytes:
    """The body of statistics."""
    return cbor2.dumps(record)


def is_status(value: int) -> bool:
    """Whether a worker's status is one that the protocol knows."""
    return value in Status._value2member_map_

"""Every message between clients and the router.

A class *is* the schema of a header (:mod:`.messages`): its fields in this order, each
annotation with a checker and the CDDL of the field.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from .fields import (
    About,
    Act,
    Bool,
    Choice,
    Count,
    Digest,
    Id,
    Name,
    NoteList,
    OptionalSeconds,
    Record,
    Seconds,
    Spans,
    Tag,
    Text,
    Traceparent,
    Uint,
)

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
    1 attach, 2 cancel, 3 forget.  ``tag`` says what a cancel or a forget hits.  ``earlier``: the
    request is issued again, since its session was unknown, and of its allowance so many may have
    been started or may still run; all of it, where nothing proves that they have ended.
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
    """A delta of a request's outcome, that of the :class:`~.worker_messages.WorkerDelta` with this
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

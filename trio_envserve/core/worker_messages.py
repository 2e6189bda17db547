"""Every message between workers and the router.

Each class is the schema of a header (:mod:`.messages`): its fields in their order, each annotated
with its check and its CDDL.
"""

from __future__ import annotations

from typing import NamedTuple

from .fields import (
    Bool,
    Bytes,
    Count,
    Id,
    MaybeSpans,
    Name,
    NoteList,
    OptionalSeconds,
    OptionalText,
    Positive,
    Record,
    Seconds,
    Spans,
    Text,
    Traceparent,
    Uint,
)

# -- worker to router ---------------------------------------------------------


class WorkerHello(NamedTuple):
    """The worker's environment is set up; repeated until a :class:`Statement` comes.
    ``capacity`` is how many executions it takes at once: it is never given more."""

    version: Uint
    pid: Uint
    environment: Text
    rerun: Bool
    capacity: Positive


UNLOADABLE = "unloadable"
"""Code of a :class:`WorkerBroken`: the environment cannot be found, imported or made, and
another start would do no better."""


class WorkerBroken(NamedTuple):
    """The environment could not be set up; the worker exits."""

    error: Record


class Beat(NamedTuple):
    """A sign of life of the worker's loop; answered by :class:`Statement`.
    ``seen`` are the numbers of the dispatches that have arrived.  ``made`` is how many claims
    the worker has ever made, ``claims`` those among them that have not ended, and ``held`` those
    that were granted, by whichever router."""

    beat: Uint
    seen: Spans
    stats: Record
    made: Count = None
    claims: MaybeSpans = None
    held: MaybeSpans = None


class WorkerOutcome(NamedTuple):
    """The outcome of a dispatch.  Exactly five frames for the router: its worker's id
    is put before these.  All rows of a batch are of one client."""

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


class WorkerDelta(NamedTuple):
    """One piece of what a dispatch will come to: its deltas are numbered from 0.  They may
    be lost, and nobody asks for them again: the outcome has all of it.  Framed as
    :class:`WorkerOutcome`."""

    session: Id
    sequence: Uint
    number: Uint
    delta: Uint


class WorkerSave(NamedTuple):
    """A state that a dispatch saves for further executions of its request.  ``save`` counts those
    of this dispatch, from 1.  It is sent again until :class:`SaveAnswer` comes; only then the next
    one is sent.  Framed as :class:`WorkerOutcome`; the body is the workers' own."""

    session: Id
    sequence: Uint
    number: Uint
    save: Positive


class WorkerNotes(NamedTuple):
    """The last notes of these dispatches, in the order of their numbers.
    It may be lost, and nobody asks for it again: the next one says more."""

    numbers: Spans
    notes: NoteList


class Claim(NamedTuple):
    """An execution claims a permit of a name: of at most ``most`` that are held at once, or
    (``most`` is 0) of at most ``per_s`` that are granted in a second.  ``number`` is its dispatch;
    ``claim`` counts per incarnation."""

    number: Uint
    claim: Uint
    name: Text
    most: Uint
    per_s: Seconds


class ClaimsEnded(NamedTuple):
    """These claims have ended: their permits come back, or are not wanted any more."""

    claims: Spans


class ResourceIntended(NamedTuple):
    """The execution ``number`` is about to create a resource, outside of the worker, of a ``kind``;
    ``destroy`` refers to the function that destroys it.  ``resource`` counts per incarnation.  It
    is sent again until :class:`ResourceAnswer` comes with a name; to another router with the
    ``name`` that it has.  ``here``: 1 if only workers of this host can destroy it."""

    number: Uint
    resource: Uint
    kind: Text
    destroy: Text
    name: OptionalText = None
    here: Count = None


class ResourceStated(NamedTuple):
    """The holder of a resource states that it is created (``state`` 1) and has this ``handle``,
    that it is left, and why (2), or that it is gone (3).  ``turn``: the :class:`Clean` whose result
    that is.  It is sent again until :class:`ResourceAnswer` comes."""

    name: Text
    state: Uint
    handle: Bytes
    why: Text
    turn: Count = None


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
    """Cancels these dispatches, also those that have not arrived yet."""

    numbers: Spans


class Statement(NamedTuple):
    """States what the router holds: of all numbers below ``next`` only ``live``
    still want an outcome, and of those ``cancelled`` want it at once.
    ``beat`` is the beat that it answers, 0 for a hello.  ``claims`` are the claims of the worker
    that the router knows, and ``granted`` those among them that it has granted."""

    beat: Uint
    next: Uint
    live: Spans
    cancelled: Spans
    claims: MaybeSpans = None
    granted: MaybeSpans = None


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
    """Destroys a resource within so many seconds, and states the result; it may be sent again, and
    is done once.  ``turn`` counts those of a resource.  Without a ``handle`` nobody knows whether
    it was created."""

    name: Text
    turn: Positive
    kind: Text
    destroy: Text
    within_s: Seconds
    handle: Name = None

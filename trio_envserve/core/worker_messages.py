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
    Name,
    NoteList,
    OptionalSeconds,
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
    """A sign of life of the worker's loop.  ``epoch`` is that of its last hello.  ``heard`` is the
    number of the router's messages that have arrived since then, and ``sent`` that of the worker's
    own, from that hello on, but for beats and those that a host may lose.  ``live`` are the numbers
    of the dispatches that run here, or whose outcomes are announced and were not sent.  A router
    that knows it otherwise ends the worker."""

    epoch: Bytes
    heard: Uint
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

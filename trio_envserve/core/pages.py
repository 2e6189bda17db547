"""A server's lists of its keys and of running executions, typed, a page at a time.

On the wire a page is a map of plain data (:mod:`.key_pages`, :mod:`.running`), to which
later versions may add keys.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from . import notes
from .errors import ProtocolError
from .notes import Note
from .typed_records import checked, typed


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class KnownKey:
    """A server's record of one generation of a key."""

    namespace: str
    """Owner of the key."""
    key: str
    """Name of the key."""
    generation: int
    """Number of the generation; a later one has a greater number."""
    state: str
    """``held`` (an execution of an earlier generation still ends), ``waiting``, ``running``,
    ``completed`` (its outcome is retained), or ``closed`` (cancelled or forgotten, and its
    execution still ends)."""
    waiters: int = 0
    """Number of requests that wait, or have the outcome and have not acknowledged it."""
    watchers: int = 0
    """Number of requests that are attached, and do not count."""
    lost: int = 0
    """Number of callers that were lost with their lease, and go on counting."""
    executions: int = 0
    """Number of executions that were started for it."""
    age_s: float = 0.0
    """Seconds since it was first asked for, in which the server was awake."""
    left_s: float | None = None
    """Seconds until it is cancelled as an orphan or its retention ends; None while neither runs."""
    size_bytes: int = 0
    """Bytes of its name, its retained outcome, and its input while that is held."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class KeyPage:
    """A page of the keys that a server knows, in the order in which they were asked for."""

    keys: tuple[KnownKey, ...]
    """The keys."""
    next: int | None = None
    """Generation with which the next page begins; None if this is the last page.  More keys may
    follow a page without any."""
    generations: int = 0
    """Number of generations in the namespace, or in all."""
    size_bytes: int = 0
    """Bytes of these generations."""

    @classmethod
    def of(cls, record: Any) -> KeyPage:
        """The page for the record on the wire.  ProtocolError if it is none."""
        if not isinstance(record, dict):
            raise ProtocolError(f"a page of keys is of type {type(record).__name__}")
        return typed(cls, record, keys=tuple(map(_known_key, checked(record, "keys", list, []))))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunningRollout:
    """A server's record of one running execution: a rollout, or a group."""

    number: int
    """Number of the execution; a later one has a greater number."""
    request: str = ""
    """The request id, as logs have it."""
    client: str = ""
    """The name of the client that asks; empty for the work of a key."""
    namespace: str | None = None
    """The owner of its key; None if it has none."""
    key: str | None = None
    """None if it has no key."""
    environment: str = ""
    """The environment's own name."""
    state: str = "running"
    """``running``, or ``stopping`` if it was told to stop and has not ended."""
    executions: int | None = None
    """Which execution of its request it is; None while it is stopping.  Attempts within it
    are in the note."""
    worker: str = ""
    """The worker that runs it: slot and life."""
    age_s: float = 0.0
    """Seconds since its dispatch, in which the server was awake."""
    note: Note = dataclasses.field(default_factory=dict)
    """Last note of the rollout."""
    where: str = ""
    """If the loop of its worker is blocked, or its interpreter is held: the innermost lines of
    where that stands."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunningPage:
    """A page of the running executions, the oldest first."""

    running: tuple[RunningRollout, ...]
    """The executions."""
    next: int | None = None
    """Execution with which the next page begins; None if this is the last page."""
    total: int = 0
    """Number of running executions in all."""
    typical_s: float | None = None
    """Median duration of the last executions, in seconds; None while none has ended."""

    @classmethod
    def of(cls, record: Any) -> RunningPage:
        """The page for the record on the wire.  ProtocolError if it is none."""
        if not isinstance(record, dict):
            raise ProtocolError(f"a page of what runs is of type {type(record).__name__}")
        rows = checked(record, "running", list, [])
        return typed(cls, record, running=tuple(map(_running, rows)))


def _running(record: Any) -> RunningRollout:
    if not isinstance(record, dict):
        raise ProtocolError(f"a running rollout is of type {type(record).__name__}")
    names: dict[str, str | None] = {}
    for part in ("namespace", "key"):
        name = checked(record, part, (bytes, type(None)), None)
        names[part] = None if name is None else name.decode("utf-8", "backslashreplace")
    note = notes.decode(checked(record, "note", bytes, b""))
    return typed(RunningRollout, record, note=note, **names)


def _known_key(record: Any) -> KnownKey:
    if not isinstance(record, dict):
        raise ProtocolError(f"a key is of type {type(record).__name__}")
    names = {
        name: checked(record, name, bytes, b"").decode("utf-8", "backslashreplace")
        for name in ("namespace", "key")
    }
    return typed(KnownKey, record, **names)

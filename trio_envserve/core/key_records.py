"""Keys: how a caller names a work, and what it may ask of a key."""

from __future__ import annotations

import dataclasses
import enum
import hashlib
from typing import NamedTuple, TypeAlias

from .errors import ProtocolError
from .terms import DIGEST_BYTES, SentBody, pieces_of

CallerToken: TypeAlias = bytes
"""The name of a caller in all its sessions, also after its process was started anew; of a
caller that gives none, one that its client has drawn."""

Tag: TypeAlias = "int | bytes | None"
"""The target of a command by key: the generation of this number, or, for an id of the command's
own, whichever is open when it first arrives.  So a copy of it hits nothing else.  None: the
same, and copies are known by the id of the request, which is refused if it is issued again."""


class KeyName(NamedTuple):
    """A key in its namespace.  The same key in another namespace is another one."""

    namespace: bytes
    key: bytes

    @property
    def size_bytes(self) -> int:
        """The bytes of both."""
        return len(self.namespace) + len(self.key)


def input_digest(body: SentBody, rerun: bool | None) -> bytes:
    """The digest of a keyed request: a strong hash, since other processes must come to the
    same one and nobody to it with another input.  ``body`` is encoded deterministically."""
    consent = b"?" if rerun is None else b"1" if rerun else b"0"
    digest = hashlib.blake2b(consent, digest_size=DIGEST_BYTES)
    for piece in pieces_of(body):
        digest.update(piece)
    return digest.digest()


class KeyAct(enum.IntEnum):
    """The kind of a request about a key."""

    ASK = 0
    """Run this input under the key, unless that is done or under way; and the outcome."""
    ATTACH = 1
    """The outcome of what was asked under it."""
    CANCEL = 2
    FORGET = 3
    LEAVE = 4
    """Its caller gives up what it has asked for under it in earlier sessions."""


class Keyed(NamedTuple):
    """A request about a key."""

    act: KeyAct
    name: KeyName
    tag: Tag = None
    """Target of a cancel or a forget."""


def keyed_of(namespace: bytes | None, key: bytes | None, act: int | None, tag: Tag) -> Keyed | None:
    """The question about a key of a request with these fields; None if it has none.
    ProtocolError if it says something of a key that it does not name."""
    if key is not None:
        return Keyed(KeyAct(act or 0), KeyName(namespace or b"", key), tag)
    if (namespace, act, tag) != (None, None, None):
        raise ProtocolError("something of a key, which it does not name")
    return None


@dataclasses.dataclass(slots=True, eq=False)
class Payload:
    """The outcome of a generation: its namespace is charged once with it, however many
    requests are answered with it and have not finished, and until the last of them has."""

    namespace: bytes
    size_bytes: int
    holders: int
    """The generation while it is open, and those requests."""
    after: int = 0
    """So much of the journal is to be safe before anybody is answered with it."""

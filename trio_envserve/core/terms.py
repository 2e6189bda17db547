"""The vocabulary: small types that every layer shares.

The words are those of the protocol document.  Ids are plain ``bytes`` on the
wire; the aliases below say which kind is meant where.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import NamedTuple, TypeAlias, final

from .strict_cbor import head

SessionId: TypeAlias = bytes
"""128 random bits from the server's welcome.  Knowing it is the right to use
the session, so it is never logged whole (see :func:`short`)."""

Epoch: TypeAlias = bytes
"""128 random bits, fresh for each start of a server."""

Incarnation: TypeAlias = bytes
"""128 random bits, fresh for each worker process."""

Membership: TypeAlias = bytes
"""128 random bits, fresh for each time that a host joins a router."""

Route: TypeAlias = bytes
"""The routing id under which a socket reaches a peer."""

Body: TypeAlias = "bytes | memoryview"
"""An encoded value.  Opaque to the router."""


@final
class BodyParts:
    """A large body that is sent: the pieces that it consists of, which nobody changes any
    more.  To join them would copy what is large once more than is needed: whoever writes it
    somewhere writes them one after the other."""

    __slots__ = ("_size", "pieces")

    def __init__(self, pieces: Iterable[bytes | memoryview]) -> None:
        """Views have bytes as their items."""
        self.pieces = tuple(pieces)
        self._size = sum(map(len, self.pieces))

    def __len__(self) -> int:
        return self._size

    def __bytes__(self) -> bytes:
        return b"".join(self.pieces)

    def __getitem__(self, few: slice) -> Body:
        """The first bytes: so many as small pieces have, which stand together."""
        return self.pieces[0][few]


SentBody: TypeAlias = "bytes | memoryview | BodyParts"
"""A body on its way out."""


def whole(body: SentBody) -> Body:
    """The body in one piece."""
    return bytes(body) if isinstance(body, BodyParts) else body


def pieces_of(body: SentBody) -> tuple[Body, ...]:
    """The pieces of the body, in order."""
    return body.pieces if isinstance(body, BodyParts) else (body,)


BYTE_COST = 8
"""Cost of a byte of a body, in bytes of memory that its value may take."""

_BEGIN = slice(6)
COST_HEADER = bytes.fromhex("da 656e7608 82")
"""Begin of a body with a header: tag 1701737992, whose content is the cost and the value."""


def stated_cost(body: SentBody) -> tuple[int | None, int]:
    """The cost in the header of a body, None if there is no header; and where the value begins."""
    begin = memoryview(body[: 6 + 9])
    if begin[:6] != COST_HEADER or len(begin) == 6:
        return None, 0
    major, cost, at = head(begin, 6)
    return (None, 0) if major or cost < 0 else (cost, at)


def weight(body: SentBody) -> int:
    """The bytes for which a body counts wherever bodies are bounded: its length, or what its
    header says that its value costs, if that is more for each byte than a body may cost."""
    if body[_BEGIN] != COST_HEADER:  # as most are
        return len(body)
    cost, _ = stated_cost(body)
    return len(body) if cost is None else max(len(body), cost // BYTE_COST)


ID_BYTES = 16
"""Length of session ids, epochs, incarnations, nonces and digests."""


DIGEST_BYTES = 32
"""Length of the digests of keyed requests."""

NOTE_BYTES = 1024
"""Longest note of a rollout, as it travels."""

TAG_BYTES = 64
"""Longest id of a key command: the server remembers it (G8)."""


class RequestId(NamedTuple):
    """Id of a request, the same in all its transmissions."""

    session: SessionId
    sequence: int

    def __str__(self) -> str:
        return f"{short(self.session)}#{self.sequence}"


class Verdict(enum.Enum):
    """The knowledge of an unsuccessful call about its own execution.

    Exactly one of these is true of every error that ends a call (G9).
    """

    DID_NOT_RUN = "it did not run"
    RAN_AND_FAILED = "it ran and failed"
    MAY_HAVE_RUN = "it may have run"


class Status(enum.IntEnum):
    """The kind of an outcome: final, exactly one for a request."""

    RESULT = 0
    ERROR = 1
    CANCELLED = 2


def short(identifier: bytes) -> str:
    """The first four bytes in hex: enough to tell ids apart in a log, too
    little to use a session by."""
    return bytes(identifier[:4]).hex()


def worker_name(worker: bytes, host: str) -> str:
    """A worker's id for people, with the host that has it, if that is another machine."""
    name = worker.decode("ascii", "replace")
    return f"{name}@{host}" if host else name


def gist(text: str, most_chars: int) -> str:
    """A text of several lines on one, without the lines in which no word stands."""
    lines = (" ".join(line.split()) for line in text.splitlines())
    joined = " ".join(line for line in lines if any(map(str.isalnum, line)))
    return joined if len(joined) <= most_chars else f"{joined[:most_chars]} ..."


def one_line(text: str, most_bytes: int) -> str:
    """A peer's text as it may stand in a log or a title: printable, and short."""
    printable = "".join(char if char.isprintable() else "?" for char in text[:most_bytes])
    return printable.encode("utf-8", "replace")[:most_bytes].decode(errors="ignore")

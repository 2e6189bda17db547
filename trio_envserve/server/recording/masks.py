"""What stands for an id in a recording, so that a recording opens no session.

Theory of operation
-------------------
Who knows a session's id may use it, and a worker's incarnation or a client's
nonce is as good.  To the router they are only equal or not, so a recording has
others in their place: the first four bytes are kept, which is what logs show
(:func:`~trio_envserve.core.terms.short`), and the rest is a hash under a key
that nobody keeps.  The router does the same with them, byte for byte.

In a header they stand at known places, if its sender encodes as this project
does.  Any other header is searched for all ids that were met before.  Epochs,
digests and routes are no secrets and stay.
"""

from __future__ import annotations

from hashlib import blake2b

from ...core import messages
from ...core.errors import ProtocolError
from ...core.limits import PROTOCOL_VERSION
from ...core.terms import ID_BYTES

MOST_IDS = 100_000
"""Ids whose mask is remembered; past it they are worked out again."""

_TRIES = 64
_TRIED = (0xFF, 0x7F, 0x17)
"""Of the bytes that are tried instead: any, those of a text, those of small integers."""
_KEPT_BYTES = 4
_ID = 0x40 + ID_BYTES
"""What CBOR has in front of an id."""


def _places() -> dict[bytes, tuple[int, ...]]:
    """The first three bytes of each header, and where its secret ids begin."""
    places = {}
    for cls, kind in messages.KINDS.items():
        names = [name for name, _ in messages.FIELDS[cls]]
        start = bytes((0x81 + len(names), kind) if kind < 24 else (0x81 + len(names), 24, kind))
        if names[:1] == ["version"]:
            start += bytes((PROTOCOL_VERSION,))
            ids = [n for n in names[1:3] if n in ("nonce", "session")]
        else:
            ids = [n for n in names[:1] if n == "session"]
        first = len(start) + 1
        places[(start + bytes((_ID,)))[:3] if ids else start[:3]] = tuple(
            first + (ID_BYTES + 1) * n for n in range(len(ids))
        )
    return places


_PLACES = _places()


class Masks(dict[bytes, bytes]):
    """The mask of each id that was met; worked out when it is asked for.

    ``key``: a fresh secret; empty: every id is its own mask (for replaying).
    """

    def __init__(self, key: bytes = b"") -> None:
        super().__init__()
        self._key = key

    def __missing__(self, identifier: bytes) -> bytes:
        if not self._key:
            return identifier
        if len(self) >= MOST_IDS:
            self.clear()
        rest = blake2b(identifier, key=self._key, digest_size=ID_BYTES - _KEPT_BYTES).digest()
        mask = self[identifier] = identifier[:_KEPT_BYTES] + rest
        return mask

    def header(self, header: bytes) -> bytes:
        """The header with every id in it masked; its length stays the same."""
        places = _PLACES.get(header[:3])
        if places is None:
            return self._search(header)
        for at in places:
            end = at + ID_BYTES
            if len(header) < end or header[at - 1] != _ID:
                return self._search(header)
            header = header[:at] + self[header[at:end]] + header[end:]
        return header

    def _search(self, header: bytes) -> bytes:
        """Mask all known ids, wherever they are.

        In a malformed header they may stand where they are read as something
        else, and what is told of it must stay the same: then others are tried.
        """
        if not self._key or len(header) < ID_BYTES:
            return header
        wrong = self._learn(header)
        masked = self._replaced(header, b"")
        for salt in range(_TRIES):
            if not wrong or _what_is_wrong(masked) == wrong:
                break
            masked = self._replaced(header, bytes((salt,)))
        return masked

    def _learn(self, header: bytes) -> str:
        """Meet the ids of a message in another encoding; says if it is none."""
        try:
            message = messages.decode(header, most_bytes=len(header))
        except ProtocolError as error:
            return str(error)
        for name in ("session", "nonce"):
            if hasattr(message, name):
                self[getattr(message, name)]
        return ""

    def _replaced(self, header: bytes, salt: bytes) -> bytes:
        start = 0
        while start + ID_BYTES <= len(header):
            mask = self.get(header[start : start + ID_BYTES])
            if mask is not None:
                if salt:
                    other = blake2b(mask, key=self._key, salt=salt, digest_size=ID_BYTES).digest()
                    mask = bytes(each & _TRIED[salt[0] % len(_TRIED)] for each in other)
                header = header[:start] + mask + header[start + ID_BYTES :]
            start += 1 if mask is None else ID_BYTES
        return header


def _what_is_wrong(header: bytes) -> str:
    try:
        messages.decode(header, most_bytes=len(header))
    except ProtocolError as error:
        return str(error)
    return ""

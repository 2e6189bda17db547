"""The mechanism CURVE (RFC 26): both sides prove that they have their keys.

Theory of operation
-------------------
Each side has a long-lived pair of keys, and makes another for each connection, which is
forgotten with it: whoever learns a long-lived key later reads nothing of what passed.  In
the order of the handshake:

- HELLO (client): its passing public key, and a box by it for the server's key.
- WELCOME (server): its own passing public key, and a cookie, in a box.
- INITIATE (client): the cookie, and in a box of the passing keys its long-lived key, a
  *vouch* (that key's box of its passing one) and its metadata.
- READY (server): its metadata in a box.

A replayed HELLO or INITIATE is useless: its box was made for the passing key of another connection,
and the cookie differs, too.  The server looks the client's key up only when the vouch has shown
that the client has its secret half; a key that may not come in is told so by ERROR, and the reason
``400`` is the word of libzmq for it.

Nothing is kept for a peer before the end of the handshake but its commands, each of which
is bounded.

Pure: no sockets, no trio, no clock; randomness is an argument.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from typing import Final, TypeAlias, final

from . import boxes
from .boxes import KEY_BYTES, WrongBox
from .mechanism import HandshakeError, Mechanism, state_metadata
from .sealed import Seal

_WRONG_SERVER: Final = (
    "your file has the key of another server: check the address, or ask for a new file"
)

STRANGER: Final = "400"
"""The refusal of an unknown key, as libzmq and its clients know it."""

Random: TypeAlias = Callable[[int], bytes]
"""Returns this number of random bytes."""

Admit: TypeAlias = Callable[[bytes], str]
"""Is asked for a client's public key, and says why it may not come in; empty if it may."""

_HELLO: Final = b"\x05HELLO"
_WELCOME: Final = b"\x07WELCOME"
_INITIATE: Final = b"\x08INITIATE"
_READY: Final = b"\x05READY"
_HELLO_BYTES: Final = 200
_WELCOME_BYTES: Final = 168
_INITIATE_BYTES: Final = 257
_READY_BYTES: Final = 30
_COOKIE_BYTES: Final = 96

_OF_CLIENT: Final = b"CurveZMQMESSAGEC"
_OF_SERVER: Final = b"CurveZMQMESSAGES"


class _Curve(Mechanism):
    """The common part of both sides."""

    name = b"CURVE"
    is_sealed = True
    _sends: bytes
    _hears: bytes

    def __init__(self, socket_type: bytes, random: Random) -> None:
        super().__init__(socket_type)
        self._random = random
        self._passing = random(KEY_BYTES)
        """Secret key of this side for this connection."""
        self._key = b""
        """The key that both passing ones make."""
        self._cookie = b""
        self._sent = 0
        """Last counter of this side."""
        self._heard = 0
        """The peer's."""

    def seal(self) -> Seal:
        """See the base."""
        return Seal(self._key, self._sends, self._sent, self._hears, self._heard)

    def _refused(self, reason: str) -> str:
        if reason != STRANGER:
            return super()._refused(reason)
        return (
            "it does not know this key (400): who runs it lets it in with `trio-envserve curve new`"
        )

    def _next(self) -> bytes:
        self._sent += 1
        return self._sent.to_bytes(8, "big")

    def _hear(self, raw: bytes) -> bytes:
        """Take the peer's counter in."""
        counter = int.from_bytes(raw, "big")
        if counter <= self._heard:
            raise HandshakeError(f"its counter is {counter} after {self._heard}")
        self._heard = counter
        return raw


@final
class CurveClient(_Curve):
    """The side that knows the server's public key."""

    _sends = _OF_CLIENT
    _hears = _OF_SERVER

    def __init__(self, socket_type: bytes, *, secret: bytes, server: bytes, random: Random) -> None:
        super().__init__(socket_type, random)
        self._secret = secret
        self._server = server
        self._passing_public = boxes.public_of(self._passing)
        self._to_server = boxes.shared(server, self._passing)

    def begin(self) -> list[bytes]:
        """See the base."""
        raw = self._next()
        box = boxes.seal(bytes(64), b"CurveZMQHELLO---" + raw, self._to_server)
        return [_HELLO + b"\x01\x00" + bytes(72) + self._passing_public + raw + box]

    def _answer(self, body: bytes) -> list[bytes]:
        if not self._cookie:
            if not body.startswith(_WELCOME) or len(body) != _WELCOME_BYTES:
                raise HandshakeError(f"WELCOME expected, not {body[:16]!r}")
            return [self._initiate(body)]
        if not body.startswith(_READY) or len(body) < _READY_BYTES:
            raise HandshakeError(f"READY expected, not {body[:16]!r}")
        raw = self._hear(body[6:14])
        try:
            metadata = boxes.open_box(body[14:], b"CurveZMQREADY---" + raw, self._key)
        except WrongBox:
            raise HandshakeError("the box of READY does not open") from None
        self._learn(metadata)
        self.peer_key = self._server
        return []

    def _initiate(self, welcome: bytes) -> bytes:
        try:
            text = boxes.open_box(welcome[24:], b"WELCOME-" + welcome[8:24], self._to_server)
            passing = text[:KEY_BYTES]
            self._key = boxes.shared(passing, self._passing)
            vouching = boxes.shared(passing, self._secret)
        except WrongBox:
            raise HandshakeError("the box of WELCOME does not open") from None
        self._cookie = text[KEY_BYTES:]
        vouch_nonce = self._random(16)
        vouch = boxes.seal(self._passing_public + self._server, b"VOUCH---" + vouch_nonce, vouching)
        raw = self._next()
        text = boxes.public_of(self._secret) + vouch_nonce + vouch + state_metadata(self._type)
        box = boxes.seal(text, b"CurveZMQINITIATE" + raw, self._key)
        return _INITIATE + self._cookie + raw + box


@final
class CurveServer(_Curve):
    """The side that listens, and says whose keys may come in."""

    _sends = _OF_SERVER
    _hears = _OF_CLIENT

    def __init__(self, socket_type: bytes, *, secret: bytes, admit: Admit, random: Random) -> None:
        super().__init__(socket_type, random)
        self._secret = secret
        self._admit = admit
        self._client_passing = b""

    def _answer(self, body: bytes) -> list[bytes]:
        if not self._cookie:
            return [self._welcome(body)]
        return [self._ready(body)]

    def _welcome(self, hello: bytes) -> bytes:
        if not hello.startswith(_HELLO) or len(hello) != _HELLO_BYTES or hello[6] != 1:
            raise HandshakeError(f"HELLO expected, not {hello[:16]!r}", tell="HELLO expected")
        self._client_passing = hello[80:112]
        raw = self._hear(hello[112:120])
        try:
            to_client = boxes.shared(self._client_passing, self._secret)
            text = boxes.open_box(hello[120:], b"CurveZMQHELLO---" + raw, to_client)
        except WrongBox:
            why = "the box of HELLO does not open: the client has the key of another server"
            raise HandshakeError(why, tell=_WRONG_SERVER) from None
        if text != bytes(64):
            raise HandshakeError("HELLO has something in its box", tell="HELLO expected")
        self._cookie = self._random(_COOKIE_BYTES)
        nonce = self._random(16)
        text = boxes.public_of(self._passing) + self._cookie
        return _WELCOME + nonce + boxes.seal(text, b"WELCOME-" + nonce, to_client)

    def _ready(self, initiate: bytes) -> bytes:
        if not initiate.startswith(_INITIATE) or len(initiate) < _INITIATE_BYTES:
            why = f"INITIATE expected, not {initiate[:16]!r}"
            raise HandshakeError(why, tell="INITIATE expected")
        if not hmac.compare_digest(initiate[9 : 9 + _COOKIE_BYTES], self._cookie):
            why = "the cookie of INITIATE is not of this connection"
            raise HandshakeError(why, tell=why)
        raw = self._hear(initiate[105:113])
        try:
            self._key = boxes.shared(self._client_passing, self._passing)
            text = boxes.open_box(initiate[113:], b"CurveZMQINITIATE" + raw, self._key)
            public = text[:KEY_BYTES]
            vouching = boxes.shared(public, self._passing)
            nonce = b"VOUCH---" + text[KEY_BYTES : KEY_BYTES + 16]
            vouch = boxes.open_box(text[KEY_BYTES + 16 : KEY_BYTES + 96], nonce, vouching)
        except WrongBox:
            why = "a box of INITIATE does not open"
            raise HandshakeError(why, tell=why) from None
        if vouch != self._client_passing + boxes.public_of(self._secret):
            why = "its vouch is for another connection"
            raise HandshakeError(why, tell=why)
        if refusal := self._admit(public):
            raise HandshakeError(f"its key is refused: {refusal}", tell=refusal)
        self._learn(text[KEY_BYTES + 96 :])
        self.peer_key = public
        raw = self._next()
        box = boxes.seal(state_metadata(self._type), b"CurveZMQREADY---" + raw, self._key)
        return _READY + raw + box

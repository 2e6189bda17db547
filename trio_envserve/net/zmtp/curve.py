"""CURVE (RFC 26): both sides prove that they have their keys, and seal what passes.

Theory of operation
-------------------
*Boxes.*  Two sides that know each other's public keys share a key (:func:`shared`), and seal
and open with it and a nonce that is never used again (Curve25519, XSalsa20, Poly1305: NaCl's
``crypto_box``).  libsodium has the older form of these calls, in which 32 bytes of zeros
stand before the text, and 16 before the box.  That suits here, because it works in
place: the 16 bytes before a box are the name and the nonce of the command that has it.
The module of PyNaCl that is used here is the one below its public functions, which copy
each text three times: for 1 MB 3.7 ms instead of 1.3.  PyNaCl is the extra ``curve``.

*Handshake.*  Each side has a long-term pair of keys, and makes a short-term pair for each
connection, which is forgotten with it: a long-term key that is stolen later opens nothing of
what passed.  In the order of the handshake:

- HELLO (client): its short-term public key, and a box by it for the server's key.
- WELCOME (server): its own short-term public key, and a cookie, in a box.
- INITIATE (client): the cookie, and in a box of the short-term keys its long-term key, a
  *vouch* (that key's box of its short-term key) and its metadata.
- READY (server): its metadata in a box.

A replayed HELLO or INITIATE is useless: its box was made for the short-term key of another
connection, and the cookie differs, too.  The server looks the client's key up only when the
vouch has shown that the client has its secret half; a client whose key may not come in is told
by ERROR, and the reason ``400`` is the word of libzmq for it.  Nothing is kept for a peer before
the end of the handshake but its commands, each of which is bounded.

*Traffic.*  A frame travels as the only frame of a message: the name ``MESSAGE``, eight bytes of
a counter, and a box with one byte of flags and the body.  MORE and COMMAND are flags inside
the box, so nobody on the way can put frames together anew.  The counter of each side
rises from frame to frame, and is a part of the nonce: so no nonce is used twice, and a
frame that comes again, or too late, is refused.  Sealing is a step before the framing that
every connection has: :meth:`Curve.encode` hands sealed frames to the encoder, and
:class:`~..framing.Decoder` has :meth:`Curve.open` open those that arrive.  A frame costs about
4 µs to seal or to open.  A large frame is opened in the memory into which it was
received, in one step: so sealed frames have a bound of their own, :data:`SEALED_FRAME_BYTES`.

Pure: no sockets, no trio, no clock; randomness is an argument.
"""

from __future__ import annotations

import dataclasses
import hmac
import importlib
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias, final

from ...core.errors import ConfigError
from ...core.limits import MIB
from ...extras import needs_extra
from ..framing import COMMAND, MORE, Decoder, FrameLimits, FramingError, Piece, encode
from ..interface import COPY_THRESHOLD_BYTES, Frame, Message, SentFrame, size_bytes, write_frame
from .engine import Encoders, HandshakeError, Mechanism, state_metadata

# -- boxes

KEY_BYTES: Final = 32
GAP_BYTES: Final = 32
"""Bytes that are left free before a text for its box."""

_GAP: Final = bytes(16)

sodium: Any
try:
    sodium = importlib.import_module("nacl._sodium")
except ImportError:  # the extra is not installed
    sodium = None
ffi: Any = getattr(sodium, "ffi", None)
lib: Any = getattr(sodium, "lib", None)


class WrongBox(ValueError):
    """A box does not open, or a key is none."""


def check_installed() -> None:
    """Raise ConfigError, with what to do, if PyNaCl is not there."""
    if lib is None:
        raise ConfigError(needs_extra("CURVE", "curve"))


def public_of(secret: bytes) -> bytes:
    """The public key of a secret one."""
    public = bytearray(KEY_BYTES)
    if len(secret) != KEY_BYTES or lib.crypto_scalarmult_base(ffi.from_buffer(public), secret):
        raise WrongBox("not a secret key")
    return bytes(public)


def shared(public: bytes, secret: bytes) -> bytes:
    """The key that the owners of two pairs share."""
    key = bytearray(KEY_BYTES)
    if len(public) != KEY_BYTES or len(secret) != KEY_BYTES:
        raise WrongBox("a key of another size")
    if lib.crypto_box_beforenm(ffi.from_buffer(key), public, secret):
        raise WrongBox("a public key that makes every box open")
    return bytes(key)


def seal_in_place(buffer: bytearray, nonce: bytes, key: bytes) -> None:
    """Seal the text behind the first :data:`GAP_BYTES`, which are zeros.  The box begins
    after 16 of them."""
    pointer = ffi.from_buffer(buffer)
    lib.crypto_box_afternm(pointer, pointer, len(buffer), nonce, key)


def open_in_place(buffer: bytearray | memoryview, nonce: bytes, key: bytes) -> None:
    """Open the box behind the first 16 bytes, which are lost.  The text begins after
    :data:`GAP_BYTES`.  Raises WrongBox."""
    if len(buffer) < GAP_BYTES:
        raise WrongBox("a box without its seal")
    pointer = ffi.from_buffer(buffer)
    ffi.memmove(pointer, _GAP, 16)
    if lib.crypto_box_open_afternm(pointer, pointer, len(buffer), nonce, key):
        raise WrongBox("a box that does not open")


def seal(text: bytes, nonce: bytes, key: bytes) -> bytes:
    """The box of a text."""
    buffer = bytearray(GAP_BYTES) + text
    seal_in_place(buffer, nonce, key)
    return bytes(buffer[16:])


def open_box(box: bytes, nonce: bytes, key: bytes) -> bytes:
    """The text in a box.  Raises WrongBox."""
    buffer = bytearray(_GAP) + box
    open_in_place(buffer, nonce, key)
    return bytes(buffer[GAP_BYTES:])


# -- both sides

SEALED_FRAME_BYTES: Final = 32 * MIB
"""The largest frame: one step of 40 ms of processor time, on a slow machine of 80 ms."""

HEAD_BYTES: Final = GAP_BYTES + 1
"""The bytes of a sealed frame before its body: name, counter, seal and flags."""

_NAME: Final = b"\x07MESSAGE"
_COUNTER: Final = slice(8, 16)
_FLAGS_AT: Final = GAP_BYTES
_INNER_COMMAND: Final = 2
"""The flag of a command inside a box; outside it is :data:`~..framing.COMMAND`."""

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


class Curve(Mechanism):
    """One side of one connection: its handshake, and then its traffic in both directions."""

    name = b"CURVE"
    is_sealed = True
    _our_prefix: bytes
    """First part of this side's nonces in traffic."""
    _their_prefix: bytes

    def __init__(self, socket_type: bytes, random: Random) -> None:
        super().__init__(socket_type)
        self._random = random
        self._short_term = random(KEY_BYTES)
        """Secret key of this side for this connection."""
        self._key = b""
        """The key that the short-term keys of both sides make."""
        self._cookie = b""
        self._sent = 0
        """Last counter of this side."""
        self._received = 0
        """Last counter of the peer."""

    def _next(self) -> bytes:
        self._sent += 1
        return self._sent.to_bytes(8, "big")

    # -- the handshake

    def begin_traffic(self, decoder: Decoder, limits: FrameLimits) -> Encoders:
        """See the base."""
        frame_bytes = min(limits.frame_bytes, SEALED_FRAME_BYTES)
        decoder.unseal(self.open, HEAD_BYTES, dataclasses.replace(limits, frame_bytes=frame_bytes))
        return self.encode, self.encode_command

    def _refused(self, reason: str) -> str:
        if reason != STRANGER:
            return super()._refused(reason)
        return (
            "it does not know this key (400): "
            "its operator lets it in with `trio-envserve curve new`"
        )

    def _count(self, raw: bytes) -> bytes:
        """Take the peer's counter in."""
        counter = int.from_bytes(raw, "big")
        if counter <= self._received:
            raise HandshakeError(f"its counter is {counter} after {self._received}")
        self._received = counter
        return raw

    # -- the traffic

    def encode_command(self, body: bytes) -> bytes:
        """The bytes of a command."""
        sealed: Any = self._seal(_INNER_COMMAND, body)
        return b"".join(encode([(sealed,)]))

    def encode(self, messages: Sequence[Message]) -> list[Piece]:
        """The bytes of messages, to be written in this order and before any that are made
        later."""
        sealed: list[Any] = []  # a bytearray each, which is written as bytes are
        for message in messages:
            left = len(message)
            for frame in message:
                left -= 1
                sealed.append((self._seal(MORE if left else 0, frame),))
        return encode(sealed)

    def _seal(self, flags: int, frame: SentFrame) -> bytearray:
        counter = self._next()
        if type(frame) is bytes:
            buffer = bytearray(_FLAGS_AT) + bytes((flags,)) + frame
        else:
            buffer = bytearray(HEAD_BYTES + size_bytes((frame,)))
            buffer[_FLAGS_AT] = flags
            write_frame(frame, buffer, HEAD_BYTES)
        seal_in_place(buffer, self._our_prefix + counter, self._key)
        buffer[:16] = _NAME + counter
        return buffer

    def open(self, frame: Frame) -> tuple[int, Frame]:
        """The flags of a sealed frame, as a frame that is not sealed has them, and its body.
        Raises FramingError."""
        if len(frame) < HEAD_BYTES or frame[:8] != _NAME:
            raise FramingError("a frame that is not sealed")
        raw = bytes(frame[_COUNTER])
        counter = int.from_bytes(raw, "big")
        if counter <= self._received:
            raise FramingError(f"frame {counter} of the connection after frame {self._received}")
        if isinstance(frame, bytes) or isinstance(frame.obj, bytes):
            buffer: bytearray | memoryview = bytearray(frame)
        else:
            buffer = frame  # memory of its own
        try:
            open_in_place(buffer, self._their_prefix + raw, self._key)
        except WrongBox as error:
            raise FramingError(str(error)) from None
        self._received = counter
        flags = buffer[_FLAGS_AT]
        if flags == _INNER_COMMAND:
            flags = COMMAND
        elif flags & ~MORE:
            raise FramingError(f"a sealed frame with the flags {flags:#04x}")
        body = memoryview(buffer)[HEAD_BYTES:]
        return flags, body.toreadonly() if len(body) >= COPY_THRESHOLD_BYTES else bytes(body)


@final
class CurveClient(Curve):
    """The side that knows the server's public key."""

    _our_prefix = _OF_CLIENT
    _their_prefix = _OF_SERVER

    def __init__(self, socket_type: bytes, *, secret: bytes, server: bytes, random: Random) -> None:
        super().__init__(socket_type, random)
        self._secret = secret
        self._server = server
        self._short_term_public = public_of(self._short_term)
        self._to_server = shared(server, self._short_term)

    def begin(self) -> list[bytes]:
        """See the base."""
        raw = self._next()
        box = seal(bytes(64), b"CurveZMQHELLO---" + raw, self._to_server)
        return [_HELLO + b"\x01\x00" + bytes(72) + self._short_term_public + raw + box]

    def _answer(self, body: bytes) -> list[bytes]:
        if not self._cookie:
            if not body.startswith(_WELCOME) or len(body) != _WELCOME_BYTES:
                raise HandshakeError(f"WELCOME expected, not {body[:16]!r}")
            return [self._initiate(body)]
        if not body.startswith(_READY) or len(body) < _READY_BYTES:
            raise HandshakeError(f"READY expected, not {body[:16]!r}")
        raw = self._count(body[6:14])
        try:
            metadata = open_box(body[14:], b"CurveZMQREADY---" + raw, self._key)
        except WrongBox:
            raise HandshakeError("the box of READY does not open") from None
        self._learn(metadata)
        self.peer_key = self._server
        return []

    def _initiate(self, welcome: bytes) -> bytes:
        try:
            text = open_box(welcome[24:], b"WELCOME-" + welcome[8:24], self._to_server)
            short_term = text[:KEY_BYTES]
            self._key = shared(short_term, self._short_term)
            vouching = shared(short_term, self._secret)
        except WrongBox:
            raise HandshakeError("the box of WELCOME does not open") from None
        self._cookie = text[KEY_BYTES:]
        vouch_nonce = self._random(16)
        vouch = seal(self._short_term_public + self._server, b"VOUCH---" + vouch_nonce, vouching)
        raw = self._next()
        text = public_of(self._secret) + vouch_nonce + vouch + state_metadata(self._type)
        box = seal(text, b"CurveZMQINITIATE" + raw, self._key)
        return _INITIATE + self._cookie + raw + box


@final
class CurveServer(Curve):
    """The side that listens, and says whose keys may come in."""

    _our_prefix = _OF_SERVER
    _their_prefix = _OF_CLIENT

    def __init__(self, socket_type: bytes, *, secret: bytes, admit: Admit, random: Random) -> None:
        super().__init__(socket_type, random)
        self._secret = secret
        self._admit = admit
        self._client_short_term = b""

    def _answer(self, body: bytes) -> list[bytes]:
        if not self._cookie:
            return [self._welcome(body)]
        return [self._ready(body)]

    def _welcome(self, hello: bytes) -> bytes:
        if not hello.startswith(_HELLO) or len(hello) != _HELLO_BYTES or hello[6] != 1:
            raise HandshakeError(f"HELLO expected, not {hello[:16]!r}", tell="HELLO expected")
        self._client_short_term = hello[80:112]
        raw = self._count(hello[112:120])
        try:
            to_client = shared(self._client_short_term, self._secret)
            text = open_box(hello[120:], b"CurveZMQHELLO---" + raw, to_client)
        except WrongBox:
            why = "the box of HELLO does not open: the client has the key of another server"
            raise HandshakeError(why, tell=_WRONG_SERVER) from None
        if text != bytes(64):
            raise HandshakeError("HELLO has something in its box", tell="HELLO expected")
        self._cookie = self._random(_COOKIE_BYTES)
        nonce = self._random(16)
        text = public_of(self._short_term) + self._cookie
        return _WELCOME + nonce + seal(text, b"WELCOME-" + nonce, to_client)

    def _ready(self, initiate: bytes) -> bytes:
        if not initiate.startswith(_INITIATE) or len(initiate) < _INITIATE_BYTES:
            why = f"INITIATE expected, not {initiate[:16]!r}"
            raise HandshakeError(why, tell="INITIATE expected")
        if not hmac.compare_digest(initiate[9 : 9 + _COOKIE_BYTES], self._cookie):
            why = "the cookie of INITIATE is not of this connection"
            raise HandshakeError(why, tell=why)
        raw = self._count(initiate[105:113])
        try:
            self._key = shared(self._client_short_term, self._short_term)
            text = open_box(initiate[113:], b"CurveZMQINITIATE" + raw, self._key)
            public = text[:KEY_BYTES]
            vouching = shared(public, self._short_term)
            nonce = b"VOUCH---" + text[KEY_BYTES : KEY_BYTES + 16]
            vouch = open_box(text[KEY_BYTES + 16 : KEY_BYTES + 96], nonce, vouching)
        except WrongBox:
            why = "a box of INITIATE does not open"
            raise HandshakeError(why, tell=why) from None
        if vouch != self._client_short_term + public_of(self._secret):
            why = "its vouch is for another connection"
            raise HandshakeError(why, tell=why)
        if refusal := self._admit(public):
            raise HandshakeError(f"its key is refused: {refusal}", tell=refusal)
        self._learn(text[KEY_BYTES + 96 :])
        self.peer_key = public
        raw = self._next()
        box = seal(state_metadata(self._type), b"CurveZMQREADY---" + raw, self._key)
        return _READY + raw + box

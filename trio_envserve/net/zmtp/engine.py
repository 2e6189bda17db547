"""ZMTP 3.1 without a network: bytes in, messages and bytes out.

Theory of operation
-------------------
A connection begins with a *greeting* of 64 bytes from each side, which has the
version and the security mechanism.  Then both sides exchange commands of the mechanism: an
object with the commands of one handshake (:class:`Mechanism`).  NULL is the one without
security: each side states its metadata in a READY.  The other one is CURVE (:mod:`.curve`).
Then comes *traffic*: messages, and PING commands that are answered by PONG.  With CURVE each
of their frames is sealed, and until then only small commands are taken.

Arriving bytes go into :attr:`Engine.decoder`.  Two calls drive the engine:
:meth:`Engine.shake` until it says that the connection is ready, then
:meth:`Engine.take`.  :meth:`Engine.replies` has the bytes to be written.  The same
bytes mean the same however they are split, or raise
:class:`~..framing.FramingError`; and the engine never holds more than the decoder's
bounds.

The engine speaks with peers of version 3.0 and 3.1.  It refuses older peers (libzmq
before 4.0), which frame differently, and peers that do not speak ZMTP, with an
explanation.

Habits of libzmq that matter here: its greeting comes in three parts, so each byte is
checked when it comes; it closes if traffic comes before it has sent its own READY; it
puts PING between the frames of a message, and takes back at most 16 bytes of context.
Its identities are ignored here.

Pure: no sockets, no trio, no clock.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias, final

from ..framing import Decoder, FrameLimits, FramingError, Piece, encode, encode_command
from ..interface import Frame, Message


class HandshakeError(FramingError):
    """A failed handshake; the message tells people why."""

    def __init__(self, text: str, *, tell: str = "") -> None:
        super().__init__(text)
        self.tell = tell
        """The text of an ERROR command to the peer."""


Encoders: TypeAlias = tuple[Callable[[Sequence[Message]], list[Piece]], Callable[[bytes], bytes]]
"""Two functions: the bytes of messages, and of a command, to be written in the order in which they
were made."""


class Mechanism(ABC):
    """One side of one handshake, of a socket of one type."""

    name: bytes
    """Name of the mechanism in the greeting, at most 20 bytes."""
    is_sealed = False
    """Whether traffic is sealed; then there are only commands before."""

    def __init__(self, socket_type: bytes) -> None:
        self._type = socket_type
        self.is_done = False
        """Whether messages may pass."""
        self.metadata: dict[bytes, bytes] = {}
        """The peer's properties, by name in lower case."""
        self.peer_key = b""
        """The peer's public key, if it has proven that it has the secret one; else empty."""

    def begin(self) -> list[bytes]:
        """Bodies of the commands that go out with the greeting."""
        return []

    def command(self, body: bytes) -> list[bytes]:
        """Take a command of the peer; returns the bodies of the answers.  Raises HandshakeError."""
        if body.startswith(b"\x05ERROR"):
            reason = body[7 : 7 + (body[6] if len(body) > 6 else 0)]
            raise HandshakeError(self._refused(reason.decode("utf-8", "backslashreplace")))
        return self._answer(body)

    @abstractmethod
    def _answer(self, body: bytes) -> list[bytes]:
        """Like :meth:`command`, for every command but ERROR."""

    def _refused(self, reason: str) -> str:
        return f"it refuses: {reason!r}"

    def begin_traffic(self, decoder: Decoder, limits: FrameLimits) -> Encoders:
        """Have the decoder take traffic in these bounds, after the handshake; returns the encoders
        of messages and of commands."""
        return encode, encode_command

    def _learn(self, data: bytes) -> None:
        """Take the peer's metadata in, the last part of a handshake.  Raises HandshakeError."""
        self.metadata = parse_metadata(data)
        peer = self.metadata.get(b"socket-type")
        # A peer may leave it out; libzmq accepts that, too.
        if peer is not None and peer not in _PEERS[self._type]:
            text = f"a {self._type.decode()} does not talk to a socket of type {peer[:16]!r}"
            raise HandshakeError(text, tell=text)
        self.is_done = True


_PEERS: Final = {
    b"ROUTER": frozenset((b"DEALER", b"REQ", b"ROUTER")),
    b"DEALER": frozenset((b"ROUTER", b"REP", b"DEALER")),
}
"""The types of socket that each type may talk to."""

_PROPERTIES: Final = 32
"""Most properties of a peer's metadata; libzmq states two."""


@final
class Null(Mechanism):
    """The mechanism NULL."""

    name = b"NULL"

    def begin(self) -> list[bytes]:
        """See the base."""
        return [b"\x05READY" + state_metadata(self._type)]

    def _answer(self, body: bytes) -> list[bytes]:
        if not body.startswith(b"\x05READY"):
            raise HandshakeError(f"READY expected, not {body[:16]!r}", tell="READY expected")
        self._learn(body[6:])
        return []


def state_metadata(socket_type: bytes) -> bytes:
    """The properties that a side states."""
    properties = ((b"Socket-Type", socket_type), (b"Identity", b""))
    return b"".join(_property(name, value) for name, value in properties)


def _property(name: bytes, value: bytes) -> bytes:
    return bytes((len(name),)) + name + len(value).to_bytes(4, "big") + value


def parse_metadata(data: bytes) -> dict[bytes, bytes]:
    """Properties, by name in lower case.  Raises HandshakeError."""
    properties: dict[bytes, bytes] = {}
    at = 0
    while at < len(data):
        name_end = at + 1 + data[at]
        value_at = name_end + 4
        size = int.from_bytes(data[name_end:value_at], "big")
        if name_end == at + 1 or value_at + size > len(data) or len(properties) == _PROPERTIES:
            raise HandshakeError("malformed metadata", tell="malformed metadata")
        properties[data[at + 1 : name_end].lower()] = data[value_at : value_at + size]
        at = value_at + size
    return properties


GREETING_BYTES: Final = 64
_SIGNATURE_BYTES: Final = 10
_MECHANISM: Final = slice(12, 32)

_PING: Final = b"\x04PING"
_PONG: Final = b"\x04PONG"
_CONTEXT_BYTES: Final = 16
"""Most bytes of a PING's context."""

_COMMANDS_ONLY: Final = FrameLimits(frame_bytes=0, message_bytes=0, frames=1)
"""The bounds before the end of a handshake after which all is sealed."""


@final
class Engine:
    """One side of one connection."""

    __slots__ = (
        "_encode_command", "_greeting", "_limits", "_mechanism", "_pong", "_replies", "decoder",
        "encode", "is_ready", "is_sealed", "ttl_s",
    )  # fmt: skip

    def __init__(self, mechanism: Mechanism, limits: FrameLimits) -> None:
        self._mechanism = mechanism
        self._greeting: bytes | None = b""
        """The part of the peer's greeting that has come; None when it is whole."""
        self._replies: list[bytes] = [
            b"\xff" + bytes(8) + b"\x7f\x03\x01" + mechanism.name.ljust(20, b"\0") + bytes(32)
        ]
        self._replies += [encode_command(body) for body in mechanism.begin()]
        self._pong: bytes | None = None
        """The answer to the newest PING: older ones need none any more."""
        self._limits = limits
        self.is_sealed = mechanism.is_sealed
        """Whether what passes is sealed."""
        self.decoder = Decoder(_COMMANDS_ONLY if mechanism.is_sealed else limits)
        """Takes arriving bytes and, after the handshake, receives large frames."""
        self.encode: Callable[[Sequence[Message]], list[Piece]] = encode
        """The bytes of messages, to be written in the order in which they were made."""
        self._encode_command: Callable[[bytes], bytes] = encode_command
        self.is_ready = False
        """Whether the handshake is done: messages may pass in both directions."""
        self.ttl_s: float | None = None
        """Longest silence that the peer has promised, in seconds; None if it has promised none."""

    def replies(self) -> bytes:
        """The bytes to be written now, before any message; perhaps none."""
        if self._pong is not None:
            self._replies.append(self._encode_command(self._pong))
            self._pong = None
        replies, self._replies = b"".join(self._replies), []
        return replies

    @property
    def peer_key(self) -> bytes:
        """The peer's public key, which it has proven; empty if it has proven none."""
        return self._mechanism.peer_key

    @property
    def has_replies(self) -> bool:
        """Whether :meth:`replies` has something."""
        return self._pong is not None or bool(self._replies)

    def shake(self, data: bytes) -> bool:
        """Take in bytes that have arrived during the handshake; returns True when it is done.

        Bytes that arrived after the handshake are in the decoder.  Raises HandshakeError,
        which tells people what is wrong with the peer; :meth:`replies` may then have an
        answer for the peer.
        """
        if self._greeting is not None:
            self._greeting += data
            _check_greeting(self._greeting, self._mechanism.name)
            if len(self._greeting) < GREETING_BYTES:
                return False
            data = self._greeting[GREETING_BYTES:]
            self._greeting = None
        decoder = self.decoder
        decoder.feed(data)
        while not self.is_ready:
            # One at a time: whatever follows the last command is traffic.
            if decoder.take(1):
                raise HandshakeError("a message before the end of the handshake")
            if decoder.commands:
                try:
                    answers = self._mechanism.command(decoder.commands.popleft())
                except HandshakeError as error:
                    if error.tell:
                        reason = error.tell.encode()[:255]
                        body = b"\x05ERROR" + bytes((len(reason),)) + reason
                        self._replies.append(encode_command(body))
                    raise
                self._replies += [encode_command(body) for body in answers]
                self.is_ready = self._mechanism.is_done
            elif not decoder.is_backlogged:
                return False
        self.encode, self._encode_command = self._mechanism.begin_traffic(decoder, self._limits)
        decoder.check_command = _check_command
        return True

    def take(self, most: int) -> list[list[Frame]]:
        """The next whole messages that have arrived; see :meth:`~..framing.Decoder.take`."""
        messages = self.decoder.take(most)
        if self.decoder.commands:
            self._obey()
        return messages

    def _obey(self) -> None:
        """Obey commands in traffic.  Unknown ones belong to later versions and are
        ignored."""
        commands = self.decoder.commands
        while commands:
            body = commands.popleft()
            if body.startswith(_PING):
                tenths = int.from_bytes(body[5:7], "big")
                self.ttl_s = tenths / 10 if tenths else None
                self._pong = _PONG + body[7 : 7 + _CONTEXT_BYTES]


def _check_command(body: bytes) -> None:
    """Refuse a command in traffic that is none."""
    if not body or len(body) < 1 + body[0]:
        raise FramingError("a command without a name")
    if body.startswith(_PING) and len(body) < len(_PING) + 2:
        raise FramingError("a PING without its time to live")


_ADVICE: Final = {
    (b"CURVE", b"NULL"): ": give this side keys (--curve, or curve=)",
    (b"NULL", b"CURVE"): ": give that side keys, too, or leave out those of this one",
}
"""Advice if only one side has keys, by the peer's mechanism and our own."""


def _check_greeting(greeting: bytes, mechanism: bytes) -> None:
    """Refuse a greeting as soon as the bytes that have come show why."""
    if greeting[:1] not in (b"", b"\xff"):
        raise HandshakeError(f"it does not speak ZMTP 3: its first byte is {greeting[0]:#04x}")
    if len(greeting) >= _SIGNATURE_BYTES and not greeting[9] & 1:
        raise HandshakeError("it speaks ZMTP 1.0; version 3.0 or newer is needed (libzmq 4)")
    if len(greeting) > _SIGNATURE_BYTES and greeting[10] < 3:
        older = "2.0" if greeting[10] else "1.0"
        raise HandshakeError(f"it speaks ZMTP {older}; version 3.0 or newer is needed (libzmq 4)")
    if len(greeting) >= _MECHANISM.stop:
        name = greeting[_MECHANISM].rstrip(b"\0")
        if name != mechanism:
            raise HandshakeError(
                f"it wants the mechanism {name.decode('ascii', 'backslashreplace')}, "
                f"and this side speaks {mechanism.decode()}{_ADVICE.get((name, mechanism), '')}"
            )

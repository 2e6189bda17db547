"""Security mechanisms: the commands between the greetings and the first message.

Theory of operation
-------------------
A mechanism is an object with the commands of one handshake: :meth:`Mechanism.begin`
says what to send after the greeting, :meth:`Mechanism.command` takes the peer's
commands and answers them, until :attr:`Mechanism.is_done`.  NULL is the mechanism
without security: each side states its metadata in a READY.  The other one is CURVE
(:mod:`.curve`).

Pure: no sockets, no trio, no clock.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Final, final

from ..framing import FramingError
from .sealed import Seal


class HandshakeError(FramingError):
    """A handshake failed; the message tells people why."""

    def __init__(self, text: str, *, tell: str = "") -> None:
        super().__init__(text)
        self.tell = tell
        """The text of an ERROR command to the peer."""


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
        """A command of the peer; bodies of the answers.  Raises HandshakeError."""
        if body.startswith(b"\x05ERROR"):
            reason = body[7 : 7 + (body[6] if len(body) > 6 else 0)]
            raise HandshakeError(self._refused(reason.decode("utf-8", "backslashreplace")))
        return self._answer(body)

    @abstractmethod
    def _answer(self, body: bytes) -> list[bytes]:
        """Like :meth:`command`, for every command but ERROR."""

    def _refused(self, reason: str) -> str:
        return f"it refuses: {reason!r}"

    def seal(self) -> Seal:
        """The seal of the traffic, once the handshake is done."""
        raise NotImplementedError

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

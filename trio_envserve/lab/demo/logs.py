"""The log of the callers' sockets, as the demonstration writes it to disk."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, final

from ...core import values
from ...core.errors import ProtocolError
from ...core.limits import WireLimits
from ...core.messages import Outcome, Refused, Request, Said, Sync, Synced, encode, read
from ...core.terms import whole
from ...net import ConnectionEvent, Message
from ..logs import JsonLog

_LIMITS = WireLimits()
RequestId = tuple[bytes, int]
"""Session and sequence."""


@final
class CallerTap:
    """Writes down what one caller's socket sends and receives, as far as the
    judge wants it: requests, outcomes, refusals, pings and their answers, and
    the beginning and end of connections.

    ``received`` is filled with the ids of all outcomes that came.
    """

    def __init__(self, caller: int, log: JsonLog, received: set[RequestId]) -> None:
        self._caller = caller
        self._log = log
        self._received = received
        self._keys: dict[RequestId, str] = {}

    def _write(self, event: str, session: bytes, **fields: Any) -> None:
        self._log.write(event, caller=self._caller, session=session.hex(), **fields)

    def sent(self, frames: Message) -> None:
        """Requests, with the keys in their bodies, or a ping."""
        for message, body in _rows(frames):
            match message:
                case Request(session, sequence):
                    key = self._keys.get((session, sequence))
                    if key is None:
                        asked: Any = values.decode(body or b"", limits=_LIMITS)
                        key = self._keys[session, sequence] = str(asked["input"]["key"])
                    self._write("request", session, sequence=sequence, key=key)
                case Sync(session) as sync:
                    self._write("ping", session, probe=sync.probe)

    def received(self, frames: Message) -> None:
        """Outcomes, with a digest of all their fields and bytes, a refusal, or a pong."""
        for message, body in _rows(frames):
            match message:
                case Outcome(session, sequence):
                    self._received.add((session, sequence))
                    digest = hashlib.blake2b(encode(message), digest_size=16)
                    digest.update(body or b"")
                    self._write("outcome", session, sequence=sequence, digest=digest.hexdigest())
                case Refused(session, sequence, code):
                    self._write("refused", session, sequence=sequence, code=code)
                case Synced(session, probe):
                    self._write("pong", session, probe=probe)

    def happened(self, event: ConnectionEvent) -> None:
        """A connection that began or ended."""
        if event in (ConnectionEvent.CONNECTED, ConnectionEvent.DISCONNECTED):
            self._log.write(event.value, caller=self._caller)


def _rows(frames: Message) -> Sequence[Said]:
    try:
        return read([*map(whole, frames)], most_bytes=_LIMITS.header_bytes)
    except ProtocolError:
        return ()  # the client will say what it thinks of it

"""The wire of verifiers 0.4, as its ``EnvClient`` speaks it.

Theory of operation
-------------------
A client sends ``[request id, method, msgpack]`` and gets ``[request id, kind, msgpack]``:
any number of ``delta``, and one ``reply``.  A reply says ``success`` and ``error``; that
of a run also what the environment has to say, that of a cancel whether it stopped
anything.  A delta ``{"trace": id, "discard": true}`` takes back all deltas of a trace; the
same deltas again are right after it, and wrong without.

Pure, and without state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

import msgpack

from ...net import Frame

NAME: Final = "verifiers-0.4"
"""The name that an environment is told, so that it reads the run as that release does."""

ID_BYTES: Final = 128
"""Longest request id: the library's has 32 hex characters."""

CANCEL_BYTES: Final = 4096
"""Largest cancel that is read.  What a run asks and answers passes through the door unread."""

_FRAMES: Final = 3

Message: TypeAlias = tuple[Frame, ...]
"""The frames of one message, without the route."""


class HealthAsk(NamedTuple):
    """Whether the server is there, and can run something."""

    name: bytes


class RunAsk(NamedTuple):
    """Run one episode."""

    name: bytes
    """The request id."""
    payload: Frame
    """The run's payload, for the environment alone."""


class CancelAsk(NamedTuple):
    """Stop a run."""

    name: bytes
    target: bytes
    """The request id of the run."""


Ask: TypeAlias = HealthAsk | RunAsk | CancelAsk


class NotUnderstood(Exception):
    """A message that is wrong, of a client that can be told."""

    def __init__(self, name: bytes, why: str) -> None:
        super().__init__(why)
        self.name = name
        self.why = why


def read(frames: Sequence[Frame]) -> Ask | None:
    """Read a client's message; None if it is none of this wire.  Raises NotUnderstood
    for one that is wrong."""
    if len(frames) != _FRAMES:
        return None
    request, method, payload = frames
    if not _is_id(request):
        return None
    name = bytes(request)
    match bytes(method[:16]):
        case b"health":
            return HealthAsk(name)
        case b"run":
            return RunAsk(name, payload)
        case b"cancel":
            return CancelAsk(name, _target(name, payload))
        case other:
            raise NotUnderstood(name, f"unknown method {other.decode('utf-8', 'replace')!r}")


def _target(name: bytes, payload: Frame) -> bytes:
    if len(payload) > CANCEL_BYTES:
        why = f"the cancel has {len(payload)} bytes, {CANCEL_BYTES} allowed"
        raise NotUnderstood(name, why)
    try:
        cancel = msgpack.unpackb(payload)
    except ValueError as error:  # whatever is wrong with the bytes
        why = f"the cancel cannot be read: {str(error) or type(error).__name__}"
        raise NotUnderstood(name, why) from None
    target = cancel.get("request_id") if isinstance(cancel, dict) else None
    if not isinstance(target, str) or not _is_id(target.encode()):
        raise NotUnderstood(name, "a cancel names the request_id of a run")
    return target.encode()


def _is_id(name: Frame) -> bool:
    """Printable, because it shows up in logs."""
    return 0 < len(name) <= ID_BYTES and all(0x20 < each < 0x7F for each in bytes(name))


def healthy(name: bytes) -> Message:
    """The answer to a probe."""
    return _reply(name, _packed(success=True, error=None))


def failed(name: bytes, why: str) -> Message:
    """A reply that says why there is nothing else to say."""
    return _reply(name, _packed(success=False, error=why))


def cancelled(name: bytes, done: bool) -> Message:
    """The answer to a cancel."""
    return _reply(name, _packed(success=True, error=None, cancelled=done))


def ended(name: bytes, reply: bytes) -> Message:
    """The reply of a run, as the environment has packed it."""
    return _reply(name, reply)


def delta(name: bytes, packed: bytes) -> Message:
    """One piece of a run's record, as the environment has packed it."""
    return name, b"delta", packed


def discard(name: bytes, trace: str) -> Message:
    """The client forgets what it has of a trace."""
    return delta(name, _packed(trace=trace, discard=True))


def _reply(name: bytes, packed: bytes) -> Message:
    return name, b"reply", packed


def _packed(**record: str | bool | None) -> bytes:
    """A map; texts of errors come from anywhere, and the reader wants UTF-8."""
    packed: bytes = msgpack.packb(record, unicode_errors="backslashreplace")
    return packed

"""The form of what a server sends to clients, and of what they ask it for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from ...core import messages, values
from ...core.errors import ProtocolError
from ...core.limits import MIB
from .findings import CaseFailed, check

HEADER_BYTES = 16 * MIB
"""The longest header of a server that is read: generous, it is the server that is judged."""

_OF_SERVERS = (
    messages.Welcome, messages.Outcome, messages.Synced, messages.Refused, messages.Unknown,
    messages.Cancelled, messages.Stats, messages.Error, messages.KnownKeys, messages.Running,
    messages.Stack,
)  # fmt: skip


class Received(NamedTuple):
    """A message of the server, and its frames, as if it had come alone."""

    message: Any
    frames: tuple[bytes, ...]


def read(frames: tuple[bytes, ...]) -> list[Received]:
    """A server's message, its form checked; the rows of a batch, each with the frames of a
    batch of one."""
    try:
        rows = messages.read(frames, most_bytes=HEADER_BYTES)
    except ProtocolError as error:
        raise CaseFailed("a message of this document", f"{frames[0][:64].hex()}: {error}") from None
    message = rows[0][0]
    check(isinstance(message, _OF_SERVERS), "a message that a server sends to clients", message)
    if len(rows) == 1:
        return [Received(message, frames)]
    return [Received(row, (messages.encode(row), bytes(body or b""))) for row, body in rows]


def body_of(asked: Any, *, kind: str = "rollout", **fields: Any) -> bytes:
    """The body of a request."""
    return values.encode(
        {
            "kind": kind, "input": asked, "model": {"endpoint": "oracle", "name": ""},
            "sampling_args": {}, "max_retries": 0, "state_columns": [], **fields,
        }
    )  # fmt: skip


def value_of(outcome: Received) -> Any:
    """The decoded body of an outcome."""
    try:
        return values.decode(outcome.frames[1])
    except values.DecodingError as error:
        raise CaseFailed("a body that can be decoded", str(error)) from None


def describe(outcome: Received) -> str:
    """An outcome, for people."""
    header = outcome.message._replace(session=outcome.message.session[:4])
    return f"{header} with {values.decode(outcome.frames[1])!r}"


def same_bytes(outcomes: Iterable[Received]) -> bool:
    """Whether all transmissions of an outcome are the same, header and body."""
    return len({each.frames for each in outcomes}) <= 1

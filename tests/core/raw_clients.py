"""A client that speaks bytes, for tests of the router."""

from __future__ import annotations

from typing import Any

from trio_envserve.core import messages
from trio_envserve.core.limits import PROTOCOL_VERSION

from .helpers import STRANGER, Pair, identifier

NONCE = identifier(900)


DIGEST = identifier(901)


def hello(nonce: bytes = NONCE, connection: int = 1, name: str = "raw") -> messages.Hello:
    return messages.Hello(PROTOCOL_VERSION, nonce, connection, name, 1 << 20)


def raw(pair: Pair, nonce: bytes = NONCE) -> bytes:
    """The session of a client that speaks bytes."""
    pair.tell(hello(nonce), route=STRANGER)
    welcome = pair.mail[-1][1]
    assert isinstance(welcome, messages.Welcome)
    return welcome.session


def request(
    session: bytes, sequence: int = 0, *, digest: bytes = DIGEST, rerun: bool | None = None,
    allowance: int = 1, deadline_s: float | None = None,
) -> messages.Request:  # fmt: skip
    return messages.Request(session, sequence, digest, rerun, allowance, deadline_s)


def ask(pair: Pair, session: bytes, sequence: int = 0, body: bytes = b"b", **how: Any) -> None:
    pair.tell(request(session, sequence, **how), body, route=STRANGER)


def last(pair: Pair) -> Any:
    """The newest message to the raw client."""
    return pair.mail[-1][1]

"""All attacks in one table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from . import (
    attacks_bytes,
    attacks_http,
    attacks_http_calls,
    attacks_on_clients,
    attacks_protocol,
    attacks_verifiers,
)
from .attacks_on_clients import ServerAttack
from .context import Attack

ON_SERVERS: Final[Mapping[str, Attack]] = {
    **attacks_bytes.ATTACKS, **attacks_protocol.ATTACKS, **attacks_http.ATTACKS,
    **attacks_http_calls.ATTACKS, **attacks_verifiers.ATTACKS,
}  # fmt: skip
"""The attacks of a raw peer on a server, at its front and at its doors."""

ON_CLIENTS: Final[Mapping[str, ServerAttack]] = attacks_on_clients.ATTACKS
"""The attacks of a hostile server on a client."""

NAMES: Final = (*ON_SERVERS, *ON_CLIENTS)


def finding_of(name: str) -> str:
    """The number of the finding that an attack repeats, or the empty string."""
    return _of(name).finding


def what_of(name: str) -> str:
    """The deed of an attack, in one clause."""
    return _of(name).what


def _of(name: str) -> Attack | ServerAttack:
    return ON_SERVERS[name] if name in ON_SERVERS else ON_CLIENTS[name]

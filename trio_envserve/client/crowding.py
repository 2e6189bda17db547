"""Calls for whose keys a server has no room, for doors: their callers share one client."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from .shell import Client

_NO_ROOM: Final = "keys-full"


def let_pass(client: Client, namespace: str, may_wait: Callable[[str], bool]) -> list[str]:
    """The keys of this client's calls in a namespace for which the server has no room for now.
    Those that may wait are tried again when no other is left."""
    crowded = []
    for call in client._driver.core.calls.held.values():
        name = call.asks_for
        if name is None or call.held_as != _NO_ROOM or name.namespace != namespace.encode():
            continue
        key = name.key.decode()
        call.may_wait = may_wait(key)
        crowded.append(key)
    return crowded

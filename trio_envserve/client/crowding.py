"""Calls for whose keys a server has no room, for doors: their callers share one client."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from .shell import Client

_RETAINED: Final = "keys-full"
"""The code of a refusal: retained keys leave no room for another one."""

_NO_ROOM: Final = (_RETAINED, "key-queue-full")


def let_pass(client: Client, namespace: str, may_wait: Callable[[str], bool]) -> list[str]:
    """The keys of this client's calls in a namespace for which there would be room if less were
    retained.  Of these, and of those for which the server's queue has no room, those that may
    wait are tried again when no other is left."""
    crowded = []
    for call in client._driver.core.calls.held.values():
        name = call.asks_for
        if name is None or call.held_as not in _NO_ROOM or name.namespace != namespace.encode():
            continue
        key = name.key.decode()
        call.may_wait = may_wait(key)
        if call.held_as == _RETAINED:
            crowded.append(key)
    return crowded

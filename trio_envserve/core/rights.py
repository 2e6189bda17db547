"""The rights of clients that have keys.

Theory of operation
-------------------
The shell says who the peer behind a route is (:class:`~.router_inputs.PeerKnown`); after
the first such input every message needs a right, and a route that nobody has named has
none.  Without keys there is no such input, and everybody may do everything.

A right has roles:

- ``submit``: ask for rollouts, attach to keys, and cancel what it asked for itself.  Cancel
  and forget keys of the namespaces that its entry names.
- ``watch``: statistics, running executions, their stacks, and known keys.
- ``work``: join as a host, at the address for those; nothing here.
- ``admin``: all of it, and cancel and forget any key.

Everybody with a key may open a session and be told the server's status.  A session belongs
to the key that opened it.  What is refused is refused in words.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Final, final

from . import messages
from .key_records import KeyAct
from .limits import PROTOCOL_VERSION
from .messages import SESSION_FULL
from .requests import Owner
from .sessions import Session, Sessions
from .terms import Route

ROLES: Final = ("submit", "work", "watch", "admin")

FORBIDDEN: Final = "forbidden"
"""The code of an Error for what a key may not do."""

_ENDS: Final = (KeyAct.CANCEL, KeyAct.FORGET)


@final
@dataclasses.dataclass(frozen=True, slots=True)
class Right:
    """A right of a key's owner."""

    name: str
    """The key's, for people."""
    roles: frozenset[str]
    namespaces: tuple[str, ...] = ()
    """The namespaces of its keys; empty: any."""
    share: float = 1.0
    """The part of the bound on waiting requests that its sessions may have unfinished."""

    def may_not(self, message: messages.Message) -> str:
        """Why it may not say this; empty if it may."""
        roles = self.roles
        if "admin" in roles:
            return ""
        if isinstance(message, messages.Request):
            if "submit" not in roles:
                return f"{self._named()} may not submit: that needs the role submit"
            if message.key is not None:
                return self._may_not_key(message)
        elif isinstance(message, messages.Query):
            if "watch" not in roles:
                return f"{self._named()} may not watch: that needs the role watch"
            if self.namespaces:
                if message.about != "keys":
                    return f"{self._named()} may watch the keys of its namespaces only"
                return self._outside(message.namespace or b"")
        return ""

    def _may_not_key(self, request: messages.Request) -> str:
        if request.act in _ENDS and not self.namespaces:
            return f"{self._named()} may not end keys: that needs admin, or namespaces of its own"
        return self._outside(request.namespace or b"")

    def _outside(self, namespace: bytes) -> str:
        name = namespace.decode("utf-8", "backslashreplace")
        if not self.namespaces or name in self.namespaces:
            return ""
        return f"{self._named()} may not use the namespace {name!r}"

    def _named(self) -> str:
        roles = ", ".join(sorted(self.roles)) or "none"
        word = "role" if len(self.roles) == 1 else "roles"
        return f"the key {self.name} ({word} {roles})"


@final
class Rights:
    """The rights of all peers, by their routes."""

    def __init__(self) -> None:
        self.on = False
        """Whether a right is needed."""
        self._by_route: dict[Route, Right] = {}
        self._owners: dict[str, Owner] = {}
        """By the names of their keys."""

    def know(self, route: Route, name: str, roles: str, namespaces: str, share: float) -> None:
        """See :class:`~.router_inputs.PeerKnown`."""
        self.on = True
        if name:
            named = tuple(namespaces.splitlines())
            self._by_route[route] = Right(name, frozenset(roles.split()), named, share)
        else:
            self._by_route.pop(route, None)

    def owner(self, route: Route) -> Owner:
        """To whom a session belongs that is opened on this route."""
        name = self._by_route[route].name
        return self._owners.setdefault(name, Owner(name))

    def refusal(
        self, route: Route, message: messages.Message, sessions: Sessions[Any]
    ) -> messages.Message | None:
        """The answer to a message that is refused; None if it is not."""
        right = self._by_route.get(route)
        if right is None:
            return _forbidden("no key is known for this peer")
        known = _session(message, sessions)
        if known is not None and (known.owner is None or known.owner.name != right.name):
            return _forbidden("this session belongs to another key")
        why = right.may_not(message)
        if not isinstance(message, messages.Request):
            return _forbidden(why) if why else None
        if known is not None and known.has_seen(message.sequence):
            return None  # it was let in before: a refusal says that it never ran
        if why:
            return messages.Refused(message.session, message.sequence, "refused", why, None)
        if known is None or right.share >= 1:
            return None
        most = max(1, int(right.share * sessions.limits.queue))
        assert known.owner is not None  # else it would be another key's
        if known.owner.unfinished < most:
            return None
        text = f"the key {right.name} has its share, {most} unfinished requests"
        return messages.Refused(
            message.session, message.sequence, "busy", text, sessions.limits.retry_delay_s,
            SESSION_FULL,
        )  # fmt: skip


def _session(message: messages.Message, sessions: Sessions[Any]) -> Session[Any] | None:
    """The session that a message is about."""
    if isinstance(message, messages.Hello):
        return sessions.of_nonce(message.nonce)
    named = getattr(message, "session", None)
    if named is None:
        return None
    return sessions.known.get(named) or sessions.of_nonce(named)


def _forbidden(why: str) -> messages.Error:
    return messages.Error(PROTOCOL_VERSION, FORBIDDEN, why)

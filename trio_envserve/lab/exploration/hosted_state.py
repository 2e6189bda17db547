"""The state of a system with two hosts."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

from ..hosts.judge import Past

Message: TypeAlias = "tuple[Any, ...]"
"""Its kind, its tenure, and the rest.  One to a host begins with the process that it is for."""


class HostPart(NamedTuple):
    """A machine and its links; messages in their order, the oldest first."""

    stage: int
    up: tuple[Message, ...] = ()
    down: tuple[Message, ...] = ()
    late: tuple[tuple[str, Message], ...] = ()
    """The messages left behind that may still arrive: which way, and the message."""
    cut: tuple[str, ...] = ()
    """The ways in which nothing passes."""

    def link(self, way: str) -> tuple[Message, ...]:
        """The messages that go this way."""
        return self.up if way == "up" else self.down

    def with_link(self, way: str, messages: tuple[Message, ...]) -> HostPart:
        """It with other messages there."""
        return self._replace(up=messages) if way == "up" else self._replace(down=messages)


class HostsState(NamedTuple):
    """The whole system at one moment."""

    tick: int
    """How often the time has passed."""
    router: int
    hosts: tuple[HostPart, ...]
    left: tuple[int, ...]
    """How often each kind of trouble may still come."""
    past: Past

"""The questions of clients of this wire, whatever its release."""

from __future__ import annotations

from typing import NamedTuple, Protocol, TypeAlias

from ...net import Frame

Message: TypeAlias = tuple[Frame, ...]
"""The frames of one message, without the route."""


class Health(NamedTuple):
    """Whether the server is there, and can run something."""

    name: bytes


class Run(NamedTuple):
    """Run one episode."""

    name: bytes
    """The request id: a key."""
    payload: Frame
    """The run's payload, for the environment alone."""


class Cancel(NamedTuple):
    """Stop a run."""

    name: bytes
    target: bytes
    """The request id of the run."""


Ask: TypeAlias = Health | Run | Cancel


class NotUnderstood(Exception):
    """A message that is wrong, of a client that can be told."""

    def __init__(self, name: bytes, why: str) -> None:
        super().__init__(why)
        self.name = name
        self.why = why


class Wire(Protocol):
    """One release of the wire: a module."""

    @property
    def NAME(self) -> str: ...  # noqa: D102  # said in the modules

    def read(self, frames: list[Frame]) -> Ask | None: ...  # noqa: D102  # as above
    def healthy(self, name: bytes) -> Message: ...  # noqa: D102
    def failed(self, name: bytes, why: str) -> Message: ...  # noqa: D102
    def cancelled(self, name: bytes, done: bool) -> Message: ...  # noqa: D102
    def ended(self, name: bytes, reply: bytes) -> Message: ...  # noqa: D102
    def delta(self, name: bytes, packed: bytes) -> Message: ...  # noqa: D102
    def discard(self, name: bytes, trace: str) -> Message: ...  # noqa: D102

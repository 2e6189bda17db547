"""The surroundings of a machine and of a router: a world with luck (:mod:`.world`), or a step
of one in which everything is tried (:mod:`..exploration.hosted_stages`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any

from ...core.earlier_epochs import EpochWait
from .plan import Plan

if TYPE_CHECKING:
    from .judge import Judge
    from .machine import Machine
    from .router import Request


class Surroundings(ABC):
    """The part that both have around them."""

    plan: Plan
    luck: Random
    judge: Judge
    now_s: float
    """True time."""

    @abstractmethod
    def after(self, delay_s: float, act: Callable[..., None], *args: Any) -> None:
        """Call ``act(*args)`` in ``delay_s`` of true time."""

    @abstractmethod
    def new_id(self) -> bytes:
        """Bytes that name nothing yet."""


class AroundMachine(Surroundings):
    """The surroundings of a machine."""

    @abstractmethod
    def to_router(self, machine: Machine, kind: str, *rest: Any) -> None:
        """Send a message of its host."""

    @abstractmethod
    def lasts_s(self) -> float:
        """How long an execution takes."""


class AroundRouter(Surroundings):
    """The surroundings of a router."""

    requests: dict[int, Request]
    """Those that are not answered."""
    disk: tuple[EpochWait, ...]
    """The records of routers for their successors."""

    @abstractmethod
    def to_host(self, machine: Machine, kind: str, *rest: Any) -> None:
        """Send a message to a host."""

    @abstractmethod
    def new_number(self) -> int:
        """The number of an execution: each has one of its own."""

    @abstractmethod
    def ended(self, number: int, done: bool) -> None:
        """A router was told that an execution has ended."""

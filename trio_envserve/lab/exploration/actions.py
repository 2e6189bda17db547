"""Actions: how each reads, what it uses up, and how a step takes it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Generic, NamedTuple, TypeAlias, TypeVar

from .described import Described

S = TypeVar("S")

Action: TypeAlias = tuple[Any, ...]
"""Its name, and where: the index of a client or worker, a slot, an id."""

CLIENT, SERVER, WORKER = "client", "server", "worker"


class Kind(NamedTuple):
    """One kind of action.  A step has a method of its name, unless it is only an input."""

    machine: str
    """The machine that it is of."""
    says: str
    """It in words, which :mod:`.story` fills in."""
    spends: str = ""
    """The bound that it uses up."""
    given: str = ""
    """The input that the machine is given, if that is all."""


class BaseJudge:
    """The part of their judges that steps share."""

    def __init__(self) -> None:
        self.violations: list[str] = []

    def violation(self, guarantee: str, text: str) -> None:
        """A guarantee does not hold."""
        self.violations.append(f"{guarantee}: {text}")


class BaseStep(ABC, Generic[S]):
    """The step from a state to the next."""

    KINDS: ClassVar[Mapping[str, Kind]]
    judge: BaseJudge

    def __init__(self, configuration: Described, left: tuple[int, ...]) -> None:
        self.left = left
        self._bounded = configuration.BOUNDED

    @abstractmethod
    def state(self) -> S:
        """The state after it."""

    def take(self, action: Action) -> None:
        """Let it happen."""
        name, *where = action
        kind = self.KINDS[name]
        if kind.spends:
            self._spend(kind.spends)
        if not kind.given:
            getattr(self, f"_{name}")(*where)
        elif kind.machine == SERVER:
            self._server(kind.given, *where)
        else:
            getattr(self, f"_{kind.machine}")(where[0], kind.given, *where[1:])

    def _spend(self, kind: str) -> None:
        index = self._bounded.index(kind)
        self.left = (*self.left[:index], self.left[index] - 1, *self.left[index + 1 :])

    @abstractmethod
    def _server(self, *given: Any) -> object:
        """The router's machine steps, and its effects go where they belong."""

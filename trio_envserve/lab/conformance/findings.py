"""A case, and what can become of it.

Theory of operation
-------------------
A case is a script in a table (:mod:`.script`), or else an async function whose name is the
case's name and whose docstring is the one line that says what a right server does.  It is given
the stage on which scripts are played, returns (passed), raises
:class:`CaseFailed` (with what was expected and what was seen) or
:class:`CaseSkipped` (this server cannot be asked).  :func:`case` turns it into
a :class:`Case` and says where the line comes from: a heading of
``docs/protocol.md``, and the guarantee.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from ...core.errors import EnvServeError

CaseMain: TypeAlias = Callable[[Any], Awaitable[None]]
"""Given the stage of the case, that of a server, or that of a worker."""


class CaseFailed(EnvServeError):
    """The server, or worker, is not right: ``expected`` of it, and ``seen`` instead."""

    def __init__(self, expected: str, seen: str) -> None:
        super().__init__(f"expected {expected}; seen: {seen}")
        self.expected = expected
        self.seen = seen


class TimedOut(CaseFailed):
    """Something did not come in time."""


class Unreachable(CaseFailed):
    """The server did not answer before the case began: what was before it is to blame."""


class CaseSkipped(EnvServeError):
    """The case says nothing about this server, or worker; the text says why."""


class CaseResult(enum.Enum):
    """The result of a case."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """One thing that a right server, or worker, does.  Made by :func:`case`, or of a script."""

    name: str
    line: str
    """The right behaviour, as one sentence."""
    section: str
    """The heading of ``docs/protocol.md`` that says so."""
    guarantee: str
    """``G1`` to ``G10``, or ``wire`` for the form of messages."""
    needs: tuple[str, ...]
    """Without which it cannot be judged: operations of a server's environment, or inputs
    for a worker's."""
    faults: bool
    """Whether it runs through the fault proxy."""
    main: CaseMain
    clients: int
    """Number of clients with a session that there are when it begins, for a server's."""


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """A case, judged."""

    case: Case
    mark: CaseResult
    expected: str = ""
    seen: str = ""
    """The behaviour that was there instead, or why the case was skipped."""
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return {
            **describe(self.case), "finding": self.mark.value, "expected": self.expected,
            "seen": self.seen, "seconds": round(self.seconds, 3),
        }  # fmt: skip


def case(
    section: str,
    guarantee: str,
    *,
    needs: tuple[str, ...] = (),
    faults: bool = False,
    clients: int = 1,
) -> Callable[[CaseMain], Case]:
    """Make a case of an async function; see the module's text."""

    def make(main: CaseMain) -> Case:
        line = " ".join((inspect.getdoc(main) or "").split())
        name = getattr(main, "__name__", "").replace("_", "-")
        return Case(name, line, section, guarantee, needs, faults, main, clients)

    return make


def describe(case: Case) -> dict[str, Any]:
    """A case as plain data."""
    return {
        "name": case.name, "section": case.section, "guarantee": case.guarantee, "line": case.line,
        "faults": case.faults,
    }  # fmt: skip


def check(right: bool, expected: str, seen: object) -> None:
    """Fail the case unless it is right."""
    if not right:
        text = seen if isinstance(seen, str) else repr(seen)
        raise CaseFailed(expected, text if len(text) <= 400 else f"{text[:397]}...")

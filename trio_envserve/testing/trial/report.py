"""The report of a trial."""

from __future__ import annotations

import dataclasses
import re

from .history import History


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrialReport:
    """The finding of the judges, and what they saw.  ``str()`` of it is for people."""

    seed: int
    problems: tuple[str, ...]
    """The problems, a sentence each; empty if there are none."""
    history: History
    trace: str
    """A digest of every message header and every event, with their times: the same
    seed gives the same digest on every machine."""
    counts: dict[str, int]
    """How often what happened: ``asks``, ``answered``, ``cancelled``, ``executions``,
    ``lives`` of the server, messages ``sent`` and ``lost``, requests ``retransmitted``,
    and the server's own ``coalesced``, ``replayed``, ``reruns``."""
    faults: dict[str, int]
    """How often each fault struck, by name."""
    virtual_s: float
    """The duration on the virtual clock."""

    @property
    def ok(self) -> bool:
        """Whether no judge found a problem."""
        return not self.problems

    def check(self) -> None:
        """Raise AssertionError, with everything that is known, if there is a problem."""
        if self.problems:
            raise AssertionError(str(self))

    def __str__(self) -> str:
        counts = ", ".join(f"{count} {name}" for name, count in self.counts.items())
        faults = ", ".join(f"{name} x{count}" for name, count in sorted(self.faults.items()))
        head = (
            f"trial with seed {self.seed}: {len(self.problems)} problems in "
            f"{self.virtual_s:.0f} virtual seconds ({counts}; faults: {faults or 'none'})"
        )
        if not self.problems:
            return head
        named = {int(n) for text in self.problems for n in re.findall(r"\bask (\d+)", text)}
        story = self.history.story(named or None)
        problems = "\n".join(f"  - {text}" for text in self.problems)
        return f"{head}\n{problems}\nwhat happened to them:\n{story}"

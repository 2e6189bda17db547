"""One case, judged; and the findings of all of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable
from typing import Any

import trio

from ...net import unwrap_single
from .findings import Case, CaseFailed, CaseSkipped, Finding, Mark, Unreachable

CASE_S = 60.0
"""Limit of one case; each wait inside of it has a limit of its own."""


@dataclasses.dataclass(frozen=True, slots=True)
class Report:
    """All findings about one server, or one worker."""

    judged: str
    """The server's address, or the worker's command."""
    findings: tuple[Finding, ...]
    seconds: float

    def of(self, mark: Mark) -> list[Finding]:
        """Those with this mark, in order."""
        return [finding for finding in self.findings if finding.mark is mark]

    @property
    def failed(self) -> list[Finding]:
        """The failures."""
        return self.of(Mark.FAILED)

    @property
    def ok(self) -> bool:
        """Whether nothing failed, and something passed."""
        return not self.failed and bool(self.of(Mark.PASSED))

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "judged": self.judged, "ok": self.ok,
            **{mark.value: len(self.of(mark)) for mark in Mark},
            "seconds": round(self.seconds, 3),
            "cases": [finding.to_json() for finding in self.findings],
        }  # fmt: skip


async def judge_case(case: Case, run: Callable[[Case], Awaitable[None]], reason: str) -> Finding:
    """Run one case, unless there is a reason to skip it.  Raises :class:`Unreachable`."""
    if reason:
        return Finding(case, Mark.SKIPPED, seen=reason)
    began_s = trio.current_time()
    mark, expected, seen = Mark.PASSED, "", ""
    with trio.move_on_after(CASE_S) as limit:
        try:
            with unwrap_single():
                await run(case)
        except Unreachable:
            raise
        except CaseSkipped as skipped:
            mark, seen = Mark.SKIPPED, str(skipped)
        except CaseFailed as failed:
            mark, expected, seen = Mark.FAILED, failed.expected, failed.seen
        except Exception as error:
            # Whatever a strange peer made a case stumble over: the other cases
            # are to be heard, too.
            mark, expected = Mark.FAILED, "a case that ends"
            seen = f"{type(error).__name__}: {error}"
    if limit.cancelled_caught:
        mark, expected, seen = Mark.FAILED, f"an end within {CASE_S:g} s", "none"
    return Finding(case, mark, expected, seen, trio.current_time() - began_s)

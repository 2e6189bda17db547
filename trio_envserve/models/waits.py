"""The waits of a rollout: as its note says, and as its usage counts those for an endpoint."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias, final

TELL_AFTER_S = 1.0
"""A rollout that has waited for less does not say so."""

Waits: TypeAlias = Callable[[str | None], object]
"""Takes what a rollout waits for, such as ``for the model, 3.2 s``; None when it does not wait any
more."""


class WaitNote:
    """Lets the note of a rollout say for what it waits."""

    def __init__(self, waits: Waits | None, since_s: float) -> None:
        self._waits = waits
        self.since_s = since_s
        """Begin of the wait."""
        self.tell_at_s = since_s
        """Moment from which it is said again."""
        self._told = False

    def tell(self, now_s: float, what: str, more: str = "") -> None:
        """Say it, seldom for one that has waited for long."""
        age_s = now_s - self.since_s
        if self._waits is not None and age_s >= TELL_AFTER_S and now_s >= self.tell_at_s:
            self._told, self.tell_at_s = True, now_s + age_s / 10
            self._waits(f"for {what}, {age_s:.1f} s{more}")

    def over(self) -> None:
        """The rollout goes on."""
        if self._waits is not None and self._told:
            self._waits(None)


class CallWait(Protocol):
    """A model call under way."""

    since_s: float
    """Begin of the call."""
    sent_s: float | None
    """Moment at which the request was sent that may be answered; None while the call waits for a
    permit, or for its next try."""


@final
class EndpointWaits:
    """Counts the time in which calls waited for a permit or for another try, failed tries
    included.  Of waits at the same time each second counts once.  For the trio loop.

    ``above`` counts them, too.
    """

    def __init__(self, above: EndpointWaits | None = None) -> None:
        self._above = above
        self._open: list[CallWait] = []
        self._until_s = 0.0
        """End of the last wait that is counted."""
        self.over_s = 0.0
        """The waits of calls that have ended, in seconds.  May be read in any thread."""

    def begin(self, wait: CallWait) -> None:
        """A call begins."""
        self._open.append(wait)
        if self._above is not None:
            self._above.begin(wait)

    def end(self, wait: CallWait, now_s: float) -> None:
        """A call has ended: answered, failed or cancelled."""
        self._open.remove(wait)
        for each in sorted(self._open, key=_since_s):  # what they waited before it
            begin_s = max(each.since_s, self._until_s)
            end_s = min(wait.since_s, now_s if each.sent_s is None else each.sent_s)
            self.over_s += max(0.0, end_s - begin_s)
            self._until_s = max(self._until_s, end_s)
        self.over_s, self._until_s = _with(self.over_s, self._until_s, wait, now_s)
        if self._above is not None:
            self._above.end(wait, now_s)

    def waited_s(self, now_s: float) -> float:
        """All waits so far, in seconds.  A request that has no answer yet counts as none: it is
        one once it has failed."""
        waited_s, until_s = self.over_s, self._until_s
        for wait in sorted(self._open, key=_since_s):
            waited_s, until_s = _with(waited_s, until_s, wait, now_s)
        return waited_s


def _since_s(wait: CallWait) -> float:
    return wait.since_s


def _with(waited_s: float, until_s: float, wait: CallWait, now_s: float) -> tuple[float, float]:
    """The sum of waits, and the end of the last one, with one more."""
    begin_s = max(wait.since_s, until_s)
    end_s = now_s if wait.sent_s is None else wait.sent_s
    return waited_s + max(0.0, end_s - begin_s), max(until_s, end_s)

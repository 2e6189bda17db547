"""How long the model calls of a rollout waited for their endpoint."""

from __future__ import annotations

from typing import Protocol, final


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
        for each in sorted(self._open, key=_since_s):  # waits that began before it
            if each.since_s < wait.since_s:
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

"""The judge of the demonstration, its other half: what became of duplicates.

Theory of operation
-------------------
Everything follows from what went over the callers' sockets (see
:mod:`.judge_logs` for the lines), from what was cut, and from what the
environment says ran when.

*Replayed*: each request has one outcome, so whatever was sent of it beyond the
first is a replay.  What was sent is what the caller's socket gave, all of it
the same bytes, and what a cut withheld.

*Coalesced*: a duplicate, sent between a start of its key and that run's end,
to which the server said nothing.  One connection keeps the order both ways.  So
if a ping sent after the duplicate was answered on the same connection, and
none ended or was cut meanwhile, then the duplicate had been taken, and any
reply to it had come before the pong.  A reply is another outcome, or a
refusal; the first outcome is none if the run ended after the duplicate was
sent.  A request goes from running to completed to finished and never back
behind its outcome, so those of its duplicates that got no reply are the first
ones sent.

Where it is not sure a duplicate is left out, so both figures are at most what
happened: the server sends outcomes into connections that are gone already, and
takes duplicates on connections that end before the next ping.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from ..history import History, Line


def request_id(session: str, sequence: int) -> str:
    """One name for a request."""
    return f"{session}/{sequence}"


def request_of(line: Line) -> str:
    """The request that a line is about."""
    return request_id(line["session"], line["sequence"])


class Sockets(NamedTuple):
    """The messages on the callers' sockets."""

    requests: dict[str, list[Line]]
    """By request: its transmissions."""
    outcomes: dict[str, list[Line]]
    """By request: the outcomes that the sockets gave."""

    @classmethod
    def of(cls, history: History) -> Sockets:
        """From the lines of the callers."""
        sockets = cls({}, {})
        for line in history.callers:
            if line["event"] == "request":
                sockets.requests.setdefault(request_of(line), []).append(line)
            elif line["event"] == "outcome":
                sockets.outcomes.setdefault(request_of(line), []).append(line)
        return sockets


def repeats(history: History, sockets: Sockets) -> dict[str, Any]:
    """``replayed``, ``coalesced``, and ``outcomes_differ``: how many requests had
    outcomes that were not the same bytes."""
    sendings = Counter(
        request
        for line in history.faults("cut", how="before receipt")
        for request in (request_id(*withheld) for withheld in line["withheld"])
        if request in sockets.requests
    )
    for request, outcomes in sockets.outcomes.items():
        sendings[request] += len(outcomes)
    breaks_s = [line["monotonic"] for line in history.faults("cut")]
    breaks_s += [line["sent_s"] for line in history.faults("kill", what="server")]
    return {
        "replayed": sum(count - 1 for count in sendings.values()),
        "coalesced": sum(
            _coalesced(history, sockets, connection)
            for connection in _connections(history, breaks_s)
        ),
        "outcomes_differ": sum(
            len({line["digest"] for line in outcomes}) > 1 for outcomes in sockets.outcomes.values()
        ),
    }


def _connections(history: History, breaks_s: list[float]) -> Iterator[list[Line]]:
    """The lines of each connection of each caller, from its beginning to the
    first sign that it may have ended."""
    lines: dict[int, list[Line]] = {}
    for line in history.callers:
        if "caller" in line:
            lines.setdefault(line["caller"], []).append(line)
    for one in lines.values():
        begun = [i for i, line in enumerate(one) if line["event"] == "connected"]
        for first, after in itertools.pairwise([*begun, len(one)]):
            began_s = one[first]["monotonic"]
            until_s = min((each_s for each_s in breaks_s if each_s > began_s), default=math.inf)
            yield list(_unbroken(one[first + 1 : after], until_s))


def _unbroken(lines: list[Line], until_s: float) -> Iterator[Line]:
    for line in lines:
        if line["event"] == "disconnected" or line["monotonic"] >= until_s:
            return
        yield line


def _coalesced(history: History, sockets: Sockets, connection: list[Line]) -> int:
    """How many duplicates on this connection joined a living run."""
    pings = {
        (line["session"], line["probe"]): i
        for i, line in enumerate(connection) if line["event"] == "ping"
    }  # fmt: skip
    sent, answered = 0, 0
    """Places of the last ping that was answered, and of its pong."""
    for i, line in enumerate(connection):
        if line["event"] == "pong" and (line["session"], line["probe"]) in pings:
            sent, answered = max((sent, answered), (pings[line["session"], line["probe"]], i))
    duplicates: dict[str, list[tuple[int, Line]]] = {}
    for i, line in enumerate(connection[:sent]):
        if line["event"] == "request" and line is not sockets.requests[request_of(line)][0]:
            duplicates.setdefault(request_of(line), []).append((i, line))
    replies: dict[str, list[tuple[int, Line]]] = {}
    for i, line in enumerate(connection[:answered]):
        if line["event"] in ("outcome", "refused"):
            replies.setdefault(request_of(line), []).append((i, line))
    return sum(
        _unanswered(
            history, again, [line for i, line in replies.get(request, ()) if i > again[0][0]]
        )
        for request, again in duplicates.items()
    )


def _unanswered(history: History, duplicates: list[tuple[int, Line]], replies: list[Line]) -> int:
    """How many duplicates of one request, all taken, came while it ran and got none of
    the replies that came after the first of them."""
    first = duplicates[0][1]
    outcomes = sum(line["event"] == "outcome" for line in replies)
    ends_s = [line["monotonic"] for line in history.results.get(first["key"], ())]
    if outcomes and max(ends_s, default=0.0) > first["monotonic"]:
        outcomes -= 1  # that of the run itself
    refused = sum(line["event"] == "refused" for line in replies)
    silent = max(0, len(duplicates) - outcomes - refused)
    return sum(_ran(history, line) for _, line in duplicates[:silent])


def _ran(history: History, duplicate: Line) -> bool:
    """Whether a run of this key had begun and not ended when a line was written."""
    key, moment_s = duplicate["key"], duplicate["monotonic"]
    return any(
        start["monotonic"] < moment_s < end["monotonic"]
        for _, start in history.starts.get(key, ())
        for end in history.results.get(key, ())
        if end["process"] == start["process"]
    )

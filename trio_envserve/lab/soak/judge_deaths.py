"""The deaths of a soak, and whether they explain what a caller was told."""

from __future__ import annotations

import bisect
import dataclasses
import math

from ...core.calls import grant
from ...core.limits import ClientLimits
from ..history import History, Line

DEFAULT_EXECUTIONS = ClientLimits().max_executions
"""The allowance of a call that consents to a rerun and does not say how often."""
NOTICE_S = 1.0
"""How long after a worker's death a running server may still give it a rollout."""


@dataclasses.dataclass(slots=True)
class Deaths:
    """When something was killed, and who could know: to be asked about a call."""

    workers: list[tuple[float, float]]
    """For each the last moment at which it may have lived, and the last at which its
    server may not have known that it is dead."""
    servers: list[tuple[float, float]]
    """For each the last moment at which it may have lived, and the first at which it
    was dead."""
    connections: dict[str, list[float]]
    """By client, when a connection of it began or ended."""

    @classmethod
    def of(cls, history: History) -> Deaths:
        """From the history."""
        seen = {line["pid"] for line in history.faults("dead")}
        workers = [(line["alive_s"], line["monotonic"]) for line in history.faults("dead")]
        # One that was killed before it had begun anything is in no other log.
        workers += [
            (line["sent_s"], line["monotonic"])
            for line in history.faults("kill", what="worker") if line["pid"] not in seen
        ]  # fmt: skip
        # Nor is one that was stopped for good by then, and killed by its server.
        ended_s = {line["pid"]: line["monotonic"] for line in history.faults("frozen-ended")}
        workers += [
            (line["monotonic"], ended_s[line["pid"]])
            for line in history.faults("freeze") if line["pid"] in ended_s.keys() - seen
        ]  # fmt: skip
        stood = [
            (line["monotonic"], line["monotonic"] + line["lasts_s"])
            for line in history.faults("stop") if line["what"] in ("server", "host")
        ]  # fmt: skip
        joined_s = [line["monotonic"] for line in history.faults("joined")]
        for line in history.faults("kill", what="host"):
            next_s = min(
                (each_s for each_s in joined_s if each_s > line["sent_s"]), default=math.inf
            )
            stood.append((line["sent_s"], next_s))
        servers = [
            (line["sent_s"], line["monotonic"]) for line in history.faults("kill", what="server")
        ]
        connections: dict[str, list[float]] = {}
        for line in history.callers:
            if line["event"] in ("connected", "disconnected"):
                connections.setdefault(line["client"], []).append(line["monotonic"])
        known = [(alive_s, _known_s(dead_s, sorted(stood))) for alive_s, dead_s in workers]
        return cls(sorted(known), sorted(servers), connections)

    @staticmethod
    def during(deaths: list[tuple[float, float]], begin_s: float, end_s: float) -> int:
        """How many may have happened, or become known, between these moments."""
        before = bisect.bisect_right(deaths, (end_s, math.inf))
        return sum(last_s >= begin_s for _, last_s in deaths[:before])

    def unnoticed(self, client: str, moment_s: float) -> bool:
        """Whether a client could not know at this moment of the last server's death:
        no connection of it has ended or begun since."""
        before = bisect.bisect_right(self.servers, (moment_s, math.inf))
        if not before or self.servers[before - 1][1] >= moment_s:
            return False  # there was none, or it happened just then
        events_s = self.connections.get(client, [])
        dead_s = self.servers[before - 1][1]
        return bisect.bisect_right(events_s, dead_s) == bisect.bisect_right(events_s, moment_s)


def _known_s(dead_s: float, stood: list[tuple[float, float]]) -> float:
    """Until when a server may not have known of a worker's death: it may have been
    stopped, too, or the host that has to say so stopped or killed."""
    until_s = dead_s
    for begin_s, end_s in stood:
        if begin_s <= until_s <= end_s:
            until_s = end_s
    return until_s + NOTICE_S


def explained(deaths: Deaths, ask: Line, answer: Line) -> bool:
    """Whether "it may have run" is what its caller has to be told.

    Without consent one death during the call is enough: of a worker for
    ``worker-lost``, of a server for ``server-lost``.  With it the call is issued again,
    so its allowance must be used up, by what each of its sessions was granted
    (:func:`~trio_envserve.core.calls.grant`).  (Or its limit passes while it waits.)
    A death before the call counts if whoever took the call could not know of it yet:
    the server of its worker's, the client of its server's.
    """
    code, limited = answer["error"], ask["timeout_s"] is not None
    if code in ("no-answer", "deadline"):
        return limited
    call_s = ask["monotonic"], answer["monotonic"]
    workers = deaths.during(deaths.workers, *call_s)
    servers = deaths.during(deaths.servers, *call_s)
    servers += deaths.unnoticed(ask["client"], ask["monotonic"])
    allowed = ask["max_executions"] or DEFAULT_EXECUTIONS
    if ask["rerun"] is not True:
        allowed = 1
    if code == "worker-lost":
        return workers >= (1 if servers or limited else grant(allowed))
    if code == "server-lost":
        return servers >= (1 if limited else _sessions_for(allowed))
    return False


def _sessions_for(allowed: int) -> int:
    """How many sessions must be lost until nothing is left of the allowance."""
    count = 0
    while allowed > 0:
        allowed, count = allowed - grant(allowed), count + 1
    return count

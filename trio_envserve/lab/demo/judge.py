"""What the demonstration shows, beside the guarantees, from the events of its run.

``python -m trio_envserve.lab.demo.judge DIR`` judges the log in a folder again: it prints one JSON
object, and exits with 0 only if there is no problem.

The callers' sockets say what they sent and what came (:mod:`.wiretap`), and the killer which
outcomes its cuts have withheld.  No counter of the server's is among the events.
"""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ...retrylab import Event, Violation
from ..guarantees import Counting, judge

EVENTS = "events.jsonl"
LEAST_FAULTS = 3
"""How often each kind of fault must have happened (the server dies once)."""
LEAST_LIVING = 20
"""How many executions a killed worker must have had for its death to count."""

CUT, CUT_BEFORE_RECEIPT = "cut", "cut before a receipt"
SENT_AGAIN, SENT_AGAIN_RUNNING = "sent again", "sent again while it ran"
REPLAYED, RECEIVED_AFTER_CUT = "replayed", "received after a cut"
BUSY_KILLED = "busy worker kill"


class Shown(Counting):
    """Counts what was sent again, what was replayed, and who died with much to do."""

    def __init__(self) -> None:
        self.counts = Counter[str]()
        self.sent: set[str] = set()
        """Ids of the requests that were sent."""
        self.digests: dict[str, str] = {}
        """By id: of the outcome that came."""
        self.withheld: set[str] = set()
        """Ids of the outcomes that a cut has withheld."""
        self.running: defaultdict[str, set[str]] = defaultdict(set)
        """By process: the requests that it runs."""
        self.died_with: dict[int, int] = {}
        """By id of a process: how much it ran when it died."""
        self.killed: set[int] = set()
        """Ids of the workers that were killed."""

    def see(self, event: Event) -> Iterator[Violation]:
        """Violations by outcomes of one request that differ."""
        what = dict(event.what or ())
        match event.kind:
            case "sent":
                if what["id"] in self.sent:
                    self.counts[SENT_AGAIN] += 1
                    runs = any(event.request in requests for requests in self.running.values())
                    self.counts[SENT_AGAIN_RUNNING] += runs
                self.sent.add(what["id"])
            case "arrived":
                id_, digest = what["id"], what["digest"]
                self.counts[REPLAYED] += id_ in self.withheld or id_ in self.digests
                if self.digests.setdefault(id_, digest) != digest:
                    yield event.breaks("G3", f"{event.request} has outcomes of other bytes")
                self.counts[RECEIVED_AFTER_CUT] += id_ in self.withheld
                self.withheld.discard(id_)
            case "began":
                self.running[event.actor].add(event.request)
            case "ended":
                self.running[event.actor].discard(event.request)
            case "died":
                self.died_with[what["pid"]] = len(self.running.pop(event.actor, ()))
            case "harmed" if what["of"] == "network":
                self.counts["connections cut"] += what["connections"]
                self.withheld |= set(what.get("withheld", ()))
            case "harmed" if (what["of"], what["how"]) == ("worker", "kill"):
                self.killed.add(what["pid"])

    def figures(self) -> dict[str, Any]:
        """The counts."""
        busy = sum(self.died_with.get(pid, 0) >= LEAST_LIVING for pid in self.killed)
        return dict(sorted({**self.counts, BUSY_KILLED: busy}.items()))


def wants(rollouts: int, *, hosts: int = 0) -> Mapping[str, int]:
    """How much of what is to be shown."""
    return {
        "result": rollouts, f"network {CUT}": LEAST_FAULTS,
        f"network {CUT_BEFORE_RECEIPT}": LEAST_FAULTS, BUSY_KILLED: LEAST_FAULTS,
        "server kill": 1, "host kill": hosts, SENT_AGAIN_RUNNING: 1, REPLAYED: 1,
        RECEIVED_AFTER_CUT: 1,
    }  # fmt: skip


def judge_demo(folder: Path) -> dict[str, Any]:
    """The judges' figures, of the log in a folder."""
    return judge(folder / EVENTS, Shown())


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: python -m trio_envserve.lab.demo.judge DIR")
    judged = judge_demo(Path(sys.argv[1]))
    print(json.dumps(judged))
    raise SystemExit(0 if judged["ok"] else 1)

"""The findings of a siege, judged from its log: ``python -m tests.attack.judge LOG``.

Theory of operation
-------------------
No server is asked, and nothing is measured here.  What the honest callers were told, and how
often something ran, is judged as that of every rig (:mod:`trio_envserve.lab.guarantees`).  Besides
the events of every rig the log has

``phase``
    ``stage`` (``allowed``: bytes that each kind of process may grow by), ``round`` (``number``,
    ``attacks``), ``quiet`` (the attack has ended, and the enemy takes the same processor time for
    nothing), ``round-end``; ``newcomer`` (``took_s``), ``recovered`` (``right``), ``held``;
    ``stopped``: a victim that was asked to end, with its exit ``code``;
``harmed``
    a victim that has ``ended`` or ``hung``, with its last words;
``did``
    an attack, at its begin and at its end (with its ``counts``);
``sampled``
    resident memory, long turns of loops and stalls of the machine (:mod:`tests.rig.meter`).
"""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any, Final, NamedTuple

from trio_envserve.lab import guarantees
from trio_envserve.lab.guarantees import Counting
from trio_envserve.retrylab import Event, Violation

FINDINGS: Final[Mapping[str, str]] = {
    "attacked": "every attack that was planned was made",
    "survived": "no process ended that was not told to, or stopped answering",
    "stopped": "every process that was asked to stop did so, with exit code 0",
    "turns": "no turn of a loop took more than 100 ms of its thread's processor time",
    "memory": "resident memory grew by no more than the limits name",
    "rate": "the honest client kept half of its rate beside a busy process, a tenth in each round, "
    "and stood still after none",
    "newcomers": "a client that came during a round had its first answer within 10 s",
    "recovered": "the client that was attacked worked with the honest server that came after",
    "held": "calls that waited for a held loop were answered, without a storm of connections",
}
"""What is good, by name."""

TURN_S = 0.1
"""Most processor time of one turn of a loop."""
RATE_LEAST, WORST_RATE_LEAST = 0.5, 0.1
"""Least parts of the rate beside a busy process that the honest client must keep, over all rounds
and in the worst one."""
STILL = 5.0
"""Fewer answers a second than these, of 16 calls at once and without an attack, are a standstill
on any machine."""
STORM_FREE, STORM_EVERY_S = 2, 3.0
"""Connections that a peer of a held loop may make in any case, and the least average time between
two others."""
LATE_S = 1.0
"""An attack is told beside what is seen so long after its end."""


class Turn(NamedTuple):
    who: str
    turn_s: float
    when_s: tuple[float, float]
    words: str


class Rate(NamedTuple):
    """Answers a second in a round, beside the attack and beside the quiet."""

    round: int
    attacks: str
    besieged: float
    quiet: float

    @property
    def kept(self) -> float:
        """Part of its rate that the honest client kept."""
        return self.besieged / self.quiet if self.quiet else 0.0


class Findings(Counting):
    def __init__(self) -> None:
        self.found: dict[str, dict[str, Any]] = {name: {} for name in FINDINGS}
        """Figures of each."""
        self.stage, self.round, self.in_round = "", -1, False
        self.attacks = ""
        """Those of the round."""
        self.open: Counter[str] = Counter()
        self.seen: dict[str, float] = {}
        """Attacks, with the last moment at which they began or ended."""
        self.lost = False
        """Whether a victim was lost, and after that its attackers found nobody."""
        self.turns: list[Turn] = []
        self.stalls: list[tuple[int, float, float]] = []
        """Processors of the machine that ran nobody, from when to when."""
        self.warm_kib: dict[str, int] = {}
        self.allowed: dict[str, int] = {}
        self.right, self.since_s, self.besieged = 0, 0.0, -1.0
        self.rates: list[Rate] = []

    def figures(self) -> dict[str, Any]:
        return self.found

    def see(self, event: Event) -> Iterator[Violation]:
        for name, text in self._seen(event, dict(event.what or ())):
            yield Violation(name, event.at_s, text)

    def _seen(self, event: Event, what: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        at_s = event.at_s
        match event.kind, event.actor:
            case "phase", "stage":
                self.stage, self.allowed, self.warm_kib = what["stage"], dict(what["allowed"]), {}
            case "phase", "round":
                self.round, self.in_round = what["number"], True
                self.right, self.since_s, self.besieged = 0, at_s, -1.0
                self.attacks = f"attacks: {', '.join(what['attacks'])}"
                for name in what["attacks"]:
                    self.found["attacked"].setdefault(name, Counter())
            case "did", name:
                self.open[name] += -1 if "counts" in what else 1
                self.seen[name] = at_s
                self.found["attacked"][name].update(dict(what.get("counts", ())))
            case "told", actor if actor.startswith("front"):
                self.right += what["ok"] and what["right"]
            case "phase", "quiet":
                self.besieged = self.right / (at_s - self.since_s)
                self.right, self.since_s = 0, at_s
            case "phase", "round-end":
                self.in_round = False
                if self.besieged >= 0.0:
                    quiet = self.right / (at_s - self.since_s)
                    self.rates.append(Rate(self.round, self.attacks, self.besieged, quiet))
            case "phase", "newcomer":
                self._most("newcomers", "longest_s", what["took_s"] or 0.0)
                if what["took_s"] is None:
                    text = f"a client that came in round {self.round} was not served; "
                    yield "newcomers", text + self._beside(at_s)
            case "phase", "recovered":
                self._most("recovered", "rounds", self.found["recovered"].get("rounds", 0) + 1)
                if not what["right"]:
                    yield "recovered", f"after round {self.round} the client got no answer any more"
            case "phase", "held":
                name, right, connections = what["scenario"], what["right"], what["connections"]
                self.found["held"][name] = {"right": right, "connections": connections}
                if right < what["calls"]:
                    yield "held", f"{name}: {right} of {what['calls']} answers"
                if connections > STORM_FREE + what["seconds"] / STORM_EVERY_S:
                    yield "held", f"{name}: {connections} connections in {what['seconds']:g} s"
            case "phase", "stopped":
                self._most("stopped", "longest_s", what["took_s"])
                if what["code"] != 0:
                    text = f"the {what['who']} was asked to stop, and ended with code"
                    yield "stopped", f"{text} {what['code']}"
            case "harmed", who if what["how"] in ("ended", "hung"):
                self.lost = True
                said = [line for line in what["words"].splitlines() if line.strip()]
                telling = [line for line in said if "rror" in line or "ssertion" in line]
                last = (telling or said or [what["why"]])[-1][:200]
                text = (
                    f"the {who} {what['how']} in round {self.round}, code {what['code']} ({last})"
                )
                yield "survived", f"{text}; {self._beside(at_s, 30.0)}"
            case "sampled", "stall":
                self.stalls.append((what["processor"], *what["when_s"]))
            case "sampled", "turn" if self.in_round:
                self._most("turns", what["who"], what["turn_s"])
                if what["turn_s"] > TURN_S:
                    words = (
                        f"in round {self.round} ({1000 * what['collect_s']:.0f} ms of it "
                        f"collecting garbage; {what['task']}; "
                        f"{' < '.join(reversed(what['where'][-3:]))}); "
                        f"{self._beside(at_s, 0.5 + what['turn_s'])}"
                    )  # fmt: skip
                    self.turns.append(Turn(what["who"], what["turn_s"], what["when_s"], words))
            case "sampled", "memory":
                for who, kib in what["kib"]:
                    if what["warm"]:
                        self.warm_kib[who] = min(self.warm_kib.get(who, kib), kib)
                    elif who in self.warm_kib:
                        grown, _ = self.found["memory"].get(f"{self.stage}/{who}", (0, 0))
                        grown = max(grown, kib - self.warm_kib[who])
                        allowed = self.allowed[who] // 1024
                        self.found["memory"][f"{self.stage}/{who}"] = grown, allowed

    def _most(self, finding: str, name: str, value: float) -> None:
        self.found[finding][name] = max(value, self.found[finding].get(name, value))

    def _beside(self, at_s: float, within_s: float = LATE_S) -> str:
        names = {name for name, count in self.open.items() if count > 0}
        names |= {name for name, seen_s in self.seen.items() if seen_s > at_s - within_s}
        return f"attacks: {', '.join(sorted(names)) or 'none'}"

    def rest(self, at_s: float) -> Iterator[Violation]:
        for name, text in (*self._unmade(), *self._long(), *self._grown(), *self._slow()):
            yield Violation(name, at_s, text)

    def _unmade(self) -> Iterator[tuple[str, str]]:
        for name, counts in self.found["attacked"].items():
            if not (counts["connections"] or self.lost):
                yield "attacked", f"{name} was never made"

    def _long(self) -> Iterator[tuple[str, str]]:
        worst: dict[str, Turn] = {}
        for turn in self.turns:
            stood: defaultdict[int, float] = defaultdict(float)
            begin_s, end_s = turn.when_s
            for processor, from_s, to_s in self.stalls:
                stood[processor] += max(0.0, min(end_s, to_s) - max(begin_s, from_s))
            turn_s = turn.turn_s - max(stood.values(), default=0.0)
            if turn_s > TURN_S and (turn.who not in worst or turn_s > worst[turn.who].turn_s):
                worst[turn.who] = turn._replace(turn_s=turn_s)
        for who, turn_s, _, words in worst.values():
            text = f"a turn of a {who}'s loop took {1000 * turn_s:.0f} ms of processor time"
            yield "turns", f"{text} {words}"

    def _grown(self) -> Iterator[tuple[str, str]]:
        for name, (grown, allowed) in self.found["memory"].items():
            if grown > allowed:
                text = f"grew by {grown // 1024} MiB, {allowed // 1024} MiB are within its bounds"
                yield "memory", f"{name} {text}"

    def _slow(self) -> Iterator[tuple[str, str]]:
        for each in self.rates:
            if each.quiet < STILL:
                text = f"after round {each.round} the honest client stood still: {each.quiet:.1f}"
                yield "rate", f"{text} answers a second; {each.attacks}"
        if not self.rates:
            return
        worst = min(self.rates, key=lambda each: each.kept)
        besieged, quiet = zip(*((each.besieged, each.quiet) for each in self.rates), strict=True)
        whole = Rate(-1, "", fmean(besieged), fmean(quiet))
        self.found["rate"] |= {
            "besieged": round(whole.besieged, 1), "quiet": round(whole.quiet, 1),
            "kept": round(whole.kept, 3),
            "rounds": {each.round: round(each.kept, 3) for each in self.rates},
        }  # fmt: skip
        if whole.kept < RATE_LEAST:
            text = f"{whole.besieged:.0f} answers a second beside attacks, {whole.quiet:.0f} beside"
            yield "rate", f"{text} a busy process: {whole.kept:.2f} of it, {RATE_LEAST} wanted"
        if worst.kept < WORST_RATE_LEAST:
            text = f"in round {worst.round} the honest client kept {worst.kept:.2f} of its rate"
            yield "rate", f"{text}, {WORST_RATE_LEAST} wanted; {worst.attacks}"


def judge(log: Path, unjudged: Collection[str] = ()) -> dict[str, Any]:
    """Judge a log: ``ok``, the ``problems`` in words, ``bad``, the names of the findings and the
    guarantees that they are about, and figures.

    ``unjudged``: findings whose problems are left out.
    """
    figures = guarantees.judge(log, Findings())
    about = {each: getattr(each, "guarantee", "log") for each in figures["problems"]}
    problems = [each for each, name in about.items() if name not in unjudged]
    bad = sorted({about[each] for each in problems})
    return {**figures, "ok": not problems, "problems": problems, "bad": bad}


if __name__ == "__main__":
    judged = judge(Path(sys.argv[1]))
    print(json.dumps(judged))
    raise SystemExit(not judged["ok"])

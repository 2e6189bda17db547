"""The findings of a siege, judged from its log: ``python -m tests.attack.judge LOG``.

Theory of operation
-------------------
Each finding is a judge of its own (:data:`FINDINGS`); what the honest callers were told, and how
often something ran, is judged as that of every rig (:mod:`trio_envserve.lab.guarantees`).  No
server is asked, and nothing is measured here.  Besides the events of every rig the log has

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
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from trio_envserve.lab import guarantees
from trio_envserve.lab.guarantees import Counting
from trio_envserve.retrylab import Event, Violation

TURN_S = 0.1
"""Most processor time of one turn of a loop."""
RATE_LEAST = 0.5
"""Least part of the rate beside a busy process that the honest client must keep."""
WORST_RATE_LEAST = 0.1
"""The same in the worst round."""
STILL = 5.0
"""Fewer answers a second than these, of 16 calls at once and without an attack, are a standstill
on any machine."""
STORM_EVERY_S = 3.0
"""Least average time between two connections of a peer of a held loop."""
STORM_FREE = 2
"""Connections that a peer may make in any case, however short the hold was."""
LATE_S = 1.0
"""An attack is told beside what is seen so long after its end."""

Facts = Mapping[str, Any]


class Finding(Counting):
    """One finding.  Its name is that in :data:`FINDINGS`; its docstring begins with what is
    good."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.stage = ""
        self.round = -1
        self.in_round = False
        self.seen: dict[str, float] = {}
        """Attacks, with the last moment at which they went on."""
        self.open: Counter[str] = Counter()
        self.found: dict[str, Any] = {}
        """Figures."""

    def see(self, event: Event) -> Iterator[Violation]:
        """Keep track of what goes on, and look."""
        what = dict(event.what or ())
        match event.kind, event.actor:
            case "phase", "stage":
                self.stage = what["stage"]
            case "phase", "round":
                self.round, self.in_round = what["number"], True
            case "did", attack:
                self.open[attack] += -1 if "counts" in what else 1
                self.seen[attack] = event.at_s
        for text in self.look(event, what):
            yield Violation(self.name, event.at_s, text)
        if (event.kind, event.actor) == ("phase", "round-end"):
            self.in_round = False

    def look(self, event: Event, what: Facts) -> Iterator[str]:
        """What an event shows to be bad."""
        yield from ()

    def rest(self, at_s: float) -> Iterator[Violation]:
        """What all of it shows to be bad."""
        for text in self.sum_up():
            yield Violation(self.name, at_s, text)

    def sum_up(self) -> Iterator[str]:
        """What all of it shows to be bad, in words."""
        yield from ()

    def figures(self) -> dict[str, Any]:
        """The figures of this finding."""
        return {self.name: self.found}

    def beside(self, at_s: float, within_s: float = LATE_S) -> str:
        """The attacks of that moment."""
        names = {name for name, count in self.open.items() if count > 0}
        names |= {name for name, seen_s in self.seen.items() if seen_s > at_s - within_s}
        return f"attacks: {', '.join(sorted(names)) or 'none'}"


class Attacked(Finding):
    """every attack that was planned was made"""

    lost = False

    def look(self, event: Event, what: Facts) -> Iterator[str]:
        match event.kind, event.actor:
            case "phase", "round":
                for name in what["attacks"]:
                    self.found.setdefault(name, Counter())
            case "did", name if "counts" in what:
                self.found[name].update(dict(what["counts"]))
            case "harmed", _:
                self.lost = True  # after that its attackers found nobody
        yield from ()

    def sum_up(self) -> Iterator[str]:
        for name, counts in self.found.items():
            if not (counts["connections"] or self.lost):
                yield f"{name} was never made"


class Survived(Finding):
    """no process ended that was not told to, or stopped answering"""

    def look(self, event: Event, what: Facts) -> Iterator[str]:
        if event.kind == "harmed" and what["how"] != "kill":
            how = f"ended with code {what['code']}" if what["how"] == "ended" else "did not answer"
            said = [line for line in what["words"].splitlines() if line.strip()]
            telling = [line for line in said if "rror" in line or "ssertion" in line]
            last = (telling or said or [what["why"]])[-1][:200]
            yield (
                f"the {event.actor} {how} in round {self.round} ({last}); "
                f"{self.beside(event.at_s, 30.0)}"
            )


class Stopped(Finding):
    """every process that was asked to stop did so, with exit code 0"""

    def look(self, event: Event, what: Facts) -> Iterator[str]:
        if (event.kind, event.actor) == ("phase", "stopped"):
            self.found["stopped"] = self.found.get("stopped", 0) + 1
            self.found["longest_s"] = max(self.found.get("longest_s", 0.0), what["took_s"])
            if what["code"] != 0:
                yield f"the {what['who']} was asked to stop, and ended with code {what['code']}"


class Turns(Finding):
    """no turn of a loop took more than 100 ms of its thread's processor time"""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.long: list[tuple[str, float, tuple[float, float], str]] = []
        """Turns that were too long: whose, how long, when, and words."""
        self.stalls: list[tuple[int, float, float]] = []
        """Processors of the machine that ran nobody, from when to when."""

    def look(self, event: Event, what: Facts) -> Iterator[str]:
        match event.kind, event.actor:
            case "sampled", "stall":
                self.stalls.append((what["processor"], *what["when_s"]))
            case "sampled", "turn" if self.in_round:
                who, turn_s = what["who"], what["turn_s"]
                self.found[who] = max(self.found.get(who, 0.0), turn_s)
                if turn_s > TURN_S:
                    words = (
                        f"in round {self.round} ({1000 * what['collect_s']:.0f} ms of it "
                        f"collecting garbage; {what['task']}; "
                        f"{' < '.join(reversed(what['where'][-3:]))}); "
                        f"{self.beside(event.at_s, 0.5 + turn_s)}"
                    )
                    self.long.append((who, turn_s, what["when_s"], words))
        yield from ()

    def sum_up(self) -> Iterator[str]:
        worst: dict[str, tuple[float, str]] = {}
        for who, turn_s, when_s, words in self.long:
            turn_s -= self._stalled_s(*when_s)
            if turn_s > max(TURN_S, worst.get(who, (0.0, ""))[0]):
                worst[who] = turn_s, words
        for who, (turn_s, words) in worst.items():
            yield f"a turn of a {who}'s loop took {1000 * turn_s:.0f} ms of processor time {words}"

    def _stalled_s(self, begin_s: float, end_s: float) -> float:
        """Time for which one processor stood still while a turn was under way."""
        stood: defaultdict[int, float] = defaultdict(float)
        for processor, from_s, to_s in self.stalls:
            stood[processor] += max(0.0, min(end_s, to_s) - max(begin_s, from_s))
        return max(stood.values(), default=0.0)


class Memory(Finding):
    """resident memory grew by no more than the limits name"""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.first_kib: dict[str, int] = {}
        self.allowed: dict[str, int] = {}

    def look(self, event: Event, what: Facts) -> Iterator[str]:
        match event.kind, event.actor:
            case "phase", "stage":
                self.allowed, self.first_kib = dict(what["allowed"]), {}
            case "sampled", "memory":
                for who, kib in what["kib"]:
                    if what["warm"]:
                        self.first_kib[who] = min(self.first_kib.get(who, kib), kib)
                    elif who in self.first_kib:
                        grown = max(0, kib - self.first_kib[who])
                        figures = self.found.setdefault(f"{self.stage}/{who}", [0, 0])
                        figures[:] = max(grown, figures[0]), self.allowed[who] // 1024
        yield from ()

    def sum_up(self) -> Iterator[str]:
        for name, (grown, allowed) in self.found.items():
            if grown > allowed:
                mib = grown // 1024, allowed // 1024
                yield f"{name} grew by {mib[0]} MiB, {mib[1]} MiB are within its bounds"


class Rate(Finding):
    """the honest client kept half of its rate beside a busy process"""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.right = 0
        self.since_s = self.besieged = 0.0
        self.rounds: list[tuple[int, float, float, str]] = []
        """Number, answers a second beside the attack and beside the quiet, and words."""
        self.words = ""

    def look(self, event: Event, what: Facts) -> Iterator[str]:
        match event.kind, event.actor:
            case "told", actor if actor.startswith("front"):
                self.right += what["ok"] and what["right"]
            case "phase", "round":
                self.right, self.since_s, self.besieged = 0, event.at_s, -1.0
                self.words = f"attacks: {', '.join(what['attacks'])}"
            case "phase", "quiet":
                self.besieged = self.right / (event.at_s - self.since_s)
                self.right, self.since_s = 0, event.at_s
            case "phase", "round-end" if self.besieged >= 0.0:
                quiet = self.right / (event.at_s - self.since_s)
                self.rounds.append((self.round, self.besieged, quiet, self.words))
                if quiet < STILL:
                    yield (
                        f"after round {self.round} the honest client stood still: {quiet:.1f} "
                        f"answers a second; {self.words}"
                    )

    def sum_up(self) -> Iterator[str]:
        if not self.rounds:
            return
        besieged = statistics.fmean(each[1] for each in self.rounds)
        quiet = statistics.fmean(each[2] for each in self.rounds)
        kept = {number: b / q if q else 0.0 for number, b, q, _ in self.rounds}
        whole = besieged / quiet if quiet else 0.0
        self.found |= {
            "besieged": round(besieged, 1), "quiet": round(quiet, 1), "kept": round(whole, 3),
            "rounds": {number: round(each, 3) for number, each in kept.items()},
        }  # fmt: skip
        if whole < RATE_LEAST:
            yield (
                f"{besieged:.0f} answers a second in the siege, {quiet:.0f} beside a busy process: "
                f"{whole:.2f} of it, {RATE_LEAST} wanted"
            )
        number, *_, words = min(self.rounds, key=lambda each: kept[each[0]])
        if kept[number] < WORST_RATE_LEAST:
            yield (
                f"in round {number} the honest client kept {kept[number]:.2f} of its rate, "
                f"{WORST_RATE_LEAST} wanted; {words}"
            )


class Newcomers(Finding):
    """a client that came during a round was served"""

    def look(self, event: Event, what: Facts) -> Iterator[str]:
        if (event.kind, event.actor) == ("phase", "newcomer"):
            if what["took_s"] is None:
                yield (
                    f"a client that came in round {self.round} was not served; "
                    f"{self.beside(event.at_s)}"
                )
            else:
                self.found["longest_s"] = max(self.found.get("longest_s", 0.0), what["took_s"])


class Recovered(Finding):
    """the client that was attacked worked with the honest server that came after"""

    def look(self, event: Event, what: Facts) -> Iterator[str]:
        if (event.kind, event.actor) == ("phase", "recovered"):
            self.found["rounds"] = self.found.get("rounds", 0) + 1
            if not what["right"]:
                yield f"after round {self.round} the client got no answer any more"


class Held(Finding):
    """calls that waited for a held loop were answered, without a storm of connections"""

    def look(self, event: Event, what: Facts) -> Iterator[str]:
        if (event.kind, event.actor) == ("phase", "held"):
            name, right, calls = what["scenario"], what["right"], what["calls"]
            self.found[name] = {"right": right, "connections": what["connections"]}
            if right < calls:
                yield f"{name}: {right} of {calls} answers"
            if what["connections"] > STORM_FREE + what["seconds"] / STORM_EVERY_S:
                yield f"{name}: {what['connections']} connections in {what['seconds']:g} s"


FINDINGS: Final[Mapping[str, type[Finding]]] = {
    "attacked": Attacked, "survived": Survived, "stopped": Stopped, "turns": Turns,
    "memory": Memory, "rate": Rate, "newcomers": Newcomers, "recovered": Recovered, "held": Held,
}  # fmt: skip
"""By name."""


def judge(log: Path, unjudged: Collection[str] = ()) -> dict[str, Any]:
    """Judge a log: ``ok``, the ``problems`` in words, ``bad``, the names of the findings and the
    guarantees that they are about, and figures.

    ``unjudged``: findings whose problems are left out.
    """
    figures = guarantees.judge(log, *(kind(name) for name, kind in FINDINGS.items()))
    about = {each: getattr(each, "guarantee", "log") for each in figures["problems"]}
    problems = [each for each, name in about.items() if name not in unjudged]
    bad = sorted({about[each] for each in problems})
    return {**figures, "ok": not problems, "problems": problems, "bad": bad}


if __name__ == "__main__":
    judged = judge(Path(sys.argv[1]))
    print(json.dumps(judged))
    raise SystemExit(not judged["ok"])

"""The judge of a siege: logs on disk in, named findings out.

``python -m tests.attack.judge DIR`` prints one JSON object and exits with 0
only if every finding that could be reached is good, and something was shown.

Theory of operation
-------------------
The judge asks no server and measures nothing.  ``events.jsonl`` has what the siege did:
``stage`` (with what each kind of process may grow by), ``round`` and ``round-end``, ``rate``,
``recovered``, ``held``; and what happened to it: ``ended`` and ``hung`` (a victim, with its
last words) and ``stopped`` (a victim that was asked to, with its exit code).
``loops.jsonl`` has the longest turns of each loop, a line for each quarter of a second;
``stalls.jsonl`` when a processor of the machine ran nobody (:mod:`.stalls`), which those
who ran on it are charged with;
``samples.jsonl`` resident memory; ``attacks.jsonl`` what each attack did and when;
``callers.jsonl`` and ``environment.jsonl`` are those of the demonstration, and how often
something was run is judged by its judge.

A finding is a name, whether it is good, its figures, and what is wrong in words.  One
for which nothing was tried is neither good nor bad.
"""

from __future__ import annotations

import bisect
import collections
import statistics
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from trio_envserve.lab.history import (
    CALLERS,
    ENVIRONMENT,
    RUN_WRONGLY,
    History,
    Line,
    at_most_once,
    counted,
    judge_named,
    read_lines,
)

from .testbed import ATTACKS, EVENTS, LOOPS, SAMPLES, STALLS

TURN_S = 0.1
"""Most processor time of one turn of a loop."""
RATE_LEAST = 0.5
"""The least part of the rate beside a busy process that the honest client must keep."""
WORST_RATE_LEAST = 0.1
"""The same in the worst round."""
STILL = 5.0
"""Fewer answers a second than these, of 16 calls at once and without an attack, are a
standstill on any machine."""
STORM_EVERY_S = 3.0
"""The least average time between two connections of a peer of a held loop."""
STORM_FREE = 2
"""Connections that a peer may make in any case, however short the hold was."""


class Material(NamedTuple):
    """All logs."""

    events: list[Line]
    attacks: list[Line]
    loops: list[Line]
    samples: list[Line]
    stalls: list[Line]
    history: History

    def of(self, *events: str) -> list[Line]:
        """The lines of the siege with these names."""
        return [line for line in self.events if line["event"] in events]

    def during(self, from_s: float, to_s: float) -> list[str]:
        """The attacks that went on at some moment between the two, by their lines."""
        open_: dict[tuple[str, int], float] = {}
        found: set[str] = set()
        for line in self.attacks:
            key = (line["attack"], line["round"])
            if line["event"] == "begin":
                open_[key] = line["monotonic"]
            elif open_.pop(key, to_s) < to_s and line["monotonic"] > from_s:
                found.add(line["attack"])
        return sorted(found | {name for (name, _), at_s in open_.items() if at_s < to_s})


def judge(directory: str | Path, unjudged: Collection[str] = ()) -> dict[str, Any]:
    """All findings from the logs in a directory.

    ``unjudged``: findings that are left open, with their figures.

    ``findings``: by name ``ok`` (None: nothing was tried), ``figures``, ``problems``.
    ``problems`` has all of them in words; ``ok`` is true if there are none and the siege
    came to its end.
    """
    folder = Path(directory)
    try:
        names = (EVENTS, ATTACKS, LOOPS, SAMPLES, STALLS)
        read = {name: list(read_lines(folder / name)) for name in names}
        history = History.read(folder, ENVIRONMENT, CALLERS)
        found = Material(
            read[EVENTS], read[ATTACKS], read[LOOPS], read[SAMPLES], read[STALLS], history
        )
        findings = {name: finding(found) for name, finding in FINDINGS.items()}
        for name in unjudged:
            findings[name] |= {"ok": None, "problems": []}
    except (OSError, ValueError, KeyError) as error:
        return {"ok": False, "problems": [f"the logs cannot be read: {error!r}"], "findings": {}}
    problems = [
        f"{name}: {text}" for name, finding in findings.items() for text in finding["problems"]
    ]
    finished = bool(found.of("end"))
    if not finished:
        problems.append("the siege did not come to its end")
    elif all(finding["ok"] is None for finding in findings.values()):
        problems.append("nothing was tried")
    return {
        "ok": not problems, "problems": problems, "finished": finished,
        "rounds": len(found.of("round-end")), "findings": findings,
    }  # fmt: skip


def _finding(tried: bool, figures: dict[str, Any], problems: list[str]) -> dict[str, Any]:
    return {"ok": not problems if tried or problems else None, "figures": figures,
            "problems": problems}  # fmt: skip


# -- findings -----------------------------------------------------------------


def attacked(found: Material) -> dict[str, Any]:
    """Every attack that was planned was made."""
    planned = {name for line in found.of("round") for name in line["attacks"]}
    counts: dict[str, dict[str, int]] = {}
    for line in found.attacks:
        if line["event"] == "end":
            mine = counts.setdefault(line["attack"], {})
            for name, count in line["counts"].items():
                mine[name] = mine.get(name, 0) + count
    idle = sorted(name for name in planned if not counts.get(name, {}).get("connections"))
    # After a victim was lost its attackers found nobody: that is told elsewhere.
    problems = [] if found.of("ended", "hung") else [f"{name} was never made" for name in idle]
    return _finding(bool(planned), {"counts": counts, "never_made": idle}, problems)


def survived(found: Material) -> dict[str, Any]:
    """No process ended that was not told to, or stopped answering."""
    lost = [
        {name: line[name] for name in ("who", "event", "code", "round", "why", "words")}
        | {"attacks": found.during(line["monotonic"] - 30.0, line["monotonic"])}
        for line in found.of("ended", "hung")
    ]
    problems = [
        f"the {line['who']} {_how(line)} in round {line['round']} ({_said(line)}); "
        f"attacks: {', '.join(line['attacks']) or 'none'}"
        for line in lost
    ]
    return _finding(bool(found.of("round", "held")), {"lost": lost}, problems)


def _how(line: Line) -> str:
    return "did not answer any more" if line["event"] == "hung" else f"ended with {line['code']}"


def _said(line: Line) -> str:
    words = [text for text in str(line["words"]).splitlines() if text.strip()]
    return words[-1][:200] if words else "without a word"


def stopped(found: Material) -> dict[str, Any]:
    """Each program that was asked to stop did, with the exit code 0."""
    lines = found.of("stopped")
    bad = [line for line in lines if line["code"] != 0]
    problems = [
        f"a {line['who']} that was asked to stop ended with {line['code']} after "
        f"{line['took_s']} s, in {line['phase']}"
        for line in bad
    ]
    longest_s = max((line["took_s"] for line in lines), default=0.0)
    return _finding(bool(lines), {"stopped": len(lines), "longest_s": longest_s}, problems)


def turns(found: Material) -> dict[str, Any]:
    """No turn of a loop took more than 100 ms of its thread's processor time, less the
    time for which a processor of the machine stood still meanwhile."""
    spans = list(_rounds(found))
    begins = [begin_s for begin_s, _, _, _ in spans]
    most: dict[str, dict[str, Any]] = {}
    over: dict[str, int] = {}
    excused = 0
    for line in found.loops:
        index = bisect.bisect(begins, line["monotonic"]) - 1
        if index < 0 or line["monotonic"] > spans[index][1]:
            continue  # starting, or being held on purpose
        who = line["who"].split()[0]
        stalled_s = _stalled_s(found, line) if line["turn_s"] > TURN_S else 0.0
        turn_s = line["turn_s"] - stalled_s
        over[who] = over.get(who, 0) + (turn_s > TURN_S)
        excused += line["turn_s"] > TURN_S >= turn_s
        if turn_s > most.get(who, {"turn_s": -1.0})["turn_s"]:
            most[who] = {
                **{name: line[name] for name in ("step_s", "io_s", "collect_s", "task", "where")},
                "turn_s": round(turn_s, 4),
                "stalled_s": stalled_s,
                "round": spans[index][2],
                "attacks": found.during(line["monotonic"] - 0.5 - line["turn_s"], line["monotonic"])
                or spans[index][3],
            }
    problems = [
        f"a turn of a {who}'s loop took {1000 * record['turn_s']:.0f} ms of processor time in "
        f"round {record['round']} (one of {over[who]} reports over {1000 * TURN_S:.0f} ms; "
        f"{1000 * record['collect_s']:.0f} ms of it collecting garbage; "
        f"{record['task']}; {' < '.join(reversed(record['where'][-3:])) or 'not seen where'}); "
        f"attacks: {', '.join(record['attacks']) or 'none'}"
        for who, record in most.items() if record["turn_s"] > TURN_S
    ]  # fmt: skip
    watched = any(line["watched"] for line in found.of("stalls"))
    figures = {
        "longest": most, "over": over, "excused": excused, "stalls_watched": watched,
        "stalls": len(found.stalls),
        "longest_stall_s": max((line["seconds"] for line in found.stalls), default=0.0),
    }  # fmt: skip
    return _finding(bool(most), figures, problems)


def _stalled_s(found: Material, line: Line) -> float:
    """For how long one processor stood still while this turn was under way."""
    begin_s, end_s = line["when_s"]
    stood: dict[int, float] = {}
    for stall in found.stalls:
        seen_s = min(end_s, stall["began_s"] + stall["seconds"]) - max(begin_s, stall["began_s"])
        if seen_s > 0:
            stood[stall["processor"]] = stood.get(stall["processor"], 0.0) + seen_s
    return round(max(stood.values(), default=0.0), 4)


def _rounds(found: Material) -> Iterator[tuple[float, float, int, list[str]]]:
    """When each round began and ended, its number, and its attacks."""
    begun: Line | None = None
    for line in found.of("round", "round-end"):
        if line["event"] == "round":
            begun = line
        elif begun is not None:
            yield begun["monotonic"], line["monotonic"], begun["round"], list(begun["attacks"])
            begun = None


def memory(found: Material) -> dict[str, Any]:
    """Resident memory grew by no more than the limits name."""
    allowed = {line["stage"]: line["allowed"] for line in found.of("stage")}
    first: dict[tuple[str, str], int] = {}
    most: dict[str, dict[str, int]] = {}
    for line in found.samples:
        key = (line["stage"], line["who"])
        if line["phase"] == "begin":
            first[key] = min(first.get(key, line["rss_kib"]), line["rss_kib"])
        if key not in first:
            continue  # it is being started
        grown = line["rss_kib"] - first[key]
        mine = most.setdefault(
            f"{key[0]}/{key[1]}", {"grown_kib": 0, "allowed_kib": allowed[key[0]][key[1]] // 1024}
        )
        mine["grown_kib"] = max(mine["grown_kib"], grown)
    problems = [
        f"{name} grew by {record['grown_kib'] // 1024} MiB, "
        f"{record['allowed_kib'] // 1024} MiB are within its bounds"
        for name, record in most.items() if record["grown_kib"] > record["allowed_kib"]
    ]  # fmt: skip
    return _finding(bool(most), most, problems)


def rate(found: Material) -> dict[str, Any]:
    """The honest client kept half of its rate beside a busy process."""
    lines = found.of("rate")
    if not lines:
        return _finding(False, {}, [])
    ratios = [line["besieged"] / line["quiet"] if line["quiet"] else 0.0 for line in lines]
    worst = min(range(len(lines)), key=ratios.__getitem__)
    besieged = statistics.fmean(line["besieged"] for line in lines)
    quiet = statistics.fmean(line["quiet"] for line in lines)
    whole = besieged / quiet if quiet else 0.0
    figures = {
        "besieged": round(besieged, 1), "quiet": round(quiet, 1), "kept": round(whole, 3),
        "median_kept": round(statistics.median(ratios), 3),
        "worst_kept": round(ratios[worst], 3), "worst_round": lines[worst]["round"],
        "attacker_cpu_s": round(sum(line["attacker_cpu_s"] for line in lines), 2),
        "rounds": [
            {"round": line["round"], "kept": round(ratio, 3)}
            for line, ratio in zip(lines, ratios, strict=True)
        ],
    }  # fmt: skip
    problems = []
    if whole < RATE_LEAST:
        problems.append(
            f"{besieged:.0f} answers a second in the siege, {quiet:.0f} beside a busy process: "
            f"{whole:.2f} of it, {RATE_LEAST} wanted"
        )
    if ratios[worst] < WORST_RATE_LEAST:
        problems.append(
            f"in round {lines[worst]['round']} the honest client kept {ratios[worst]:.2f} of its "
            f"rate, {WORST_RATE_LEAST} wanted; attacks: {', '.join(_attacks(found, worst))}"
        )
    problems += [
        f"after round {line['round']} the honest client stood still: {line['quiet']:.1f} answers "
        f"a second; attacks: {', '.join(_attacks(found, index))}"
        for index, line in enumerate(lines)
        if line["quiet"] < STILL
    ]
    return _finding(True, figures, problems)


def _attacks(found: Material, index: int) -> list[str]:
    number = found.of("rate")[index]["round"]
    return next(list(line["attacks"]) for line in found.of("round") if line["round"] == number)


def answers(found: Material) -> dict[str, Any]:
    """Every call of an honest client has its right answer."""
    asks, given = found.history.asks, found.history.answers
    # One of a newcomer that was not served is told elsewhere.
    lost = [key for key, line in asks.items() if key not in given and not line.get("newcomer")]
    wrong = [key for key, line in given.items() if not line["right"]]
    figures = {
        "asked": len(asks), "right": len(given) - len(wrong), "lost": len(lost),
        "wrong": len(wrong),
        "right_at_doors": collections.Counter(
            asks[key]["door"] for key, line in given.items()
            if line["right"] and "door" in asks.get(key, ())
        ),
    }  # fmt: skip
    problems = [f"{len(lost)} calls have no answer ({', '.join(lost[:3])})"] if lost else []
    if wrong:
        first = given[wrong[0]]
        problems.append(
            f"{len(wrong)} answers are not right (the first: {first['error']}, {first['message']})"
        )
    return _finding(bool(asks), figures, problems)


def once(found: Material) -> dict[str, Any]:
    """Each request was started once, by the environment's log."""
    figures = at_most_once(found.history)
    return _finding(bool(figures["started"]), figures, list(counted(figures, RUN_WRONGLY)))


def newcomers(found: Material) -> dict[str, Any]:
    """A client that came during a siege was served."""
    lines = found.of("rate")
    took = [line["newcomer_s"] for line in lines if line["newcomer_s"] is not None]
    shut_out = [line["round"] for line in lines if line["newcomer_s"] is None]
    figures = {"served": len(took), "longest_s": max(took, default=None), "shut_out": shut_out}
    problems = [
        f"a client that came in round {number} was not served; attacks: "
        f"{', '.join(_attacks(found, [line['round'] for line in lines].index(number)))}"
        for number in shut_out
    ]
    return _finding(bool(lines), figures, problems)


def recovered(found: Material) -> dict[str, Any]:
    """The client that was attacked worked with the honest server that came after."""
    lines = found.of("recovered")
    bad = [line["round"] for line in lines if not line["answered"]]
    problems = [f"after round {number} the client got no answer any more" for number in bad]
    return _finding(bool(lines), {"rounds": len(lines), "failed": bad}, problems)


def held(found: Material) -> dict[str, Any]:
    """Calls that waited for a held loop were answered, without a storm of connections."""
    figures, problems = {}, []
    for line in found.of("held"):
        most = line["peers"] * (STORM_FREE + line["seconds"] / STORM_EVERY_S)
        figures[line["scenario"]] = {
            name: line[name] for name in ("seconds", "calls", "right", "peers", "connections")
        }
        if line["right"] < line["calls"]:
            problems.append(f"{line['scenario']}: {line['right']} of {line['calls']} answers")
        if line["connections"] > most:
            problems.append(
                f"{line['scenario']}: {line['connections']} connections of {line['peers']} peers "
                f"in {line['seconds']:g} s"
            )
    return _finding(bool(figures), figures, problems)


FINDINGS: dict[str, Callable[[Material], dict[str, Any]]] = {
    "attacked": attacked, "survived": survived, "stopped": stopped, "turns": turns,
    "memory": memory, "rate": rate, "answers": answers, "once": once, "newcomers": newcomers,
    "recovered": recovered, "held": held,
}  # fmt: skip
"""By name, in the order in which they are told."""


if __name__ == "__main__":
    raise SystemExit(judge_named(judge, "attack.judge"))

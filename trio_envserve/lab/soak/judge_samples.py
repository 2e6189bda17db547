"""The processes' use of memory, descriptors and threads over a soak, judged from samples.

Theory of operation
-------------------
``samples.jsonl`` has ``sample`` lines (:mod:`.sampler`) with the ``phase`` in which
they were taken: ``begin`` (warm, and before any fault), ``faults``, ``calm``, ``end``
(at rest after all faults), ``closed`` (after everything was told to end).  At the
end every kind of process is there as often as at the beginning, holds no more
descriptors and threads, and no further socket or lock file is there.  When all
is closed no process is left, and no socket.

``steady`` lines are the measurement of memory: after each block of ``requests``
that the client asked for at leisure, the resident memory of each kind of
process.  The first block is for warming up.  What ``router`` and ``client`` grow
by afterwards, for each 10,000 requests, is less than :data:`GROWTH_KIB_MOST`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

SAMPLES = "samples.jsonl"

GROWTH_KIB_MOST = 1024.0
"""More is a leak: some hundred bytes of each request."""

_COUNTED = ("processes", "descriptors", "threads")

Line = dict[str, Any]


def judge_samples(
    lines: Iterable[Line], *, finished: bool = True
) -> tuple[dict[str, Any], list[str]]:
    """Figures, and what is wrong in words.  ``finished``: the run has come to its end,
    so that everything has been sampled."""
    samples: dict[str, Line] = {}
    most: dict[str, dict[str, int]] = {}
    steady: list[Line] = []
    missing: list[str] = []
    count = 0
    for line in lines:
        match line["event"]:
            case "sample":
                count += 1
                samples[line["phase"]] = line
                if line["phase"] != "closed":
                    _raise_to(most, line["kinds"])
            case "steady":
                steady.append(line)
            case "missing":
                missing.append(line["text"])
    growth = _growth(steady)
    begin, end = samples.get("begin"), samples.get("end")
    figures = {
        "sampled": count,
        "samples": _table(begin, most, end),
        "files": {name: _files(samples.get(name)) for name in ("begin", "end", "closed")},
        "left_over": _left_over(samples.get("closed")),
        "steady": {
            "requests": sum(line["requests"] for line in steady),
            "right": sum(line["right"] for line in steady),
            "rss_kib": [line["rss_kib"] for line in steady],
        },
        "growth_kib_per_10000": growth,
        "missing": missing,
    }
    problems = [] if begin is None or end is None else not_given_back(begin, end)
    problems += _not_closed(samples.get("closed"))
    if finished and not missing and not (begin and end and growth and "closed" in samples):
        problems.append("the samples of the beginning, the measurement or the end are missing")
    problems += [
        f"{line['requests'] - line['right']} of {line['requests']} requests of the measurement "
        "have no right result"
        for line in steady if line["requests"] != line["right"]
    ]  # fmt: skip
    problems += [
        f"the {who} grew by {kib:.0f} KiB in 10,000 requests, and {GROWTH_KIB_MOST:.0f} is too much"
        for who, kib in growth.items()
        if who in ("router", "client") and kib >= GROWTH_KIB_MOST
    ]
    return figures, problems


def _raise_to(most: dict[str, dict[str, int]], kinds: dict[str, dict[str, int]]) -> None:
    for kind, record in kinds.items():
        found = most.setdefault(kind, dict.fromkeys(record, 0))
        for name, value in record.items():
            found[name] = max(found[name], value)


def _table(
    begin: Line | None, most: dict[str, dict[str, int]], end: Line | None
) -> dict[str, dict[str, Any]]:
    """By kind of process, what it held."""
    return {
        kind: {
            "begin": begin["kinds"].get(kind) if begin else None,
            "most": record,
            "end": end["kinds"].get(kind) if end else None,
        }
        for kind, record in sorted(most.items())
    }


def _files(line: Line | None) -> dict[str, int] | None:
    return None if line is None else {"sockets": line["sockets"], "locks": line["locks"]}


def _left_over(closed: Line | None) -> dict[str, int]:
    """Processes that are there when all should be gone, by kind."""
    kinds = closed["kinds"] if closed else {}
    return {kind: record["processes"] for kind, record in kinds.items() if kind != "soak"}


def _growth(steady: list[Line]) -> dict[str, float]:
    """By kind, in KiB for 10,000 requests; empty if it was not measured."""
    if len(steady) < 2:
        return {}
    first, last = steady[0]["rss_kib"], steady[-1]["rss_kib"]
    requests = sum(line["requests"] for line in steady[1:])
    return {
        name: round((last[name] - first[name]) * 10_000 / requests, 1)
        for name in first if name in last
    }  # fmt: skip


def not_given_back(begin: Line, end: Line) -> list[str]:
    """The counts that are higher in one sample than in an earlier one, or fewer processes."""
    found = []
    for kind in sorted(begin["kinds"].keys() | end["kinds"].keys()):
        before, after = begin["kinds"].get(kind, {}), end["kinds"].get(kind, {})
        for name in _COUNTED:
            had, has = before.get(name, 0), after.get(name, 0)
            if has > had or (name == "processes" and has != had):
                found.append(f"{kind}: {had} {name} at the beginning, and {has} at the end")
    for name in ("sockets", "locks"):
        if end[name] > begin[name]:
            found.append(f"{begin[name]} {name} at the beginning, and {end[name]} at the end")
    return found


def _not_closed(closed: Line | None) -> list[str]:
    found = [
        f"{count} processes are left over: {kind}" for kind, count in _left_over(closed).items()
    ]
    if closed and closed["sockets"]:
        found.append(f"{closed['sockets']} socket files are left over")
    return found

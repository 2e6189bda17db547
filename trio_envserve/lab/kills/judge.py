"""The judge of the kills: logs on disk in, figures out.  It shares nothing with the server.

``python -m trio_envserve.lab.kills.judge DIR`` prints one JSON object and exits with 0 only if
there is no problem.

Theory of operation
-------------------
Who wrote what:

``environment.jsonl``
    the environment, in the worker processes: a ``start`` and an ``end`` line for each
    execution, with ``key``, ``process``, ``predecessor`` and ``execution``
    (:mod:`~trio_envserve.lab.history` says what they prove).
``callers.jsonl``
    the clients: an ``ask`` line before each call, and a ``told`` line, synced, after it, with
    when the call ``began_s`` and a digest of all that was ``said``.
``killer.jsonl``
    who kills: ``begin``, ``started``, ``serving``, ``kill``, ``dead`` (a process of the
    environment was seen to have ended), ``calm``, ``end``, and the check of the ``journal``.

A caller is told an *outcome* of its key, or that it is *unsaid*: that it may have run, since
the client could not learn what became of it.  An outcome is final.  Everybody who is told one
is told the same, nothing of its key begins later, and nobody who asks later is told that
nothing is known.  A result is that of an execution of its key that was over by then.  "Worker
lost" is true only after a kill, and of a key that consents only after as many as use up what
servers allow it.  A kill lasts from when it ``began_s`` until its line is there: on a busy
machine somebody may be told of it before.  One from before the ask counts for what never began:
a dispatch to a worker that is dead, and not known to be yet, is an execution.

A key begins once.  It begins again only if it consents, its process before is proven dead,
and its allowance is not used up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ..history import Figures, History, Line, judge_named, judged

MAX_EXECUTIONS = 4
"""Of a key that consents to more than one."""
LEAST_EXECUTIONS = 3
"""A server keeps the last one back for a server after it."""
MANY_KILLS = 100
"""With so many something begins again on any machine."""

UNSAID = frozenset({"unknown-key", "server-lost", "no-answer"})
"""The codes by which a client says that it does not know the outcome."""

Told = dict[str, list[Line]]


class Read(NamedTuple):
    """The history, and the outcomes in it."""

    history: History
    told: Told
    """Outcomes by key, in the order of the log."""
    unsaid: list[Line]
    executions: dict[str, Line]
    """By execution: the line of its start."""
    over: dict[str, Line]
    """By execution: that of its end with a result."""


def judge(directory: str | Path) -> Figures:
    """All figures, and what is wrong, from the logs in a directory."""
    return judged(lambda: _figures(Path(directory)), _problems)


def _figures(directory: Path) -> Figures:
    read = _read(History.read(directory))
    return _faults(read.history) | _tellings(read) | _starts(read)


def _read(history: History) -> Read:
    told: Told = {}
    unsaid = []
    for line in history.callers:
        if line["event"] == "told" and line["code"] in UNSAID:
            unsaid.append(line)
        elif line["event"] == "told":
            told.setdefault(line["key"], []).append(line)
    executions = {
        line["execution"]: line for starts in history.starts.values() for _, line in starts
    }
    over = {line["execution"]: line for lines in history.results.values() for line in lines}
    return Read(history, told, unsaid, executions, over)


def _faults(history: History) -> Figures:
    kills = Counter(line["what"] for line in history.faults("kill"))
    (begin,) = history.faults("begin")
    return {
        "seed": begin["seed"],
        "keys": begin["keys"],
        "kills_wanted": begin["kills"],
        "kills": {what: kills[what] for what in ("server", "worker", "client")},
        "seconds": history.seconds,
        "finished": history.finished,
        "ended_by_itself": [line["who"] for line in history.faults("ended-by-itself")],
        "journal": [problem for line in history.faults("journal") for problem in line["problems"]],
    }


# -- what was told ------------------------------------------------------------------


def _tellings(read: Read) -> dict[str, Any]:
    first_s = {key: lines[0]["monotonic"] for key, lines in read.told.items()}
    codes: Counter[str] = Counter()
    untrue = []
    for lines in read.told.values():
        codes[lines[0]["code"] or "result"] += 1
        untrue += [
            {"key": line["key"], "why": why} for line in lines if (why := _untrue(read, line))
        ]
    return {
        "asked": len(read.history.asks),
        "with_outcome": len(read.told),
        "outcomes": dict(sorted(codes.items())),
        "told": sum(map(len, read.told.values())),
        "unsaid": dict(sorted(Counter(line["code"] for line in read.unsaid).items())),
        "told_differently": [
            key for key, lines in read.told.items() if len({line["said"] for line in lines}) > 1
        ],
        "forgotten": [
            line["key"] for line in read.unsaid
            if line["code"] == "unknown-key" and first_s.get(line["key"], line["began_s"])
            < line["began_s"]
        ],
        "untrue": untrue,
    }  # fmt: skip


def _untrue(read: Read, line: Line) -> str:
    """The untruth in an outcome; the empty string if it tells the truth."""
    if line["ok"]:
        return _not_its_result(read, line)
    if line["code"] != "worker-lost":
        return f"the error {line['code']} has no excuse here"
    ask = read.history.asks[line["key"]]
    kills = [
        kill for kill in read.history.faults("kill")
        if kill["what"] != "client" and kill["began_s"] < line["monotonic"]
    ]  # fmt: skip
    used = sum(ask["monotonic"] < kill["monotonic"] for kill in kills)
    starts = read.history.starts.get(line["key"], ())
    if used < len(kills) and not any(s["monotonic"] < line["monotonic"] for _, s in starts):
        used += 1  # it was dispatched to a worker that was dead, and not known to be
    needed = LEAST_EXECUTIONS if ask["rerun"] else 1
    return "" if used >= needed else f"{used} kills cannot have used its allowance up"


def _not_its_result(read: Read, line: Line) -> str:
    start, end = read.executions.get(line["execution"]), read.over.get(line["execution"])
    if start is None or start["key"] != line["key"]:
        return "its result is that of no execution of this key"
    if end is None or end["monotonic"] > line["monotonic"]:
        return "its result was told before its execution was over"
    return ""


# -- what began ---------------------------------------------------------------------


def _starts(read: Read) -> dict[str, Any]:
    history = read.history
    again = list(history.further_starts())
    unasked, after = [], []
    for key, starts in history.starts.items():
        asked, told = history.asks.get(key), read.told.get(key)
        if asked is None or starts[0][1]["monotonic"] < asked["monotonic"]:
            unasked.append(key)
        elif told and starts[-1][1]["monotonic"] > told[0]["monotonic"]:
            after.append(key)
    return {
        "starts": sum(map(len, history.starts.values())),
        "again": len(again),
        "most_starts": max(map(len, history.starts.values()), default=0),
        "workers_died": len(history.deaths),
        "unproven": [each.key for each in again if not (each.consented and each.proven)],
        "unasked": unasked,
        "after_told": after,
        "over_allowance": [
            k for k, starts in history.starts.items() if len(starts) > MAX_EXECUTIONS
        ],
    }


# -- the verdict --------------------------------------------------------------------

_LISTS = {
    "told_differently": "keys were told in two ways",
    "forgotten": "keys were unknown after they had been told",
    "after_told": "keys began after they had been told",
    "unproven": "starts were second ones without consent or proof",
    "unasked": "keys began before anybody had asked",
    "over_allowance": f"keys began more than {MAX_EXECUTIONS} times",
    "untrue": "outcomes were untrue",
    "ended_by_itself": "processes ended by themselves",
    "journal": "problems are in the journal at the end",
}


def _problems(figures: dict[str, Any]) -> Iterator[str]:
    if not figures["finished"]:
        yield "it was not finished: these are the figures so far"
    for name, text in _LISTS.items():
        if found := figures[name]:
            yield f"{len(found)} {text}: {found[:3]}"
    if not figures["finished"]:
        return
    if figures["with_outcome"] != figures["keys"]:
        yield f"{figures['with_outcome']} of {figures['keys']} keys have an outcome"
    if sum(figures["kills"].values()) < figures["kills_wanted"]:
        yield f"only {figures['kills']} kills, so nothing is shown"
    for what, count in figures["kills"].items():
        if not count:
            yield f"no {what} was killed, so nothing is shown of it"
    if not figures["again"] and figures["kills_wanted"] >= MANY_KILLS:
        yield "nothing began again, so nothing is shown of consent"


if __name__ == "__main__":
    raise SystemExit(judge_named(judge, "kills.judge"))

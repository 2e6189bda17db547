"""The judge of the soak: logs on disk in, figures out.

``python -m trio_envserve.lab.soak.judge DIR`` prints one JSON object and exits
with 0 only if nothing ran twice, nothing was lost, every error told the truth,
and everything was given back.

Theory of operation
-------------------
Who wrote what:

``environment.jsonl``
    the environment, in the worker processes: see :mod:`~trio_envserve.lab.history`.
    Lines without a key are of the measurement at the end; they are judged by
    their requests, and nothing may kill anything then.
``callers.jsonl``
    the clients: ``client`` when one begins, an ``ask`` line before each call (with
    what it allows), and an ``answer`` or a ``withdrawn`` line after it; ``connected``
    and ``disconnected``.
``killer.jsonl``
    the killer, and who watches: ``kill``, ``stop``, ``freeze``, ``network``, ``dead``
    (a process of the environment was seen to have ended), ``serving``, ``rest``
    (every fault has been over for long, and nothing should run), ``closing``.
``samples.jsonl``
    the sampler (see :mod:`.judge_samples`).

A call of a client that was killed is owed nothing.  Every other one has an
answer, or was withdrawn by its caller; else it is *lost*.  An answer is right,
or an error that tells the truth:

- *it did not run*: the environment never began it, and there was a limit;
- *it ran and failed*: the environment did begin it, and there was a limit;
- *it may have run*: somebody was killed during the call, and what the caller had
  allowed was used up by that (:func:`~.judge_deaths.explained`), or its own limit passed.

The environment itself never fails here, so no other error has any excuse.

What was withdrawn, or belongs to a client that was killed, must have been ended:
at ``rest`` no process that lives has begun what it has not ended, and after it
nothing begins.  And no process of the environment ends unless the killer killed,
stopped or froze it, or its server or host was killed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ..history import (
    RUN_WRONGLY,
    Figures,
    History,
    Line,
    at_most_once,
    counted,
    judge_named,
    judged,
    read_lines,
)
from .judge_deaths import Deaths, explained
from .judge_samples import SAMPLES, judge_samples


def judge(directory: str | Path) -> dict[str, Any]:
    """All figures, and what is wrong, from the logs in a directory.

    ``problems`` says in words what is wrong; ``ok`` is true if there is none.  Of a
    run that was interrupted there are the figures so far, and it is not ok.
    """
    folder = Path(directory)
    return judged(lambda: _figures(History.read(folder), folder), _problems)


def _figures(history: History, folder: Path) -> Figures:
    held, wrong = judge_samples(read_lines(folder / SAMPLES), finished=history.finished)
    return {
        **_faults(history), **_callers(history), **_runs(history), **_rest(history),
        "finished": history.finished,
        "hung": [line["phase"] for line in history.faults("hung")],
        **held, "not_given_back": wrong,
    }  # fmt: skip


def _faults(history: History) -> dict[str, Any]:
    """The faults, by kind."""
    processes = ["worker", "client", "server"]
    if any(line.get("hosts") for line in history.faults("begin")):
        processes.append("host")
    return {
        "seconds": history.seconds,
        "kills": _count(history.faults("kill"), "what", processes),
        "stops": _count(history.faults("stop"), "what", processes),
        "frozen": len(history.faults("freeze")),
        "cuts": _count(
            history.faults("network"), "how", ("cut", "half-open", "stall", "throttle", "lag")
        ),
        "connections_cut": sum(
            line["connections"] for line in history.faults("network", how="cut")
        ),
        "missed": len(history.faults("missed")),
    }


def _count(lines: list[Line], field: str, kinds: Sequence[str]) -> dict[str, int]:
    counts = Counter(line[field] for line in lines)
    return {kind: counts[kind] for kind in kinds}


# -- what the callers have ------------------------------------------------------


def _callers(history: History) -> dict[str, Any]:
    """The calls, and what came of them."""
    deaths = Deaths.of(history)
    killed = {line["client"] for line in history.faults("kill", what="client")}
    withdrawn = {line["key"] for line in history.callers if line["event"] == "withdrawn"}
    lines = sum(line["event"] == "answer" for line in history.callers)
    counts: Counter[str] = Counter()
    errors: Counter[str] = Counter()
    untrue: list[dict[str, Any]] = []
    unanswered = []
    for key, ask in history.asks.items():
        answer = history.answers.get(key)
        if answer is None:
            if key in withdrawn:
                counts["withdrawn"] += 1
            elif ask["client"] in killed:
                counts["owed_nothing"] += 1
            else:
                unanswered.append(key)
            continue
        if answer["ok"]:
            counts["right" if _is_right(history, key, answer) else "wrong"] += 1
            continue
        errors[answer["error"]] += 1
        counts[answer["verdict"].lower()] += 1
        why_not = _untrue(history, deaths, key, ask, answer)
        if why_not:
            untrue.append({"key": key, "why": why_not, "message": answer["message"]})
    return {
        "asked": len(history.asks),
        "answered": len(history.answers.keys() & history.asks.keys()),
        "right": counts["right"],
        "wrong": counts["wrong"],
        "withdrawn": counts["withdrawn"],
        "owed_nothing": counts["owed_nothing"],
        "pending": 0 if history.finished else len(unanswered),
        "lost": len(unanswered) if history.finished else 0,
        "did_not_run": counts["did_not_run"],
        "ran_and_failed": counts["ran_and_failed"],
        "may_have_run": counts["may_have_run"],
        "errors": dict(sorted(errors.items())),
        "answered_twice": lines - len(history.answers),
        "untrue_errors": len(untrue),
        "untrue": untrue[:10],
    }


def _is_right(history: History, key: str, answer: Line) -> bool:
    """Whether a result is the one, and is of a run that was over before it came."""
    return answer["right"] and any(
        line["monotonic"] <= answer["monotonic"] for line in history.results.get(key, ())
    )


def _untrue(history: History, deaths: Deaths, key: str, ask: Line, answer: Line) -> str:
    """The untruth in an error; the empty string if it tells the truth."""
    limited = ask["timeout_s"] is not None
    begun = any(line["monotonic"] <= answer["monotonic"] for _, line in history.starts.get(key, ()))
    match answer["verdict"]:
        case "DID_NOT_RUN" if key in history.starts:
            return "it ran"
        case "DID_NOT_RUN":
            return "" if limited else "it had no limit, and would have been taken later"
        case "RAN_AND_FAILED" if not begun:
            return "it had not begun"
        case "RAN_AND_FAILED":
            known = limited and answer["error"] == "deadline"
            return "" if known else "nothing failed in the environment"
    return "" if explained(deaths, ask, answer) else "nothing was killed that explains it"


# -- what the environment did ---------------------------------------------------


def _runs(history: History) -> Figures:
    """How often each was run, and with what right."""
    figures = at_most_once(history)
    requests = Counter(line["request"] for line in history.keyless)
    figures["started"] += len(requests)
    figures["started_twice"] += sum(count - 1 for count in requests.values())
    return figures


def _rest(history: History) -> dict[str, Any]:
    """The executions at rest, and the processes that ended without being killed."""
    rest_s = min((line["monotonic"] for line in history.faults("rest")), default=None)
    left = late = 0
    if rest_s is not None:
        left = sum(
            not (process in history.deaths and history.deaths[process]["monotonic"] <= rest_s)
            for process, keys in _running(history, rest_s).items() for _ in keys
        )  # fmt: skip
        late = sum(
            line["monotonic"] > rest_s for starts in history.starts.values() for _, line in starts
        )
    return {
        "left_running": left,
        "started_at_rest": late,
        "workers_died": len(history.deaths),
        "deaths_unexplained": len(_unexplained(history)),
        "frozen_survived": len(history.faults("frozen-survived")),
        "ended_by_itself": [line["who"] for line in history.faults("ended-by-itself")],
    }


def _running(history: History, moment_s: float) -> dict[str, set[str]]:
    """By process: what it had begun and not ended at a moment."""
    living: dict[str, set[str]] = {}
    for line in history.environment:
        if "key" in line and line["monotonic"] <= moment_s:
            keys = living.setdefault(line["process"], set())
            (keys.add if line["event"] == "start" else keys.discard)(line["key"])
    return living


def _unexplained(history: History) -> list[str]:
    """Processes of the environment that ended, and nobody had done anything to them."""
    touched = {
        line["pid"] for event in ("kill", "stop", "freeze")
        for line in history.faults(event, what="worker")
    }  # fmt: skip
    servers_s = [
        line["sent_s"] for line in history.faults("kill") if line["what"] in ("server", "host")
    ]  # fmt: skip
    servers_s += [line["monotonic"] for line in history.faults("closing")]
    return [
        process for process, line in history.deaths.items()
        if line["pid"] not in touched
        and not any(history.began_s[process] <= s <= line["monotonic"] for s in servers_s)
    ]  # fmt: skip


# -- what is wrong -------------------------------------------------------------


_WRONG = {
    "lost": "calls of living clients have no answer",
    "wrong": "answers were not the result of what was asked, or of no run that was over",
    **RUN_WRONGLY,
    "answered_twice": "answers came to a call that had one already",
    "untrue_errors": "errors did not tell the truth",
    "left_running": "executions that nobody waits for still ran at rest",
    "started_at_rest": "executions began at rest",
    "deaths_unexplained": "workers ended, and nobody had killed them",
    "frozen_survived": "workers were stopped for good, and their server did not kill them",
}


def _problems(figures: dict[str, Any]) -> Iterator[str]:
    """The problems, in words."""
    if not figures["finished"]:
        yield "it was not finished: these are the figures so far"
    for phase in figures["hung"]:
        yield f"the {phase} did not come to its end in time"
    yield from counted(figures, _WRONG)
    for who in figures["ended_by_itself"]:
        yield f"the {who} ended by itself"
    yield from figures["not_given_back"]
    if not figures["finished"]:
        return
    if not figures["right"]:
        yield "nothing was answered, so nothing is shown"
    for group in ("kills", "stops", "cuts"):
        for kind, count in figures[group].items():
            if not count:
                yield f"no {kind} among the {group}, so nothing is shown of it"


if __name__ == "__main__":
    raise SystemExit(judge_named(judge, "soak.judge"))

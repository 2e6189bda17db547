"""The judge of the soak: logs on disk in, figures out.

``python -m trio_envserve.lab.soak.judge DIR`` prints one JSON object and exits
with 0 only if nothing ran twice, nothing was lost, every error told the truth,
and everything was given back.

Theory of operation
-------------------
Who wrote what:

``environment.jsonl``
    the environment, in the worker processes: see
    :mod:`~trio_envserve.lab.demo.judge_logs`, whose reading of it this is.
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
stopped or froze it, or its server was killed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..demo.judge_logs import (
    CALLERS,
    ENVIRONMENT,
    KILLER,
    Line,
    Logs,
    judge_named,
    read_lines,
    runs,
)
from .judge_deaths import Deaths, explained
from .judge_samples import SAMPLES, judge_samples


def judge(directory: str | Path) -> dict[str, Any]:
    """All figures, and what is wrong, from the logs in a directory.

    ``problems`` says in words what is wrong; ``ok`` is true if there is none.  Of a
    run that was interrupted there are the figures so far, and it is not ok.
    """
    directory = Path(directory)
    try:
        logs, keyless = _read(directory)
        samples = _lines(directory / SAMPLES)
        figures = _faults(logs) | _callers(logs) | _runs(logs, keyless) | _rest(logs)
    except (OSError, ValueError, KeyError) as error:
        return {"ok": False, "problems": [f"the logs cannot be read: {error!r}"]}
    figures["finished"] = bool(logs.faults("end"))
    held, of_samples = judge_samples(samples, finished=figures["finished"])
    figures["hung"] = [line["phase"] for line in logs.faults("hung")]
    problems = [*_problems(figures), *of_samples]
    return {**figures, **held, "ok": not problems, "problems": problems}


def _read(directory: Path) -> tuple[Logs, list[Line]]:
    """The logs, and the starts that have no key."""
    keyed: list[Line] = []
    keyless: list[Line] = []
    for line in _lines(directory / ENVIRONMENT):
        if "key" in line:
            keyed.append(line)
        elif line["event"] == "start" and line["attempt"] == 1:
            keyless.append(line)
    logs = Logs.of(keyed, list(_lines(directory / CALLERS)), list(_lines(directory / KILLER)))
    return logs, keyless


def _lines(path: Path) -> Iterator[Line]:
    """The lines of a log that may not have been begun."""
    if path.exists():
        yield from read_lines(path)


def _faults(logs: Logs) -> dict[str, Any]:
    """What was done, by kind."""
    times = [line["monotonic"] for line in (*logs.killer, *logs.callers)]
    return {
        "seconds": round(max(times) - min(times), 3) if times else 0.0,
        "kills": _count(logs.faults("kill"), "what", ("worker", "client", "server")),
        "stops": _count(logs.faults("stop"), "what", ("worker", "client", "server")),
        "frozen": len(logs.faults("freeze")),
        "cuts": _count(
            logs.faults("network"), "how", ("cut", "half-open", "stall", "throttle", "lag")
        ),
        "connections_cut": sum(line["connections"] for line in logs.faults("network", how="cut")),
        "missed": len(logs.faults("missed")),
    }


def _count(lines: list[Line], field: str, kinds: tuple[str, ...]) -> dict[str, int]:
    counts = Counter(line[field] for line in lines)
    return {kind: counts[kind] for kind in kinds}


# -- what the callers have ------------------------------------------------------


def _callers(logs: Logs) -> dict[str, Any]:
    """What was asked, and what came of it."""
    deaths = Deaths.of(logs)
    killed = {line["client"] for line in logs.faults("kill", what="client")}
    withdrawn = {line["key"] for line in logs.callers if line["event"] == "withdrawn"}
    lines = sum(line["event"] == "answer" for line in logs.callers)
    counts: Counter[str] = Counter()
    errors: Counter[str] = Counter()
    untrue: list[dict[str, Any]] = []
    unanswered = []
    for key, ask in logs.asks.items():
        answer = logs.answers.get(key)
        if answer is None:
            if key in withdrawn:
                counts["withdrawn"] += 1
            elif ask["client"] in killed:
                counts["owed_nothing"] += 1
            else:
                unanswered.append(key)
            continue
        if answer["ok"]:
            counts["right" if _is_right(logs, key, answer) else "wrong"] += 1
            continue
        errors[answer["error"]] += 1
        counts[answer["verdict"].lower()] += 1
        why_not = _untrue(logs, deaths, key, ask, answer)
        if why_not:
            untrue.append({"key": key, "why": why_not, "message": answer["message"]})
    finished = bool(logs.faults("end"))
    return {
        "asked": len(logs.asks),
        "answered": len(logs.answers.keys() & logs.asks.keys()),
        "right": counts["right"],
        "wrong": counts["wrong"],
        "withdrawn": counts["withdrawn"],
        "owed_nothing": counts["owed_nothing"],
        "pending": 0 if finished else len(unanswered),
        "lost": len(unanswered) if finished else 0,
        "did_not_run": counts["did_not_run"],
        "ran_and_failed": counts["ran_and_failed"],
        "may_have_run": counts["may_have_run"],
        "errors": dict(sorted(errors.items())),
        "answered_twice": lines - len(logs.answers),
        "untrue_errors": len(untrue),
        "untrue": untrue[:10],
    }


def _is_right(logs: Logs, key: str, answer: Line) -> bool:
    """Whether a result is the one, and is of a run that was over before it came."""
    return answer["right"] and any(
        line["monotonic"] <= answer["monotonic"] for line in logs.results.get(key, ())
    )


def _untrue(logs: Logs, deaths: Deaths, key: str, ask: Line, answer: Line) -> str:
    """What is untrue in an error; the empty string if it tells the truth."""
    limited = ask["timeout_s"] is not None
    begun = any(line["monotonic"] <= answer["monotonic"] for _, line in logs.starts.get(key, ()))
    match answer["verdict"]:
        case "DID_NOT_RUN" if key in logs.starts:
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


def _runs(logs: Logs, keyless: list[Line]) -> dict[str, Any]:
    """How often each was run, and with what right."""
    figures = runs(logs)
    requests = Counter(line["request"] for line in keyless)
    figures["started"] += len(requests)
    figures["started_twice"] += sum(count - 1 for count in requests.values())
    return figures


def _rest(logs: Logs) -> dict[str, Any]:
    """What ran when nothing should, and who ended without being killed."""
    rest_s = min((line["monotonic"] for line in logs.faults("rest")), default=None)
    left = late = 0
    if rest_s is not None:
        left = sum(
            not (process in logs.deaths and logs.deaths[process]["monotonic"] <= rest_s)
            for process, keys in _running(logs, rest_s).items() for _ in keys
        )  # fmt: skip
        late = sum(
            line["monotonic"] > rest_s for starts in logs.starts.values() for _, line in starts
        )
    return {
        "left_running": left,
        "started_at_rest": late,
        "workers_died": len(logs.deaths),
        "deaths_unexplained": len(_unexplained(logs)),
        "frozen_survived": len(logs.faults("frozen-survived")),
        "ended_by_itself": [line["who"] for line in logs.faults("ended-by-itself")],
    }


def _running(logs: Logs, moment_s: float) -> dict[str, set[str]]:
    """By process: what it had begun and not ended at a moment."""
    living: dict[str, set[str]] = {}
    for line in logs.environment:
        if line["monotonic"] <= moment_s:
            keys = living.setdefault(line["process"], set())
            (keys.add if line["event"] == "start" else keys.discard)(line["key"])
    return living


def _unexplained(logs: Logs) -> list[str]:
    """Processes of the environment that ended, and nobody had done anything to them."""
    touched = {
        line["pid"] for event in ("kill", "stop", "freeze")
        for line in logs.faults(event, what="worker")
    }  # fmt: skip
    servers_s = [line["sent_s"] for line in logs.faults("kill", what="server")]
    servers_s += [line["monotonic"] for line in logs.faults("closing")]
    return [
        process for process, line in logs.deaths.items()
        if line["pid"] not in touched
        and not any(logs.began_s[process] <= s <= line["monotonic"] for s in servers_s)
    ]  # fmt: skip


# -- what is wrong -------------------------------------------------------------


def _problems(figures: dict[str, Any]) -> Iterator[str]:
    """What is wrong, in words."""
    if not figures["finished"]:
        yield "it was not finished: these are the figures so far"
    for phase in figures["hung"]:
        yield f"the {phase} did not come to its end in time"
    for name, text in {
        "lost": "calls of living clients have no answer",
        "wrong": "answers were not the result of what was asked, or of no run that was over",
        "started_twice": "starts were a second run",
        "rerun_too_early": "reruns began before their predecessor's process was proven dead",
        "started_unasked": "rollouts ran that nobody had asked for",
        "answered_twice": "answers came to a call that had one already",
        "untrue_errors": "errors did not tell the truth",
        "left_running": "executions that nobody waits for still ran at rest",
        "started_at_rest": "executions began at rest",
        "deaths_unexplained": "workers ended, and nobody had killed them",
        "frozen_survived": "workers were stopped for good, and their server did not kill them",
    }.items():
        if figures[name]:
            yield f"{figures[name]} {text}"
    for who in figures["ended_by_itself"]:
        yield f"the {who} ended by itself"
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

"""The judge of the demonstration: three logs on disk in, figures out.

``python -m trio_envserve.lab.demo.judge_logs DIR`` prints one JSON object and
exits with 0 only if nothing ran twice, nothing was lost, and the faults it is
about did happen.

Theory of operation
-------------------
This module and its other half import nothing of the package, and ask no
server: they count.

``environment.jsonl``
    written by the environment in the worker processes: a ``start`` and an
    ``end`` line for each run, with ``key``, ``process`` (a name that, unlike a
    pid, is never given away again) and ``predecessor``: what the kernel said,
    before this start, of the process that had begun this key before (``none``,
    ``dead``, ``alive``).
``callers.jsonl``
    written by the callers: an ``ask`` line before each call and an ``answer``
    line after it; and by a tap on each ``caller``'s socket: ``request`` and
    ``ping`` for what it took, ``outcome``, ``refused`` and ``pong`` for what it
    gave, ``connected`` and ``disconnected``.  A request is named by ``session``
    and ``sequence``; a pong has the ``probe`` of its ping.
``killer.jsonl``
    written by whoever makes the faults: ``begin`` (with the number of
    ``workers``), ``kill``, ``cut`` (``withheld``: the requests whose outcomes
    were on their way), ``serving`` (a server is there), ``dead`` (a worker
    process was seen to have ended; ``alive_s`` is the last time it was seen not
    to have).

Lines of the environment's log are in the order of their ``write`` calls,
whichever process wrote them.  ``monotonic`` is one clock for the machine.

A second start of a key is a *rerun by consent* if the caller consented and the
process of the start before was dead by then.  That is judged four times:
``predecessor`` must be ``dead``; the two processes must differ; no line of the
earlier process may come after this start; and that process must have been seen
dead, and not seen alive later than this start.  None of these can accuse an
innocent: each is a fact of the kernel or of the order of the log, and no
comparison asks *when* a death happened, which nobody can know exactly.  Any
other second start *ran twice*.

No counter of the server's is among the logs: what it did with duplicates
follows from what went over the callers' sockets (:mod:`.judge_duplicates`).

A killed worker was *replaced* if all workers were at work when it died, and a
process that had run nothing before ran something before the next kill.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from .judge_duplicates import repeats, request_id, request_of

ENVIRONMENT, CALLERS, KILLER = "environment.jsonl", "callers.jsonl", "killer.jsonl"

LEAST_FAULTS = 3
"""How often each kind of fault must have happened (the server dies once)."""
LEAST_LIVING = 20
"""How many executions a killed worker must have had for its death to count."""

Line = dict[str, Any]


@dataclasses.dataclass(slots=True)
class Logs:
    """The three logs, and what is looked up in them."""

    environment: list[Line]
    callers: list[Line]
    killer: list[Line]
    starts: dict[str, list[tuple[int, Line]]] = dataclasses.field(default_factory=dict)
    """By key: (number of the line, line), in the order of the log."""
    results: dict[str, list[Line]] = dataclasses.field(default_factory=dict)
    """By key: its runs that came to a result."""
    last_line: dict[str, int] = dataclasses.field(default_factory=dict)
    """By process: the number of its last line."""
    living: dict[str, set[str]] = dataclasses.field(default_factory=dict)
    """By process: keys that it began and never ended."""
    asks: dict[str, Line] = dataclasses.field(default_factory=dict)
    answers: dict[str, Line] = dataclasses.field(default_factory=dict)
    deaths: dict[str, Line] = dataclasses.field(default_factory=dict)
    began_s: dict[str, float] = dataclasses.field(default_factory=dict)
    """By process: when it wrote its first line."""
    requests: dict[str, list[Line]] = dataclasses.field(default_factory=dict)
    """By request: its transmissions, by the sockets of the callers."""
    outcomes: dict[str, list[Line]] = dataclasses.field(default_factory=dict)
    """By request: the outcomes that the sockets gave."""

    @classmethod
    def read(cls, directory: Path) -> Logs:
        """Read a directory.  Raises OSError, and ValueError for a bad line."""
        return cls.of(
            *(list(read_lines(directory / name)) for name in (ENVIRONMENT, CALLERS, KILLER))
        )

    @classmethod
    def of(cls, environment: list[Line], callers: list[Line], killer: list[Line]) -> Logs:
        """From the lines themselves."""
        logs = cls(environment, callers, killer)
        for number, line in enumerate(logs.environment):
            logs._environment_line(number, line)
        for line in logs.callers:
            if line["event"] == "request":
                logs.requests.setdefault(request_of(line), []).append(line)
            elif line["event"] == "outcome":
                logs.outcomes.setdefault(request_of(line), []).append(line)
        logs.asks = {line["key"]: line for line in logs.callers if line["event"] == "ask"}
        logs.answers = {line["key"]: line for line in logs.callers if line["event"] == "answer"}
        logs.deaths = {line["process"]: line for line in logs.killer if line["event"] == "dead"}
        return logs

    def _environment_line(self, number: int, line: Line) -> None:
        key, process = line["key"], line["process"]
        self.last_line[process] = number
        self.began_s.setdefault(process, line["monotonic"])
        if line["event"] == "start":
            if line["attempt"] == 1:  # a further attempt is within one execution
                self.starts.setdefault(key, []).append((number, line))
            self.living.setdefault(process, set()).add(key)
        else:
            self.living.get(process, set()).discard(key)
            if line["how"] == "result":
                self.results.setdefault(key, []).append(line)

    def faults(self, event: str, **wanted: Any) -> list[Line]:
        """The killer's lines of this kind."""
        return [
            line for line in self.killer
            if line["event"] == event and wanted.items() <= line.items()
        ]  # fmt: skip


def judge(directory: str | Path) -> dict[str, Any]:
    """All figures, and what is wrong, from the logs in a directory.

    ``problems`` says in words what is wrong; ``ok`` is true if there is none.
    """
    try:
        logs = Logs.read(Path(directory))
    except (OSError, ValueError, KeyError) as error:
        return {"ok": False, "problems": [f"the logs cannot be read: {error!r}"]}
    figures = _callers(logs) | runs(logs) | _faults(logs) | repeats(logs)
    problems = list(_problems(figures))
    return {**figures, "ok": not problems, "problems": problems}


def _callers(logs: Logs) -> dict[str, Any]:
    """What was asked, and what came of it."""
    answered = logs.answers.keys() & logs.asks.keys()
    good = {key for key in answered if logs.answers[key]["ok"] and logs.answers[key]["right"]}
    untrue = [
        key for key in answered
        if logs.answers[key]["verdict"] == "DID_NOT_RUN" and key in logs.starts
    ]  # fmt: skip
    lines = sum(line["event"] == "answer" for line in logs.callers)
    times = [line["monotonic"] for line in (*logs.killer, *logs.callers)]
    return {
        "asked": len(logs.asks),
        "answered": len(answered),
        "lost": len(logs.asks.keys() - good),
        "errors": sum(not logs.answers[key]["ok"] for key in answered),
        "wrong": len(answered) - len(good) - sum(not logs.answers[key]["ok"] for key in answered),
        "answered_twice": lines - len(logs.answers),
        "untrue_errors": len(untrue),
        "seconds": round(max(times) - min(times), 3) if times else 0.0,
    }


def runs(logs: Logs) -> dict[str, Any]:
    """How often each key was run, and with what right."""
    reruns = twice = early = 0
    for key, starts in logs.starts.items():
        consent = key in logs.asks and logs.asks[key]["rerun"] is True
        for (_, before), (number, again) in itertools.pairwise(starts):
            proven = died_before(logs, before, number, again)
            answer = logs.answers.get(key)
            useless = answer is not None and answer["monotonic"] < again["monotonic"]
            early += consent and not proven
            if consent and proven and not useless:
                reruns += 1
            else:
                twice += 1
    return {
        "started": len(logs.starts),
        "started_twice": twice,
        "started_unasked": len(logs.starts.keys() - logs.asks.keys()),
        "rerun_with_consent": reruns,
        "rerun_too_early": early,
    }


def died_before(logs: Logs, before: Line, number: int, again: Line) -> bool:
    """Whether the process of one start is proven to have ended before another."""
    process = before["process"]
    death = logs.deaths.get(process)
    return (
        again["predecessor"] == "dead"
        and again["process"] != process
        and logs.last_line[process] < number
        and death is not None
        and not death["alive_s"] > again["monotonic"]
    )


def _faults(logs: Logs) -> dict[str, Any]:
    """What was done to the server, its workers and its connections."""
    kills = [
        line for line in logs.faults("kill", what="worker")
        if line["process"] in logs.deaths
        and len(logs.living.get(line["process"], ())) >= LEAST_LIVING
        and _was_replaced(logs, line)
    ]  # fmt: skip
    receipts = [
        line for line in logs.faults("cut", how="before receipt")
        if any(request_id(*withheld) in logs.requests for withheld in line["withheld"])
    ]  # fmt: skip
    cuts = [line for line in logs.faults("cut", how="ordinary") if line["connections"]]
    return {
        "connections_cut": sum(line["connections"] for line in cuts + receipts),
        "cuts": len(cuts),
        "cuts_before_receipt": len(receipts),
        "received_after_cut": len({
            request for line in receipts for request in _received_after(logs, line)
        }),
        "worker_restarts": len(kills),
        "killed_with_worker": [len(logs.living[line["process"]]) for line in kills],
        "server_restarts": sum(
            _came_back(logs, line) for line in logs.faults("kill", what="server")
        ),
    }  # fmt: skip


def _received_after(logs: Logs, cut: Line) -> Iterator[str]:
    """The requests whose outcome a cut withheld, and their caller got after it
    without another run."""
    for request in (request_id(*withheld) for withheld in cut["withheld"]):
        outcomes = logs.outcomes.get(request)
        if outcomes is None or request not in logs.requests:
            continue
        starts = logs.starts.get(logs.requests[request][0]["key"], ())
        if outcomes[0]["monotonic"] > cut["monotonic"] and not any(
            start["monotonic"] > cut["monotonic"] for _, start in starts
        ):
            yield request


def _was_replaced(logs: Logs, kill: Line) -> bool:
    """Whether another process took the place of a killed worker."""
    killed_s = kill["sent_s"]
    workers = max((line["workers"] for line in logs.faults("begin")), default=math.inf)
    at_work = sum(
        began_s < killed_s
        and (process not in logs.deaths or logs.deaths[process]["monotonic"] > killed_s)
        for process, began_s in logs.began_s.items()
    )
    kills_s = [line["sent_s"] for line in logs.faults("kill")]
    next_s = min((each_s for each_s in kills_s if each_s > killed_s), default=math.inf)
    replaced = any(killed_s < began_s < next_s for began_s in logs.began_s.values())
    return at_work >= workers and replaced


def _came_back(logs: Logs, kill: Line) -> bool:
    """Whether, after a server's death and that of all its workers, another one
    served at its address and ran something."""
    killed_s = kill["sent_s"]
    serving = logs.faults("serving")
    addresses = {line["address"] for line in serving if line["monotonic"] < killed_s}
    after = [
        line["monotonic"] for line in serving
        if line["monotonic"] > killed_s
        and line["address"] in addresses and line["pid"] != kill["pid"]
    ]  # fmt: skip
    first_s = logs.began_s.values()
    old = [process for process, began_s in logs.began_s.items() if began_s < killed_s]
    return (
        bool(after)
        and any(began_s > min(after) for began_s in first_s)
        and all(process in logs.deaths for process in old)
    )


def _problems(figures: dict[str, Any]) -> Iterator[str]:
    """What is wrong, in words."""
    if not figures["asked"]:
        yield "nothing was asked"
    for name, text in {
        "lost": "rollouts have no right result",
        "started_twice": "starts were a second run of a rollout",
        "rerun_too_early": "reruns began before their predecessor's process was proven dead",
        "started_unasked": "rollouts ran that nobody had asked for",
        "answered_twice": "answers came to a call that had one already",
        "untrue_errors": "errors said that a rollout did not run, and it had",
        "outcomes_differ": "requests had outcomes that were not the same bytes",
    }.items():
        if figures[name]:
            yield f"{figures[name]} {text}"
    for name, least, text in (
        ("cuts", LEAST_FAULTS, "ordinary cuts"),
        ("cuts_before_receipt", LEAST_FAULTS, "cuts between an outcome and its receipt"),
        (
            "worker_restarts",
            LEAST_FAULTS,
            f"kills of a worker with {LEAST_LIVING} executions, and replacements",
        ),
        ("server_restarts", 1, "kills of the server"),
        ("replayed", 1, "replays"),
        ("coalesced", 1, "coalesced requests"),
    ):
        if figures[name] < least:
            yield f"only {figures[name]} {text}, so nothing is shown: {least} wanted"


def read_lines(path: Path) -> Iterator[Line]:
    """The lines of one log.  Raises OSError, and ValueError for a bad one."""
    with path.open() as file:
        for number, text in enumerate(file, 1):
            try:
                yield json.loads(text)
            except ValueError:
                raise ValueError(f"{path.name}, line {number}, is not JSON") from None


def judge_named(judge: Callable[[str], dict[str, Any]], module: str) -> int:
    """Judge the directory named on the command line; returns the exit code."""
    if len(sys.argv) != 2:
        print(f"usage: python -m trio_envserve.lab.{module} DIR", file=sys.stderr)
        return 2
    figures = judge(sys.argv[1])
    print(json.dumps(figures))
    return 0 if figures["ok"] else 1


if __name__ == "__main__":
    raise SystemExit(judge_named(judge, "demo.judge_logs"))

"""The judge of the demonstration: three logs on disk in, figures out.

``python -m trio_envserve.lab.demo.judge_logs DIR`` prints one JSON object and
exits with 0 only if nothing ran twice, nothing was lost, and the faults it is
about did happen.

Theory of operation
-------------------
The logs, and what a further start of a key must prove, are those of
:mod:`~trio_envserve.lab.history`.  Of the demonstration's own there is:

- in ``callers.jsonl``, by a tap on each ``caller``'s socket: ``request`` and ``ping``
  for what it took, ``outcome``, ``refused`` and ``pong`` for what it gave, ``connected``
  and ``disconnected``.  A request is named by ``session`` and ``sequence``; a pong has
  the ``probe`` of its ping.
- in ``killer.jsonl``: ``begin`` (with the number of ``workers`` and of ``hosts``), ``kill``,
  ``joined`` (a host has taken the place of one that was killed), ``cut``
  (``withheld``: the requests whose outcomes were on their way) and ``serving`` (a server
  is there).

No counter of the server's is among the logs: what it did with duplicates
follows from what went over the callers' sockets (:mod:`.judge_duplicates`).

A killed worker was *replaced* if all workers were at work when it died, and a
process that had run nothing before ran something before the next kill.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
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
)
from .judge_duplicates import Sockets, repeats, request_id

LEAST_FAULTS = 3
"""How often each kind of fault must have happened (the server dies once)."""
LEAST_LIVING = 20
"""How many executions a killed worker must have had for its death to count."""


def judge(directory: str | Path) -> Figures:
    """All figures, and what is wrong, from the logs in a directory."""
    return judged(lambda: _figures(History.read(Path(directory))), _problems)


def _figures(history: History) -> Figures:
    sockets = Sockets.of(history)
    return (
        _callers(history)
        | at_most_once(history)
        | _faults(history, sockets)
        | repeats(history, sockets)
    )


def _callers(history: History) -> dict[str, Any]:
    """The calls, and what came of them."""
    answered = history.answers.keys() & history.asks.keys()
    good = {key for key in answered if history.answers[key]["ok"] and history.answers[key]["right"]}
    untrue = [
        key for key in answered
        if history.answers[key]["verdict"] == "DID_NOT_RUN" and key in history.starts
    ]  # fmt: skip
    errors = sum(not history.answers[key]["ok"] for key in answered)
    lines = sum(line["event"] == "answer" for line in history.callers)
    return {
        "asked": len(history.asks),
        "answered": len(answered),
        "lost": len(history.asks.keys() - good),
        "errors": errors,
        "wrong": len(answered) - len(good) - errors,
        "answered_twice": lines - len(history.answers),
        "untrue_errors": len(untrue),
        "seconds": history.seconds,
    }


def _faults(history: History, sockets: Sockets) -> dict[str, Any]:
    """The faults of the server, its workers and its connections."""
    kills = [
        line for line in history.faults("kill", what="worker")
        if line["process"] in history.deaths
        and len(history.living.get(line["process"], ())) >= LEAST_LIVING
        and _was_replaced(history, line)
    ]  # fmt: skip
    receipts = [
        line for line in history.faults("cut", how="before receipt")
        if any(request_id(*withheld) in sockets.requests for withheld in line["withheld"])
    ]  # fmt: skip
    cuts = [line for line in history.faults("cut", how="ordinary") if line["connections"]]
    return {
        "connections_cut": sum(line["connections"] for line in cuts + receipts),
        "cuts": len(cuts),
        "cuts_before_receipt": len(receipts),
        "received_after_cut": len({
            request for line in receipts for request in _received_after(history, sockets, line)
        }),
        "worker_restarts": len(kills),
        "killed_with_worker": [len(history.living[line["process"]]) for line in kills],
        "server_restarts": sum(
            _came_back(history, line) for line in history.faults("kill", what="server")
        ),
        **_hosts(history),
    }  # fmt: skip


def _received_after(history: History, sockets: Sockets, cut: Line) -> Iterator[str]:
    """The requests whose outcome a cut withheld, and their caller got after it
    without another run."""
    for request in (request_id(*withheld) for withheld in cut["withheld"]):
        outcomes = sockets.outcomes.get(request)
        if outcomes is None or request not in sockets.requests:
            continue
        starts = history.starts.get(sockets.requests[request][0]["key"], ())
        if outcomes[0]["monotonic"] > cut["monotonic"] and not any(
            start["monotonic"] > cut["monotonic"] for _, start in starts
        ):
            yield request


def _was_replaced(history: History, kill: Line) -> bool:
    """Whether another process took the place of a killed worker."""
    killed_s = kill["sent_s"]
    workers = max((line["workers"] for line in history.faults("begin")), default=math.inf)
    at_work = sum(
        began_s < killed_s
        and (process not in history.deaths or history.deaths[process]["monotonic"] > killed_s)
        for process, began_s in history.began_s.items()
    )
    kills_s = [line["sent_s"] for line in history.faults("kill")]
    next_s = min((each_s for each_s in kills_s if each_s > killed_s), default=math.inf)
    replaced = any(killed_s < began_s < next_s for began_s in history.began_s.values())
    return at_work >= workers and replaced


def _hosts(history: History) -> Figures:
    """The faults of the remote host, if there is one."""
    if not any(line.get("hosts") for line in history.faults("begin")):
        return {}
    kills = history.faults("kill", what="host")
    return {"host_restarts": sum(_joined_again(history, line) for line in kills)}


def _joined_again(history: History, kill: Line) -> bool:
    """Whether a killed host had executions, and after the death of all its workers another
    one ran something."""
    killed_s = kill["sent_s"]
    joined_s = [
        line["monotonic"] for line in history.faults("joined")
        if line["monotonic"] > killed_s and line["pid"] != kill["pid"]
    ]  # fmt: skip
    died = [
        process for process, began_s in history.began_s.items()
        if began_s < killed_s and not _died_before(history, process, killed_s)
    ]  # fmt: skip
    return (
        bool(joined_s)
        and any(history.living.get(process) for process in died)
        and all(process in history.deaths for process in died)
        and any(began_s > min(joined_s) for began_s in history.began_s.values())
    )


def _died_before(history: History, process: str, moment_s: float) -> bool:
    return process in history.deaths and history.deaths[process]["monotonic"] < moment_s


def _came_back(history: History, kill: Line) -> bool:
    """Whether, after a server's death and that of all its workers, another one
    served at its address and ran something."""
    killed_s = kill["sent_s"]
    serving = history.faults("serving")
    addresses = {line["address"] for line in serving if line["monotonic"] < killed_s}
    after = [
        line["monotonic"] for line in serving
        if line["monotonic"] > killed_s
        and line["address"] in addresses and line["pid"] != kill["pid"]
    ]  # fmt: skip
    first_s = history.began_s.values()
    old = [process for process, began_s in history.began_s.items() if began_s < killed_s]
    return (
        bool(after)
        and any(began_s > min(after) for began_s in first_s)
        and all(process in history.deaths for process in old)
    )


_WRONG = {
    "lost": "rollouts have no right result",
    **RUN_WRONGLY,
    "answered_twice": "answers came to a call that had one already",
    "untrue_errors": "errors said that a rollout did not run, and it had",
    "outcomes_differ": "requests had outcomes that were not the same bytes",
}


def _problems(figures: dict[str, Any]) -> Iterator[str]:
    """The problems, in words."""
    if not figures["asked"]:
        yield "nothing was asked"
    yield from counted(figures, _WRONG)
    for name, least, text in (
        ("cuts", LEAST_FAULTS, "ordinary cuts"),
        ("cuts_before_receipt", LEAST_FAULTS, "cuts between an outcome and its receipt"),
        (
            "worker_restarts",
            LEAST_FAULTS,
            f"kills of a worker with {LEAST_LIVING} executions, and replacements",
        ),
        ("server_restarts", 1, "kills of the server"),
        ("host_restarts", 1, "kills of a host with executions"),
        ("received_after_cut", 1, "outcomes received after a cut had withheld them"),
        ("replayed", 1, "replays"),
        ("coalesced", 1, "coalesced requests"),
    ):
        if figures.get(name, least) < least:  # without a host, none is killed
            yield f"only {figures[name]} {text}, so nothing is shown: {least} wanted"


if __name__ == "__main__":
    raise SystemExit(judge_named(judge, "demo.judge_logs"))

"""The judges of a trial.  Yours look the same: any function of the history that
returns the problems it found, each a sentence.

These check the guarantees, named by their numbers.  They judge by what the
environment's code and the callers saw, never by what the server says.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias

from ...core.errors import DidNotRun, MayHaveRun, RanAndFailed
from ...core.limits import ClientLimits
from .environment import IgnoredCancel
from .history import AskRecord, Execution, History

Judge: TypeAlias = Callable[[History], Iterable[str]]
"""Finds problems; none means that all is well."""

ALLOWANCE = ClientLimits().max_executions
"""Executions of an ask with consent, if it does not say how many."""


def g1_one_at_a_time(history: History) -> Iterator[str]:
    """No ask has two live executions."""
    for ask, runs in _runs(history):
        for one, next_one in itertools.pairwise(runs):
            if one.ended_s is None or next_one.began_s < one.ended_s:
                yield (
                    f"G1: ask {ask}: execution {next_one.number} began at "
                    f"{next_one.began_s:.3f} s, while execution {one.number} was running"
                )


def g2_at_most_once(history: History) -> Iterator[str]:
    """An ask is executed once; with consent, as often as it allows."""
    for ask, runs in _runs(history):
        count = sum(run.attempt == 1 for run in runs)
        most = _allowance(history, history.asks[ask])
        if count > most:
            yield f"G2: ask {ask} was executed {count} times, {most} allowed"


def g3_one_outcome(history: History) -> Iterator[str]:
    """All outcomes sent for one request are the same bytes."""
    for request, digests in history.outcomes_sent.items():
        if len(digests) > 1:
            yield f"G3: request {request} was answered with {len(digests)} different outcomes"
    for ask in history.asks:
        for what in ask.foreign:
            yield f"G3: ask {ask.number} got {what}"


def g4_kept_until_received(history: History) -> Iterator[str]:
    """A value that the environment has returned reaches its caller, unless the
    server ended before, the worker was killed, or the caller went away."""
    if history.longest_apart_s >= history.patience_s:
        return  # either side may have given up
    for ask in history.asks:
        if ask.kind == "group" or ask.outcome is None or "timeout_s" in ask.options:
            continue
        error = ask.outcome.error
        for run in history.executions_of(ask.number):
            if run.how != "returned" or not isinstance(error, MayHaveRun):
                continue
            if _outlived(history, run, ask):
                yield (
                    f"G4: execution {run.number} of ask {ask.number} returned a value, and its "
                    f"caller got: {error}"
                )


def g7_cancel_is_complete(history: History) -> Iterator[str]:
    """An execution whose ask was cancelled or answered does not run any more."""
    for run in history.executions:
        if isinstance(run.error, IgnoredCancel):
            yield f"G7: execution {run.number} of ask {run.ask} ignores its cancel: {run.error}"
        if run.ended_s is None or run.ended_s > history.ended_s:
            ask = history.asks[run.ask]
            why = "its caller was cancelled" if ask.cancelled_s is not None else "its call ended"
            if ask.ended_s is None:
                continue  # it is still wanted: see G9
            yield (
                f"G7: execution {run.number} of ask {run.ask} still ran "
                f"{history.ended_s - ask.ended_s:.0f} s after {why}"
            )


def g9_no_silent_wait(history: History) -> Iterator[str]:
    """Each call ended, with a true verdict; nothing is left on the server."""
    for ask in history.asks:
        if ask.ended_s is None:
            yield f"G9: ask {ask.number} was never answered"
            continue
        for problem in _untrue(history, ask):
            yield f"G9: ask {ask.number}: {problem}"
    for what, count in history.left.items():
        if count:
            yield f"G9: the server is left with {count} {what}"


JUDGES: Sequence[Judge] = (
    g1_one_at_a_time, g2_at_most_once, g3_one_outcome, g4_kept_until_received,
    g7_cancel_is_complete, g9_no_silent_wait,
)  # fmt: skip
"""The default judges of :func:`~.run.run_trial`."""


def _runs(history: History) -> Iterator[tuple[int, list[Execution]]]:
    """The executions of each ask, or of each member of a group, in order."""
    runs: defaultdict[tuple[int, int], list[Execution]] = defaultdict(list)
    for run in history.executions:
        runs[run.ask, run.member].append(run)
    for (ask, _), found in runs.items():
        yield ask, found


def _allowance(history: History, ask: AskRecord) -> int:
    consent = ask.options.get("rerun")
    if not (history.rerun if consent is None else consent):
        return 1
    return int(ask.options.get("max_executions") or ALLOWANCE)


def _outlived(history: History, run: Execution, ask: AskRecord) -> bool:
    """Whether server and worker ran from the execution's begin until the caller's answer."""
    ended_s = ask.ended_s or history.ended_s
    gone_s = history.lives[run.life].ended_s
    if any(run.began_s <= kill_s <= ended_s for kill_s in history.kills_s):
        return False
    return gone_s is None or gone_s > ended_s


def _untrue(history: History, ask: AskRecord) -> Iterator[str]:
    """The untrue things that the caller was told."""
    error = None if ask.outcome is None else ask.outcome.error
    runs = history.executions_of(ask.number)
    if isinstance(error, DidNotRun) and runs:
        yield f"{type(error).__name__} says that it did not run, and it did"
    if isinstance(error, RanAndFailed) and not runs:
        yield f"{type(error).__name__} says that it ran, and it did not"
    for number in ask.came_from:
        if history.executions[number].how != "returned":
            yield f"it got a value from execution {number}, which returned none"

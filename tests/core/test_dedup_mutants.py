"""A check that no mutant fails is not a check: broken caches that the machine must catch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from hypothesis import Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from trio_envserve.core import dedup, request_table
from trio_envserve.core.dedup import DedupCache
from trio_envserve.core.ranges import Ranges
from trio_envserve.core.request_table import TABLE, RequestAction, RequestInput
from trio_envserve.core.requests import WorkState

from .test_dedup_machine import ALL_STATES, DedupMachine

pytestmark = pytest.mark.mutants

Patch = pytest.MonkeyPatch


def cell(input: RequestInput, state: WorkState, mutant: Any) -> Callable[[Patch], None]:
    """Replaces one cell of the table."""
    return lambda patch: patch.setitem(TABLE[input], state, mutant)


def attribute(owner: Any, name: str, mutant: Any) -> Callable[[Patch], None]:
    return lambda patch: patch.setattr(owner, name, mutant)


def finishes_without_remembering(cache, session, sequence, entry, arg):
    effects = request_table._finish_waiting(cache, session, sequence, entry, arg)
    session.finished = Ranges(n for n in session.finished if n != sequence)
    return effects


def runs_a_duplicate_again(cache, session, sequence, entry, ask):
    cache.counters.coalesced += 1
    return ((RequestAction.QUEUE, entry),)


def forgets_the_stop(cache, session, sequence, entry, arg):
    request_table._finish_running(cache, session, sequence, entry, arg)
    return ()


def loses_with_consent_of_nobody(cache, session, sequence, entry, outcome):
    entry.state, entry.execution = WorkState.WAITING, None
    request_table._queue(cache, session, +1)
    return ((RequestAction.QUEUE, entry),)


def takes_a_second_outcome(cache, session, sequence, entry, arg):
    return ((RequestAction.ANSWER, entry),)


def a_span_ends_as_its_first(patch: Patch) -> None:
    finish_spans = DedupCache.finish_spans

    def as_the_first(self, session, spans):
        states = [session.state(n) for n in spans if n in session.entries]
        effects = finish_spans(self, session, spans)
        if states[:1] == [WorkState.RUNNING]:
            return effects
        return [each for each in effects if each[0] is not RequestAction.STOP]

    patch.setattr(DedupCache, "finish_spans", as_the_first)


def replays_all_or_nothing(patch: Patch) -> None:
    sync = DedupCache.sync

    def all_or_nothing(self, session, next_sequence, pending, *rest):
        effects, missing = sync(self, session, next_sequence, pending, *rest)
        if all(session.standing(n) == "completed" for n in pending):
            return effects, missing
        return [each for each in effects if each[0] is not RequestAction.ANSWER], missing

    patch.setattr(DedupCache, "sync", all_or_nothing)


def spends_what_is_refused_for_now(cache, session, sequence, entry, ask):
    effects = request_table._enter(cache, session, sequence, entry, ask)
    if sequence not in session.tickets:
        session.finished.add(sequence)
    return effects


MUTANTS: dict[str, Callable[[Patch], None]] = {
    "a duplicate of a waiting request is queued again": cell(
        RequestInput.REQUEST, WorkState.WAITING, runs_a_duplicate_again
    ),
    "a duplicate of a running request is queued again": cell(
        RequestInput.REQUEST, WorkState.RUNNING, runs_a_duplicate_again
    ),
    "a completed request is not replayed": cell(
        RequestInput.REQUEST, WorkState.COMPLETED, request_table._coalesce
    ),
    "another payload coalesces": cell(
        RequestInput.OTHER_DIGEST, WorkState.RUNNING, request_table._coalesce
    ),
    "a cancel does not reach the execution": cell(
        RequestInput.FINISH, WorkState.RUNNING, forgets_the_stop
    ),
    "a finished request is not remembered": cell(
        RequestInput.FINISH, WorkState.WAITING, finishes_without_remembering
    ),
    "a cancel that overtakes its request is not remembered": cell(
        RequestInput.FINISH, WorkState.NOT_SEEN, request_table._ignore
    ),
    "a lost request runs again without consent": cell(
        RequestInput.WORKER_DEAD, WorkState.RUNNING, loses_with_consent_of_nobody
    ),
    "a stray outcome is forwarded": cell(
        RequestInput.STRAY_OUTCOME, WorkState.COMPLETED, takes_a_second_outcome
    ),
    "a deadline of a running request is ignored": cell(
        RequestInput.DEADLINE, WorkState.RUNNING, request_table._ignore
    ),
    "the allowance is one too many": attribute(
        DedupCache, "may_rerun", lambda cache, entry: entry.executions <= entry.allowance
    ),
    "a body is never dropped": attribute(request_table, "drop_body", lambda *args: None),
    "finished means not seen": attribute(
        dedup, "absorb", lambda cache, session, sequence, input: ((RequestAction.QUEUE, None),)
    ),
    "everything may enter": attribute(DedupCache, "may_enter", lambda *args: True),
    "dispatching never pauses": attribute(DedupCache, "may_dispatch", lambda cache: True),
    "a session has no share": attribute(DedupCache, "share_left", lambda *args: True),
    "gaps have no bound": attribute(DedupCache, "_too_many_gaps", lambda *args: False),
    "a cancel says it never started": attribute(DedupCache, "ever_started", lambda *args: False),
    "the newest arrival gets the answers": attribute(
        DedupCache, "moved", lambda cache, session, route, n: setattr(session, "route", route)
    ),
    "a span ends as its first": a_span_ends_as_its_first,
    "a statement replays all or nothing": replays_all_or_nothing,
    "what is refused for now is spent": cell(
        RequestInput.REQUEST, WorkState.NOT_SEEN, spends_what_is_refused_for_now
    ),
    "a lease never ends": attribute(DedupCache, "lapsed", lambda cache, now_s: iter(())),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_the_machine_catches(name, monkeypatch):
    class Machine(DedupMachine):
        reached: ClassVar[set[tuple[RequestInput, WorkState]]] = set()

    MUTANTS[name](monkeypatch)
    generate = settings(
        max_examples=3000, derandomize=True, stateful_step_count=50, phases=[Phase.generate],
        database=None, report_multiple_bugs=False,
    )  # fmt: skip
    with pytest.raises((AssertionError, AttributeError, KeyError)):
        run_state_machine_as_test(Machine, settings=generate)


def test_the_machine_reaches_every_input_in_every_state():
    class Machine(DedupMachine):
        reached: ClassVar[set[tuple[RequestInput, WorkState]]] = set()

    every = {(input, state) for input in RequestInput for state in ALL_STATES}
    histories = settings(max_examples=50, stateful_step_count=50, database=None)
    for number in range(20):  # one is mostly enough
        run_state_machine_as_test(seed(number)(Machine), settings=histories)
        if every == Machine.reached:
            break
    assert every == Machine.reached

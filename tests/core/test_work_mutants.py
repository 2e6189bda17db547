"""A check that no mutant fails is not a check: broken works that the machine must catch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from hypothesis import Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from trio_envserve.core.account import Accounts
from trio_envserve.core.sessions import Session, Sessions
from trio_envserve.core.work import Refusal, WorkInput, Works, WorkState

from .test_work_machine import POSSIBLE, Cell, WorkMachine

pytestmark = pytest.mark.mutants

Patch = pytest.MonkeyPatch
Mutant = Callable[[Patch], None]
S, Input = WorkState, WorkInput
OPEN = (S.HELD, S.WAITING, S.RUNNING, S.COMPLETED)
TABLE = Works.TABLE


def cells(input: WorkInput, mutant: Any, *states: WorkState) -> Mutant:
    """Replaces cells of the table: of these states, or of all open ones."""

    def apply(patch: Patch) -> None:
        for state in states or OPEN:
            patch.setitem(TABLE[input], state, mutant)

    return apply


def attribute(owner: Any, name: str, mutant: Any) -> Mutant:
    return lambda patch: patch.setattr(owner, name, mutant)


def around(owner: Any, name: str, mutant: Callable[..., Any]) -> Mutant:
    """Puts a function around a method, which it is given first."""
    original = getattr(owner, name)
    return attribute(owner, name, lambda *args, **how: mutant(original, *args, **how))


# -- requests ---------------------------------------------------------------------------


def enters_a_duplicate(state: WorkState) -> Mutant:
    def request(original, works, session, sequence, ask, asker):
        ticket = session.tickets.get(sequence)
        if ticket is not None and ticket.work is not None and ticket.work.state is state:
            del session.tickets[sequence]
        return original(works, session, sequence, ask, asker)

    return around(Works, "request", request)


def does_not_replay(original, works, session, sequence, ask, asker):
    ticket = session.tickets.get(sequence)
    if ticket is None or ticket.kept is None:
        original(works, session, sequence, ask, asker)


def coalesces_another_payload(original, works, session, sequence, ask, asker):
    ticket = session.tickets.get(sequence)
    if ticket is not None:
        ticket.digest, ticket.body_bytes, ticket.key = ask.digest, len(ask.body), ask.key
    original(works, session, sequence, ask, asker)


def spends_what_is_refused(original, works, session, sequence, ask, asker):
    original(works, session, sequence, ask, asker)
    if sequence not in session.tickets:
        session.finished.add(sequence)


def finishes_without_remembering(original, works, session, spans):
    before = session.finished.copy()
    original(works, session, spans)
    session.finished = before


def forgets_a_cancel_that_came_first(original, works, session, sequence):
    known, before = sequence in session.tickets, session.finished.copy()
    original(works, session, sequence)
    if not known:
        session.finished = before


def ends_all_as_the_first(original, works, tickets, input):
    tickets = list(tickets)
    states = [ticket.state for ticket in tickets]
    original(works, tickets, input)
    if states[:1] != [S.RUNNING]:
        works._stopping.clear()


def replays_all_or_nothing(original, works, session, next_sequence, pending, sent_before):
    kept = [t is not None and t.kept is not None for t in map(session.tickets.get, pending)]
    return original(works, session, next_sequence, pending, sent_before if all(kept) else -2)


# -- executions -------------------------------------------------------------------------


def forgets_the_stop(original, works, work):
    original(works, work)
    works._stopping.clear()


def runs_again_unasked(works, work):
    return work.executions < work.allowance


def runs_once_too_often(works, work):
    consent = works.environment.rerun if work.rerun is None else work.rerun
    return consent and work.executions <= work.allowance


def tells_a_second_outcome(works, work, arg):
    work.live = False
    for ticket in work.tickets:
        works.send(ticket)


class Nothing(dict[Any, Any]):
    """What is there, and is not found."""

    def __contains__(self, name: object) -> bool:
        return False


def starts_beside_an_earlier_execution(original, works, *args):
    original(works, *args)
    works.ending = Nothing()


def splits_no_allowance(original, works, work, arg):
    arg[1].allowance += arg[1].earlier or 0
    return original(works, work, arg)


# -- who waits --------------------------------------------------------------------------


def joins_another_input(patch: Patch) -> None:
    for state in OPEN:
        patch.setitem(TABLE[Input.CLASH], state, TABLE[Input.ASK][state])


def ignores_the_consent(original, works, ticket, asked, ask, work):
    if work is not None:
        ask.rerun, ask.digest = work.rerun, work.digest
    return original(works, ticket, asked, ask, work)


def shares_all_namespaces(original, works, asked):
    known = [name for name in works.open if name.key == asked.name.key]
    return original(works, asked._replace(name=known[0]) if known else asked)


def lost_ones_go_on_beside(original, works, work, arg):
    lost = work.lost
    refusal = original(works, work, arg)
    work.lost |= lost
    return refusal


def the_first_cancels(works, work, ticket):
    Works._leave(works, work, ticket)
    if work.state is not S.CLOSED and ticket.counts and work.outcome is None:
        works._close(work)


def goes_on_for_nobody(works, work, ticket):
    works._unseat(work, ticket)


def runs_the_deadline_all_the_time(works, work, ticket):
    Works._lose(works, work, ticket)
    if work.lost and work.state is not S.CLOSED:
        work.wait_in(works.orphans, works.clock.awake_s)


def attaches_as_a_waiter(works, work, arg):
    refusal = Works._watch(works, work, arg)
    arg[0].counts = True
    return refusal


def loses_watchers(original, works, work, outcome):
    work.tickets = tuple(ticket for ticket in work.tickets if ticket.counts)
    original(works, work, outcome)


def cancels_for_one_alone(works, work, arg):
    if sum(ticket.counts for ticket in work.tickets) < 2:
        works._close(work)


def counts_a_waiter_twice(original, works, work, arg):
    refusal = original(works, work, arg)
    if refusal is None:
        work.tickets += (arg[0],)
    return refusal


def retains_for_less(original, works):
    works.keys = dataclasses.replace(works.keys, retention_s=5.0)
    original(works)


def retains_from_the_outcome(original, works, work, outcome):
    original(works, work, outcome)
    if work.state is S.COMPLETED:
        work.wait_in(works.retained, works.clock.awake_s)


def forgets_what_runs(patch: Patch) -> None:
    original = Works._who_waits

    def who_waits(works, work):
        if work.lost and work.outcome is None and not work.tickets:
            work.wait_in(works.retained, works.clock.awake_s)
        else:
            original(works, work)

    patch.setattr(Works, "_who_waits", who_waits)
    patch.setitem(TABLE[Input.OUTDATED], S.RUNNING, Works._close)


def makes_room(works, work, arg):
    """At the bound the oldest retained outcome is dropped."""
    refusal = Works._open(works, work, arg)
    if refusal is Refusal.KEYS_FULL and works.retained:
        works._close(next(iter(works.retained.values())))
        return Works._open(works, work, arg)
    return refusal


def gives_nothing_back(original, works, payload):
    payload.holders += payload.holders == 1
    original(works, payload)


def retains_what_never_ran(original, works, work, outcome):
    work.earlier += work.name is not None and not work.started
    original(works, work, outcome)


# -- commands ---------------------------------------------------------------------------


def hits_any_generation(original, works, ticket, asked, work, **how):
    if isinstance(asked.tag, int) and work is not None:
        asked = asked._replace(tag=work.number)
    return original(works, ticket, asked, work, **how)


def forgets_ids(original, works, ticket, asked, work, **how):
    works.commands.clear()
    return original(works, ticket, asked, work, **how)


def says_it_never_started(original, works, command, work):
    return original(works, command, work)._replace(started=False)


def ends_the_oldest_session(sessions, now_s):
    return iter(())


MUTANTS: dict[str, Mutant] = {
    "a duplicate of a waiting request is queued again": enters_a_duplicate(S.WAITING),
    "a duplicate of a running request is queued again": enters_a_duplicate(S.RUNNING),
    "a completed request is not replayed": around(Works, "request", does_not_replay),
    "another payload coalesces": around(Works, "request", coalesces_another_payload),
    "what is refused for now is spent": around(Works, "request", spends_what_is_refused),
    "a cancel does not reach the execution": around(Works, "_shut", forgets_the_stop),
    "a finished request is not remembered": around(Works, "finish", finishes_without_remembering),
    "a cancel that overtakes its request is not remembered": around(
        Works, "cancel", forgets_a_cancel_that_came_first
    ),
    "a span ends as its first": around(Works, "_drop", ends_all_as_the_first),
    "a statement replays all or nothing": around(Works, "sync", replays_all_or_nothing),
    "a lost request runs again without consent": attribute(Works, "may_rerun", runs_again_unasked),
    "the allowance is one too many": attribute(Works, "may_rerun", runs_once_too_often),
    "a stray outcome is forwarded": cells(Input.REPORT, tells_a_second_outcome, S.COMPLETED),
    "a deadline of a running request is ignored": cells(Input.ANSWER, Works._ignore, S.RUNNING),
    "a body is never dropped": attribute(Works, "_drop_body", lambda *args: None),
    "finished means not seen": attribute(Session, "has_finished", lambda *args: False),
    "everything may enter": attribute(Accounts, "may_wait", lambda *args: True),
    "dispatching never pauses": attribute(Accounts, "may_run", lambda *args: True),
    "an account has no share": attribute(
        Accounts, "most", lambda accounts, account, bound, others: bound - others
    ),
    "gaps have no bound": attribute(Works, "too_many_gaps", lambda *args: False),
    "a cancel says it never started": around(
        Works, "_cancel", lambda cancel, *args: cancel(*args) and False
    ),
    "the newest arrival gets the answers": attribute(
        Sessions, "moved", lambda sessions, session, route, n: setattr(session, "route", route)
    ),
    "a lease never ends": attribute(Sessions, "lapsed", ends_the_oldest_session),
    "a key joins another's input": joins_another_input,
    "a key joins another's consent": around(Works, "_ask_work", ignores_the_consent),
    "a key is one in all namespaces": around(Works, "_find", shares_all_namespaces),
    "a known key is opened again": cells(Input.ASK, Works._open, S.WAITING, S.RUNNING),
    "a caller that is back is counted beside its live waiter": attribute(
        Works, "_replace", lambda *args: None
    ),
    "a caller that is back is counted beside its lost waiter": cells(
        Input.ASK, lambda *args: lost_ones_go_on_beside(Works._join, *args), *OPEN[:3]
    ),
    "a waiter is counted twice": cells(
        Input.ASK, lambda *args: counts_a_waiter_twice(Works._join, *args), *OPEN[:3]
    ),
    "the first of two waiters cancels": cells(Input.LEAVE, the_first_cancels),
    "work goes on when the last one has left": cells(Input.LEAVE, goes_on_for_nobody),
    "a lost waiter has left": cells(Input.LOSE, Works._leave),
    "the deadline for orphans runs while somebody waits": cells(
        Input.LOSE, runs_the_deadline_all_the_time
    ),
    "the deadline for orphans never ends": cells(
        Input.ORPHANED, lambda works, work, arg: work.wait_no_more()
    ),
    "who attaches counts": cells(Input.ATTACH, attaches_as_a_waiter, S.WAITING, S.RUNNING),
    "who attaches is not answered": around(Works, "_tell_all", loses_watchers),
    "a cancel by key is stopped by those who wait": cells(Input.CANCEL, cancels_for_one_alone),
    "a command hits whatever is open": around(Works, "_command", hits_any_generation),
    "a second copy of a command hits again": around(Works, "_command", forgets_ids),
    "the next generation starts beside an execution": around(
        Works, "__init__", starts_beside_an_earlier_execution
    ),
    "a held generation is never let in": cells(Input.RELEASE, Works._ignore, S.HELD),
    "started is false for what others wait for": around(Works, "_end_by", says_it_never_started),
    "retention forgets what still runs": forgets_what_runs,
    "retention begins with the outcome": around(Works, "_conclude", retains_from_the_outcome),
    "retention ends too early": around(Works, "_end_due", retains_for_less),
    "a full table makes room": cells(Input.ASK, makes_room, S.ABSENT),
    "everything may be opened": attribute(Accounts, "may_open", lambda *args: True),
    "dispatching never pauses for a namespace": attribute(
        Accounts, "may_retain", lambda *args: True
    ),
    "room is not given back": around(Works, "_let_go", gives_nothing_back),
    "any number may wait": attribute(Works, "_crowded", lambda *args: False),
    "a reissue always starts": attribute(Works, "_why_not_again", lambda *args: None),
    "a reissue has the whole allowance": cells(
        Input.ASK, lambda *args: splits_no_allowance(Works._open, *args), S.ABSENT
    ),
    "what never ran is retained": around(Works, "_conclude", retains_what_never_ran),
    "any name is a key": attribute(Works, "_check", lambda *args: None),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_the_machine_catches(name, monkeypatch):
    class Machine(WorkMachine):
        reached: ClassVar[set[Cell]] = set()

    MUTANTS[name](monkeypatch)
    generate = settings(
        max_examples=3000, derandomize=True, stateful_step_count=50,
        phases=[Phase.generate], database=None, report_multiple_bugs=False,
    )  # fmt: skip
    with pytest.raises(
        (AssertionError, AttributeError, KeyError, ValueError, pytest.fail.Exception)
    ):
        run_state_machine_as_test(Machine, settings=generate)


def test_the_machine_reaches_every_cell():
    class Machine(WorkMachine):
        reached: ClassVar[set[Cell]] = set()

    histories = settings(max_examples=50, stateful_step_count=50, database=None)
    for number in range(20):  # a few are mostly enough
        run_state_machine_as_test(seed(number)(Machine), settings=histories)
        if Machine.reached >= POSSIBLE:
            break
    assert Machine.reached >= POSSIBLE

"""Outcomes that the router itself gives say which of the three is true (G9)."""

from __future__ import annotations

from typing import Any

import pytest

from trio_envserve.core import error_records, messages, outcomes
from trio_envserve.core.executions import Worker
from trio_envserve.core.requests import OUTCOME_BYTES, Entry, RequestState, RetainedOutcome, Session
from trio_envserve.core.router import Router
from trio_envserve.core.router_effects import RouterEffect, Spawn, ToClient
from trio_envserve.core.router_inputs import ClientMessage, PoolOpened, WorkerMessage
from trio_envserve.core.terms import RequestId, Status, Verdict

from .helpers import cache_with, decoded, entry_of, execution_on, session_of, worker_of


def entry(
    state: RequestState, *, executions: int = 0, arrived: bool = True, **fields: Any
) -> Entry:
    made = entry_of(executions=executions, state=state, **fields)
    if state is RequestState.RUNNING:
        made.execution = execution_on(worker_of(), session_of(cache_with()))
        if arrived:
            made.execution.body = None
    return made


def read(kept: RetainedOutcome) -> tuple[Any, Any]:
    header, payload = kept.frames
    assert kept.size_bytes == OUTCOME_BYTES + len(payload)
    return decoded((header,)), error_records.decode(payload)


RUNNING, WAITING = RequestState.RUNNING, RequestState.WAITING
LOST = outcomes.lost(worker_of(), "signal 9", declared_rerun=False)


@pytest.mark.parametrize(
    ("outcome", "made", "code", "verdict", "status"),
    [
        (outcomes.deadline, entry(RUNNING, executions=1), "deadline", Verdict.RAN_AND_FAILED, 1),
        (
            outcomes.deadline, entry(RUNNING, executions=1, arrived=False), "no-answer",
            Verdict.MAY_HAVE_RUN, 1,
        ),
        (outcomes.deadline, entry(WAITING, executions=1), "worker-lost", Verdict.MAY_HAVE_RUN, 1),
        (outcomes.deadline, entry(WAITING), "never-started", Verdict.DID_NOT_RUN, 1),
        (outcomes.stopping, entry(WAITING), "stopping", Verdict.DID_NOT_RUN, 1),
        (outcomes.stopping, entry(WAITING, executions=1), "worker-lost", Verdict.MAY_HAVE_RUN, 1),
        (outcomes.stopped, entry(RUNNING, executions=1), "cancelled", Verdict.MAY_HAVE_RUN, 2),
        (
            LOST, entry(RUNNING, executions=1), "worker-lost",
            Verdict.MAY_HAVE_RUN, 1,
        ),
    ],
)  # fmt: skip
def test_g9_each_says_what_is_known(outcome, made, code, verdict, status):
    header, info = read(outcome(made))
    assert (info.code, info.verdict, header.status) == (code, verdict, status)
    assert (header.session, header.sequence) == made.id
    assert header.executions == info.executions == made.executions
    assert info.worker == ("w0-1" if made.state is RUNNING else "")


@pytest.mark.parametrize(
    ("executions", "code", "verdict"),
    [(0, "environment-broken", Verdict.DID_NOT_RUN), (1, "worker-lost", Verdict.MAY_HAVE_RUN)],
)
def test_g9_a_broken_environment_did_not_run_unless_a_worker_had_it(executions, code, verdict):
    outcome = outcomes.broken("ValueError: no key", "Traceback ...\nValueError: no key")
    _, info = read(outcome(entry(WAITING, executions=executions)))
    assert (info.code, info.verdict, info.executions) == (code, verdict, executions)
    assert "cannot be set up: ValueError: no key" in info.message
    assert info.traceback == "Traceback ...\nValueError: no key"


# -- a deadline while the dispatch is on its way ---------------------------------
# A deadline passed while the dispatch was still on its way (or lost): the
# router answered "it ran and failed", and the environment had never been called.
#
# Found by the simulator: seeds 49, 169 and others of 400.


def verdict_at_deadline(*, arrived: bool) -> Verdict:
    session = Session(b"s" * 16, b"n" * 16, "client", b"route", 1, 0.0)
    entry = Entry(RequestId(session.id, 0), b"d" * 16, False, 1, b"body", 4)
    execution = Worker(b"w0-1", b"i" * 16, 1).start(session, entry, 0.0)
    entry.state, entry.execution, entry.executions = RequestState.RUNNING, execution, 1
    if arrived:  # as a beat of the worker that has seen the dispatch
        execution.body = None
    return error_records.decode(outcomes.deadline(entry).frames[1]).verdict


def test_a_dispatch_that_may_be_on_its_way_may_have_run():
    assert verdict_at_deadline(arrived=False) is Verdict.MAY_HAVE_RUN


def test_a_dispatch_that_has_arrived_ran():
    assert verdict_at_deadline(arrived=True) is Verdict.RAN_AND_FAILED


# -- an outcome larger than its client takes -------------------------------------
# An outcome larger than its client takes was sent to it for ever: each time the
# connection ended, and with the next sync it was replayed (found with a client
# whose ``message_bytes`` was smaller than its server's).


@pytest.mark.parametrize(("size_bytes", "fits"), [(1000, True), (1001, False)])
def test_an_outcome_larger_than_its_client_takes_is_an_error(size_bytes: int, fits: bool):
    numbers = iter(range(1, 100))
    router = Router(
        epoch=b"e" * 16, slots=1, now_s=0.0, new_id=lambda: next(numbers).to_bytes(16, "big")
    )
    spawn = next(each for each in router.take(PoolOpened((), 0.0)) if isinstance(each, Spawn))
    worker = (spawn.worker, spawn.incarnation)

    def from_worker(message: Any, *rest: bytes) -> list[RouterEffect]:
        frames = (b"client", messages.encode(message), *rest) if rest else ()
        return router.take(WorkerMessage((*worker, *(frames or (messages.encode(message),))), 0.0))

    from_worker(messages.WorkerHello(1, 1, "test", False, 256))
    hello = messages.Hello(1, b"n" * 16, 1, "client", 1000)
    router.take(ClientMessage(b"route", (messages.encode(hello),), 0.0))
    session = next(iter(router.cache.sessions))
    request = messages.Request(session, 0, b"d" * 16, None, 1, None)
    router.take(ClientMessage(b"route", (messages.encode(request), b"body"), 0.0))

    outcome = messages.WorkerOutcome(session, 0, 0, Status.RESULT, 0.5)
    effects = from_worker(outcome, bytes(size_bytes))
    (sent,) = [effect for effect in effects if isinstance(effect, ToClient)]
    header = messages.decode(bytes(sent.frames[0]), most_bytes=1000)
    assert isinstance(header, messages.Outcome)
    assert len(sent.frames[1]) <= 1000
    if fits:
        assert header.status == Status.RESULT
    else:
        error = error_records.decode(bytes(sent.frames[1]))
        assert (error.code, error.verdict) == ("outcome-too-large", Verdict.RAN_AND_FAILED)
        assert "1001 bytes" in error.message


# -- a reason of several lines -----------------------------------------------------
# An exception whose message had several lines, as NLTK's LookupError has, arrived as
# "the environment cannot be set up: )", for the last line stood for the whole.


@pytest.mark.parametrize(
    ("why", "shown"),
    [
        (
            "LookupError: \n****\n  Resource words not found.\n  Searched in:\n    - '~/x'\n***\n)",
            "LookupError: Resource words not found. Searched in: - '~/x'",
        ),
        ("ValueError: no key", "ValueError: no key"),
        ("OSError: " + "x" * 2000, "OSError: " + "x" * 591 + " ..."),
        ("\n\n)\n", ""),
    ],
)
def test_the_reason_of_several_lines_is_said_and_not_its_last_line(why, shown):
    _, info = read(outcomes.broken(why, "Traceback")(entry(WAITING)))
    assert info.message == f"the environment cannot be set up: {shown}"

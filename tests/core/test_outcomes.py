"""Outcomes that the router itself gives say which of the three is true (G9)."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from trio_envserve.core import error_records, outcomes
from trio_envserve.core.client import Answer
from trio_envserve.core.requests import OUTCOME_BYTES, RetainedOutcome
from trio_envserve.core.terms import Status, Verdict
from trio_envserve.core.work import Work, WorkState

from .helpers import Pair, account_of, decoded, execution_on, work_of, worker_of


def entry(state: WorkState, *, executions: int = 0, arrived: bool = True, **fields: Any) -> Work:
    made = work_of(executions=executions, state=state, **fields)
    if state is WorkState.RUNNING:
        made.execution = execution_on(worker_of(), account_of())
        if arrived:
            made.execution.sent_at = 0
    return made


def read(kept: RetainedOutcome) -> tuple[Any, Any]:
    header, payload = kept.frames
    assert kept.size_bytes == OUTCOME_BYTES + len(payload)
    return decoded((header,)), error_records.decode(payload)


RUNNING, WAITING = WorkState.RUNNING, WorkState.WAITING
LOST = outcomes.lost(worker_of(), "signal 9", declared_rerun=False)


@pytest.mark.parametrize(
    ("outcome", "made", "code", "verdict", "status"),
    [
        (outcomes.deadline, entry(RUNNING, executions=1), "deadline", Verdict.RAN_AND_FAILED, 1),
        # Its dispatch may be on its way, or lost: it was told that it ran (seeds 49 and 169).
        (
            outcomes.deadline, entry(RUNNING, executions=1, arrived=False), "no-answer",
            Verdict.MAY_HAVE_RUN, 1,
        ),
        (outcomes.deadline, entry(WAITING, executions=1), "worker-lost", Verdict.MAY_HAVE_RUN, 1),
        (outcomes.deadline, entry(WAITING), "never-started", Verdict.DID_NOT_RUN, 1),
        (outcomes.stopping, entry(WAITING), "stopping", Verdict.DID_NOT_RUN, 1),
        (outcomes.stopping, entry(WAITING, executions=1), "worker-lost", Verdict.MAY_HAVE_RUN, 1),
        # It was put down to the caller, as a cancel.
        (outcomes.stopped, entry(RUNNING, executions=1), "server-stopped", Verdict.MAY_HAVE_RUN, 2),
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


def test_request_that_held_the_interpreter_is_told_apart():
    made = entry(RUNNING, executions=1)
    assert made.execution is not None
    lost = partial(outcomes.lost, worker_of(), "signal 9", declared_rerun=False)
    _, info = read(lost(is_holder=True)(made))
    assert (info.code, info.verdict) == ("interpreter-held", Verdict.MAY_HAVE_RUN)
    worker = made.execution.worker
    for worker.holder, is_holder in (("", False), ("another", False), (str(made.id), True)):
        assert made.execution.is_holder is is_holder


@pytest.mark.parametrize("arrived", [True, False])
@pytest.mark.parametrize("outcome", [outcomes.deadline, outcomes.too_old(1.0)])
def test_deadline_of_a_request_says_who_holds_its_interpreter(outcome, arrived):
    made = entry(RUNNING, executions=1, arrived=arrived)
    assert made.execution is not None
    made.execution_s = None
    assert "its worker cannot" not in read(outcome(made))[1].message
    made.execution.worker.held = "its interpreter is held by request ab#1"
    _, info = read(outcome(made))
    assert info.message.endswith(
        "; its worker cannot do that now: its interpreter is held by request ab#1"
    )


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


# -- an outcome larger than its client takes -------------------------------------
# An outcome larger than its client takes was sent to it for ever: each time the
# connection ended, and with the next sync it was replayed (found with a client
# whose ``message_bytes`` was smaller than its server's).


@pytest.mark.parametrize(("size_bytes", "fits"), [(1000, True), (1001, False)])
def test_an_outcome_larger_than_its_client_takes_is_an_error(size_bytes: int, fits: bool):
    pair = Pair()
    pair.session.account.message_bytes = 1000
    pair.submit()
    pair.end(payload=bytes(size_bytes))
    answer = pair.last()
    assert isinstance(answer, Answer)
    assert len(answer.body) <= 1000
    assert (answer.status is Status.RESULT) is fits
    if not fits:
        assert pair.verdict() == ("outcome-too-large", Verdict.RAN_AND_FAILED)
        assert "1001 bytes" in pair.failure().message


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

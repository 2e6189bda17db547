"""The saves of a worker: one at a time."""

from __future__ import annotations

import pytest

from trio_envserve.core import messages
from trio_envserve.core.terms import Status
from trio_envserve.core.worker import ENDED, BeginRun, OutcomeMade, SaveEnded, SaveMade

from .test_worker import SESSION, dispatch, hear, said_by, worker

SAVE = messages.WorkerSave(SESSION, 100, 0, 1)


def test_saves_of_a_dispatch_are_numbered_from_1_and_end_with_their_answers():
    core = worker()
    for number in (0, 1):
        dispatch(core, number)
    assert [said_by(each) for each in core.take(SaveMade(0, b"one"))] == [SAVE]
    assert hear(core, messages.SaveAnswer(0, 1, "")) == [SaveEnded(0, "")]
    (sent,) = core.take(SaveMade(0, b"two"))
    assert said_by(sent) == SAVE._replace(save=2)
    assert sent.frames[-1] == b"two"  # type: ignore[union-attr]  # said_by has looked
    (other,) = core.take(SaveMade(1, b"one"))
    assert said_by(other) == messages.WorkerSave(SESSION, 101, 1, 1)
    assert hear(core, messages.SaveAnswer(0, 2, "why")) == [SaveEnded(0, "why")]


def test_a_save_of_what_has_ended_or_is_to_stop_is_refused_at_once():
    core = worker()
    assert core.take(SaveMade(0, b"one")) == [SaveEnded(0, ENDED)]
    dispatch(core, 0)
    hear(core, messages.Stop([0, 1]))
    assert core.take(SaveMade(0, b"one")) == [SaveEnded(0, ENDED)]


def test_an_outcome_ends_its_saves():
    core = worker()
    dispatch(core, 0)
    core.take(SaveMade(0, b"one"))
    core.take(OutcomeMade(0, Status.RESULT, b"", 0.0))
    assert hear(core, messages.SaveAnswer(0, 1, "")) == []


@pytest.mark.parametrize(
    ("saved_bytes", "body", "saved"),
    [(None, b"body", None), (0, b"body", b""), (3, b"b", b"ody"), (99, b"", b"body")],
)
def test_a_dispatch_has_the_state_at_its_end(
    saved_bytes: int | None, body: bytes, saved: bytes | None
):
    core = worker()
    message = messages.Dispatch(SESSION, 100, 0, "me", saved_bytes=saved_bytes)
    (run,) = hear(core, message, b"body")
    assert isinstance(run, BeginRun)
    assert (run.body, run.saved) == (body, saved)

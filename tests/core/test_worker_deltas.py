"""What a worker sends of its executions before their outcomes."""

from __future__ import annotations

from typing import Any

from trio_envserve.core import messages
from trio_envserve.core.terms import Status
from trio_envserve.core.worker import (
    DELTA_BYTES,
    DELTA_RECORD_BYTES,
    DELTAS_BYTES,
    WorkerCore,
)
from trio_envserve.core.worker_inputs import DeltaMade, OutcomeMade, RouterMessage

from .helpers import HEADER_BYTES, decoded, identifier

LIFE, SESSION = identifier(1), identifier(2)


def hear(core: WorkerCore, message: messages.Message, *body: bytes) -> Any:
    return core.take(RouterMessage((LIFE, messages.encode(message), *body)))


def running(*numbers: int) -> WorkerCore:
    """A worker at these dispatches."""
    core = WorkerCore(LIFE, header_bytes=HEADER_BYTES)
    for number in numbers:
        hear(core, messages.Dispatch(SESSION, 100 + number, number, "me"), b"body")
    return core


def said(core: WorkerCore, number: int, piece: bytes = b"piece") -> list[int]:
    """The numbers of the deltas that are sent."""
    found = []
    for effect in core.take(DeltaMade(number, piece)):
        life, client, header, body = effect.frames  # type: ignore[union-attr]  # else it raises
        message = decoded((header,))
        assert isinstance(message, messages.WorkerDelta)
        assert (life, client, body) == (LIFE, b"me", piece)
        assert message[:3] == (SESSION, 100 + number, number)
        found.append(message.delta)
    return found


def test_deltas_are_numbered_for_each_dispatch():
    core = running(0, 1)
    assert [said(core, number) for number in (0, 0, 1, 0)] == [[0], [1], [0], [2]]


def test_nothing_is_said_of_what_has_ended_or_is_to_stop():
    core = running(0, 1)
    core.take(OutcomeMade(0, Status.RESULT, b"outcome", 1.0))
    hear(core, messages.Stop([1, 2]))
    assert [said(core, number) for number in (0, 1, 2)] == [[], [], []]
    assert core._deltas == {}


def test_what_is_too_large_is_not_sent_and_takes_its_number():
    core = running(0)
    assert said(core, 0, bytes(DELTA_BYTES)) == [0]
    assert said(core, 0, bytes(DELTA_BYTES + 1)) == []
    assert said(core, 0) == [2]


def test_what_was_dropped_on_its_way_to_the_core_takes_its_numbers_too():
    core = running(0, 1)
    assert len(core.take(DeltaMade(0, b"after three others", skipped=3))) == 1
    assert [said(core, number) for number in (0, 1)] == [[4], [0]]


def test_g8_no_more_is_sent_than_the_router_is_known_to_take():
    core = running(0, 1)
    size_bytes = DELTA_BYTES // 2
    most = DELTAS_BYTES // (size_bytes + DELTA_RECORD_BYTES)
    sent = sum(len(said(core, number % 2, bytes(size_bytes))) for number in range(2 * most))
    assert sent == most
    hear(core, messages.Statement(1, 2, [0, 2], []))
    assert said(core, 0, bytes(size_bytes)) == [most]


def test_g8_empty_deltas_that_were_said_by_the_million_were_all_sent():
    core = running(0)
    most = DELTAS_BYTES // DELTA_RECORD_BYTES
    assert sum(len(said(core, 0, b"")) for _ in range(most + 100)) == most


def test_the_memory_of_numbers_ends_with_the_dispatch():
    core = running(0)
    said(core, 0)
    core.take(OutcomeMade(0, Status.RESULT, b"outcome", 1.0))
    assert core._deltas == {}

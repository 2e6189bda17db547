"""What executions note of how far they are, and what that costs the others."""

from __future__ import annotations

import queue
import threading
import tracemalloc
from typing import Any

import pytest
import trio
import trio.testing

from tests.worker.helpers import BACKENDS, Held
from tests.worker.test_shell import opened
from trio_envserve import Rollout
from trio_envserve.core import messages, notes
from trio_envserve.core.limits import WireLimits
from trio_envserve.core.ranges import Ranges
from trio_envserve.core.terms import NOTE_BYTES, Status

WIRE = WireLimits()


def note_all(rollout: Rollout) -> None:
    for fields in rollout.input:
        rollout.note(**fields)


async def noted(router: Any, count: int = 1) -> list[dict[int, notes.Note]]:
    """So many messages of notes, by number."""
    found: list[dict[int, notes.Note]] = []
    while len(found) < count:
        for frames in await router.stream.receive():
            if len(frames) > 2:
                continue  # an outcome
            header = messages.decode(bytes(frames[1]), most_bytes=WIRE.header_bytes)
            if isinstance(header, messages.WorkerNotes):
                numbers = Ranges.from_flat(header.numbers)
                said = zip(numbers, header.notes, strict=True)
                found.append({number: notes.decode(note) for number, note in said})
    return found


@pytest.mark.parametrize("backend", BACKENDS)
async def test_many_notes_of_a_megabyte_leave_with_the_beats_as_one_that_is_cut(backend: str):
    environment = Held(backend, note_all)
    given = [{"text": "x" * 1_000_000}] * 3 + [{"turn": turn} for turn in range(10_000)]
    async with opened(environment, beat_s=0.01) as (router, _):
        number = router.dispatch(given)
        last: notes.Note = {}
        try:
            while last.get("turn") != 9_999:
                [last] = [each[number] for each in await noted(router)]
                assert len(notes.encode(last)) <= NOTE_BYTES
        finally:
            environment.over.set()
    assert last == {"turn": 9_999}


async def test_g10_of_ten_thousand_notes_while_the_loop_is_busy_one_is_held():
    held_up = threading.Event()
    told: queue.SimpleQueue[int] = queue.SimpleQueue()

    def body(rollout: Rollout) -> None:
        held_up.wait()
        rollout.note(text="y" * 900)
        before_bytes, _ = tracemalloc.get_traced_memory()
        for turn in range(10_000):
            rollout.note(turn=turn, text="x" * 900)
        told.put(tracemalloc.get_traced_memory()[0] - before_bytes)

    environment = Held("thread", body)
    tracemalloc.start()
    try:
        async with opened(environment, beat_s=0.01) as (router, _):
            number = router.dispatch(None)
            await trio.testing.wait_all_tasks_blocked()
            held_up.set()
            grown_bytes = told.get(timeout=60)  # not awaited: the loop is busy
            assert await noted(router) == [{number: {"turn": 9_999, "text": "x" * 900}}]
            environment.over.set()
    finally:
        environment.over.set()
        tracemalloc.stop()
    assert grown_bytes < 100 * NOTE_BYTES


@pytest.mark.parametrize("backend", BACKENDS)
async def test_a_note_that_cannot_be_written_fails_its_rollout(backend: str):
    async with opened(Held(backend, note_all)) as (router, _):
        number = router.dispatch([{"field": [1]}])
        status, error = (await router.outcomes(1))[number]
    assert (status, error.type) == (Status.ERROR, "TypeError")
    assert error.message.startswith("field is of type list")


async def test_another_attempt_and_each_member_of_a_group_say_which_they_are():
    gate = trio.Event()

    async def environment(rollout: Any) -> str:
        rollout.note(text=rollout.input)
        if rollout.attempt == 1 and rollout.input == "again":
            raise ValueError
        await gate.wait()
        return "noted"

    async with opened(environment, beat_s=0.01) as (router, _):
        again = router.dispatch("again", max_retries=1)
        group = router.dispatch(["member"], kind="group")
        found: dict[int, notes.Note] = {}
        while len(found) < 2 or "attempt" not in found[again]:
            for each in await noted(router):
                found |= each
        gate.set()
    assert found[again] == {"attempt": 2, "text": "again"}
    assert found[group] == {"member": 0, "text": "member"}


async def test_what_is_noted_after_the_end_of_a_rollout_goes_nowhere():
    kept: list[Any] = []
    gate = trio.Event()

    async def environment(rollout: Any) -> str:
        for late in kept:
            late(text="late")
        kept.append(rollout.note)
        if rollout.input == "wait":
            rollout.note(text="in time")
            await gate.wait()
        return "noted"

    async with opened(environment, beat_s=0.01) as (router, _):
        router.dispatch(None)
        await router.outcomes(1)
        last = router.dispatch("wait")
        assert await noted(router) == [{last: {"text": "in time"}}]
        gate.set()

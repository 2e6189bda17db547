"""Outcomes in shared memory, by random histories: none changes while another is freed.

One end places frames in the memory; the other takes them, says how many it has taken,
and keeps what it took for as long as it likes.  Whatever is given back and used again
meanwhile, all that is kept stays as it was sent.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from trio_envserve.core.limits import KIB
from trio_envserve.net import make_memory, map_memory
from trio_envserve.net.shared import PLACE_FROM_BYTES, Places, SharedMemory

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs memfds")

SIZES = st.sampled_from((PLACE_FROM_BYTES, 36 * KIB, 70 * KIB))

KEPT_MOST = 8
"""So that it takes no time to look at all of it after each step."""


class SharedMachine(RuleBasedStateMachine):
    """Two ends of one memory."""

    here: SharedMemory
    there: SharedMemory

    def __init__(self) -> None:
        super().__init__()
        self.sent = 0
        self.wire: deque[tuple[int, bytes]] = deque()
        """Frames on their way: the offset of each, and what was sent."""
        self.kept: list[tuple[Any, bytes]] = []
        """Frames that were taken, with what was sent."""

    @initialize(offers=st.booleans())
    def open(self, offers: bool) -> None:
        offered = make_memory()
        assert offered is not None
        taken = map_memory(os.dup(offered.descriptor))
        assert taken is not None
        offered.heard(taken.news())
        self.here, self.there = (offered, taken) if offers else (taken, offered)

    @precondition(lambda self: len(self.kept) < KEPT_MOST)
    @rule(sizes=st.lists(SIZES, min_size=1, max_size=4))
    def send(self, sizes: list[int]) -> None:
        """Frames go out together; one without a place goes inline, and is not followed."""
        for size in sizes:
            self.sent += 1
            body = self.sent.to_bytes(4, "big") * (size // 4)
            offset = self.here.place(body)
            if offset is not None:
                self.wire.append((offset, body))

    @precondition(lambda self: self.wire)
    @rule(count=st.integers(1, 3))
    def take(self, count: int) -> None:
        """The other end takes some of them, and keeps them."""
        for _ in range(min(count, len(self.wire))):
            offset, body = self.wire.popleft()
            self.kept.append((self.there.take(offset, len(body)), body))

    @rule()
    def say(self) -> None:
        """The other end says how many it has taken."""
        if news := self.there.news():
            self.here.heard(news)

    @precondition(lambda self: self.kept)
    @rule(which=st.integers(0, KEPT_MOST))
    def free(self, which: int) -> None:
        """One outcome is finished; the others stay."""
        del self.kept[which % len(self.kept)]

    @invariant()
    def what_is_kept_is_what_was_sent(self) -> None:
        assert all(frame == body for frame, body in self.kept), "a kept frame has changed"

    def teardown(self) -> None:
        for end in (self.here, self.there):
            end.close_descriptor()  # the mapping goes with its last user


def test_what_is_kept_does_not_change_when_others_are_freed() -> None:
    few = settings(max_examples=30, stateful_step_count=30, derandomize=True, database=None)
    run_state_machine_as_test(SharedMachine, settings=few)


# -- memory that is broken on purpose: the machine must catch each ------------------


Patch = pytest.MonkeyPatch


def takes_without_a_copy(patch: Patch) -> None:
    take = SharedMemory.take

    def view(self: Any, offset: int, size: int) -> memoryview:
        take(self, offset, size)
        seen: memoryview = self._in[offset : offset + size].toreadonly()
        return seen

    patch.setattr(SharedMemory, "take", view)


def frees_the_newest_place(patch: Patch) -> None:
    def free(self: Any, count: int) -> None:
        for _ in range(count):
            self._used.pop()

    patch.setattr(Places, "free", free)


def frees_all_places_with_the_first(patch: Patch) -> None:
    patch.setattr(Places, "free", lambda self, count: self._used.clear() if count else None)


def frees_a_place_before_it_is_taken(patch: Patch) -> None:
    find = Places.find

    def forget(self: Any, size_bytes: int) -> int | None:
        if len(self) > 1:
            self._used.popleft()
        return find(self, size_bytes)

    patch.setattr(Places, "find", forget)
    patch.setattr(Places, "free", lambda self, count: None)


def a_place_is_a_page_too_short(patch: Patch) -> None:
    find = Places.find

    def short(self: Any, size_bytes: int) -> int | None:
        offset = find(self, size_bytes)
        if offset is not None:
            self._used[-1] = offset, self._used[-1][1] - 4096
        return offset

    patch.setattr(Places, "find", short)


MUTANTS: dict[str, Callable[[Patch], None]] = {
    "a frame is kept without a copy": takes_without_a_copy,
    "the newest place is freed first": frees_the_newest_place,
    "all places are freed with the first": frees_all_places_with_the_first,
    "a place is free before its frame was taken": frees_a_place_before_it_is_taken,
    "a place is a page too short": a_place_is_a_page_too_short,
}


@pytest.mark.parametrize("name", MUTANTS)
def test_the_machine_catches(name: str, monkeypatch: Patch) -> None:
    MUTANTS[name](monkeypatch)
    generate = settings(
        max_examples=200, stateful_step_count=30, phases=[Phase.generate], derandomize=True,
        database=None, report_multiple_bugs=False,
    )  # fmt: skip
    with pytest.raises(AssertionError, match="has changed"):
        run_state_machine_as_test(SharedMachine, settings=generate)

"""A check that no mutant fails is not a check: what treats many as one breaks the law."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from trio_envserve.lab.mutants import BATCHES, find

from .test_router_grouping import (
    Ask,
    Cancel,
    End,
    play_at_the_bounds,
    play_twice,
    play_where_outcomes_are_lost,
)

ASK = Ask(rerun=False, most=1)
ONE_ENDS = End([0], dies=False)
TWO_END_AND_ONE_IS_LOST = End([0, 1], dies=True)

HISTORIES: dict[str, Callable[[], None]] = {
    "a-span-ends-as-its-first": partial(
        play_twice, [[ASK] * 3, ONE_ENDS, [Cancel(0), Cancel(0)]]
    ),
    "calls-cancelled-together-are-as-one": partial(
        play_twice, [[ASK] * 5, [ASK] * 5, [Cancel(0), Cancel(8)]]
    ),
    "a-refusal-is-of-all-that-was-sent": partial(play_at_the_bounds, 4, 2, 1, 1),
    "what-is-refused-for-now-is-spent": partial(play_at_the_bounds, 4, 2, 1, 1),
    "work-half-done-is-done": partial(play_twice, [[ASK] * 3, TWO_END_AND_ONE_IS_LOST]),
    "work-half-done-is-lost": partial(play_twice, [[ASK] * 3, TWO_END_AND_ONE_IS_LOST]),
    "rows-are-shifted-by-one": partial(play_twice, [[ASK] * 2, ONE_ENDS]),
    "a-refused-row-drops-the-rest": partial(play_at_the_bounds, 6, 6, 2, 1),
    "a-batch-is-freed-with-its-first": partial(play_where_outcomes_are_lost, 5),
    "a-lost-batch-was-never-dispatched": partial(
        play_twice, [[Ask(rerun=True, most=2)] * 4, End([], dies=True), End([], dies=True)]
    ),
}  # fmt: skip
"""For each mutant a history that shows it."""


@pytest.mark.parametrize("name", HISTORIES)
def test_the_law_catches(name: str) -> None:
    HISTORIES[name]()
    with find(name).applied(), pytest.raises(AssertionError):
        HISTORIES[name]()


def test_all_mutants_of_batches_are_tried() -> None:
    assert {mutant.name for mutant in BATCHES.mutants} == HISTORIES.keys()

"""The (state, input) pairs of the table of work that a run has reached.

Theory of operation
-------------------
Counted from outside: :func:`count_pairs` stands before ``step`` of one router's works,
sees what the cell is about to be looked up by, and calls on.  The shipped code
has no trace of it.

A pair is *possible* unless its cell says that it cannot be, or the code that
feeds the table never asks for it: :data:`IMPOSSIBLE` has the reason of each.
A run that reaches one of those after all is told so by the judge: either the
reason is wrong, or the code is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

from ...core.work import Work, WorkInput, Works, WorkState

Pair: TypeAlias = tuple[WorkState, WorkInput]

_S, _I = WorkState, WorkInput
_TABLE = Works.TABLE
_NEVER = _TABLE[_I.DISPATCH][_S.ABSENT]  # the cell that raises

_OF_EACH_STATE: dict[WorkState, str] = {
    _S.ABSENT: "whoever waits or runs, waits for a work or runs it",
    _S.HELD: "what is held has not begun",
    _S.WAITING: "what waits does not run, and has no outcome",
    _S.RUNNING: "what runs is not in the queue, and has no outcome",
    _S.COMPLETED: "what has its outcome waits and runs no more",
    _S.ARCHIVED: "what was in the archive has its outcome on the disk, and does not run",
    _S.CLOSED: "what is closed is found under no name: nobody waits for it, and no time runs",
}
"""Why no input comes to a cell of each state that says it cannot be."""

IMPOSSIBLE: dict[Pair, str] = {
    (state, input): why
    for state, why in _OF_EACH_STATE.items()
    for input in WorkInput
    if _TABLE[input][state] is _NEVER
}
"""The pairs that cannot occur, and why."""

POSSIBLE: tuple[Pair, ...] = tuple(
    (state, input) for input in WorkInput for state in WorkState if (state, input) not in IMPOSSIBLE
)
"""All others, input by input."""

RARE: dict[Pair, str] = {
    (_S.ARCHIVED, _I.LEAVE): "a caller gives up seldom while a disk reads",
    (_S.ARCHIVED, _I.LOSE): "a lease ends seldom while a disk reads",
    (_S.ARCHIVED, _I.ORPHANED): "nor does a caller stay away for so long",
    (_S.ARCHIVED, _I.UNREAD): "a read fails seldom",
}
"""Those that may occur and that not every 1,500 seeds come to; tests of the core do."""


def name_of(pair: Pair) -> str:
    """A pair for people and for JSON."""
    state, input = pair
    return f"{state.value}: {input.value}"


def count_pairs(works: Works, pairs: Counter[Pair]) -> None:
    """Count every step of these works from now on."""
    step = works.step

    def counting(work: Work | None, input: WorkInput, arg: Any = None) -> Any:
        pairs[WorkState.ABSENT if work is None else work.state, input] += 1
        return step(work, input, arg)

    works.step = counting  # type: ignore[method-assign]  # these works' alone, to look on


@contextmanager
def counted_pairs(works: Works, pairs: Counter[Pair]) -> Iterator[None]:
    """The same within the block."""
    count_pairs(works, pairs)
    try:
        yield
    finally:
        del works.step

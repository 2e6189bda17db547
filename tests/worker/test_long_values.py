"""Where values are decoded and encoded: at once, in a thread, or after all where they belong."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from trio_envserve import foreign
from trio_envserve.core.values import NotHere, TooMuchWork
from trio_envserve.turns import Threads
from trio_envserve.worker.long_values import worked


@pytest.mark.parametrize(
    ("raised", "tries"),
    [
        ([None], [("loop", ["at_once"])]),
        ([ValueError], [("loop", ["at_once"])]),
        ([TooMuchWork, None], [("loop", ["at_once"]), ("thread", ["pause"])]),
        ([TooMuchWork, KeyError], [("loop", ["at_once"]), ("thread", ["pause"])]),
        (
            [TooMuchWork, NotHere, None],
            [("loop", ["at_once"]), ("thread", ["pause"]), ("loop", [])],
        ),
    ],
)
async def test_value_is_worked_on_in_a_thread_only_if_that_takes_long_and_its_code_allows_it(
    raised: list[type[Exception] | None], tries: list[Any]
) -> None:
    loop, tried = threading.get_ident(), []
    ends = [foreign.CodeResult("done", None if each is None else each()) for each in raised]

    def work(**how: Any) -> foreign.CodeResult:
        where = "loop" if threading.get_ident() == loop else "thread"
        tried.append((where, [name for name, given in how.items() if given]))
        return ends[len(tried) - 1]

    assert await worked(Threads(), work) == ends[-1]
    assert tried == tries

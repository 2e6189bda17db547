"""How many workers a pool may have, as a number or a range."""

from __future__ import annotations

from typing import Any

import pytest

from trio_envserve.core.errors import ConfigError
from trio_envserve.core.worker_range import WorkerRange, check_workers, least_of, most_of


@pytest.mark.parametrize(
    ("text", "workers"),
    [("4", 4), ("0", 0), (" 12 ", 12), ("2..64", WorkerRange(2, 64)), ("3..3", WorkerRange(3, 3))],
)
def test_text_is_a_number_or_a_range(text, workers):
    assert WorkerRange.of(text) == workers
    assert str(workers) == text.strip()


@pytest.mark.parametrize("text", ["", "..", "2..", "..4", "2...4", "2-4", "-1", "1e3", "two", "²"])
def test_other_text_is_refused_with_an_example(text):
    with pytest.raises(ConfigError, match=r"a number or a range such as 2\.\.64, not"):
        WorkerRange.of(text)


@pytest.mark.parametrize(("least", "most"), [(0, 4), (4, 2), (-1, 1)])
def test_a_range_begins_with_one_and_does_not_end_before_it_begins(least, most):
    with pytest.raises(ConfigError, match=rf"begins with 1 or more.*not {least}\.\.{most}"):
        WorkerRange(least, most)


@pytest.mark.parametrize("bound", [True, 2.0, "2", None])
def test_a_range_has_whole_numbers(bound: Any):
    with pytest.raises(ConfigError, match="has two whole numbers"):
        WorkerRange(1, bound)


def test_the_most_of_a_number_is_itself():
    assert (most_of(4), most_of(WorkerRange(2, 64))) == (4, 64)
    assert (least_of(4), least_of(WorkerRange(2, 64))) == (4, 2)


@pytest.mark.parametrize("workers", [-1, True, 2.5, "2..4", None])
def test_an_argument_that_is_neither_is_refused(workers: Any):
    check_workers(0, least=0)
    check_workers(WorkerRange(2, 4), least=0)
    with pytest.raises(ConfigError, match="workers must be a number >= 0, or a WorkerRange"):
        check_workers(workers, least=0)

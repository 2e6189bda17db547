"""How much of a rollout's text goes into a page."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.evals.report.results import result
from trio_envserve.evals.page import Line
from trio_envserve.evals.report import (
    ALL_CHARS,
    FEWEST_CHARS,
    MOST_CHARS,
    details,
    fitted,
    most_chars,
)

NOTES = 80
"""More characters than a note of what was cut has."""


def texts(lines: list[Line]) -> list[str]:
    return [line.text for line in lines]


def test_a_rollout_has_its_messages_tools_numbers_and_nothing_is_left_out():
    found = details(result(3), MOST_CHARS)
    said = "\n".join(text for _, _, text in found["lines"])
    for part in ("question 3", "[user]", "Look up.", '→ look({"at": 1})', "[tool]", "a heron"):
        assert part in said
    assert found["metrics"] == [("turns", 3.0)]
    assert found["usage"] == [("prompt tokens", 30.0), ("completion tokens", 12.0)]
    assert found["left_out"] == 0


def test_numbers_that_json_lacks_are_words():
    strange = {"a": {"$float": "nan"}, "b": {"$float": "-inf"}}
    found = details(result(0, metrics=strange), MOST_CHARS)
    assert found["metrics"] == [("a", "nan"), ("b", "-inf")]
    json.dumps(found, allow_nan=False)


def test_the_longest_parts_are_cut_first_and_in_their_middle():
    lines = [Line("short"), Line("a" * 5000 + "z" * 5000, "user"), Line("also short")]
    kept, left_out = fitted(lines, 1000)
    assert texts(kept)[::2] == ["short", "also short"]
    head, note, tail = kept[1].text.split("\n")
    assert set(head) == {"a"}
    assert set(tail) == {"z"}
    assert note == f"[… {left_out:,} characters, cut here …]"
    assert len(head) + len(tail) + len("short") + len("also short") == 1000
    assert kept[1].style == "user"


def test_of_too_many_parts_the_first_and_the_last_are_kept():
    lines = [Line(f"{number:05}") for number in range(10_000)]
    kept, left_out = fitted(lines, 2000)
    assert texts(kept) == [
        *(f"{n:05}" for n in range(5)), "[… 9,990 parts, cut here …]",
        *(f"{n:05}" for n in range(9_995, 10_000)),
    ]  # fmt: skip
    assert left_out == 5 * 9_990


@given(st.lists(st.text(max_size=500), max_size=60), st.integers(0, 5000) | st.none())
def test_no_more_than_was_asked_for_is_kept(parts: list[str], most: int | None):
    lines = [Line(text) for text in parts]
    kept, left_out = fitted(lines, most)
    total = sum(map(len, parts))
    if most is None or total <= most:
        assert (texts(kept), left_out) == (parts, 0)
    else:
        assert total - left_out <= most
        assert sum(len(line.text) for line in kept) <= most + NOTES * len(kept)


@pytest.mark.parametrize("rollouts", [0, 1, 5_000, 10_000, 10_000_000])
def test_a_page_of_many_rollouts_has_less_of_each(rollouts: int):
    most = most_chars(rollouts)
    assert FEWEST_CHARS <= most <= MOST_CHARS
    assert most == FEWEST_CHARS or most * rollouts <= ALL_CHARS

"""Text of others on one line."""

from __future__ import annotations

import pytest

from trio_envserve.evals.plain import headline


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("one\ntwo", "one"),
        ("\n\n***\nResource words not found.\nmore", "Resource words not found."),
        ("LookupError: \n****\n  words not found.\n)", "LookupError: words not found."),
        ("LookupError:\n)", "LookupError:"),
        (" ** \n", "**"),
        ("", ""),
    ],
)  # fmt: skip
def test_the_headline_is_the_first_line_that_says_something(text: str, first: str):
    """A message that began with a ruler stood in tables and pages as nothing."""
    assert headline(text) == first

"""The outcome of a call, and of the members of a group."""

from __future__ import annotations

from typing import Any

import pytest

from trio_envserve import MayHaveRun, Outcome


@pytest.mark.parametrize("value", [[{"value": 1}], [{"ok": False, "error": {}}], [1], 1])
def test_what_is_not_the_outcome_of_a_group_is_told_in_words(value: Any) -> None:
    """A worker in another language may send anything."""
    with pytest.raises(MayHaveRun, match="not that of a group"):
        Outcome.members(Outcome(value=value))

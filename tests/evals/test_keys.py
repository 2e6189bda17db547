"""The keys of evaluations with a name: the same while nothing more is told, then others."""

from __future__ import annotations

import pytest

from trio_envserve import ConfigError, KeyConflict, NoAnswer, Outcome, ServerLost, WorkerLost
from trio_envserve.core.errors import CallError, RolloutFailed
from trio_envserve.evals.records import result_of
from trio_envserve.evals.run import MOST_NAME_BYTES, RunKeys, check_name, is_told


def test_a_rollout_that_was_told_its_error_gets_another_key():
    keys = RunKeys("r1", {(3, 1): 2}.get)  # type: ignore[arg-type]  # asked for that one only
    assert keys.rollout((3, 1)) == "3/1/again-2"
    assert RunKeys("r1").rollout((3, 1)) == "3/1"


@pytest.mark.parametrize(
    ("told", "key"),
    [([0, 0, 0], "7/group"), ([1, 1, 0], "7/group"), ([1, 1, 1], "7/group/again-1"),
     ([2, 1, 1], "7/group/again-1"), ([2, 2, 2], "7/group/again-2")],
)  # fmt: skip
def test_a_group_of_which_a_member_was_not_written_is_asked_for_under_its_last_key(
    told: list[int], key: str
):
    assert RunKeys("r1", lambda name: told[name[1]]).group(7, 3) == key


@pytest.mark.parametrize(
    ("error", "told"),
    [(None, True), (RolloutFailed("it raised"), True), (WorkerLost("died"), True),
     (NoAnswer("late"), False), (ServerLost("gone"), False), (KeyConflict("other"), False)],
    ids=str,
)  # fmt: skip
def test_what_the_server_did_not_say_is_not_told(error: CallError | None, told: bool):
    assert is_told(result_of(0, 0, Outcome(error=error))) is told


@pytest.mark.parametrize("name", ["", "x" * (MOST_NAME_BYTES + 1), "\ud800"], ids=repr)
def test_a_name_that_is_no_part_of_a_key_is_refused(name: str):
    with pytest.raises(ConfigError, match="--run: a name"):
        check_name(name)

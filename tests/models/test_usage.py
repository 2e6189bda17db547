"""What is counted of model calls, of one rollout and of all."""

from __future__ import annotations

from trio_envserve.core.durations import Durations
from trio_envserve.models import Completion, ModelError, ModelUsage


def test_the_total_counts_what_each_rollout_does():
    took = Durations()
    total = ModelUsage(took=took)
    first, second = ModelUsage(total), ModelUsage(total)
    first.answered(Completion("a", prompt_tokens=3, completion_tokens=2, requests=2), 0.2)
    second.refused(ModelError("no"), 4.0)
    second.answered(Completion("b"), 0.2)
    assert first.to_record() == {
        "calls": 1, "failed": 0, "retries": 1, "prompt_tokens": 3, "completion_tokens": 2,
    }  # fmt: skip
    assert total.to_record() == {
        "calls": 2, "failed": 1, "retries": 1, "prompt_tokens": 3, "completion_tokens": 2,
    }  # fmt: skip
    assert took.to_record() == {"sum_s": 4.4, "most_s": 4.0, "0.25": 2, "5": 1}

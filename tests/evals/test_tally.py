"""What is counted of results, and what a summary says."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from trio_envserve import DidNotRun, Outcome, RolloutFailed, WorkerLost
from trio_envserve.core.errors import ErrorInfo, error_from_info
from trio_envserve.core.terms import Verdict
from trio_envserve.evals.records import (
    RolloutResult,
    counted_scores,
    record_of,
    result_from,
    result_of,
    usage_of,
    usage_words,
)
from trio_envserve.evals.tally import ResultsTally, percentiles
from trio_envserve.json_values import pieces


def with_reward(index: int, reward: Any, repeat: int = 0, **more: Any) -> RolloutResult:
    return result_of(index, repeat, Outcome(value={"reward": reward, **more}, executions=1))


def tally_of(*results: RolloutResult) -> dict[str, Any]:
    tally = ResultsTally()
    for each in results:
        tally.add(each)
    found = tally.summary()
    json.dumps(found, allow_nan=False)
    return found


def test_a_summary_counts_results_errors_and_retries():
    tally = ResultsTally()
    for index, reward in enumerate((0.0, 1.0)):
        outcome = Outcome(
            value={"reward": reward}, executions=1, took_s=2.0, duration_s=1.0, worker="w0-1"
        )
        tally.add(result_of(index, 0, outcome))
    tally.add(result_of(2, 0, Outcome(value="no reward in it", executions=2, took_s=4.0)))
    tally.add(result_of(3, 0, Outcome(error=WorkerLost("gone"), took_s=1.0)))
    found = tally.summary()
    assert (found["results"], found["errors"], found["mean_reward"]) == (3, 1, 0.5)
    assert (found["reward"]["std"], found["reward"]["max"]) == (0.5, 1.0)
    assert found["errors_by"] == [
        {
            "class": "WorkerLost", "code": "worker-lost", "verdict": "it may have run",
            "count": 1, "fault": "infrastructure",
        }
    ]  # fmt: skip
    assert found["rerun"] == 1
    assert found["took_s"] == {"p50": 2.0, "p90": 3.4, "p99": 3.94}
    assert tally.errors == 1
    json.dumps(found, allow_nan=False)


def test_one_nan_empties_no_mean_and_is_counted_apart():
    found = tally_of(
        with_reward(0, float("nan")), with_reward(1, 0.5), with_reward(2, math.inf),
        with_reward(3, "0.5"), with_reward(4, [1.0]), with_reward(5, None),
    )  # fmt: skip
    assert found["mean_reward"] == 0.5
    assert found["rewards_left_out"] == {
        "nan": 1, "infinite": 1, "not_a_number": 2, "missing": 1, "types": ["list", "str"],
    }  # fmt: skip
    assert found["results"] == 6


def test_an_error_of_the_infrastructure_is_never_a_reward_of_0():
    failed = result_of(1, 0, Outcome(error=DidNotRun("no server")))
    found = tally_of(with_reward(0, 1.0), failed)
    assert found["mean_reward"] == 1.0
    assert found["errors_by_fault"] == {
        "policy": 0, "environment": 0, "engine": 0, "infrastructure": 0, "caller": 1
    }  # fmt: skip
    assert found["left_out_of_gradient"] == 1
    assert found["reward"]["pass_at"] == {"1": {"mean": 1.0, "inputs": 1}}


def test_a_traceback_is_that_of_its_own_failure():
    """A rollout whose model was down was told with the traceback of another one's mistake."""

    def failed(index: int, code: str, traceback: str) -> RolloutResult:
        info = ErrorInfo(code, Verdict.RAN_AND_FAILED, "no", traceback=traceback)
        return result_of(index, 0, Outcome(error=error_from_info(info)))

    tally = ResultsTally()
    tally.add(failed(0, "rollout-failed", "line 3, in fail"))
    tally.add(failed(1, "rollout-failed", "line 4, in fail"))
    tally.add(failed(2, "model-unavailable", ""))
    tally.add(failed(3, "model-unavailable", "line 5, in ask"))
    assert [tally.traceback_of(first) for first, *_ in tally.failed().values()] == [
        "line 3, in fail", "",
    ]  # fmt: skip


def test_repeats_of_an_input_are_one_sample_and_pass_at_k_is_over_inputs():
    rewards = {0: (1.0, 0.0, 0.0, 0.0), 1: (1.0, 1.0, 1.0, 1.0)}
    found = tally_of(
        *(with_reward(i, r, repeat) for i, each in rewards.items() for repeat, r in enumerate(each))
    )
    assert found["mean_reward"] == 0.625
    assert found["reward"]["std_error"] == 0.375
    assert found["reward"]["inputs"] == 2
    assert found["reward"]["pass_at"] == {
        "1": {"mean": 0.625, "inputs": 2}, "2": {"mean": 0.75, "inputs": 2},
        "4": {"mean": 1.0, "inputs": 2},
    }  # fmt: skip


def test_the_last_result_of_a_name_counts():
    tally = ResultsTally()
    tally.add(result_of(0, 0, Outcome(error=DidNotRun("no server"))))
    tally.add(with_reward(0, 0.5))
    assert (tally.results, tally.errors) == (1, 0)
    assert (tally.reward_mean, tally.reward_count) == (0.5, 1)
    tally.add(with_reward(0, 0.25))
    assert (tally.reward_mean, tally.reward_count) == (0.25, 1)


@pytest.mark.parametrize("rewards", [(1e308, 1.7e308), (-1.7e308, 1.7e308, 1.7e308), (0.5, 0.25)])
def test_mean_so_far_of_rewards_with_a_sum_above_all_floats_was_infinite(rewards):
    tally = ResultsTally()
    for index, reward in enumerate(rewards):
        tally.add(with_reward(index, reward))
    assert tally.reward_mean == pytest.approx(tally.summary()["mean_reward"])


def test_named_rewards_and_metrics():
    value = {"reward": {"format": 1, "answer": 0.5}, "metrics": {"turns": 3, "note": "no"}}
    reward, bad, metrics = counted_scores(value)
    assert (reward, bad) == (1.5, "")
    assert metrics == {"format": 1.0, "answer": 0.5, "turns": 3.0}
    found = tally_of(
        with_reward(0, 1, metrics={"turns": 2}), with_reward(1, 1, metrics={"turns": 4})
    )
    assert found["metrics"]["turns"]["mean"] == 3.0


def test_tokens_and_model_calls_are_added_where_results_have_them():
    usage = {"prompt_tokens": 10, "completion_tokens": 3, "retries": 1, "model": "x", "bad": -1}
    assert usage_of({"usage": usage}) == {
        "prompt_tokens": 10, "completion_tokens": 3, "retries": 1,
    }  # fmt: skip
    judge = {"calls": 2, "prompt_tokens": 7, "bad": 1, "failed": -1}
    of_roles = usage_of({"usage": {"calls": 1, "roles": {"a.b": judge, "x": [judge], "y": None}}})
    assert of_roles == {"calls": 1, "a.b.calls": 2, "a.b.prompt_tokens": 7}
    assert usage_of({"usage": {"calls": 1, "roles": [judge]}}) == {"calls": 1}
    words = {name: usage_words(name) for name in ("a.b.calls", "prompt_tokens", "gpt-4.1_words")}
    assert [*words.values()] == ["a.b: model calls", "prompt tokens", "gpt-4.1 words"]
    found = tally_of(*(with_reward(i, 1.0, usage=usage) for i in range(2)))
    assert found["usage"] == {"completion_tokens": 6, "prompt_tokens": 20, "retries": 2}


def test_metrics_of_the_hundred_and_first_name_were_left_out_without_a_word():
    found = tally_of(*(with_reward(i, 1.0, metrics={"m": 1, f"task {i}": 1}) for i in range(103)))
    assert (len(found["metrics"]), found["metrics_left_out"]) == (100, 4)
    assert "m" in found["metrics"]
    assert tally_of(with_reward(0, 1.0, metrics={"m": 1}))["metrics_left_out"] == 0


def test_means_of_tiny_rewards_and_metrics_were_0():
    found = tally_of(*(with_reward(i, i * 1e-11, metrics={"m": i * 1e-11}) for i in range(4)))
    assert found["mean_reward"] == found["metrics"]["m"]["mean"] == pytest.approx(1.5e-11)
    assert found["reward"]["std_error"] > 0


def test_percentiles_of_a_report_are_interpolated():
    assert percentiles([]) == {"p50": None, "p90": None, "p99": None}
    assert percentiles([7.0]) == {"p50": 7.0, "p90": 7.0, "p99": 7.0}
    hundred = [float(n) for n in range(100, 0, -1)]
    assert percentiles(hundred) == {"p50": 50.5, "p90": 90.1, "p99": 99.01}


def test_a_record_says_what_the_outcome_said():
    outcome = Outcome(error=RolloutFailed("no"), worker="w0-1", executions=2, took_s=1.5)
    about = {"environment": "e", "model": "m", "run": "r"}
    result = result_of(3, 1, outcome, ended_s=1772700000.5, **about)
    record = record_of(result, {"q": 1}, None)
    assert record["value"] is None
    assert record["error"]["class"] == "RolloutFailed"
    assert record["error"]["verdict"] == "it ran and failed"
    assert (record["index"], record["repeat"], record["executions"]) == (3, 1, 2)
    assert record["ended_s"] == 1772700000.5
    assert result_from(json.loads(json.dumps(record))) == result


@pytest.mark.parametrize("reward", [math.nan, math.inf, "high"])
def test_reward_that_is_not_finite_was_one_of_another_type_when_it_was_read_again(reward: Any):
    result = result_of(0, 0, Outcome(value={"reward": reward}))
    line = b"".join(pieces(record_of(result, {}, {"reward": reward})))
    before, after = tally_of(result), tally_of(result_from(json.loads(line)))
    assert after["rewards_left_out"] == before["rewards_left_out"]


@pytest.mark.parametrize(
    "record", [{}, {"index": True}, {"index": -1}, {"index": 0, "repeat": "1"}]
)
def test_what_is_no_record_is_refused(record: dict[str, Any]):
    with pytest.raises(ValueError, match="no index"):
        result_from(record)


def test_a_record_of_another_program_may_hold_anything():
    record = {
        "index": 0, "error": "lost", "worker": 3, "took_s": "long", "duration_s": {"$float": "nan"},
        "metrics": [1], "usage": "none", "executions": -1, "reward": {"$float": "nan"},
    }  # fmt: skip
    found = result_from(record)
    assert found.failure is not None
    assert found.failure.message == "lost"
    assert found.reward is not None
    assert math.isnan(found.reward)
    assert (found.took_s, found.executions, found.ended_s) == (0.0, 0, None)
    tally_of(found)

"""The adapter in TRL itself, on a processor.  For the session ``training`` of nox."""

from __future__ import annotations

import ast
import inspect
import itertools
import math
import re
from collections import defaultdict
from pathlib import Path
from typing import Any, cast

import pytest

from tests.trainers import made
from tests.trainers.made import Client
from trio_envserve import Outcome, PlainClient
from trio_envserve.trainers import trl as adapter

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs" / "train-with-trl.md"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("default"),  # of the libraries
]


@pytest.fixture
def tiny(example: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module of the example that makes the model."""
    pytest.importorskip("trl")
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    return example("torch_policy")


def called(page: str) -> list[ast.Call]:
    """The calls in the programs of a page."""
    programs = re.findall(r"^```python\n(from datasets.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert programs
    nodes = (node for program in programs for node in ast.walk(ast.parse(program)))
    return [node for node in nodes if isinstance(node, ast.Call)]


def test_configurations_of_the_page_are_taken_by_trl():
    """As far as names go: a model to run them on is too large for a test."""
    pytest.importorskip("trl")
    from trl import GRPOConfig, GRPOTrainer
    from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer

    kinds: dict[str, Any] = {
        "GRPOConfig": GRPOConfig, "GRPOTrainer": GRPOTrainer, "AsyncGRPOConfig": AsyncGRPOConfig,
        "AsyncGRPOTrainer": AsyncGRPOTrainer, "RolloutFunc": adapter.RolloutFunc,
        "RolloutWorker": adapter.RolloutWorker,
    }  # fmt: skip
    seen = set()
    for call in called(PAGE.read_text(encoding="utf-8")):
        name = call.func.id if isinstance(call.func, ast.Name) else ""
        if name in kinds:
            named = {str(each.arg): None for each in call.keywords}
            inspect.signature(kinds[name]).bind(*call.args, **named)
            seen.add(name)
    assert seen == set(kinds)


FORKED = made.answered(1.0, made.segment(1), made.segment(4, tokens=2), made.segment(7, tokens=1))
GROUP = [FORKED, made.answered(0.0), made.failed(), made.without_answer(0.5)]
"""Rewards 1, 0 and 0.5 count.  All tokens are words of the tiny model."""

FLAWED = [
    made.without_logprobs(0.5), made.without_segments(1.0), made.with_nan(0.5),
    made.without_prompt(0.0), made.answered(1.0), made.lost(), made.without_reward(), FORKED,
]  # fmt: skip
"""Six count, of which two are trained on."""


@pytest.mark.parametrize(
    ("group", "mean", "std", "failed", "masked", "left_out"),
    [(GROUP, 0.5, 0.5, 0.25, 0.5, 0.5), (FLAWED, 2 / 3, 0.4082, 0.25, 0.75, 0.5)],
    ids=["failed and forked", "flawed"],
)
def test_grpo_trainer_has_rewards_and_gradient_of_what_counts(
    tiny: Any, tmp_path: Path, group: list[Outcome], mean: float, std: float, failed: float,
    masked: float, left_out: float,
):  # fmt: skip
    import torch
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    model = tiny.tiny_model(1)
    before = [each.clone() for each in model.parameters()]
    trainer = GRPOTrainer(
        model=model,
        processing_class=tiny.tokenizer(),
        train_dataset=Dataset.from_dict({"prompt": [[{"role": "user", "content": "1"}]]}),
        rollout_func=adapter.RolloutFunc(
            "tcp://x", client=cast(PlainClient, Client(itertools.cycle(group))), model="policy"
        ),
        reward_funcs=adapter.rollout_reward,
        args=GRPOConfig(
            output_dir=str(tmp_path), use_cpu=True, bf16=False, max_steps=1, learning_rate=0.1,
            per_device_train_batch_size=len(group), num_generations=len(group), report_to=[],
            save_strategy="no", logging_steps=1,
        ),
    )  # fmt: skip
    trainer.train()
    logged = trainer.state.log_history[0]
    assert logged["reward"] == pytest.approx(mean), "of the rollouts that count"
    assert logged["reward_std"] == pytest.approx(std, abs=1e-3)
    assert logged["rollouts/failed"] == failed
    assert logged["rollouts/masked"] == masked
    assert logged["rollouts/segments_left_out"] == left_out, "two of the three of one rollout"
    assert math.isfinite(logged["grad_norm"])
    assert logged["grad_norm"] > 0
    assert all(torch.isfinite(each).all() for each in model.parameters())
    changed = zip(before, model.parameters(), strict=True)
    assert any(not torch.equal(old, new) for old, new in changed)


def test_async_grpo_trainer_packs_the_rows_of_the_worker(
    tiny: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    """Its queue, its planner and its packer.  The forward pass after them needs a graphics
    card: its attention has no other form."""
    from trl.experimental.async_grpo import AsyncGRPOConfig
    from trl.experimental.async_grpo import async_grpo_trainer as theirs

    monkeypatch.setattr(adapter, "PlainClient", lambda *_, **__: Client(itertools.cycle(GROUP)))
    dataset = [{"prompt": [{"role": "user", "content": "1"}]}]
    args = AsyncGRPOConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False, num_generations=4)
    worker = adapter.RolloutWorker("tcp://x", dataset, args, model="policy")
    wanted = theirs.RolloutWorkerProtocol
    for name in [*wanted.__annotations__, "start", "stop", "update_model_version", "check_health"]:
        assert hasattr(worker, name)
    metrics: Any = defaultdict(list)
    rows = theirs.RolloutQueueDataset(
        worker.rollout_buffer, lambda: 1, worker.check_health, 60.0, metrics, max_staleness=0
    )
    worker.update_model_version(1)
    worker.start()
    planned = theirs.FixedCountBatcher(rows, num_processes=1, microbatch_size=4)
    packer = theirs.DataCollatorForRollout(pad_token_id=0, metrics=metrics)
    batch = packer([next(iter(planned))])
    worker.stop()
    # Three segments of the rollout with reward 1, and the one with reward 0; the mean is 0.5.
    advantages = batch["advantages"][0].tolist()  # one for each sampled token
    assert advantages == pytest.approx([1.0] * 4 + [-1.0] * 2, rel=1e-4)
    assert metrics["reward"] == [pytest.approx(0.75)]
    assert metrics["sample/staleness_max"] == [0.0] * 4
    assert packer.groups_trained == {0}

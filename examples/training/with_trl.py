"""Train by TRL's GRPOTrainer; its rollouts run on the environment server.

    python with_trl.py              needs trl

Workers of the environment server are killed three times on the way, and the server once.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")  # of rollout_func

import torch
from datasets import Dataset
from endpoint import served
from loop import GROUPS, MEMBERS, kills
from server import EnvServer
from torch_policy import TorchPolicy, tiny_model, tokenizer
from transformers import PrinterCallback, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from trio_envserve.trainers.trl import RolloutFunc, rollout_reward


def numbers_of(prompt: list[dict[str, str]], rollout: str) -> dict[str, Any]:
    """The input of the environment for a prompt of the data set."""
    return {"numbers": [int(each) for each in prompt[-1]["content"].split()], "rollout": rollout}


class Watched(TrainerCallback):
    """Kills by the plan, and the mean rewards of all steps."""

    def __init__(self, server: EnvServer, policy: TorchPolicy, killed: dict[int, str]) -> None:
        self.rewards: list[float] = []
        self.failed = 0.0
        self._server = server
        self._policy = policy
        self._killed = killed

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """A kill in the middle of the rollouts of this step."""
        if state.global_step in self._killed:
            self._server.kill_soon(self._killed[state.global_step])

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The weights are others now."""
        self._server.wait_killed()
        self._policy.version = state.global_step

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """The figures of a step."""
        if "reward" in logs:
            self.rewards.append(round(float(logs["reward"]), 4))
            self.failed += float(logs["rollouts/failed"])
            if len(self.rewards) % 10 == 0:
                print(f"step {len(self.rewards)}: reward {self.rewards[-1]:.2f}")


class Compared:
    """The rollout_func, and how far its log-probabilities are from those of the weights."""

    def __init__(self, rollout_func: RolloutFunc, policy: TorchPolicy) -> None:
        self.difference = 0.0
        self._rollout_func = rollout_func
        self._policy = policy

    def __call__(self, prompts: list[Any], trainer: GRPOTrainer) -> dict[str, list[Any]]:
        """The rows, compared with the weights of now."""
        rows = self._rollout_func(prompts, trainer)
        segments = [
            segment
            for result in rows["rollout_result"]
            if result is not None
            for segment in result["segments"]
        ]
        with torch.no_grad():
            found, told, mask = self._policy.of_sampled(segments)
        self.difference = max(self.difference, float(((found - told).abs() * mask).max()))
        return rows


def train(folder: Path, steps: int, seed: int) -> dict[str, Any]:
    """What the training was, as :func:`loop.train` says it."""
    numbers = random.Random(seed)
    prompts = [
        [{"role": "user", "content": f"{numbers.randrange(10)} {numbers.randrange(10)}"}]
        for _ in range(GROUPS * steps)
    ]
    policy = TorchPolicy(seed, model=tiny_model(seed))
    quiet = threading.Event()
    quiet.set()
    with served(policy, quiet) as url, EnvServer(folder, url, quiet) as server:
        watched = Watched(server, policy, kills(steps))
        rollout_func = Compared(
            RolloutFunc(server.address, model="policy", input_of=numbers_of, key=f"run-{seed}"),
            policy,
        )
        trainer = GRPOTrainer(
            model=policy.model,
            processing_class=tokenizer(),
            rollout_func=rollout_func,
            reward_funcs=rollout_reward,
            train_dataset=Dataset.from_dict({"prompt": prompts}),
            args=GRPOConfig(
                output_dir=str(folder / "trl"), seed=seed, use_cpu=True, bf16=False,
                per_device_train_batch_size=GROUPS * MEMBERS, num_generations=MEMBERS,
                max_completion_length=3, max_steps=steps, learning_rate=3e-3,
                lr_scheduler_type="constant", activation_checkpointing=False, logging_steps=1,
                save_strategy="no", report_to=[], disable_tqdm=True,
            ),
            callbacks=[watched],
        )  # fmt: skip
        trainer.remove_callback(PrinterCallback)
        began = time.monotonic()
        trainer.train()
        minutes = (time.monotonic() - began) / 60
        server.wait_killed()
        return {
            "rewards": watched.rewards, "minutes": round(minutes, 2), "failed": watched.failed,
            "logprob_difference": rollout_func.difference, "kills": server.kills, **server.runs(),
            "load": round(os.getloadavg()[1], 1),
        }  # fmt: skip


def main() -> None:
    """Train, and print the figures as JSON."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--steps", type=int, default=200)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--out", type=Path, help="a file for the figures")
    given = options.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        figures = train(Path(folder), given.steps, given.seed)
    if given.out:
        given.out.write_text(json.dumps(figures) + "\n")
    print(json.dumps({**figures, "rewards": [figures["rewards"][0], figures["rewards"][-1]]}))


if __name__ == "__main__":
    main()

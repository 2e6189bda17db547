"""Train by REINFORCE with a baseline for each group, with nothing but the public client.

    python loop.py                  the tiny model; needs torch and transformers
    python loop.py --policy table   a table instead of a network; needs numpy

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

from endpoint import served
from server import EnvServer

from trio_envserve import PlainClient

GROUPS = 12
"""Number of groups of a step."""
MEMBERS = 8
"""Number of rollouts of a group: the same numbers, other answers."""


def inputs_of(step: int, seed: int, size: int) -> list[dict[str, Any]]:
    """The inputs of a step with so many groups, one group after the other."""
    numbers = random.Random(f"{seed} {step}")
    groups = [[numbers.randrange(10), numbers.randrange(10)] for _ in range(size)]
    return [
        {"numbers": group, "rollout": f"{seed}-{step}/{at * MEMBERS + member}"}
        for at, group in enumerate(groups)
        for member in range(MEMBERS)
    ]


def rollouts(client: PlainClient, inputs: list[dict[str, Any]], key: str) -> list[Any]:
    """The results of a step by the number of their input; None for one that failed."""
    results: list[Any] = [None] * len(inputs)
    with client.run_many(inputs, model="policy", key=key) as outcomes:
        for index, outcome in outcomes:
            if outcome.ok:
                results[index] = outcome.value
            else:
                print(f"rollout {key}/{index}: {outcome.error}")
    return results


def samples(results: list[Any]) -> tuple[list[Any], list[float]]:
    """The segments of a step, and for each the advantage of its rollout: its reward less
    the mean of its group.  A rollout that failed is in no mean."""
    segments, advantages = [], []
    for first in range(0, len(results), MEMBERS):
        group = [each for each in results[first : first + MEMBERS] if each is not None]
        for result in group:
            baseline = sum(each["reward"] for each in group) / len(group)
            segments += result["segments"]
            advantages += [result["reward"] - baseline] * len(result["segments"])
    return segments, advantages


def train(
    policy: Any, server: EnvServer, *, steps: int, seed: int, groups: int,
    killed: dict[int, str],
) -> dict[str, Any]:  # fmt: skip
    """What the training was: the mean reward of each step, and figures of the run."""
    rewards, difference, failed, began = [], 0.0, 0, time.monotonic()
    with PlainClient(server.address, name="trainer") as client:
        client.wait_ready(timeout_s=120)
        for step in range(steps):
            if step in killed:
                server.kill_soon(killed[step])
            results = rollouts(client, inputs_of(step, seed, groups), key=f"run-{seed}/{step}")
            server.wait_killed()
            done = [each["reward"] for each in results if each is not None]
            if not done:
                raise SystemExit("no rollout of the step has a result")
            rewards.append(round(sum(done) / len(done), 4))
            failed += len(results) - len(done)
            difference = max(difference, policy.learn(*samples(results)))
            if step % 10 == 9:
                print(f"step {step + 1}: reward {rewards[-1]:.2f}")
    return {
        "rewards": rewards, "minutes": round((time.monotonic() - began) / 60, 2),
        "failed": failed, "logprob_difference": difference, "kills": server.kills, **server.runs(),
        "load": round(os.getloadavg()[1], 1),
    }  # fmt: skip


def kills(steps: int) -> dict[int, str]:
    """In which step what is killed."""
    return {
        steps // 5: "worker", 2 * steps // 5: "worker", steps // 2: "server",
        3 * steps // 5: "worker",
    }  # fmt: skip


def main() -> None:
    """Train, and print the figures as JSON."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--policy", choices=["model", "table"], default="model")
    options.add_argument("--steps", type=int, default=150)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--groups", type=int, default=GROUPS)
    options.add_argument("--out", type=Path, help="a file for the figures")
    given = options.parse_args()
    if given.policy == "table":
        from table_policy import TablePolicy as Policy
    else:
        import torch
        from torch_policy import TorchPolicy as Policy

        torch.set_num_threads(1)
    policy = Policy(given.seed)
    quiet = threading.Event()
    quiet.set()
    with tempfile.TemporaryDirectory() as folder, served(policy, quiet) as url:
        with EnvServer(Path(folder), url, quiet) as server:
            figures = train(
                policy, server, steps=given.steps, seed=given.seed, groups=given.groups,
                killed=kills(given.steps),
            )  # fmt: skip
    if given.out:
        given.out.write_text(json.dumps(figures) + "\n")
    print(json.dumps({**figures, "rewards": [figures["rewards"][0], figures["rewards"][-1]]}))


if __name__ == "__main__":
    main()

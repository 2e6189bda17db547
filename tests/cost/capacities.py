"""Rollouts of one worker by its capacity, for each kind of code: figures of docs/concurrency.md.

    python -m tests.cost.capacities

For each kind and capacity: rollouts in a second, and how long one lasts on the worker (median,
and the longest of a hundred), when more are asked for than fit.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import trio

from trio_envserve import ServerLimits, open_client, open_server

WAIT_S, COMPUTE_S = 0.05, 0.02
CAPACITIES = (1, 8, 32, 64, 256)


class Coroutine:
    """Waits in a coroutine, as for a model."""

    async def run_rollout(self, rollout: Any) -> dict[str, float]:
        await trio.sleep(WAIT_S)
        return {"reward": 1.0}


class Blocking:
    """Waits in a thread."""

    def run_rollout(self, rollout: Any) -> dict[str, float]:
        time.sleep(WAIT_S)
        return {"reward": 1.0}


class Tools:
    """An object with plain methods, which has a thread; one of them waits."""

    def reset(self, **fields: Any) -> str:
        return "?"

    def oracle(self) -> list[str]:
        return ["done"]

    def get_reward(self) -> float:
        time.sleep(WAIT_S)
        return 1.0


class Mixed:
    """Waits in a thread, and computes for a tenth of its time."""

    def run_rollout(self, rollout: Any) -> dict[str, float]:
        time.sleep(0.9 * WAIT_S)
        compute(0.1 * WAIT_S)
        return {"reward": 1.0}


class Computing:
    """Computes in a thread."""

    def run_rollout(self, rollout: Any) -> dict[str, float]:
        compute(COMPUTE_S)
        return {"reward": 1.0}


KINDS: dict[type, int] = {Coroutine: 1024, Blocking: 768, Tools: 512, Mixed: 256, Computing: 96}
"""The kinds, and how many rollouts are asked for."""


def compute(seconds: float) -> None:
    """Use so much of the processor."""
    end_s = time.thread_time() + seconds
    while time.thread_time() < end_s:
        pass


async def measured(kind: type, capacity: int, rollouts: int) -> tuple[float, float, float]:
    """Rollouts a second, and the median and the 99th percentile of their durations."""
    limits = ServerLimits(worker_capacity=capacity)
    async with (
        open_server(f"tests.cost.capacities:{kind.__name__}", workers=1, limits=limits) as server,
        open_client(server.address) as client,
    ):
        await client.run_rollout({})
        began_s = trio.current_time()
        durations_s = []
        async with client.run_many([{}] * rollouts, in_flight=rollouts) as outcomes:
            async for _, outcome in outcomes:
                outcome.unwrap()
                durations_s.append(outcome.duration_s or 0.0)
        took_s = trio.current_time() - began_s
    durations_s.sort()
    return rollouts / took_s, durations_s[rollouts // 2], durations_s[rollouts * 99 // 100]


def main(scale: float = 1.0) -> None:
    """Print a table for people."""
    for kind, rollouts in KINDS.items():
        for capacity in CAPACITIES:
            few = max(8, int(scale * rollouts / (8 if capacity == 1 else 1)))
            rate, median_s, longest_s = trio.run(measured, kind, capacity, few)
            print(
                f"{kind.__name__:10} {capacity:4} {rate:7.0f}/s {median_s * 1e3:6.0f} ms "
                f"{longest_s * 1e3:6.0f} ms",
                flush=True,
            )


if __name__ == "__main__":
    main(*map(float, sys.argv[1:]))

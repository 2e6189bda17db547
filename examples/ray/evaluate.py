"""Evaluates inside a task of Ray: the server and its workers live and end with the task.

pip install 'trio-envserve[ray]'
python examples/ray/evaluate.py
"""

import ray
import trio

from trio_envserve import open_client, open_server


@ray.remote(num_cpus=2, max_retries=0)  # a retry of the task would be a second run
def evaluate(first: int, count: int) -> list[float]:
    """The rewards of so many rollouts."""
    return trio.run(rewards, first, count)


async def rewards(first: int, count: int) -> list[float]:
    """The same, in this task's own server."""
    async with (
        open_server("arithmetic", workers=2) as server,
        open_client(server.address) as client,
    ):
        inputs = [{"index": first + n} for n in range(count)]
        async with client.run_many(inputs, model="oracle") as outcomes:
            return [outcome.unwrap()["reward"] async for _, outcome in outcomes]


if __name__ == "__main__":
    ray.init()
    parts = ray.get([evaluate.remote(0, 50), evaluate.remote(50, 50)])
    print(f"{sum(map(len, parts))} rollouts, mean reward {sum(map(sum, parts)) / 100:g}")

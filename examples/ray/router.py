"""Runs a router in an actor of Ray, and evaluates at it from tasks.

pip install 'trio-envserve[ray]'
python examples/ray/router.py
"""

import queue
import threading

import ray
import trio

from trio_envserve import open_client, open_server


@ray.remote(num_cpus=2, max_restarts=0, max_task_retries=0, max_concurrency=2)
class Router:
    """A server with workers on the actor's node, until it is told to stop.

    No method is a coroutine: an actor that has one runs all of them in one loop of asyncio.
    """

    def __init__(self) -> None:
        self._address: queue.Queue[str] = queue.Queue()
        self._stop = threading.Event()

    def serve(self) -> None:
        """Serve in this thread; the other one has the methods below."""
        trio.run(serve, self._address, self._stop)

    def address(self) -> str:
        """Where it serves.  For tasks of other nodes it needs keys, and another ``bind``."""
        return self._address.get()

    def stop(self) -> None:
        """Let what runs end, and stop."""
        self._stop.set()


async def serve(address: "queue.Queue[str]", stop: threading.Event) -> None:
    """The server of the actor."""
    async with open_server("arithmetic", workers=2) as server:
        address.put(server.address)
        await trio.to_thread.run_sync(stop.wait)
        await server.drain()


@ray.remote(num_cpus=0, max_retries=0)  # a retry of the task would be a second run
def evaluate(address: str, first: int, count: int) -> list[float]:
    """The rewards of so many rollouts."""
    return trio.run(rewards, address, first, count)


async def rewards(address: str, first: int, count: int) -> list[float]:
    """The same, at the actor's server."""
    async with open_client(address) as client:
        inputs = [{"index": first + n} for n in range(count)]
        async with client.run_many(inputs, model="oracle") as outcomes:
            return [outcome.unwrap()["reward"] async for _, outcome in outcomes]


if __name__ == "__main__":
    ray.init()
    router = Router.remote()
    ended = router.serve.remote()
    address = ray.get(router.address.remote())
    parts = ray.get([evaluate.remote(address, 0, 50), evaluate.remote(address, 50, 50)])
    ray.get(router.stop.remote())
    ray.get(ended)
    print(f"{sum(map(len, parts))} rollouts, mean reward {sum(map(sum, parts)) / 100:g}")

"""A program for the interpreter of verifiers: its unchanged client, against an address.

    python library_client.py VERB ADDRESS URL COUNT

It prints a line of JSON for each run that ended, in the order of their ends.  With the verb
``serve`` it is the library's own server at the address, with COUNT workers.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import verifiers.v1 as vf
from verifiers.v1.configs.client import EvalClientConfig
from verifiers.v1.serve import EnvClient, serve_env
from verifiers.v1.utils.loaders import resolve_env_config

AT_ONCE = 32
"""Each is a process of its own, and the library gives up an episode whose process is slow."""

STARTUP_S = 600.0
"""How long the orchestrator of prime-rl waits for a server."""


def say(**record: Any) -> None:
    print(json.dumps(record), flush=True)


async def prime_rl(address: str, url: str, count: int) -> None:
    """What the orchestrator of prime-rl does with a server that it did not start.

    Commit 559b44772e471d1538537b8805cc77f3824a5e64: ``serve.address`` is the address of the
    source (``OrchestratorConfig.env_addresses``), for which the launcher starts nothing
    (``entrypoints/rl.py``, ``env_servers``).  ``Env.start`` connects, polls ``health``, and
    loads the taskset on its own side; ``Env.run`` sends a task's data with each run
    (``orchestrator/envs.py``).  ``Dispatcher`` checks that an episode is of its task, takes
    an error for a failed episode, and cancels its tasks (``orchestrator/dispatcher.py``).
    """
    env_client = EnvClient(address=address)
    await env_client.wait_for_server_startup(timeout=STARTUP_S)
    taskset = vf.load_taskset(taskset_config())
    tasks = await asyncio.to_thread(lambda: list(taskset))
    sampling = {"temperature": 1.0, "extra_body": {"cache_salt": "0"}}
    client = EvalClientConfig(base_url=url, api_key_var="TRIO_ENVSERVE_NO_KEY")

    def dispatch(task: Any) -> asyncio.Task[Any]:
        return asyncio.create_task(
            env_client.run(
                task_data=task.data.model_dump(mode="json"), client=client, model="m",
                sampling=vf.SamplingConfig(**sampling),
            )
        )  # fmt: skip

    dispatched = {dispatch(task): task for task in tasks[:count]}
    for running, task in dispatched.items():
        episode = await running
        same = (episode.task.key, episode.task.hash) == (task.key, task.hash)
        (trace,) = episode.traces
        say(ok=episode.ok, same=same, reward=trace.reward, turns=trace.num_turns)
    # What a group still owes is cancelled, with nothing done about the answer.
    left = [dispatch(task) for task in tasks[-count:]]
    await wait_for_line()
    for running in left:
        running.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    say(cancelled=len(left))
    await wait_for_line()
    await env_client.close()


class Asking:
    """The library's client, and runs of the first tasks, one after the other."""

    def __init__(self, address: str, url: str) -> None:
        self.env_client = EnvClient(address=address)
        self._client = EvalClientConfig(base_url=url, api_key_var="TRIO_ENVSERVE_NO_KEY")
        self._tasks = list(vf.load_taskset(taskset_config()))
        self._free = asyncio.Semaphore(AT_ONCE)

    async def run_in_turn(self, number: int) -> None:
        """One of many runs."""
        async with self._free:
            await self.run(number)

    async def run(self, number: int) -> None:
        """One run.  It says how it ended."""
        deltas = 0

        def on_delta(delta: dict[str, Any]) -> None:
            nonlocal deltas
            deltas += 1

        try:
            episode = await self.env_client.run(
                client=self._client, model="m", sampling=vf.SamplingConfig(),
                task_data=self._tasks[number % len(self._tasks)].data.model_dump(mode="json"),
                on_delta=on_delta,
            )  # fmt: skip
        except RuntimeError as error:
            say(number=number, error=str(error))
        else:
            (trace,) = episode.traces
            why = [each.message for each in (*episode.errors, *trace.errors)]
            say(number=number, ok=episode.ok, reward=trace.reward, deltas=deltas, why=why)


async def runs(address: str, url: str, count: int) -> None:
    """So many runs, as many at once as there is room for; then one more."""
    asking = Asking(address, url)
    await asking.env_client.wait_for_server_startup(timeout=STARTUP_S)
    await asyncio.gather(*(asking.run_in_turn(number) for number in range(count)))
    await asking.run(count)
    await asking.env_client.close()


async def wait_for_line() -> None:
    await asyncio.to_thread(sys.stdin.readline)


def taskset_config() -> Any:
    return env_config().taskset


def env_config() -> Any:
    agent = {"harness": {"id": "null"}, "runtime": {"type": "subprocess"}}
    return resolve_env_config({"taskset": {"id": "envserve_sums"}, "agent": agent})


if __name__ == "__main__":
    _, verb, given_address, given_url, given_count = sys.argv
    verbs = {"prime-rl": prime_rl, "runs": runs}
    if verb == "serve":
        serve_env(
            config=env_config(), address=given_address, max_workers=int(given_count), elastic=False
        )
    else:
        asyncio.run(verbs[verb](given_address, given_url, int(given_count)))

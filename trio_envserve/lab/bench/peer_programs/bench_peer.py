"""The peer's server and client, as its users set them up.

``python bench_peer.py server WORKERS`` and ``python bench_peer.py client ADDRESS``

Run by the Python of the peer's own virtual environment, which has nothing of
this project; so this file stands alone.  It is also the module from which the
peer's workers load their environment.  Both programs end with their standard
input.  uvloop is used on all sides, logging is off.
"""

# The peer is not installed where this is type-checked.
# mypy: disable-error-code="import-not-found, misc, no-any-return"

from __future__ import annotations

import asyncio
import json
import os
import random
import socket
import sys
import threading
import time
from typing import Any


def realistic() -> dict[str, Any]:
    """The same rollout as the benchmark's own environment has."""
    dice = random.Random(0)
    words = ["so", "the", "answer", "is", "reasoning", "because", "42", "then"]
    return {
        "completion": [
            {
                "role": ("assistant", "user")[turn % 2],
                "content": " ".join(dice.choice(words) for _ in range(40)),
            }
            for turn in range(20)
        ],
        "token_ids": [dice.randrange(150_000) for _ in range(4000)],
        "logprobs": [-dice.expovariate(2.0) for _ in range(4000)],
    }


def load_environment() -> Any:
    """A no-op environment: no model is asked, nothing is scored."""
    import verifiers as vf
    from datasets import Dataset

    answers: dict[Any, dict[str, Any]] = {}

    class NoOp(vf.Environment):
        async def rollout(
            self, input: Any, client: Any, model: str, sampling_args: Any = None
        ) -> Any:
            state = await self.init_state(input, client, model, sampling_args)
            wanted = input["info"]["response"]
            answer = answers.get(wanted)
            if answer is None:
                plain = isinstance(wanted, int)
                answer = {"payload": "x" * wanted} if plain else realistic()
                answers[wanted] = answer
            for key, value in answer.items():
                state[key] = value
            state["info"] = {"call": input["info"]["call"]}
            state["is_completed"] = True
            return state

    dataset = Dataset.from_list([{"prompt": [{"role": "user", "content": "x"}], "example_id": 0}])
    return NoOp(dataset=dataset, score_rollouts=False)


def server(workers: str) -> None:
    """Serve at a free port until standard input ends."""
    from verifiers.serve import ZMQEnvServer

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    print(json.dumps({"address": address}), flush=True)
    sys.stdout = sys.stderr
    ZMQEnvServer.run_server(
        "bench_peer", log_level="ERROR", num_workers=int(workers), address=address
    )


def _end_with_stdin() -> None:
    import signal

    os.read(0, 1)
    os.kill(os.getpid(), signal.SIGTERM)


def client(address: str) -> None:
    """Carry out loads until standard input ends."""
    import uvloop

    uvloop.run(_client(address))


async def _client(address: str) -> None:
    from verifiers.serve import ZMQEnvClient
    from verifiers.types import ClientConfig

    os.environ.setdefault("BENCH_KEY", "none")
    config = ClientConfig(api_key_var="BENCH_KEY", api_base_url="http://127.0.0.1:1/v1")
    clients: list[Any] = []

    async def grow(count: int) -> None:
        while len(clients) < count:
            one = ZMQEnvClient(address=address)
            await one.wait_for_server_startup()
            await one.run_rollout(_input(0, "x", 1), config, "none", {}, state_columns=["payload"])
            clients.append(one)

    await grow(1)
    print(json.dumps({"ready": True}), flush=True)
    lines: asyncio.Queue[str] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    threading.Thread(target=_read_lines, args=(loop, lines), daemon=True).start()
    while True:
        load = json.loads(await lines.get())
        await grow(load["clients"])
        print(json.dumps(await _carry_out(load, clients[: load["clients"]], config)), flush=True)


def _read_lines(loop: Any, lines: Any) -> None:
    """Standard input; when it ends, everything does, whatever is under way."""
    for line in sys.stdin:
        loop.call_soon_threadsafe(lines.put_nowait, line)
    os._exit(0)


def _input(call: int, payload: str, response: Any) -> dict[str, Any]:
    info = {"call": call, "payload": payload, "response": response}
    return {"prompt": [{"role": "user", "content": "x"}], "example_id": 0, "info": info}


async def _carry_out(load: dict[str, Any], clients: list[Any], config: Any) -> dict[str, Any]:
    payload, wanted = "x" * load["request_bytes"], load["response"]
    plain = isinstance(wanted, int)
    columns = ["payload"] if plain else ["token_ids", "logprobs"]
    took_s: list[float] = []
    asked = wrong = 0
    began_s = time.perf_counter()
    until_s = began_s + load["seconds"]

    async def keep_asking(one: Any) -> None:
        nonlocal asked, wrong
        while True:
            asked, call, asked_s = asked + 1, asked, time.perf_counter()
            got = await one.run_rollout(
                _input(call, payload, wanted), config, "none", {}, state_columns=columns
            )
            right = len(got["payload"]) == wanted if plain else len(got["logprobs"]) == 4000
            wrong += got["info"]["call"] != call or not right
            took_s.append(time.perf_counter() - asked_s)
            if time.perf_counter() >= until_s:
                return

    tasks = [keep_asking(clients[index % len(clients)]) for index in range(load["in_flight"])]
    await asyncio.gather(*tasks)
    seconds = time.perf_counter() - began_s
    took_s.sort()
    return {
        "asked": asked,
        "answered": len(took_s),
        "wrong": wrong,
        "seconds": seconds,
        "p50_ms": took_s[len(took_s) // 2] * 1000,
        "p99_ms": took_s[int(len(took_s) * 0.99)] * 1000,
    }


if __name__ == "__main__":
    {"server": server, "client": client}[sys.argv[1]](*sys.argv[2:])

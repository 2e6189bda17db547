"""verifiers 0.3: its server and client, as its users set them up.

``python bench_peer_03.py server WORKERS`` and ``python bench_peer_03.py client ADDRESS``

See :mod:`bench_common`.  This is also the module from which the workers load their
environment.  uvloop is used on all sides, logging is off.
"""

# The peer is not installed where this is type-checked.
# mypy: disable-error-code="import-not-found, misc, no-any-return"

from __future__ import annotations

import os
import sys
from typing import Any

from bench_common import TOKENS, announce, free_address, realistic, run_client


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
                answer = answers[wanted] = _answer(wanted)
            for key, value in answer.items():
                state[key] = value
            state["info"] = {"call": input["info"]["call"]}
            state["is_completed"] = True
            return state

    dataset = Dataset.from_list([{"prompt": [{"role": "user", "content": "x"}], "example_id": 0}])
    return NoOp(dataset=dataset, score_rollouts=False)


def _answer(wanted: Any) -> dict[str, Any]:
    if isinstance(wanted, int):
        return {"payload": "x" * wanted}
    completion, token_ids, logprobs = realistic()
    return {"completion": completion, "token_ids": token_ids, "logprobs": logprobs}


def server(workers: str) -> None:
    """Serve at a free port until standard input ends."""
    from verifiers.serve import ZMQEnvServer

    address = free_address()
    announce(address)
    ZMQEnvServer.run_server(
        "bench_peer_03", log_level="ERROR", num_workers=int(workers), address=address
    )


def client(address: str) -> None:
    """Carry out loads until standard input ends."""
    from verifiers.serve import ZMQEnvClient
    from verifiers.types import ClientConfig

    os.environ.setdefault("BENCH_KEY", "none")
    config = ClientConfig(api_key_var="BENCH_KEY", api_base_url="http://127.0.0.1:1/v1")

    async def ask(one: Any, call: int, payload: str, wanted: Any) -> bool:
        info = {"call": call, "payload": payload, "response": wanted}
        asked = {"prompt": [{"role": "user", "content": "x"}], "example_id": 0, "info": info}
        plain = isinstance(wanted, int)
        columns = ["payload"] if plain else ["token_ids", "logprobs"]
        got = await one.run_rollout(asked, config, "none", {}, state_columns=columns)
        right = len(got["payload"]) == wanted if plain else len(got["logprobs"]) == TOKENS
        return got["info"]["call"] == call and right

    async def open_one(address: str) -> Any:
        one = ZMQEnvClient(address=address)
        await one.wait_for_server_startup()
        await ask(one, 0, "x", 1)
        return one

    run_client(address, open_one, ask)


if __name__ == "__main__":
    {"server": server, "client": client}[sys.argv[1]](*sys.argv[2:])

"""verl's own agent loop worker, trainer's advantages and types over what its agent loop gives.

Run by the interpreter of an environment with verl; prints what came of each group.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
from typing import Any

import hydra
import numpy as np
import torch
from omegaconf import OmegaConf
from verl import DataProto
from verl.experimental.agent_loop import agent_loop
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput, DictConfigWrap
from verl.trainer.ppo.core_algos import AdvantageEstimator
from verl.trainer.ppo.v1 import agent_loop_tq, replay_buffer
from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories
from verl.workers.rollout.llm_server import LLMServerClient

WORKER_TQ = agent_loop_tq.AgentLoopWorkerTQ.__ray_metadata__.modified_class


class Tokenizer:
    """What padding needs, and nothing of a chat template."""

    pad_token_id = 0
    padding_side = "right"
    chat_template = None

    def pad(self, given: Any, *, max_length: int, **_: Any) -> dict[str, torch.Tensor]:
        ids = torch.tensor([given["input_ids"]])
        room = torch.zeros((1, max_length - ids.shape[1]), dtype=torch.long)
        pair = (room, ids) if self.padding_side == "left" else (ids, room)
        mask = [torch.zeros_like(room), torch.ones_like(ids)]
        mask = mask if self.padding_side == "left" else mask[::-1]
        return {"input_ids": torch.cat(pair, 1), "attention_mask": torch.cat(mask, 1)}


def config() -> Any:
    rollout = {"name": "vllm", "prompt_length": 24, "response_length": 8}
    return OmegaConf.create({"actor_rollout_ref": {"rollout": rollout}, "data": {}})


def loop_of(address: str, model: str = "oracle", config: Any = config()) -> Any:  # noqa: B008
    """The loop's object as a worker makes it of the user's file."""
    entry = OmegaConf.create(
        {
            "name": "trio_envserve",
            "_target_": "trio_envserve.trainers.verl.AgentLoop",
            "address": address,
            "model": model,
            "timeout_s": 60,
        }
    )
    return hydra.utils.instantiate(
        config=entry, trainer_config=DictConfigWrap(config), server_manager=None,
        tokenizer=Tokenizer(), processor=None, hf_model_type=None, dataset_cls=None,
        data_config=DictConfigWrap(config.data), tools=agent_loop.ToolListWrap([]),
    )  # fmt: skip


def worker_of(kind: Any) -> Any:
    """A worker without its engines: only what it does with outputs."""
    worker = object.__new__(kind)
    worker.config = config()
    worker.rollout_config = worker.config.actor_rollout_ref.rollout
    worker.tokenizer, worker.processor = Tokenizer(), None
    worker.reward_loop_worker_handles = None
    worker.distillation_enabled = False
    worker.mm_processor_kwargs = {}
    return worker


def row_of(group: str, number: int, case: str) -> dict[str, Any]:
    return {
        "uid": group,
        "global_steps": 5,
        "raw_prompt": np.array([{"role": "user", "content": "?"}], dtype=object),
        "extra_info": {"case": case, "index": np.int64(number)},
    }


async def outputs_of_version_1(address: str, batch: Any, logprobs: bool) -> dict[str, Any]:
    """All outputs, as the worker of version 1 stores them: key, fields and tags."""
    stored: dict[str, Any] = {}

    async def put(*, keys: Any, fields: Any, tags: Any, partition_id: str) -> None:
        names = list(fields.keys())
        for number, key in enumerate(keys):
            stored[key] = ({name: fields[name][number] for name in names}, tags[number])

    agent_loop_tq.tq.async_kv_batch_put = put
    worker = worker_of(WORKER_TQ)
    for group, cases in batch.items():
        for number, case in enumerate(cases):
            row = row_of(group, number, case) | {"session_id": number}
            outputs = await loop_of(address).run({"logprobs": logprobs, "top_k": -1}, **row)
            assert all(type(each) is AgentLoopOutput for each in outputs)
            await worker._agent_loop_postprocess(outputs, False, **row)
    return stored


def advantages(stored: dict[str, Any]) -> dict[str, list[float]]:
    """The advantages that verl computes, by output."""
    keys = list(stored)
    width = max(fields["responses"].shape[-1] for fields, _ in stored.values())

    def padded(name: str) -> torch.Tensor:
        rows = [fields[name].to(torch.float32) for fields, _ in stored.values()]
        return torch.stack([torch.nn.functional.pad(row, (0, width - len(row))) for row in rows])

    data = DataProto.from_dict(
        tensors={
            "response_mask": padded("response_mask"),
            "token_level_rewards": padded("rm_scores"),
        },
        non_tensors={"uid": np.array([key.split("_")[0] for key in keys], dtype=object)},
    )
    data = compute_advantage_for_multi_trajectories(
        data, keys, AdvantageEstimator.GRPO, norm_adv_by_std_in_grpo=False
    )
    return {key: row.tolist() for key, row in zip(keys, data.batch["advantages"], strict=True)}


async def filtered(address: str, cases: dict[str, list[str]]) -> dict[str, list[str]]:
    """The groups that verl's filter of groups keeps, by what became of their rollouts."""
    given = config()
    given.algorithm = {"filter_groups": {"enable": True, "metric": "reward"}}
    stored: dict[str, dict[str, Any]] = {}
    rewards: dict[str, Any] = {}

    async def put(*, key: str, tag: dict[str, Any], partition_id: str) -> None:
        stored[key] = {"is_prompt": True, "global_steps": 5, **tag}

    async def put_all(*, keys: Any, fields: Any, tags: Any, partition_id: str) -> None:
        stored.update(zip(keys, tags, strict=True))
        rewards.update(zip(keys, fields["rm_scores"], strict=True))

    worker = worker_of(WORKER_TQ)

    async def run_agent_loop(sampling_params: Any, *, session_id: int, **row: Any) -> None:
        case = cases[row["uid"]][session_id]
        made = row_of(row["uid"], session_id, case) | {"session_id": session_id}
        outputs = await loop_of(address, config=given).run({"logprobs": True}, **made)
        await worker._agent_loop_postprocess(outputs, False, **made)

    worker.config, worker._run_agent_loop = given, run_agent_loop
    queue = agent_loop_tq.tq
    queue.async_kv_put, queue.async_kv_batch_put = put, put_all
    for uid, each in cases.items():
        given.actor_rollout_ref.rollout.n = len(each)
        await worker._run_prompt({"uid": uid}, {}, {"validate": False})
    queue.kv_list = lambda: {"train": stored}
    queue.kv_batch_get = lambda *, keys, **_: {"rm_scores": [rewards[key] for key in keys]}
    found = {}
    for kind in (replay_buffer.ReplayBuffer, replay_buffer.ReplayBufferAsync):
        buffer = kind(
            "any", given, None, "drop", {}, refill_fn=len, filter_groups_metric="reward",
            train_batch_size=1, gen_batch_size=1,
        )  # fmt: skip
        buffer._sync_metadata_from_transfer_queue()
        reasons = buffer._terminal_eviction_reasons(5, "train")
        found[kind.__name__] = sorted(buffer._sampleable_terminal_keys("train", reasons))
    return found


async def older_trainer(address: str) -> str:
    """What verl's older trainer is told, whose worker gives no ``session_id``."""
    try:
        await loop_of(address).run({"logprobs": True}, **row_of("mixed", 0, "good"))
    except ValueError as error:
        return str(error)
    return ""


class Balancer:
    """What verl's client of its engines asks of the actor that chooses one."""

    class _Method:
        def __init__(self, answer: Any) -> None:
            self._answer = answer

        async def _answered(self) -> Any:
            return self._answer

        def remote(self, *args: Any, **kwargs: Any) -> Any:
            return asyncio.ensure_future(self._answered())

    require_acquire_fields = require_release_fields = _Method(["request_id"])
    acquire_server = _Method(("10.0.0.1:8001", None))
    release_server = _Method(None)


async def templates() -> list[str]:
    """What is said of a custom template, which the engines have not or have."""
    said = []
    for own in (None, "{{ messages }}"):
        given = config()
        given.actor_rollout_ref.rollout.engine_kwargs = {"vllm": {"chat_template": own}}
        try:
            await engine(given=given, custom_chat_template="{{ messages }}")
            said.append("")
        except ValueError as error:
            said.append(str(error))
    return said


async def engine(kind: str = "vllm", given: Any = None, **model: Any) -> dict[str, Any]:
    """The endpoint of a rollout without the setting ``model``."""
    given = given or config()
    given.actor_rollout_ref.rollout.name = kind
    given.actor_rollout_ref.model = {"path": "tiny/model", **model}
    given.data.apply_chat_template_kwargs = {"enable_thinking": False}
    loop = loop_of("tcp://127.0.0.1:1", model="", config=given)
    loop.server_manager = LLMServerClient(given, load_balancer_handle=Balancer())
    async with loop._engine("mixed/0") as settings:
        return {name: getattr(settings, name) for name in ("model", "model_name", "sampling")}


async def adapters() -> dict[str, Any]:
    """The adapter that each kind of engine is asked with, or what is said."""
    from verl.workers.rollout.sglang_rollout.utils import SGLANG_LORA_NAME

    found: dict[str, Any] = {}
    given: list[tuple[str, dict[str, Any]]] = [
        ("none", {"lora_rank": 0, "lora": {"type": "lora"}}),
        ("merged", {"lora_rank": 8, "lora": {"merge": True}}),
        ("flat", {"lora_rank": 8, "lora": {}}),
        ("nested", {"lora_rank": 0, "lora": {"rank": 8}}),
    ]
    for (name, model), kind in itertools.product(given, ("vllm", "sglang")):
        try:
            path = (await engine(kind, **model))["sampling"].get("lora_path")
        except ValueError as error:
            path = str(error)
        found[f"{name} {kind}"] = "verl's" if path == SGLANG_LORA_NAME else path
    return found


async def main(address: str, batch: Any) -> None:
    stored = await outputs_of_version_1(address, batch, logprobs=True)
    for _, tag in stored.values():
        # As the trainer's metrics read them.
        np.array([tag["min_global_steps"], tag["max_global_steps"]], dtype=int)
    plain = await outputs_of_version_1(address, batch, logprobs=False)
    assert all("rollout_log_probs" not in fields for fields, _ in plain.values())
    made = {"advantages": advantages(stored), "refused": await older_trainer(address)}
    made["engine"] = await engine()
    made["templates"] = await templates()
    made["adapters"] = await adapters()
    made["filtered"] = await filtered(
        address,
        {
            "differing": ["good", "bad"],
            "equal": ["good", "good"],
            "partly": ["good", "bad", "failed"],
            "lost": ["failed", "lost"],
        },
    )
    print("RESULT " + json.dumps(made))


asyncio.run(main(sys.argv[1], json.loads(sys.argv[2])))

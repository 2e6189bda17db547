"""The checks and the conversions of slime, or of miles, over what ``generate`` gives.

Run by the interpreter of an environment with what they import, their source on its path:
``slime_program.py slime|miles ADDRESS BATCH``.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import sys
from typing import Any

from trio_envserve.trainers.slime import _settings

trainer, address, batch = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])

ARGS = argparse.Namespace(
    advantage_estimator="grpo",
    rewards_normalization=True,
    grpo_std_normalization=False,
    reward_key=None,
    n_samples_per_prompt=4,
    rollout_batch_size=len(batch),
    rollout_top_p=1.0,
    apply_chat_template=False,
    use_dynamic_global_batch_size=False,
    disable_rollout_trim_samples=False,
    global_batch_size=4 * len(batch),
    partial_rollout=False,
    group_rm=False,
    trio_envserve_address=address,
    trio_envserve_model="oracle",
    trio_envserve_timeout_s=60,
)
PARAMS = {"temperature": 0.7, "top_k": -1, "max_new_tokens": 8, "stop": None}
GENERATE = "trio_envserve.trainers.slime.generate"
REWARDS = "trio_envserve.trainers.slime.rewards"


def samples_of(kind: Any) -> list[list[Any]]:
    return [
        [
            kind(index=4 * group + n, group_index=group, prompt="?", metadata={"case": case})
            for n, case in enumerate(cases)
        ]
        for group, cases in enumerate(batch.values())
    ]


async def slimes() -> tuple[Any, list[Any]]:
    """As its rollout function calls it; then its check, and its rewards by its own loader."""
    from slime.observability.rollout_data_utils import validate_rollout_id_annotated
    from slime.utils.misc import load_function
    from slime.utils.types import Sample

    generate = load_function(GENERATE)
    data = [
        list(await asyncio.gather(*[generate(ARGS, each, dict(PARAMS)) for each in group]))
        for group in samples_of(Sample)
    ]
    validate_rollout_id_annotated(data)
    flat: list[Any] = data
    while isinstance(flat[0], list):  # as its rollout manager does
        flat = list(itertools.chain.from_iterable(flat))
    for sample in flat:
        sample._validate_response_metadata_lengths()
        assert Sample.from_dict(sample.to_dict()) == sample
    return load_function(REWARDS)(ARGS, flat), flat


def miles_generate() -> Any:
    """``generate`` as miles calls it: by its adapter, or, where that has no sglang to import,
    with the arguments that the adapter gives."""
    try:
        from miles.rollout.base_types import GenerateFnInput
        from miles.rollout.inference_rollout.compatibility import load_generate_function
    except ImportError as error:
        print(f"without the adapter: {error}")
        from miles.utils.misc import load_function

        legacy = load_function(GENERATE)
        return lambda sample: legacy(ARGS, sample, dict(PARAMS), evaluation=False)
    adapted = load_generate_function(GENERATE)
    assert type(adapted).__name__ == "LegacyGenerateFnAdapter"
    state = argparse.Namespace(args=ARGS)

    async def asked(sample: Any) -> Any:
        given = GenerateFnInput(
            state=state, sample=sample, sampling_params=dict(PARAMS), evaluation=False
        )
        return (await adapted(given)).samples

    return asked


async def miles() -> tuple[Any, list[Any]]:
    """Then its checks, and its conversion with its own loader."""
    from miles.ray.rollout.rollout_data_conversion import postprocess_rollout_data
    from miles.ray.rollout.train_data_conversion import convert_samples_to_train_data
    from miles.utils.lora import LORA_ADAPTER_NAME, lora_rollout_enabled
    from miles.utils.misc import load_function
    from miles.utils.types import Sample

    router: dict[str, Any] = {
        "sglang_router_ip": "10.0.0.1", "sglang_router_port": 1, "hf_checkpoint": "m",
        "apply_chat_template_kwargs": {},
    }  # fmt: skip
    for rank, only in itertools.product((0, 8), (False, True)):
        given = argparse.Namespace(**router, lora_rank=rank, lora_train_only=only)
        name = LORA_ADAPTER_NAME if lora_rollout_enabled(given) else None
        assert _settings(given).sampling.get("lora_path") == name

    asked = miles_generate()
    data = [
        list(await asyncio.gather(*[asked(each) for each in group])) for group in samples_of(Sample)
    ]
    flat, metadata = postprocess_rollout_data(ARGS, data, {"dp_size": 1})
    for sample in flat:
        sample.validate()
    made = convert_samples_to_train_data(ARGS, flat, metadata, None, load_function(REWARDS))
    assert made["rollout_ids"] == [sample.rollout_id for sample in flat]
    assert [len(mask) for mask in made["loss_masks"]] == made["response_lengths"]
    return (made["raw_reward"], made["rewards"]), flat


async def main() -> None:
    (raw, trained), flat = await {"slime": slimes, "miles": miles}[trainer]()
    names = list(batch)
    advantages: dict[str, float] = {}
    for sample, reward in zip(flat, trained, strict=True):
        if sample.metadata["trio_envserve"]["counts"]:
            key = f"{names[sample.group_index]}_{sample.index % 4}"
            assert advantages.setdefault(key, reward) == reward
        else:
            assert reward == 0.0
            assert sample.remove_sample
    made = {
        "advantages": advantages,
        "rows": len(flat),
        "statuses": sorted({sample.status.value for sample in flat}),
        "raw": raw,
    }
    print("RESULT " + json.dumps(made))


asyncio.run(main())

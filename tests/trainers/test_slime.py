from __future__ import annotations

import asyncio
import logging
import statistics
from typing import Any

import pytest

from tests.trainers import made
from tests.trainers.slimes import Sample, arguments
from trio_envserve import ConfigError
from trio_envserve.trainers import calls, slime

pytestmark = pytest.mark.real


def asked_at(address: str, **more: Any) -> Any:
    return arguments(trio_envserve_address=address, trio_envserve_model="oracle", **more)


def batch(args: Any, **options: Any) -> list[Any]:
    """What comes of each rollout of all groups."""

    async def run() -> list[Any]:
        samples = [
            Sample(group_index=n, index=4 * n + k, prompt="?", metadata={"case": case})
            for n, cases in enumerate(made.BATCH.values())
            for k, case in enumerate(cases)
        ]
        params = {"temperature": 0.7, "max_new_tokens": 9, "stop": None}
        calls = [slime.generate(args, sample, params, **options) for sample in samples]
        return await asyncio.gather(*calls)

    return asyncio.run(run())


def test_rewards_of_slime_are_over_rollouts(address: str):
    args = asked_at(address)
    rollouts = batch(args)
    assert [len(each) for each in rollouts[:5]] == [1, 3, 1, 1, 3], "lists also of one"
    samples = [sample for each in rollouts for sample in each]
    raw, trained = slime.rewards(args, samples)
    assert raw == [sample.reward for sample in samples]
    for number, (name, cases) in enumerate(made.BATCH.items()):
        mean = made.MEANS[name]
        mine = {s.index: (s, t) for s, t in zip(samples, trained, strict=True)}
        members = [mine[4 * number + k] for k in range(len(cases))]
        counted = [s.reward for s, _ in members if s.metadata["trio_envserve"]["counts"]]
        std = statistics.stdev(counted) if len(counted) > 1 else 0.0
        for sample, reward in members:
            counts = sample.metadata["trio_envserve"]["counts"]
            wanted = (sample.reward - mean) / (std + 1e-6) if counts else 0.0
            assert reward == pytest.approx(wanted, abs=1e-4)
            assert sample.metadata["case"]


def test_rollout_is_one_sample_in_an_evaluation(address: str):
    rollouts = batch(asked_at(address), evaluation=True)
    assert {type(each) for each in rollouts} == {Sample}


def test_environment_is_asked_with_the_row_and_the_sampling_parameters(address: str):
    async def run() -> Any:
        sample = Sample(
            group_index=0, index=0, prompt="2 + 2?", label="4", metadata={"case": "good"}
        )
        args = asked_at(address, trio_envserve_sampling={"logprobs": True})
        params = {"temperature": 0.7, "max_new_tokens": 9, "stop": None, "no_such": 1}
        read: list[Any] = []
        original = calls.ask_rollout

        async def spy(*given: Any, **named: Any) -> Any:
            read.append(await original(*given, **named))
            return read[-1]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(slime, "ask_rollout", spy)
            await slime.generate(args, sample, params)
        return read[0].outcome.value["asked"]

    asked, sampling = asyncio.run(run())
    assert asked == {"prompt": "2 + 2?", "case": "good", "label": "4"}
    assert sampling == {"temperature": 0.7, "max_tokens": 9, "logprobs": True}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"rollout_top_p": 0.9}, "give --rollout-top-p 1.0"),
        ({"use_rollout_routing_replay": True}, "no --use-rollout-routing-replay"),
        ({"use_rollout_indexer_replay": True}, "no --use-rollout-indexer-replay"),
        ({"partial_rollout": True}, "no --partial-rollout"),
        (
            {"trio_envserve_adress": "tcp://x:1"},
            "unknown settings ['adress']; known are ['address'",
        ),
        ({"trio_envserve_address": ""}, "TRIO_ENVSERVE_ADDRESS"),
        ({"trio_envserve_address": 5}, "address must be text, not 5"),
        ({"trio_envserve_grace_s": 5}, "give timeout_s or execution_s"),
        ({"trio_envserve_input": "metadata.row"}, "the data set's row has no 'row'"),
    ],
)
def test_setting_that_cannot_be_heeded_is_refused_in_words(
    address: str, changed: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("TRIO_ENVSERVE_ADDRESS", raising=False)
    args = arguments(**vars(asked_at(address)) | changed)
    with pytest.raises(ConfigError) as caught:
        asyncio.run(slime.generate(args, Sample(index=0, metadata={"case": "good"}), {}))
    assert said in str(caught.value)


def test_label_of_a_sample_was_replaced_by_one_of_its_metadata(address: str):
    """The environment scored the answer by another one than the data set's."""
    sample = Sample(index=0, prompt="2 + 2?", label="4", metadata={"case": "good", "label": "5"})
    with pytest.raises(ConfigError, match=r"two values of 'label': .* in its metadata"):
        asyncio.run(slime.generate(asked_at(address), sample, {}))


def test_prompt_of_a_chat_template_was_put_into_the_template_once_more(address: str):
    async def run(**more: Any) -> None:
        row = {"case": "good", "row": {"case": "good"}}
        sample = Sample(index=0, prompt="<|im_start|>user", metadata=row)
        await slime.generate(asked_at(address, apply_chat_template=True, **more), sample, {})

    with pytest.raises(ConfigError, match="no --apply-chat-template"):
        asyncio.run(run())
    asyncio.run(run(trio_envserve_input="metadata.row"))  # which has no such prompt


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"multimodal_inputs": {"images": [b"..."], "videos": None}}, "no --multimodal-keys"),
        ({"adapter": "one of several"}, "no --multi-lora-n-adapters"),
    ],
)
def test_sample_was_trained_without_what_the_trainer_gave_with_it(
    address: str, fields: dict[str, Any], said: str
):
    async def run(fields: dict[str, Any]) -> None:
        sample = Sample(index=0, metadata={"case": "good"}, **fields)
        await slime.generate(asked_at(address), sample, {})

    with pytest.raises(ConfigError, match=said):
        asyncio.run(run(fields))
    asyncio.run(run({"multimodal_inputs": {"images": None}}))  # as of text beside a processor


def test_endpoint_that_gives_no_tokens_is_an_error_once_it_is_sure(
    address: str, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.ERROR, "trio_envserve.trainers")

    async def run(*cases: str, model: str = "oracle") -> None:
        args = arguments(**vars(asked_at(address)) | {"trio_envserve_model": model})
        for number, case in enumerate(cases):
            sample = Sample(group_index=0, index=number, metadata={"case": case})
            await slime.generate(args, sample, {})

    asyncio.run(run("good", *["no-segments"] * 20))
    asyncio.run(run(*["no-segments"] * 15))
    with pytest.raises(ConfigError, match=r"of 16 can be trained on: .*unknown model endpoint"):
        asyncio.run(run(*["good"] * 16, model="no-such"))
    with pytest.raises(ConfigError, match=r"of 16 can be trained on: .*return_token_ids"):
        asyncio.run(run(*["no-segments"] * 16))


def test_rewards_without_normalization_are_those_of_the_samples():
    args = arguments(rewards_normalization=False)
    good = Sample(index=0, group_index=0, reward=1.0)
    removed = Sample(index=1, group_index=0, reward=0.5, remove_sample=True)
    assert slime.rewards(args, [good, removed]) == ([1.0, 0.5], [1.0, 0.0])


def test_filter_of_groups_looks_at_rollouts_that_count(address: str):
    rollouts = batch(asked_at(address))
    groups = [rollouts[4 * n : 4 * n + 4] for n in range(len(made.BATCH))]
    kept = [slime.differing_rewards(arguments(), group) for group in groups]
    assert dict(zip(made.BATCH, kept, strict=True)) == {
        "mixed": True, "forked": True, "flawed": True, "unfinished": True, "lost": False,
    }  # fmt: skip
    assert not slime.differing_rewards(arguments(), [rollouts[0], rollouts[2]])


def test_turns_go_to_the_router_of_the_trainer():
    router = {"sglang_router_ip": "10.0.0.1", "sglang_router_port": 30000, "hf_checkpoint": "m"}
    settings = slime._settings(arguments(**router, trio_envserve_sampling={"logprobs": False}))
    assert (settings.model, settings.model_name) == ("http://10.0.0.1:30000/v1", "m")
    assert settings.sampling == {
        "return_input_ids_in_sglext": True,
        "return_output_ids_in_sglext": True,
        "logprobs": False,
    }
    assert slime._settings(arguments(**router, trio_envserve_model="mine")).model == "mine"
    template = {"apply_chat_template_kwargs": {"enable_thinking": False}}
    settings = slime._settings(arguments(**router, **template))
    assert settings.sampling["chat_template_kwargs"] == {"enable_thinking": False}


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        ({"lora_rank": 8}, True),
        ({"lora_rank": 0, "lora_adapter_path": "folder"}, True),
        ({"lora_rank": 8, "lora_train_only": True}, False),
        ({"lora_rank": 0, "lora_adapter_path": None}, False),
        ({}, False),
    ],
)
def test_turns_of_an_adapter_were_sampled_from_the_weights_below_it(
    given: dict[str, Any], asked: bool
):
    router = {"sglang_router_ip": "10.0.0.1", "sglang_router_port": 30000, "hf_checkpoint": "m"}
    settings = slime._settings(arguments(**router, **given))
    assert settings.sampling.get("lora_path") == ("miles_lora" if asked else None)

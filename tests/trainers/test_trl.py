from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Sequence
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest

from tests.client.faces import TrioThread
from tests.trainers import made
from tests.trainers.made import Client
from tests.trainers.test_forms import TRL_SAMPLE
from trio_envserve import Outcome, PlainClient, open_server
from trio_envserve.trainers import trl
from trio_envserve.trainers.samples import NO_LOGPROBS, NO_TOKENS
from trio_envserve.trainers.trl import NothingToTrain, RolloutFunc, RolloutWorker, rollout_reward

PAD = 7

PROMPT = [{"role": "user", "content": "2 + 2?"}]


def configuration(**args: Any) -> Any:
    """What is read of TRL's configurations, with their defaults."""
    given = {
        "temperature": 0.8, "max_completion_length": 64, "top_p": 1.0, "top_k": 0, "min_p": None,
        "repetition_penalty": 1.0, "seed": 42, "num_generations": 4, "max_inflight_tasks": -1,
        "queue_maxsize": 1024, "chat_template_kwargs": None,
    }  # fmt: skip
    return SimpleNamespace(**{**given, **args})


def trainer(**args: Any) -> Any:
    return SimpleNamespace(
        args=configuration(**args),
        processing_class=SimpleNamespace(pad_token_id=PAD),
        model=SimpleNamespace(training=True),
        state=SimpleNamespace(global_step=5),
        accelerator=SimpleNamespace(process_index=0),
    )


def rows_of(outcomes: Sequence[Outcome], **options: Any) -> dict[str, list[Any]]:
    client = cast(PlainClient, Client(outcomes))
    func = RolloutFunc("tcp://127.0.0.1:1", client=client, model="policy", **options)
    return func([PROMPT] * len(outcomes), trainer())


# -- rollout_func -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("outcome", "reward"), [(made.failed(), None), (made.without_answer(0.5), 0.5)]
)
def test_rollout_that_cannot_be_trained_on_is_a_masked_row_and_no_reward_of_0(
    outcome: Outcome, reward: float | None
):
    """A reward that the policy earned counts all the same."""
    rows = rows_of([made.answered(1.0), outcome])
    assert rows["prompt_ids"][0] == [1, 2]
    assert rows["completion_ids"] == [[3, 4, 5], [PAD]], "TRL counts a row that ends so as not cut"
    assert rows["logprobs"][0] == [-0.5, -0.5, 0.0]
    assert rows["env_mask"] == [[1, 1, 0], [0]]
    assert rows["rollout_reward"] == [1.0, reward]
    assert rollout_reward(["", ""], rows["rollout_reward"]) == [1.0, reward]
    assert [bool(masked) for masked in rows["rollout_masked"]] == [False, True]


def test_rollout_of_three_segments_is_one_row_with_its_last_segment_which_is_said_once(
    caplog: pytest.LogCaptureFixture,
):
    client = Client([made.forked(1.0), made.answered(0.0)])
    func = RolloutFunc("tcp://127.0.0.1:1", client=cast(PlainClient, client), model="policy")
    for _ in range(2):
        rows = func([PROMPT] * 2, trainer())
        assert rows["prompt_ids"][0] == [20, 21]
        assert rows["rollout_reward"] == [1.0, 0.0]
        assert rows["rollout_segments"] == [3, 1]
        assert rows["rollout_left_out"] == [2, 0]
    (said,) = caplog.messages
    assert "1 of 2 rollouts have several segments" in said
    assert "and the 2 before it, with 3 sampled tokens, are left out" in said


def test_masked_segment_of_a_rollout_that_is_trained_on_was_left_out_without_a_word(
    caplog: pytest.LogCaptureFixture,
):
    rows = rows_of([made.CASES["half"](), made.answered()])
    assert rows["prompt_ids"][0] == [9, 10]
    (said,) = caplog.messages
    assert "1 segments of rollouts that are trained on are not" in said
    assert said.endswith(f"train-5.0-0/0: {NO_LOGPROBS}")


def test_endpoint_without_log_probabilities_is_taken_only_when_told():
    rows = rows_of([made.without_logprobs(), made.answered()], logprobs=False)
    assert rows["logprobs"] == [[None] * 3, [None] * 3], "TRL's word for one that is not known"
    assert rows["env_mask"] == [[1, 1, 0]] * 2


@pytest.mark.parametrize(
    ("outcome", "why"),
    [
        (made.failed(), "none of 2 rollouts: the rollout failed: the tool broke"),
        (made.without_segments(), NO_TOKENS),
        (made.without_logprobs(), NO_LOGPROBS),
        (made.without_logprobs(), "logprobs = true"),
    ],
    ids=["failed", "no tokens", "no log-probabilities", "what to write"],
)
def test_step_without_any_rollout_to_train_on_says_why(outcome: Outcome, why: str):
    with pytest.raises(NothingToTrain) as failure:
        rows_of([outcome, outcome])
    assert why in str(failure.value)


def test_rollout_func_asks_with_the_trainer_s_sampling():
    """Else its log-probabilities are of another distribution, without a word.  vLLM takes what a
    request does not say from the model's generation_config.json: what restricts nothing is said."""
    client = Client([made.answered()])
    options: Any = {"sampling_args": {"repetition_penalty": 1.1, "stop": ["\n"]}, "key": "run-1"}
    func = RolloutFunc("tcp://x", client=cast(PlainClient, client), model="policy", **options)
    func([PROMPT], trainer(top_p=0.9, top_k=5, generation_kwargs={"ignore_eos": True}))
    assert client.options["sampling_args"] == {
        "temperature": 0.8, "max_tokens": 64, "top_p": 0.9, "top_k": 5, "repetition_penalty": 1.1,
        "stop": ["\n"], "ignore_eos": True,
    }  # fmt: skip
    assert client.options["model"] == "policy"
    func([PROMPT], trainer())
    assert client.options["sampling_args"] == {
        "temperature": 0.8, "max_tokens": 64, "top_p": 1.0, "top_k": -1, "repetition_penalty": 1.1,
        "stop": ["\n"],
    }, "and no seed, with which the members of a group would be equal"  # fmt: skip
    assert client.options["key"] == "run-1/train-5.1-0"
    evaluating = trainer()
    evaluating.model.training = False
    func([PROMPT], evaluating)
    assert client.options["key"] == "run-1/eval-5.0-0"


def test_arguments_of_the_chat_template_were_asked_for_and_not_given():
    """A trainer of a model that is not to think had rollouts of one that thinks."""
    client = Client([made.answered()])
    func = RolloutFunc("tcp://x", client=cast(PlainClient, client), model="policy")
    func([PROMPT], trainer(chat_template_kwargs={"enable_thinking": False}))
    assert client.options["sampling_args"]["chat_template_kwargs"] == {"enable_thinking": False}


def test_input_is_the_prompt_and_may_be_made_of_it():
    client = Client([made.answered()] * 3)
    func = RolloutFunc("tcp://x", client=cast(PlainClient, client), model="policy")
    func(["2 + 2?", PROMPT, {"a": 2}], trainer())
    assert client.inputs == [{"prompt": "2 + 2?"}, {"prompt": PROMPT}, {"a": 2}]
    client = Client([made.answered()] * 2)
    func = RolloutFunc(
        "tcp://x", client=cast(PlainClient, client), model="policy",
        input_of=lambda prompt, rollout: (prompt, rollout),
    )  # fmt: skip
    func([1, 1], trainer())
    assert client.inputs == [(1, "train-5.0-0/0"), (1, "train-5.0-0/1")]


def test_rollout_reward_logs_what_is_left_out():
    logged: dict[str, float] = {}
    fields = {"rollout_masked": ["", "x", "y", ""], "rollout_left_out": [1, 0, 0, 1]}
    rollout_reward(["", "", "", ""], [1.0, None, 0.0, 1.0], log_metric=logged.__setitem__, **fields)
    assert logged == {
        "rollouts/failed": 0.25, "rollouts/masked": 0.5, "rollouts/segments_left_out": 0.5,
    }  # fmt: skip


# -- the worker of the asynchronous trainer ---------------------------------------


@pytest.fixture
def sample_type(monkeypatch: pytest.MonkeyPatch) -> None:
    """TRL's type of a row, where TRL is not installed."""
    fields: list[Any] = [(name, Any) for name in TRL_SAMPLE]
    fields.append(("enqueued_at", Any, None))
    name = "trl.experimental.async_grpo.async_rollout_worker"
    module = ModuleType(name)
    vars(module)["RolloutSample"] = dataclasses.make_dataclass("RolloutSample", fields)
    parts = name.split(".")
    for size in range(1, len(parts)):
        package = ".".join(parts[:size])
        monkeypatch.setitem(sys.modules, package, ModuleType(package))
    monkeypatch.setitem(sys.modules, name, module)


def worker_on(monkeypatch: pytest.MonkeyPatch, client: Client, **options: Any) -> RolloutWorker:
    monkeypatch.setattr(trl, "PlainClient", lambda *_, **__: client)
    dataset = [{"prompt": PROMPT, "answer": 4}, {"prompt": PROMPT, "answer": 5}]
    worker = RolloutWorker("tcp://x", dataset, configuration(), model="policy", **options)
    worker.update_model_version(3)
    worker.start()
    return worker


@pytest.mark.usefixtures("sample_type")
def test_worker_gives_all_segments_with_the_advantage_of_their_rollout(
    monkeypatch: pytest.MonkeyPatch,
):
    """A rollout of three segments counts once, and a failed one not at all."""
    members = [made.forked(1.0), made.answered(0.0), made.failed(), made.without_logprobs(0.5)]
    client = Client([*members, *[made.answered(1.0)] * 4], ends=False)
    worker = worker_on(monkeypatch, client)
    rows = [worker.rollout_buffer.get(timeout=60) for _ in range(8)]
    worker.stop()
    scale = 0.5 + 1e-6  # of the rewards 1, 0 and 0.5
    advantages = [0.5 / scale] * 3 + [-0.5 / scale] + [0.0] * 4
    assert [row.advantage for row in rows] == pytest.approx(advantages)
    assert [row.group_id for row in rows] == [0] * 4 + [1] * 4
    assert {row.model_version for row in rows} == {3}
    first = rows[0]
    assert first.input_ids.tolist() == [1, 2, 3, 4, 5]
    assert first.completion_mask.tolist() == [0, 0, 1, 1, 0]
    assert first.old_log_probs.tolist() == [0, 0, -0.5, -0.5, 0]
    assert first.metrics == {"reward": 1.0, "reward_std": 0.5}
    assert first.prompt == PROMPT
    assert all(math.isfinite(row.enqueued_at) for row in rows)
    assert worker.metrics_queue.get_nowait() == {
        "rollout/failed_total": 1.0, "rollout/masked_total": 2.0,
        "rollout/samples_per_rollout": 1.0,
    }  # fmt: skip
    assert [each["answer"] for each in client.inputs] == [4] * 4 + [5] * 4
    worker.check_health(60)


@pytest.mark.usefixtures("sample_type")
def test_worker_without_rollouts_to_train_on_ends_and_says_why(monkeypatch: pytest.MonkeyPatch):
    """Else the trainer would wait for ever."""
    client = Client([made.without_segments()] * 8)
    worker = worker_on(monkeypatch, client, most_failed=2)
    thread = worker._thread
    assert thread is not None
    thread.join(60)
    with pytest.raises(RuntimeError, match=r"none of the last 2 groups: .* no token"):
        worker.check_health(60)
    worker.stop()


@pytest.mark.usefixtures("sample_type")
def test_worker_that_gets_no_rollout_is_not_healthy(monkeypatch: pytest.MonkeyPatch):
    worker = worker_on(monkeypatch, Client([], ends=False))
    with pytest.raises(RuntimeError, match=r"no rollout came for .* status tcp://x --slow 20"):
        worker.check_health(0.0)
    worker.stop()
    worker.stop()


# -- with a real server -------------------------------------------------------------


@pytest.mark.real
def test_rollout_func_gets_rows_from_a_server(address: str):
    func = RolloutFunc(address, model="oracle")
    for _ in range(2):  # by one client
        rows = func([{"case": "good"}] * 3, trainer())
        assert rows["env_mask"] != [[0]] * 3
        assert None not in rows["rollout_reward"]


@pytest.mark.real
@pytest.mark.usefixtures("sample_type")
def test_worker_gets_rows_from_a_server_until_it_is_stopped(address: str):
    dataset = [{"case": "good"}]
    args = configuration(num_generations=2, queue_maxsize=4)
    worker = RolloutWorker(address, dataset, args, model="oracle")
    worker.start()
    groups = [worker.rollout_buffer.get(timeout=60).group_id for _ in range(20)]
    assert groups[::2] == groups[1::2], "the rows of a group come together"
    assert len({*groups}) == 10
    thread = worker._thread
    assert thread is not None
    worker.stop()  # while it waits for room, and rollouts run
    assert not thread.is_alive()
    worker.check_health(60)


class Counted(made.Cases):
    """The same; each rollout has the number of its execution."""

    def __init__(self) -> None:
        self.executions = 0

    async def run_rollout(self, rollout: Any) -> Any:
        self.executions += 1
        result = await super().run_rollout(rollout)
        return {**result, "completion": [{"execution": self.executions}]}


@pytest.mark.real
@pytest.mark.usefixtures("sample_type")
def test_worker_of_a_trainer_that_was_started_again_gets_no_rollout_of_the_one_before():
    """Groups are numbered from 0 again, and the outcomes under the same keys are of old
    weights."""
    found: list[set[int]] = []
    with TrioThread() as thread, thread.opened(open_server(Counted(), workers=0)) as server:
        for _ in range(2):
            worker = RolloutWorker(
                server.address, [{"case": "good"}],
                configuration(num_generations=2, queue_maxsize=4), model="oracle", key="run-8",
            )  # fmt: skip
            worker.start()
            rows = [worker.rollout_buffer.get(timeout=60) for _ in range(8)]
            worker.stop()
            found.append({row.completion[0]["execution"] for row in rows})
    assert not found[0] & found[1]


def test_worker_needs_rows():
    with pytest.raises(ValueError, match="no rows"):
        RolloutWorker("tcp://x", [], configuration(), model="policy")

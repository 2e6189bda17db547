"""The training example: a policy learns through the server while its parts are killed.

In every run a table learns, which needs no torch.  The tiny model learns in the session
``training`` of nox, by the loop and by TRL.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
EXAMPLE = ROOT / "examples" / "training"
RECORD = ROOT / "docs" / "train-with-trl.json"
PICTURE = ROOT / "docs" / "train-with-trl.svg"
STEPS, GROUPS = 30, 6
WAIT_S = 1500


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports a module of the example by its name."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    yield importlib.import_module
    for path in EXAMPLE.glob("*.py"):
        sys.modules.pop(path.stem, None)


def trained(program: str, folder: Path, *options: str) -> dict[str, Any]:
    """The figures of a run of a program of the example."""
    out = folder / "figures.json"
    run = subprocess.run(
        [sys.executable, program, "--out", str(out), *options],
        cwd=EXAMPLE, capture_output=True, text=True, timeout=WAIT_S, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    figures: dict[str, Any] = json.loads(out.read_text())
    return figures


def check(figures: dict[str, Any], rollouts: int) -> None:
    """Nothing was lost, nothing ran twice without consent, and what came is what was sampled."""
    assert figures["kills"] == {"worker": 3, "server": 1}
    assert figures["rollouts"] == rollouts
    assert figures["failed"] == 0
    assert figures["duplicates"] == 0
    assert figures["reruns"] >= 4, "each kill meets a rollout"
    assert figures["logprob_difference"] < 1e-4
    rewards = figures["rewards"]
    assert rewards[0] < 0.1
    assert np.mean(rewards[-5:]) > 0.8


@pytest.mark.real
@pytest.mark.slow
def test_table_learns_as_without_any_server_while_workers_and_server_are_killed(
    tmp_path: Path, example: Any
):
    """To the last digit: a rollout that was lost, mixed up or counted twice would show."""
    options = ["--policy", "table", "--steps", str(STEPS), "--groups", str(GROUPS), "--seed", "3"]
    figures = trained("loop.py", tmp_path, *options)
    check(figures, STEPS * GROUPS * 8)
    assert figures["rewards"] == alone(example, seed=3)


def alone(example: Any, seed: int) -> list[float]:
    """The rewards of the same training in this process."""
    loop, policy = example("loop"), example("table_policy").TablePolicy(seed)
    rewards = []
    for step in range(STEPS):
        results = [played(example, policy, each) for each in loop.inputs_of(step, seed, GROUPS)]
        rewards.append(round(sum(each["reward"] for each in results) / len(results), 4))
        policy.learn(*loop.samples(results))
    return rewards


def played(example: Any, policy: Any, given: dict[str, Any]) -> dict[str, Any]:
    """The result of a rollout, as the environment would give it."""
    endpoint, vocabulary = example("endpoint"), example("vocabulary")
    messages: list[dict[str, str]] = []
    answers, reward = [], 0.0
    for number in given["numbers"]:
        messages.append({"role": "user", "name": given["rollout"], "content": str(number)})
        answer = endpoint.Answer({"messages": messages})
        row = policy.log_probabilities([answer.prompt_ids])[0]
        while not answer.add(row, 0):
            row = policy.log_probabilities([[*answer.prompt_ids, *answer.ids]])[0]
        answers.append(answer)
        text = vocabulary.text_of(answer.ids)
        messages.append({"role": "assistant", "content": text})
        if text.split()[:1] == [str((number + 1) % 10)]:
            reward += 0.5 if len(text.split()) == 1 else 0.25
    ids = np.array([*answers[-1].prompt_ids, *answers[-1].ids])
    first = len(answers[0].prompt_ids)
    mask, logprobs = np.zeros(len(ids)), np.zeros(len(ids))
    for answer in answers:
        place = slice(len(answer.prompt_ids), len(answer.prompt_ids) + len(answer.ids))
        mask[place], logprobs[place] = 1, answer.logprobs
    segment = {
        "prompt_ids": ids[:first], "response_ids": ids[first:],
        "response_mask": mask[first:], "logprobs": logprobs[first:],
    }  # fmt: skip
    return {"reward": reward, "segments": [segment]}


def line(event: str, pid: int, at: float, how: str = "result") -> dict[str, Any]:
    return {"event": event, "name": "a", "pid": pid, "monotonic": at, "how": how}


@pytest.mark.parametrize(
    ("records", "reruns", "duplicates"),
    [
        ([line("start", 1, 0), line("end", 1, 1)], 0, 0),
        ([line("start", 1, 0), line("start", 2, 1), line("end", 2, 2)], 1, 0),
        ([line("start", 2, 0), line("start", 1, 1)], 0, 1),
        ([line("start", 1, 0), line("start", 1, 1)], 0, 1),
        ([line("start", 1, 0), line("end", 1, 1), line("start", 2, 2)], 0, 1),
        ([line("start", 1, 0), line("end", 1, 1, "Cancelled"), line("start", 2, 2)], 1, 0),
    ],
    ids=[
        "once", "after the kill of its worker", "while its worker lives", "in one process",
        "after its end", "after its worker cancelled it and was killed",
    ],
)  # fmt: skip
def test_rollout_that_ran_again_without_a_reason_is_seen(
    example: Any, records: list[dict[str, Any]], reruns: int, duplicates: int
):
    found = example("server").runs_of(records, killed={1})
    assert found == {"rollouts": 1, "reruns": reruns, "duplicates": duplicates}


# -- what the page shows ------------------------------------------------------------


def test_curve_on_the_page_is_that_of_the_recorded_run(example: Any):
    curve: ModuleType = example("curve")
    assert curve.drawn(json.loads(RECORD.read_text())) == PICTURE.read_text()


# -- with torch: `nox -s training` --------------------------------------------------


@pytest.mark.real
@pytest.mark.slow
def test_tiny_model_learns_by_the_loop(tmp_path: Path):
    pytest.importorskip("transformers")
    check(trained("loop.py", tmp_path), rollouts=150 * 96)


@pytest.mark.real
@pytest.mark.slow
def test_tiny_model_learns_by_trl(tmp_path: Path):
    pytest.importorskip("trl")
    check(trained("with_trl.py", tmp_path), rollouts=200 * 96)


@pytest.mark.slow
def test_words_are_the_same_tokens_for_transformers(example: Any):
    pytest.importorskip("transformers")
    vocabulary, tokenizer = example("vocabulary"), example("torch_policy").tokenizer()
    messages = [
        {"role": "user", "name": "a", "content": "3"},
        {"role": "assistant", "content": "4 <user> <pad>"},
        {"role": "user", "content": "9"},
    ]
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert list(ids) == vocabulary.prompt_ids(messages)

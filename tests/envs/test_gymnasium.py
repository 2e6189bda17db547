"""The adapter for gymnasium, with the library itself."""

import json
import re

import pytest
import trio
from hypothesis import given, settings
from hypothesis.strategies import integers

from tests.envs.scripted import one, running
from trio_envserve.core.errors import ConfigError
from trio_envserve.core.values import encode
from trio_envserve.envs import load
from trio_envserve.envs.loading import check_spec

LAKE = ["SFFF", "FHFH", "FFFH", "HFFG"]
WAY = [1, 1, 2, 1, 2, 2]
LEFT, DOWN, RIGHT, UP = range(4)
STEPS = {LEFT: (0, -1), DOWN: (1, 0), RIGHT: (0, 1), UP: (-1, 0)}


@pytest.fixture
def library():
    return pytest.importorskip("gymnasium")


def walk(actions):
    """The reward of a walk on the lake that is not slippery, and its length."""
    row = column = 0
    for steps, action in enumerate(actions, 1):
        down, right = STEPS[action]
        row, column = min(max(row + down, 0), 3), min(max(column + right, 0), 3)
        if LAKE[row][column] in "HG":
            return float(LAKE[row][column] == "G"), steps
    return 0.0, len(actions)


async def test_the_model_sees_the_lake_and_what_the_actions_mean(library):
    result, model = await one(
        "gymnasium:FrozenLake-v1", ["<action>2</action>", "I say 1", "?"], {"seed": 1}, "prompt",
        is_slippery=False, max_invalid=0,
    )  # fmt: skip
    first = result["state"]["prompt"][0]["content"]
    assert "- 2: Move right" in first
    assert "Answer with one action, a number of Discrete(4), between <action>" in first
    assert first.endswith("[S]FFF\nFHFH\nFFFH\nHFFG")
    assert model.asked[1][-1]["content"] == "  (Right)\nS[F]FF\nFHFH\nFFFH\nHFFG"
    assert (result["reward"], result["stop"]) == (0.0, "answer")


@pytest.mark.parametrize(
    ("name", "said", "invalid", "told"),
    [
        ("FrozenLake", ["left", "<action>7</action>", "1.5", "[[["], 4,
         ["it has no number. Answer with one action", "7 is not in Discrete(4). ",
          "it has no number."]),
        ("Pendulum", ["[[0.5", "[1, 2]", "[9.0]", '["a"]'], 4,
         ["it has no array", "cannot reshape", "is not in Box(-2.0, 2.0, (1,), float32)"]),
    ],
)  # fmt: skip
async def test_answers_that_are_no_actions_are_told_and_counted(library, name, said, invalid, told):
    result, model = await one(f"gymnasium:{name}-v1", said, {}, "invalid", "steps", "terminated")
    assert result["state"] == {"invalid": invalid, "steps": 0, "terminated": False}
    assert result["stop"] == "max_invalid"
    for asked, why in zip(model.asked[1:], told, strict=True):
        assert asked[-1]["content"].startswith("This is no action: ")
        assert why in asked[-1]["content"]


GIVEN_UP = {
    # what the model says, after which stop, and why there is no reward
    "max_invalid": (["[0.5]", "I give up"], "too many answers were no moves"),
    "max_turns": (["[0.5]"], "max_turns (5) answers were given"),
}


@pytest.mark.parametrize("stop", GIVEN_UP)
async def test_giving_up_is_never_better_than_playing(library, stop):
    """The sum so far was the reward: -2 for giving up, -115 for playing on."""
    said, why = GIVEN_UP[stop]
    result, _ = await one("gymnasium:Pendulum-v1", said, {"seed": 4}, "rewards", max_turns=5)
    assert (result["stop"], result.get("reward")) == (stop, None)
    assert result["no_reward"] == f"the game was not finished: {why} (see reward_unfinished)"
    for unfinished, reward in [(-2000, -2000.0), ("ask", sum(result["state"]["rewards"]))]:
        args = {"max_turns": 5, "reward_unfinished": unfinished}
        other, _ = await one("gymnasium:Pendulum-v1", said, {"seed": 4}, **args)
        assert (other["reward"], other["stop"]) == (reward, stop)


ENVIRONMENTS = [
    "FrozenLake", "Taxi", "Blackjack", "CliffWalking", "CartPole", "Acrobot", "MountainCar",
    "MountainCarContinuous", "Pendulum", "LunarLander", "BipedalWalker", "CarRacing",
]  # fmt: skip
OPTIONS = {
    "CarRacing": {"max_episode_steps": 20}, "MountainCarContinuous": {"max_episode_steps": 200},
}  # fmt: skip


def numbers(action):
    return action.tolist() if hasattr(action, "tolist") else action


def by_the_library(env, name, seed):
    """Random actions, their rewards, and whether the episode ended by itself."""
    env.reset(seed=seed)
    env.action_space.seed(seed)
    played, rewards, done, cut = [], [], False, False
    # At random the cliff takes thousands of steps; nothing else has no limit.
    way = iter([UP] * (1 + seed % 3) + [RIGHT] * 11 + [DOWN] * 3)
    here = {UP: 0, RIGHT: 1, DOWN: 2} if name.startswith("Cliff") else {}
    while not (done or cut):
        played.append(here[next(way)] if here else env.action_space.sample())
        _, reward, done, cut, _ = env.step(played[-1])
        rewards.append(float(reward))
    env.close()
    return played, rewards, bool(done)


def unseen(observation, env):
    return "an image"


async def compared_with_the_library(name: str, seed: int, mistakes: int) -> None:
    """Play the same actions by the library's own loop and by the adapter."""
    library = pytest.importorskip("gymnasium")
    options = OPTIONS.get(name, {})
    # The newest: of the others the library warns.
    name = max(known for known in library.registry if re.fullmatch(rf"{name}-v\d", known))
    try:
        env = library.make(name, **options)
    except library.error.DependencyNotInstalled as missing:
        pytest.skip(str(missing))
    # In a thread, as the adapter does: numpy 2.1 rounds otherwise there.
    played, rewards, done = await trio.to_thread.run_sync(by_the_library, env, name, seed)
    said = ["I don't know"] * mistakes
    said += [f"<action>{json.dumps(numbers(action))}</action>" for action in played]
    args: dict[str, object] = {"max_turns": len(said), **options}
    if env.spec.max_episode_steps:
        del args["max_turns"]
    if env.observation_space.shape and len(env.observation_space.shape) > 1:
        args["to_text"] = "tests.envs.test_gymnasium:unseen"
    columns = ("rewards", "steps", "invalid", "terminated")
    result, _ = await one(f"gymnasium:{name}", said, {"seed": seed}, *columns, **args)
    assert result["state"] == {
        "rewards": rewards, "steps": len(played), "invalid": mistakes, "terminated": done,
    }  # fmt: skip
    assert result["reward"] == sum(rewards)
    assert result["stop"] == ("answer" if done else "truncated")
    encode(result)


EXAMPLES = {"seed": integers(0, 1 << 31), "mistakes": integers(0, 3)}
# Box2D's module warns where it is imported, from C, which an error there would kill.
BOX2D_WARNS = pytest.mark.filterwarnings("ignore:builtin type:DeprecationWarning")


@BOX2D_WARNS
@pytest.mark.parametrize("name", ENVIRONMENTS)
@settings(max_examples=2, deadline=None)
@given(**EXAMPLES)
async def test_rewards_are_those_of_the_librarys_own_loop(name, seed, mistakes):
    await compared_with_the_library(name, seed, mistakes)


@BOX2D_WARNS
@pytest.mark.slow
@pytest.mark.parametrize("name", ENVIRONMENTS)
@settings(max_examples=20, deadline=None)
@given(**EXAMPLES)
async def test_rewards_of_twenty_episodes_are_those_of_the_library(name, seed, mistakes):
    await compared_with_the_library(name, seed, mistakes)


async def test_offline_the_oracle_follows_the_inputs_actions(library):
    async with running("gymnasium:FrozenLake-v1", args={"is_slippery": False}) as run:
        assert (await run({"actions": WAY}, endpoint="oracle"))["reward"] == 1.0
        result = await run({"seed": 3}, "steps", endpoint="oracle")
        assert result["state"]["steps"] > 0
        assert (await run({"seed": 3}, "steps", endpoint="oracle")) == result


async def test_model_sees_the_numbers_of_an_observation(library):
    said, seed = ["<action>1</action>"], {"seed": 4}
    _, model = await one("gymnasium:CartPole-v1", said, seed)
    observation = json.loads(model.asked[1][-1]["content"].partition("Observation: ")[2])
    assert len(observation) == 4


def words(observation, env):
    return f"You are at {observation}."


def by_name(text, env):
    names = {"left": 0, "down": 1, "right": 2, "up": 3}
    found = re.findall("|".join(names), text)
    if not found:
        raise ValueError("no direction in it")
    return names[found[-1]]


async def test_both_ways_can_be_replaced(library):
    names = [["left", "down", "right", "up"][action] for action in WAY]
    here = "tests.envs.test_gymnasium"
    result, model = await one(
        "gymnasium:FrozenLake-v1", ["no idea", *names], {},
        to_text=f"{here}:words", to_action=f"{here}:by_name", is_slippery=False,
    )  # fmt: skip
    assert result["reward"] == 1.0
    assert model.asked[0][0]["content"].endswith("You are at 0.")
    assert "no direction in it" in model.asked[1][-1]["content"]
    assert model.asked[2][-1]["content"] == "You are at 4."


@pytest.mark.parametrize(
    ("spec", "args", "said"),
    [
        ("gymnasium:FrozenLak-v1", {}, "Did you mean: `FrozenLake`"),
        ("gymnasium:envserve_nowhere:X-v0", {}, "No module named 'envserve_nowhere'"),
        ("gymnasium:FrozenLake-v1", {"slippery": False}, "slippery"),
        ("gymnasium:FrozenLake-v1", {"max_turns": 0}, "max_turns is a whole number, 1 or more"),
        ("gymnasium:FrozenLake-v1", {"max_invalid": -1}, "max_invalid must be an integer >= 0"),
        ("gymnasium:FrozenLake-v1", {"to_text": "json:dump_"}, "did you mean 'dump'"),
        ("gymnasium:FrozenLake-v1", {"to_text": "math:pi"}, "must name a function, not float"),
    ],
)
def test_wrong_names_and_arguments(library, spec, args, said):
    with pytest.raises(ConfigError) as caught:
        load(spec, args)
    assert said in str(caught.value)


def sized(size, **options):
    import gymnasium

    return gymnasium.make("FrozenLake-v1", **options).unwrapped


def test_check_of_a_name_that_is_loaded_has_the_arguments(library):
    """A name that needs arguments was refused, though they were given."""
    library.register("Sized-v0", entry_point="tests.envs.test_gymnasium:sized")
    try:
        with pytest.raises(ConfigError, match="size"):
            check_spec("gymnasium:Sized-v0")
        with pytest.raises(ConfigError, match="Did you mean: `FrozenLake`"):
            check_spec("gymnasium:FrozenLak-v1")
        check_spec("gymnasium:Sized-v0", {"size": 3})
    finally:
        del library.registry["Sized-v0"]


def test_a_class_of_gymnasiums_is_told_to_be_registered(library):
    with pytest.raises(ConfigError, match="name it gymnasium:ID"):
        load(type("Own", (library.Env,), {}))


def test_inputs_are_seeds(library):
    assert load("gymnasium:FrozenLake-v1").inputs(2, 7) == [{"seed": 7}, {"seed": 8}]
    assert load("gymnasium:FrozenLake-v1").rerun

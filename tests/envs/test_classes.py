"""Environments that are a class: the loop, tools that misbehave, clean-up."""

import asyncio
import contextvars
import functools
import json
import random
import signal
import sqlite3
import sys
import threading
import traceback
from typing import Any

import pytest
import trio

from tests.envs.scripted import Scripted, calls, one, running
from trio_envserve.core.errors import ConfigError, EnvironmentUnavailable
from trio_envserve.core.values import encode
from trio_envserve.envs import classes, load
from trio_envserve.envs.conversation import tagged, without
from trio_envserve.envs.methods import ObjectThread, TrioMethods
from trio_envserve.envs.methods_asyncio import AsyncioMethods
from trio_envserve.evals.records import counted_scores
from trio_envserve.models.interface import Completion, ModelError
from trio_envserve.worker.failures import EnvironmentFailure, code_of, describe_exception


class IncrementEnv:
    """The example of TRL's documentation (GRPO trainer, "Environments")."""

    def reset(self, **kwargs) -> str | None:
        self.counter = 0
        self.target = random.randint(1, 6)
        return f"Increment the counter by {self.target}."

    def get_reward(self) -> float:
        return float(self.counter == self.target)

    def increment(self, step: int) -> int:
        """
        Increment the internal counter.

        Args:
            step: Value to add to the counter.

        Returns:
            The updated counter value.
        """
        self.counter += step
        return self.counter


class Asks:
    """A rollout begins with a question."""

    def reset(self):
        return "?"


class RowEnv(IncrementEnv):
    """The one that reads the task from a data set's row."""

    def reset(self, target, **kwargs) -> None:  # type: ignore[override]
        self.counter = 0
        self.target = target


class EchoToolEnv:
    """TRL's example without ``get_reward`` (OpenEnv, "Quick start")."""

    def reset(self, **kwargs) -> str | None:
        self.reward = 0.0
        return None

    def echo(self, message: str) -> str:
        """
        Echo the message back from the environment.

        Args:
            message: The message to echo

        Returns:
            The echoed message.
        """
        self.reward = len(message)
        return message


ABSENT = object()


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        (True, {"reward": 1.0}),
        ({"format": 0.5, "right": 1}, {"reward": 1.5, "rewards": {"format": 0.5, "right": 1.0}}),
        ({"reward": 2, "x": 1}, {"reward": 2.0, "rewards": {"reward": 2.0, "x": 1.0}}),
        (None, {"no_reward": "get_reward() returned None"}),
        ("1", {"no_reward": "get_reward() returned a str, which is not a number"}),
        (ABSENT, {"no_reward": "Made has no get_reward()"}),
    ],
)
async def test_reward_is_a_number_or_named_numbers_or_absent(returned, expected):
    async def get_reward(self):
        return returned

    result, _ = await one(made(**{} if returned is ABSENT else {"get_reward": get_reward}), ["!"])
    kept = ("reward", "rewards", "no_reward")
    assert {key: result[key] for key in kept if key in result} == expected


class Unprintable:
    def __str__(self) -> str:
        raise SystemExit(3)


def text_part(text):
    return {"type": "text", "text": text}


PNG = {"type": "image_url", "image_url": {"url": "data:image/png;base64,UE5H"}}
TEXT = text_part("Look:")


class Picture:
    """What an image of Pillow can do."""

    def __init__(self, mode="RGB"):
        self.mode = mode

    def getbands(self):
        return tuple(self.mode)

    def convert(self, mode):
        return Picture(mode)

    def save(self, file, format):
        assert self.mode != "CMYK"
        file.write(format.encode())


class Hostile:
    """Tools that do what tools do."""

    def __init__(self):
        self.done = []

    def reset(self, **row):
        return "Begin."

    def raises(self) -> str:
        """Raise."""
        raise ValueError("Game over.")

    def raises_nothing_to_say(self) -> str:
        """Raise."""
        raise KeyError

    def count(self, timeout_s: int, method: int = 0, name: str = "") -> int:
        """Count, with arguments named as those of a loop might be."""
        self.done.append(timeout_s)
        return len(self.done)

    def get_reward(self):
        return len(self.done)

    def close(self):
        pass


def told(result, number=0):
    answers = [message for message in result["completion"] if message["role"] == "tool"]
    return answers[number]["content"]


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (("raises", {}), "Game over."),
        (("raises_nothing_to_say", {}), "KeyError"),
        (("cuont", {}), "there is no tool 'cuont'; did you mean 'count'? (tools: count, raises"),
        (("functions.count", {"timeout_s": 1}), "there is no tool 'functions.count'"),
        (("reset", {}), "there is no tool 'reset'"),
        (("close", {}), "there is no tool 'close'"),
        (("__init__", {}), "there is no tool '__init__'"),
        (("", {}), "there is no tool ''"),
        (("x" * 10_000, {}), "there is no tool 'xxxx"),
        (("count", "not json"), "the arguments of count are not JSON"),
        (("count", "[1]"), "must be a JSON object"),
        (("count", "{" * 100_000), "not JSON"),
        (("count", '{"timeout_s": ' + "9" * 5_000 + "}"), "not JSON"),
        (("count", "[" + "1," * 500_000), "the arguments have more than 200000 characters"),
        (("count", {}), "count needs timeout_s"),
        (("count", {"timeout_s": 1, "step": 1}), "count has no argument 'step'"),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_the_model_is_told_of_its_mistakes(wanted, said):
    result, model = await one(Hostile, [calls(wanted), "I see."], {}, "tool_errors", "tool_calls")
    assert said in json.loads(told(result))["error"]
    assert result["state"] == {"tool_errors": 1, "tool_calls": 1}
    assert model.asked[1][-1]["content"] == told(result)
    assert (result["reward"], result["stop"]) == (0.0, "answer")
    encode(result)


class Gives(Asks):
    """Its tool returns what the test says."""

    def __init__(self, value):
        self.value = value

    def give(self) -> object:
        """Return something."""
        return self.value


async def given(value):
    """What the model is told of a value that its tool returns, and whether that is an error."""
    result, model = await one(Gives, [calls(("give", {})), "."], None, "tool_errors", value=value)
    assert model.asked[1][-1]["content"] == told(result)
    encode(result)
    return told(result), result["state"]["tool_errors"]


LOOP: list[object] = []
LOOP.append(LOOP)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (object, "<class 'object'>"),
        ("a\ud800b", "a\\ud800b"),
        (LOOP, "[[...]]"),
        ({1}, "{1}"),
        (b"\x00\xff", "b'\\x00\\xff'"),
        (float("nan"), "NaN"),
        ([{"type": "fire", "level": 3}], '[{"type": "fire", "level": 3}]'),
        ({"type": "file", "file": "a.txt"}, '{"type": "file", "file": "a.txt"}'),
        (["a", "b"], '["a", "b"]'),
        ([{"type": "image", "image": "of what"}], '[{"type": "image", "image": "of what"}]'),
    ],
)
async def test_value_that_a_tool_returns_becomes_text(value, text):
    assert await given(value) == (text, 0)


@pytest.mark.parametrize(
    ("value", "parts"),
    [
        ([text_part("seen")], [text_part("seen")]),
        (PNG, [PNG]),
        (["before", PNG, "and after"], [text_part("before"), PNG, text_part("and after")]),
        (Picture(), [PNG]),
        ([{"type": "image", "image": Picture("CMYK")}, text_part("a")], [PNG, text_part("a")]),
    ],
)
async def test_images_that_a_tool_returns_reach_the_model(value, parts):
    """One by itself became the text of its base64."""
    assert await given(value) == (parts, 0)


async def test_value_that_a_tool_returns_is_bounded_and_has_a_text():
    huge = {"type": "image_url", "image_url": {"url": "x" * 20_000_000}}
    for value, why in (([huge], "16000000 are allowed"), (Unprintable(), "has no text")):
        answer, errors = await given(value)
        assert why in json.loads(answer)["error"]
        assert errors == 1
    answer, errors = await given("x" * 1_000_000)
    assert "900000 characters left out" in answer
    assert errors == 0


class Seen:
    """Shows pictures; ``reset`` returns what the test says."""

    def __init__(self, shows):
        self.shows = shows

    def reset(self, prompt=None):
        return self.shows

    def next_message(self, text):
        return None if text == "stop" else Picture()


@pytest.mark.parametrize(
    ("shows", "first"),
    [
        (Picture(), [TEXT, PNG]),
        ([Picture(), "closely"], [TEXT, PNG, text_part("closely")]),
        ([{"role": "user", "content": [{"type": "image", "image": Picture()}]}], [PNG]),
    ],
)
async def test_reset_and_next_message_may_show_images(shows, first):
    kind = type("Shown", (Seen,), {"__init__": lambda self: Seen.__init__(self, shows)})
    result, model = await one(kind, ["a picture", "stop"], "Look:")
    assert model.asked[0][-1] == {"role": "user", "content": first}
    assert model.asked[1][-1] == {"role": "user", "content": [PNG]}
    encode(result)


async def test_a_hundred_tool_calls_in_one_answer():
    many = [("count", {"timeout_s": i, "method": i, "name": "n"}) for i in range(100)]
    result, _ = await one(Hostile, [calls(*many), "."], {}, "tool_calls", "tool_errors")
    assert result["reward"] == 32
    assert result["state"] == {"tool_calls": 100, "tool_errors": 68}
    assert json.loads(told(result, 32))["error"].startswith("not called: an answer may have 32")
    ids = [call["id"] for call in result["completion"][0]["tool_calls"]]
    assert [message["tool_call_id"] for message in result["completion"][1:-1]] == ids


class Timed:
    """Tools that take their time, on a loop and in a thread; keeps the threads of plain methods."""

    begun, release = threading.Event(), threading.Event()
    last: "Timed"

    def __init__(self):
        self.threads = [threading.get_ident()]
        self.closed_after = None
        type(self).last = self

    def reset(self):
        self.threads.append(threading.get_ident())
        return "Begin."

    async def goes_on(self) -> str:
        """Return at once, on the loop."""
        await trio.lowlevel.checkpoint()
        return "on"

    async def never(self) -> None:
        """Never return."""
        self.begun.set()
        await trio.sleep_forever()

    def held(self) -> None:
        """Block a thread until it is released."""
        self.begun.set()
        self.release.wait()
        self.threads.append(threading.get_ident())

    def get_reward(self):
        self.threads.append(threading.get_ident())
        return 1

    def close(self):
        self.threads.append(threading.get_ident())
        self.closed_after = self.release.is_set()


class TimedOnAsyncio(Timed):
    backend = "asyncio"

    async def goes_on(self) -> str:
        """Return at once, on the loop."""
        await asyncio.sleep(0)
        return "on"

    async def never(self) -> None:
        """Never return."""
        self.begun.set()
        await asyncio.sleep(1000)


@pytest.fixture(params=[Timed, TimedOnAsyncio])
def timed(request):
    Timed.begun.clear()
    Timed.release.clear()
    return request.param


async def test_coroutine_that_takes_too_long_is_cancelled_and_told(timed):
    script, limit_s, after = [calls(("never", {}), ("goes_on", {})), "."], 0.05, ""
    while after != "on":
        result, _ = await one(timed, script, tool_timeout_s=limit_s)
        assert json.loads(told(result)) == {"error": f"never took longer than {limit_s:g} s"}
        after = told(result, 1)
        # On a slow machine the other one may take as long.
        assert after == "on" or "goes_on took longer" in after
        limit_s *= 4


async def test_thread_that_takes_too_long_is_told_and_has_the_later_methods(timed):
    def release(messages):
        timed.release.set()
        return "."

    script = [calls(("held", {}), ("goes_on", {})), release]
    with trio.fail_after(30):
        result, _ = await one(timed, script, tool_timeout_s=0.05)
    assert json.loads(told(result)) == {"error": "held took longer than 0.05 s"}
    assert "an earlier call has not ended" in json.loads(told(result, 1))["error"]
    assert (result["reward"], timed.last.closed_after) == (1.0, True)
    assert (len(timed.last.threads), len(set(timed.last.threads))) == (5, 1)


@pytest.mark.parametrize("tool", ["never", "held", "held, and overdue"])
async def test_cancelled_rollout_ends_after_its_thread_and_is_cleaned_up(timed, tool):
    asked_again, ended = trio.Event(), trio.Event()
    is_overdue = tool == "held, and overdue"

    def last(messages):
        asked_again.set()
        return "."

    async def run(scope):
        with scope:
            script = [calls((tool.partition(",")[0], {})), last]
            await one(timed, script, tool_timeout_s=0.05 if is_overdue else 60)
        ended.set()

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            scope = trio.CancelScope()
            nursery.start_soon(run, scope)
            if is_overdue:
                await asked_again.wait()
            else:
                await trio.to_thread.run_sync(timed.begun.wait)
            scope.cancel()
            if tool != "never":
                await trio.testing.wait_all_tasks_blocked(0.05)
                assert not ended.is_set()
                assert timed.last.closed_after is None
                timed.release.set()
            await ended.wait()
    assert scope.cancelled_caught
    assert timed.last.closed_after is (tool != "never")


async def test_asyncio_code_on_trio_is_no_mistake_of_the_models():
    class Wrong(TimedOnAsyncio):
        backend = "trio"

    with pytest.raises(EnvironmentFailure, match="no running event loop") as caught:
        await one(Wrong, [calls(("never", {}))])
    assert 'set backend = "asyncio"' in str(caught.value.exception.__notes__)


class Failing:
    """Raises ``error`` in one of its methods, and is closed all the same."""

    def __init__(self, where, error):
        self.where, self.error = where, error

    def reset(self):
        self._down("reset")
        return "?"

    def ask(self) -> str:
        """Ask the sandbox."""
        self._down("tool")
        return ""

    def get_reward(self):
        self._down("reward")

    def close(self):
        raise OSError("it was closed")

    def _down(self, here):
        if here == self.where:
            raise self.error


DOWN = EnvironmentUnavailable("the sandboxes are down")
DOWN_CODE = "environment-unavailable"


@pytest.mark.parametrize(
    ("where", "error", "code", "told"),
    [
        ("reset", RuntimeError("no sandbox"), "rollout-failed", "RuntimeError: no sandbox"),
        ("tool", SystemExit(4), "rollout-failed", "SystemExit: 4"),
        ("reward", KeyError(7), "scorer-failed", "get_reward() raised KeyError: 7"),
        # A tool's was told the model, and a reward's was put down to the scorer.
        *((where, DOWN, DOWN_CODE, "sandboxes are down") for where in ("reset", "tool", "reward")),
    ],
)
async def test_method_that_raises_fails_the_rollout_and_the_object_is_closed(
    where, error, code, told, caplog
):
    with pytest.raises(EnvironmentFailure) as caught:
        await one(Failing, [calls(("ask", {})), "."], where=where, error=error)
    assert told in str(caught.value)
    assert code_of(caught.value) == code
    assert "Failing.close() failed: OSError: it was closed" in caplog.text


async def test_an_object_that_was_made_while_the_rollout_was_cancelled_is_closed():
    made, release, closed = threading.Event(), threading.Event(), []

    class Slow:
        def __init__(self):
            made.set()
            release.wait()

        def reset(self):
            raise AssertionError("the rollout was cancelled")

        async def close(self):
            await trio.lowlevel.checkpoint()
            closed.append(self)

    async def run(cancelled):
        with cancelled:
            await one(Slow, ["."])

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            scope = trio.CancelScope()
            nursery.start_soon(run, scope)
            await trio.to_thread.run_sync(made.wait)
            scope.cancel()
            release.set()
    assert len(closed) == 1


async def test_a_close_in_a_thread_ends_before_its_rollout(monkeypatch, caplog):
    monkeypatch.setattr(classes, "CLOSE_S", 0.05)
    release, ended = threading.Event(), trio.Event()

    class Slow(Asks):
        def close(self):
            release.wait()

    async def run():
        await one(Slow, ["!"])
        ended.set()

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            while "took longer than" not in caplog.text:
                await trio.sleep(0.01)
            await trio.testing.wait_all_tasks_blocked(0.05)
            assert not ended.is_set()
            release.set()


class Quiz:
    """Several turns without tools."""

    max_turns = 3
    system = "Be brief."

    def __init__(self, word="red"):
        self.word = word
        self.right = 0

    def reset(self, seed=0, prompt=None):
        return [{"type": "text", "text": f" {self.word}?"}]

    def next_message(self, text):
        self.right += text == self.word
        return None if text == "stop" else f"Again: {self.word}?"

    def get_reward(self):
        return {"right": self.right}

    def oracle(self):
        return [self.word, self.word, "stop"]


async def test_a_conversation_without_tools():
    said = ["blue", "blue", "red", "red"]
    result, model = await one(Quiz, said, "Say", word="blue", reward_unfinished="ask")
    assert (result["reward"], result["stop"], result["rewards"]) == (2.0, "max_turns", {"right": 2})
    assert model.asked[0] == [
        {"role": "system", "content": "Be brief."},
        {
            "role": "user",
            "content": [{"type": "text", "text": "Say"}, {"type": "text", "text": " blue?"}],
        },
    ]
    assert model.asked[1][-1] == {"role": "user", "content": "Again: blue?"}
    assert model.tools == [None] * 3


async def test_many_opened_tags_take_no_quadratic_time():
    text = "<tool_call>" * 200_000
    result, _ = await one(EchoToolEnv, [text], "Echo.", "tool_calls")
    assert result["state"]["tool_calls"] == 0
    assert tagged("<a>1</a> <a>2 <a>3</a> </a><a>", "a") == ["1", "2 <a>3"]
    assert without("x<a>1</a>y<a>2 <a>3</a></a><a>", "a") == "xy</a><a>"


UNFINISHED: dict[Any, dict[str, Any]] = {
    # reward_unfinished: what of the result
    None: {
        "no_reward": "the rollout was not finished: max_turns (2) answers were given "
        "(see reward_unfinished)"
    },
    0: {"reward": 0.0},
    -1.5: {"reward": -1.5},
    "ask": {"reward": 1.0},
}


@pytest.mark.parametrize("way", ["argument", "attribute"])
@pytest.mark.parametrize("given", UNFINISHED)
async def test_rollout_whose_turns_ran_out_has_the_reward_that_its_author_says(given, way):
    """It was asked for its reward as if it had been played to its end."""
    script = [calls(("increment", {"step": 1}))]
    kind: type = RowEnv
    args = {"max_turns": 2, "reward_unfinished": given}
    if way == "attribute":
        kind, args = type("Unfinished", (RowEnv,), args), {}
    result, _ = await one(kind, script, {"prompt": "1", "target": 2}, **args)
    kept = ("reward", "no_reward")
    assert {key: result[key] for key in kept if key in result} == UNFINISHED[given]
    assert result["stop"] == "max_turns"
    assert counted_scores(result)[0] == UNFINISHED[given].get("reward")


async def test_an_answer_that_was_cut_off_says_so():
    result, _ = await one(EchoToolEnv, [Completion("Let me", finish_reason="length")], "Echo.")
    assert result["stop"] == "length"


async def test_calls_that_are_written_in_the_text_count():
    text = (
        'First: <tool_call>{"name": "echo", "arguments": {"message": "hi"}}</tool_call> then'
        " <tool_call>nonsense</tool_call><tool_call>[1]</tool_call>"
    )
    result, model = await one(EchoToolEnv, [text, "."], "Echo.", "tool_errors")
    assert told(result) == "hi"
    assert result["state"]["tool_errors"] == 2
    answer = model.asked[1][1]
    assert answer["content"] == "First:  then"
    assert [call["id"] for call in answer["tool_calls"]] == [
        "written-1-1", "written-1-2", "written-1-3",
    ]  # fmt: skip


class Solved(IncrementEnv):
    def oracle(self):
        half = self.target // 2
        return [
            [{"name": "increment", "arguments": {"step": half}},
             {"name": "increment", "arguments": {"step": self.target - half}}],
            "done",
        ]  # fmt: skip


async def test_offline_the_oracle_is_right_and_garbage_is_not():
    rewards: dict[str, list[float]] = {"oracle": [], "random": []}
    async with running(Solved) as run:
        for endpoint, found in rewards.items():
            for _ in range(30):
                found.append((await run({}, endpoint=endpoint))["reward"])
    assert sum(rewards["oracle"]) == 30
    assert sum(rewards["random"]) < 15
    async with running(IncrementEnv) as run:
        with pytest.raises(EnvironmentFailure, match="this task has none") as caught:
            await run({}, endpoint="oracle")
    failure = caught.value
    assert isinstance(failure.exception, ModelError)
    # It was put down to the engine, with frames of this package, and named what no class calls.
    assert code_of(failure) == "rollout-failed"
    described = describe_exception(failure)
    assert "write a method oracle(self) in a class of tools" in described.message
    assert 'File "' not in described.traceback


@pytest.mark.parametrize(
    ("environment", "given", "said"),
    [
        (RowEnv, {"prompt": "?"}, "the input does not fit reset(): missing a required argument"),
        (Quiz, {"sed": 1}, "the input does not fit reset(): got an unexpected keyword"),
        (RowEnv, {"target": 1}, "there is no prompt: reset() returned nothing, and the input has"),
        (RowEnv, {"target": 1, "prompt": [3]}, "the input's prompt must be text or a list of"),
        (RowEnv, 3, "an input is a mapping, passed to reset() by name, or the prompt as text"),
        (RowEnv, {1: 2}, "an input is a mapping"),
    ],
)
async def test_inputs_that_do_not_fit(environment, given, said):
    with pytest.raises(EnvironmentFailure) as caught:
        await one(environment, ["."], given)
    assert said in str(caught.value)


def test_inputs_of_a_class():
    class Own(RowEnv):
        @staticmethod
        def inputs(n, seed):
            return [{"target": seed + i} for i in range(n)]

    assert load(Own).inputs(2, 5) == [{"target": 5}, {"target": 6}]
    assert load(IncrementEnv).inputs(2) == [{}, {}]
    assert load(Quiz).inputs(2, 7) == [{"seed": 7}, {"seed": 8}]
    with pytest.raises(ConfigError, match=r"RowEnv has no inputs\(n, seed\).*needs target"):
        load(RowEnv).inputs(2)


def test_classes_by_name(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setitem(sys.modules, "envserve_classes", None)  # put back at the end
    monkeypatch.delitem(sys.modules, "envserve_classes")
    file = tmp_path / "envserve_classes.py"
    file.write_text(
        "class Env:\n    name = 'mine'\n    rerun = True\n    def reset(self): return '?'\n"
        "class Other: pass\ndef f(): pass\n"
    )
    for spec in (f"class:{file}:Env", f"{file}:Env"):
        found = load(spec)
        assert (found.name, found.rerun, found.backend) == ("mine", True, "trio")
    for name, why in [("Other", "has no reset()"), ("f", "it is no class")]:
        with pytest.raises(ConfigError, match="must name a class with reset") as caught:
            load(f"class:{file}:{name}")
        assert why in str(caught.value)


def made(**members):
    return type("Made", (Asks,), members)


@pytest.mark.parametrize(
    ("kind", "args", "said"),
    [
        (made(), {"max_turns": 0}, "max_turns is a whole number, 1 or more, not 0"),
        (made(), {"max_turn": 3}, "did you mean 'max_turns'"),
        (made(max_turns="3"), {}, "max_turns is a whole number, 1 or more, not '3'"),
        (made(), {"tool_timeout_s": float("nan")}, "tool_timeout_s is a number of seconds above 0"),
        (made(), {"system": 3}, "system is a text, not 3"),
        (made(), {"reward_unfinished": "sum"}, "reward_unfinished must be a number, or"),
        (made(), {"reward_unfinished": True}, "reward_unfinished must be a number, or"),
        (made(), {"reward_unfinished": float("nan")}, "reward_unfinished must be a number, or"),
        (made(backend="gevent"), {}, "backend must be one of trio, thread, asyncio"),
        (made(main_thread=1), {}, "main_thread must be True or False, not 1"),
        (made(main_thread=True, backend="asyncio"), {}, "its coroutines run on trio, not on"),
        (made(get_reward=1.0), {}, "Made.get_reward must be a method, not float"),
        (made(inputs=lambda self, n, seed: []), {}, "make it a @staticmethod"),
        (made(move=lambda self: 1), {}, "Made.move is a public method, so it is a tool"),
        (Quiz, {"wrod": "x"}, "did you mean 'word'"),
    ],
)
def test_classes_that_make_no_sense(kind, args, said):
    with pytest.raises(ConfigError) as caught:
        load(kind, args)
    assert said in str(caught.value)


class Idents:
    """Notes the thread of each call."""

    def __init__(self):
        self.seen = [threading.get_ident()]
        self.db = sqlite3.connect(":memory:")
        self.kept = contextvars.ContextVar("kept", default=0)

    def reset(self):
        self.db.execute("create table t (x)")
        self.noted()
        return "Go."

    def step(self, n: int) -> str:
        """Step."""
        self.noted()
        self.db.execute("insert into t values (?)", (n,))
        return "ok"

    def noted(self) -> None:
        """Note."""
        self.seen.append(threading.get_ident())
        self.kept.set(self.kept.get() + 1)

    def next_message(self, text):
        self.noted()

    def oracle(self):
        self.noted()
        yield ""
        self.noted()
        yield ""

    def get_reward(self):
        self.noted()
        return self.db.execute("select sum(x) from t").fetchone()[0]

    def rollout_state(self):
        self.noted()
        return {"threads": len(set(self.seen)), "kept": self.kept.get()}

    def close(self):
        self.noted()
        self.db.close()
        LAST.append((self.seen[0], len(set(self.seen))))

    def __del__(self):
        LAST.append((threading.get_ident(), 0))


LAST: list[tuple[int, int]] = []


class IdentsOnAsyncio(Idents):
    backend = "asyncio"


@pytest.mark.parametrize("kind", [Idents, IdentsOnAsyncio])
async def test_methods_of_one_object_all_run_in_one_thread(kind):
    """Each may have run in another thread: of 64 rollouts with SQLite, 62 failed."""
    LAST.clear()
    results = []

    async def some():
        script = [calls(("step", {"n": 1}), ("step", {"n": 2})), "."]
        results.append((await one(kind, script, {}, "threads", "kept"))[0])

    async with trio.open_nursery() as nursery:
        for _ in range(16):
            nursery.start_soon(some)
    assert [result["reward"] for result in results] == [3.0] * 16
    assert [result["state"] for result in results] == [{"threads": 1, "kept": 8}] * 16
    closed, dropped = [x for x in LAST if x[1]], [x for x in LAST if not x[1]]
    assert {count for _, count in closed} == {1}
    assert {ident for ident, _ in closed} == {ident for ident, _ in dropped}
    for thread in threading.enumerate():
        if thread.name == "request r":
            thread.join(10)
            assert not thread.is_alive()


@pytest.mark.parametrize("turns", ["42", ["42"], ("42",), iter(["42"])])
async def test_oracle_that_returns_one_text_answers_with_all_of_it(turns):
    """A text was taken for its letters, one a turn."""

    class Sum:
        def reset(self):
            return "40 + 2"

        def next_message(self, text):
            self.said = text

        def oracle(self):
            return turns

        def get_reward(self):
            return self.said == "42"

    async with running(Sum) as run:
        assert (await run({}, endpoint="oracle"))["reward"] == 1.0


async def test_context_variable_of_a_caller_is_there_during_its_call_only():
    """The span of a tool, say: what the object's own code sets stays besides."""
    span, own = contextvars.ContextVar("span", default=0), contextvars.ContextVar("own", default=0)
    methods = TrioMethods(ObjectThread(""))

    def seen():
        own.set(own.get() + 1)
        return span.get(), own.get()

    assert (await methods.call(seen)).value == (0, 1)
    token = span.set(7)
    assert (await methods.call(seen)).value == (7, 2)
    span.reset(token)
    assert (await methods.call(seen)).value == (0, 3)
    assert own.get() == 0
    await methods.end(list)


class AllOnLoop:
    """Coroutines only: what ``__init__`` makes belongs to the loop."""

    def __init__(self):
        self.made = threading.get_ident()

    async def reset(self):
        return "?"

    async def where(self) -> str:
        """Say the thread."""
        return str(threading.get_ident() == self.made)

    async def get_reward(self):
        return threading.get_ident() == self.made

    async def close(self):
        LAST.append((self.made, threading.get_ident()))


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
async def test_object_with_coroutines_only_is_made_on_their_loop(backend):
    kind = type("OnLoop", (AllOnLoop,), {"backend": backend})
    result, _ = await one(kind, [calls(("where", {})), "."])
    assert (told(result), result["reward"]) == ("True", 1.0)
    made_in, closed_in = LAST[-1]
    assert closed_in == made_in


def alarmed() -> bool:
    """As math_verify has it: a time limit by SIGALRM."""
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    signal.alarm(5)
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
    return True


class AlarmedTool(Asks):
    def parse(self) -> bool:
        """Parse."""
        return alarmed()


class Alarmed(AlarmedTool):
    def get_reward(self):
        return alarmed()


class AlarmedInMain(Alarmed):
    main_thread = True

    def get_reward(self):
        return alarmed() and threading.current_thread() is threading.main_thread()


@pytest.mark.parametrize("where", ["reward", "tool"])
async def test_signals_in_a_thread_fail_the_rollout_and_name_the_way(where):
    """A tool's was told the model as its own mistake."""
    kind = Alarmed if where == "reward" else AlarmedTool
    with pytest.raises(EnvironmentFailure, match="signal only works in main thread") as caught:
        await one(kind, [calls(("parse", {})), "."] if where == "tool" else ["."])
    assert "main_thread = True" in "".join(traceback.format_exception(caught.value.exception))


async def test_class_that_says_so_runs_in_the_main_thread_one_rollout_at_a_time(caplog):
    caplog.set_level("INFO")
    model = Scripted([calls(("parse", {})), "."])
    results = []
    async with running(AlarmedInMain, model) as run:

        async def some():
            results.append(await run())

        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(some)
    assert [(told(each), each["reward"]) for each in results] == [("true", 1.0)] * 4
    assert [len(asked) for asked in model.asked] == [1, 3] * 4
    assert "this worker runs one rollout at a time" in caplog.text


class AlarmlessInMain(Asks):
    main_thread = True

    def parse(self) -> bool:
        """Parse."""
        return True


class LeavesItsAlarm(Asks):
    main_thread = True

    def parse(self) -> bool:
        """Parse."""
        signal.alarm(600)
        raise ValueError("before the alarm was taken back")

    def get_reward(self):
        return signal.getitimer(signal.ITIMER_REAL)[0]


async def test_an_alarm_that_a_method_left_hit_the_loop_or_the_next_rollout():
    try:
        result, _ = await one(LeavesItsAlarm, [calls(("parse", {})), "."])
    finally:
        signal.alarm(0)
    assert "before the alarm was taken back" in told(result)
    assert result["reward"] == 0.0


async def test_the_alarm_of_the_program_around_was_taken_back_by_each_method():
    """That of a test that is not to hang, say, whose environment runs in its process."""
    signal.setitimer(signal.ITIMER_REAL, 600)
    try:
        await one(AlarmlessInMain, [calls(("parse", {})), "."])
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 0
    finally:
        signal.alarm(0)


async def test_main_thread_is_refused_where_the_loop_has_another():
    def elsewhere():
        trio.run(one, AlarmedInMain, ["."])

    with pytest.raises(ConfigError, match="the loop here runs in another thread"):
        await trio.to_thread.run_sync(elsewhere)


async def test_tools_that_init_binds_are_tools():
    """TRL finds the bound methods of the object; they were no tools, without a word."""

    class Client:
        def search(self, query: str) -> str:
            """Search.

            Args:
                query: What for.
            """
            return f"found {query}"

    def added(self, n: int) -> int:
        """Add."""
        return int(self.step(n))

    class Binds(Asks):
        def __init__(self):
            self.search = Client().search
            self.function = len
            self._private = Client().search
            vars(self)["hides"] = 3
            type(self).added = added  # type: ignore[attr-defined]  # as TRL's OpenReward does

        def hides(self) -> str:
            """Be hidden by an attribute of the object."""
            return ""

        def step(self, n: int) -> int:
            """Step."""
            return n

        @functools.lru_cache  # noqa: B019  # as users write it
        def kept(self, n: int) -> int:
            """Keep."""
            return n

        @staticmethod
        def static(n: int) -> int:
            return n

        @property
        def raises(self) -> int:
            raise AssertionError

    script = [calls(("search", {"query": "x"}), ("added", {"n": 4}), ("kept", {"n": 5})), "."]
    result, model = await one(Binds, script)
    names = [tool["function"]["name"] for tool in model.tools[0]]
    assert names == ["added", "kept", "search", "step"]
    assert [told(result, i) for i in range(3)] == ["found x", "4", "5"]


async def test_bound_tool_without_a_docstring_fails_with_words():
    kind = made(__init__=lambda self: setattr(self, "move", self._move), _move=lambda self: None)
    with pytest.raises(EnvironmentFailure, match=r"Made\.move is a public method, so it is"):
        await one(kind, ["."])


def takes_no_text(self, n: int) -> str:
    return ""


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("close", lambda self, file: ""),
        ("oracle", lambda self, n: ""),
        ("rollout_state", lambda self, *, key: ""),
        ("get_reward", lambda self, action: ""),
        ("inputs", staticmethod(lambda n: [])),
        ("next_message", lambda self: ""),
        ("next_message", takes_no_text),
    ],
)
def test_reserved_name_with_other_arguments_is_refused_by_name(name, method):
    """A tool of such a name was none, or failed each rollout."""
    with pytest.raises(ConfigError, match=rf"Made\.{name}.*the name {name} is reserved.*{name}_it"):
        load(made(**{name: method}))


def yields(self, *given):
    yield "more"


async def ayields(self, *given):
    yield "more"


@pytest.mark.parametrize("method", [yields, ayields])
@pytest.mark.parametrize("name", ["reset", "get_reward", "next_message", "close"])
def test_reserved_method_with_a_yield_is_refused(name, method):
    """The model was told "<generator object ...>", and close() did nothing."""
    with pytest.raises(ConfigError, match=rf"Made\.{name} is a generator function"):
        load(made(**{name: method}))


def test_reserved_methods_may_be_written_in_many_ways():
    class Fits:
        def reset(self, **row):
            return "?"

        def next_message(self, said: "str | None" = None, *more):
            pass

        @classmethod
        def oracle(cls, *turns):
            yield ""

        @staticmethod
        def rollout_state(key=3):
            return {}

        async def close(self, *, now=False):
            pass

    assert load(Fits).environment.tools == {}


def test_tools_and_arguments_may_be_named_like_attributes_and_options():
    """A tool called `rerun` was refused as no boolean, one called `backend` as no backend."""

    class Named(Asks):
        def __init__(self, max_turns=1):
            self.max_turns = max_turns

        def rerun(self) -> None:
            """Run again."""

        system = backend = main_thread = capacity = rerun

    found = load(Named, {"max_turns": 5, "tool_timeout_s": 2})
    assert (found.rerun, found.backend) == (False, "trio")
    assert list(found.environment.tools) == [
        "backend", "capacity", "main_thread", "rerun", "system",
    ]  # fmt: skip
    assert found.environment.options.max_turns == 16
    assert found.environment.options.tool_timeout_s == 2


def test_method_of_a_task_that_is_cancelled_twice_is_waited_for():
    """The second cancel, of a limit of the code's own, left the method running without it."""
    begun, may_end, ended = threading.Event(), threading.Event(), []

    def slowly():
        begun.set()
        may_end.wait(60)
        ended.append(True)

    async def main():
        task = asyncio.ensure_future(AsyncioMethods(ObjectThread("")).call(slowly))
        await asyncio.to_thread(begun.wait)
        for _ in range(2):
            task.cancel()
            await asyncio.wait((task,), timeout=0.01)
        was_done = task.done()
        may_end.set()
        await asyncio.wait((task,))
        assert (was_done, ended, task.cancelled()) == (False, [True], True)

    asyncio.run(main())

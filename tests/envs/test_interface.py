"""What an environment's author is promised about results, rollouts and notes."""

import copy
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest

import trio_envserve.envs.interface as interface
from tests.envs.scripted import a_rollout, one, running
from trio_envserve.core import notes
from trio_envserve.envs import RolloutCancelled, trim_state
from trio_envserve.envs.interface import Rollout
from trio_envserve.envs.notes import RolloutNotes
from trio_envserve.models.interface import BlockingModel, Completion

RESULT = {"reward": 1.0, "state": {"a": 1, "b": 2}}


@pytest.mark.parametrize(
    ("value", "columns", "trimmed"),
    [
        (RESULT, ("a",), {"reward": 1.0, "state": {"a": 1}}),
        (RESULT, (), {"reward": 1.0}),
        ({}, ("a",), {"state": {"a": None}}),
        ({"state": None}, ("a",), {"state": {"a": None}}),
        ({"state": {"b": 1}}, ("a",), {"state": {"a": None}}),
        (None, ("a",), None),
        ("state", ("a",), "state"),
        ([1, 2], ("a",), [1, 2]),
    ],
)
def test_result_has_the_wanted_columns_of_its_state_and_no_other(value, columns, trimmed):
    before = copy.deepcopy(value)
    assert trim_state(value, columns) == trimmed
    assert value == before


def test_a_state_that_is_no_mapping_is_refused():
    with pytest.raises(TypeError, match="'state' must be a mapping, not list"):
        trim_state({"state": [1]}, ())


def test_a_cancelled_rollout_is_not_caught_as_an_exception():
    assert not issubclass(RolloutCancelled, Exception)


@pytest.mark.parametrize("messages", ["What is it?", {"role": "user", "content": "What?"}])
async def test_messages_that_are_no_list_are_told(messages):
    """The offline models answered, and an endpoint got a list of letters."""
    with pytest.raises(TypeError, match="messages are a list, such as"):
        await a_rollout().ask(messages, reference="5")


async def test_ask_sync_is_for_threads():
    with pytest.raises(TypeError, match="await ask"):
        a_rollout().ask_sync([])


def test_importing_environments_imports_nothing_large():
    code = (
        "import sys, trio_envserve.envs, trio_envserve.models\n"
        "large = {'numpy', 'hypothesis', 'rich', 'click', 'torch', 'reasoning_gym', 'zmq',"
        " 'asyncio', 'importlib.metadata'}\n"
        "print(sorted(large & set(sys.modules)))"
    )
    root = Path(interface.__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=root
    )
    assert done.stdout.strip() == "[]"


# -- prompt and usage, which are recorded without the environment's code ---------------

ASKED = [{"role": "system", "content": "Add."}, {"role": "user", "content": "1 + 1 \ud83d"}]
SEEN = [ASKED[0], {"role": "user", "content": "1 + 1 \\ud83d"}]


class Adds:
    """Asks once, goes on talking, and returns what its input says."""

    async def run_rollout(self, rollout: Any) -> Any:
        talk = [dict(each) for each in ASKED]
        if rollout.input["asks"]:
            talk.append((await rollout.ask(talk, reference="2")).message)
            talk.append({"role": "user", "content": "Sure?"})
            await rollout.ask(talk, reference="2")
        return rollout.input["returns"]


class AddsByThread:
    """The same in a thread."""

    def run_rollout(self, rollout: Any) -> Any:
        rollout.ask_sync([dict(each) for each in ASKED], reference="2")
        return rollout.input["returns"]


class InGroups(Adds):
    """The same in a group that runs itself."""

    async def run_group(self, rollouts: Any) -> Any:
        return [await self.run_rollout(each) for each in rollouts]


async def run(environment: Any, given: Any, **kind: str) -> Any:
    async with running(environment) as asked:
        return await asked(given, endpoint="oracle", **kind)


@pytest.mark.parametrize(("environment", "calls"), [(Adds(), 2), (AddsByThread(), 1)])
async def test_prompt_and_usage_are_recorded_by_themselves(environment: Any, calls: int):
    result = await run(environment, {"asks": True, "returns": {"reward": 1.0}})
    assert (result["prompt"], result["usage"]["calls"], result["reward"]) == (SEEN, calls, 1.0)


async def test_another_model_than_was_asked_answered_without_a_word():
    answers = [Completion("2"), Completion("2", answered_by="small")]
    result, _ = await one(Adds(), answers, {"asks": True, "returns": {"reward": 1.0}})
    assert result["answered_by"] == ["small"]


async def test_prompt_and_usage_of_a_group_are_recorded():
    (record,) = await run(InGroups(), [{"asks": True, "returns": {"reward": 1.0}}], kind="group")
    assert (record["value"]["prompt"], record["value"]["usage"]["calls"]) == (SEEN, 2)


@pytest.mark.parametrize(
    ("asks", "returns"),
    [
        (False, {"reward": 1.0}),
        (True, None),
        (True, [1, 2]),
        (True, {"reward": 1.0, "usage": {"calls": 7}, "prompt": "mine"}),
    ],
)
async def test_a_result_that_has_them_or_is_none_stays_as_it_is(asks: bool, returns: Any):
    assert await run(Adds(), {"asks": asks, "returns": returns}) == returns


async def test_a_completion_that_begins_with_the_prompt_has_it_already():
    returns = {"completion": [*SEEN, {"role": "assistant", "content": "2"}]}
    result = await run(Adds(), {"asks": True, "returns": returns})
    assert set(result) == {"completion", "usage"}


async def test_completion_of_arrays_failed_its_rollout():
    """They were compared with the messages of the prompt."""
    numpy = pytest.importorskip("numpy")
    returns = {"completion": [numpy.array([1, 2]), numpy.array([3, 4])]}
    result = await run(Adds(), {"asks": True, "returns": returns})
    assert [each.tolist() for each in result["completion"]] == [[1, 2], [3, 4]]
    assert result["prompt"] == SEEN


# -- notes as an environment writes them, and what is added to them by itself ---------


class Counting(BlockingModel):
    """A model that counts, on a loop and in a thread, and keeps how it was asked."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    async def complete(self, messages: Any, **how: Any) -> Completion:
        return self.complete_sync(messages, **how)

    def complete_sync(self, messages: Any, **how: Any) -> Completion:
        self.asked.append((messages, how))
        return Completion(text="5", prompt_tokens=30, completion_tokens=4)

    async def aclose(self) -> None:
        pass


def noting(**always: notes.Plain) -> tuple[Rollout, list[notes.Note]]:
    """A rollout, and the notes that it keeps."""
    kept: list[notes.Note] = []
    write = RolloutNotes(lambda note: kept.append(notes.decode(note)), **always)
    return a_rollout(model=Counting(), note=write), kept


async def test_model_calls_of_both_kinds_are_equal_and_noted_by_themselves():
    rollout, kept = noting()
    await rollout.ask(ASKED, tools=[{"type": "function"}], reference="5")
    rollout.ask_sync(ASKED, tools=[{"type": "function"}], reference="5")
    assert kept == [{"turn": 1, "tokens": 34}, {"turn": 2, "tokens": 68}]
    how = {"name": "m", "sampling_args": {"tools": [{"type": "function"}]}, "reference": "5"}
    assert cast("Counting", rollout.model).asked == [(ASKED, how)] * 2


async def test_what_the_code_says_itself_stays_when_more_is_added():
    rollout, kept = noting(attempt=2)
    rollout.note(text="thinks", turn="of five")
    await rollout.ask([])
    rollout.note(text="done")
    assert kept == [
        {"attempt": 2},
        {"attempt": 2, "text": "thinks", "turn": "of five"},
        {"attempt": 2, "text": "thinks", "turn": "of five", "tokens": 34},
        {"attempt": 2, "text": "done", "turn": 1, "tokens": 34},
    ]


def test_a_tool_is_noted_until_it_has_ended():
    rollout, kept = noting()
    rollout.note.add(tool="search")
    rollout.note.add(tool=None)
    assert kept == [{"tool": "search"}, {}]


def test_note_that_cannot_be_is_forgotten_and_only_the_codes_own_is_refused():
    rollout, kept = noting()
    with pytest.raises(TypeError):
        rollout.note(text=b"bytes")  # type: ignore[arg-type]  # as a caller may
    rollout.note.add(turn=object())  # type: ignore[arg-type]  # as a model may count
    rollout.note.add(turn=1)
    assert kept == [{"turn": 1}]


def test_where_nobody_keeps_notes_mistakes_show_all_the_same():
    rollout = a_rollout()
    assert not rollout.cancelled()
    rollout.note(turn=1)
    rollout.note.add(tool="search")
    with pytest.raises(TypeError):
        rollout.note(turn=[1])  # type: ignore[arg-type]  # as a caller may

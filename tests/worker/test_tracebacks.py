"""What the author of an environment is shown of their mistake, and what not."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest
import trio

from tests.memory import ADDRESS, pair, virtual
from trio_envserve import EnvironmentBroken, RolloutFailed, open_client, open_server
from trio_envserve.envs import arithmetic
from trio_envserve.net import MemoryNetwork
from trio_envserve.worker import tracebacks
from trio_envserve.worker.tracebacks import has_own_frames, own_frames


def divides(rollout: Any) -> float:
    return 1 / int(rollout.input)


async def divides_later(rollout: Any) -> float:
    return divides(rollout)


async def asks_nonsense(rollout: Any) -> str:
    return str(await rollout.model.complete(object()))


class Asyncio:
    backend = "asyncio"

    async def run_rollout(self, rollout: Any) -> float:
        return divides(rollout)


async def failure_of(environment: Any) -> RolloutFailed:
    async with pair(environment) as (_, client):
        with pytest.raises(RolloutFailed) as caught:
            await client.run_rollout(0)
    return caught.value


def files_of(text: str) -> list[str]:
    return [line.split('"')[1] for line in text.splitlines() if line.startswith('  File "')]


@pytest.mark.parametrize("environment", [divides, divides_later, Asyncio])
async def test_the_traceback_of_a_rollout_has_only_the_authors_frames(environment: Any):
    """It began with a dozen frames of this package, trio and threads, in a field that nobody
    printed."""
    error = await failure_of(environment)
    assert error.info is not None
    assert {*files_of(error.info.traceback)} == {__file__}
    line = divides.__code__.co_firstlineno + 1
    where = f"ZeroDivisionError: division by zero at test_tracebacks.py:{line} in divides"
    assert where in str(error)
    assert "return 1 / int(rollout.input)" in "".join(traceback.format_exception(error))
    # What this package raises is shown where it was called.
    error = await failure_of(asks_nonsense)
    assert error.info is not None
    assert {*files_of(error.info.traceback)} == {__file__}


async def parses_nonsense(rollout: Any) -> Any:
    return json.loads("{")


async def sends_a_number(rollout: Any) -> None:
    async with rollout.process(["cat"]) as talk:
        await talk.send("text")
        assert await talk.receive() == b"text"
        await talk.send(7)


@pytest.mark.parametrize(
    ("environment", "line", "text"),
    [
        (parses_nonsense, 1, ""),
        (sends_a_number, 4, "the input of a command is bytes or text, not int"),
    ],
)
async def test_mistake_in_a_call_of_a_library_is_placed_at_the_authors_line(
    environment: Any, line: int, text: str
):
    """It was placed in the library: "memoryview: ... at _unix_pipes.py:139", of text, too."""
    line += environment.__code__.co_firstlineno
    told = str(await failure_of(environment))
    assert f" at test_tracebacks.py:{line} in {environment.__name__}" in told
    assert text in told


async def enters_nonsense(rollout: Any) -> None:
    async with rollout.sandbox("no such provider"):
        pass


async def enters_a_sandbox_without_an_image(rollout: Any) -> None:
    async with rollout.sandbox("docker"):
        pass


async def names_a_wrong_size(rollout: Any) -> None:
    rollout.sandbox("bubblewrap", memory_bytes="1g")


@pytest.mark.parametrize(
    "environment", [enters_nonsense, enters_a_sandbox_without_an_image, names_a_wrong_size]
)
async def test_mistake_in_a_sandbox_is_placed_at_the_authors_line(environment: Any):
    """It was placed in contextlib, or in the generated __init__ of a dataclass."""
    line = environment.__code__.co_firstlineno + 1
    where = f" at test_tracebacks.py:{line} in {environment.__name__}"
    assert where in str(await failure_of(environment))


MINE = "/home/author/environment.py"
OURS = tracebacks.__file__
BUILT_IN = arithmetic.__file__
TRIO = os.path.join(os.path.dirname(trio.__file__), "_core", "_run.py")
THREADS = threading.__file__
BLOCKS = contextlib.__file__
IMPORTS = "<frozen importlib._bootstrap>"


def traceback_through(*files: str) -> TracebackType:
    """Of an exception that has passed through functions of these files, the outermost first."""
    text = "def call(rest):\n if not rest: raise ValueError\n rest[0](rest[1:])"
    calls = []
    for file in files:
        names: dict[str, Any] = {}
        exec(compile(text, file, "exec"), names)
        calls.append(names["call"])
    with pytest.raises(ValueError) as caught:  # it says nothing
        calls[0](calls[1:])
    assert caught.tb.tb_next is not None
    return caught.tb.tb_next


@pytest.mark.parametrize(
    ("files", "kept", "own"),
    [
        ([TRIO, OURS, MINE, OURS, TRIO], [MINE, TRIO], True),
        ([THREADS, IMPORTS, MINE, IMPORTS, THREADS], [MINE, IMPORTS, THREADS], True),
        ([OURS, BUILT_IN, OURS], [BUILT_IN], True),
        ([OURS, MINE, TRIO, MINE], [MINE, TRIO, MINE], True),
        ([MINE, TRIO, THREADS], [MINE, TRIO, THREADS], True),
        ([OURS, MINE, BLOCKS, OURS, BLOCKS, OURS], [MINE], True),
        ([OURS, MINE, BLOCKS, MINE], [MINE, BLOCKS, MINE], True),
        ([TRIO, OURS, THREADS, IMPORTS], [TRIO, OURS, THREADS, IMPORTS], False),
        ([THREADS], [THREADS], False),
    ],
)
def test_only_what_stands_before_the_author_and_this_package_is_left_out(
    files: list[str], kept: list[str], own: bool
):
    tb = traceback_through(*files)
    assert [frame.filename for frame in traceback.extract_tb(own_frames(tb))] == kept
    assert has_own_frames(tb) is own
    if kept == files:
        assert own_frames(tb) is tb
    assert not has_own_frames(None)


def test_author_in_a_folder_with_the_name_of_this_package_was_left_out():
    mine = "/home/trio_envserve/envs/mine.py"
    tb = traceback_through(OURS, mine, MINE)
    assert [frame.filename for frame in traceback.extract_tb(own_frames(tb))] == [mine, MINE]


MISTAKES = {
    "a name that is not there": (
        "def make():\n    return undefined\n", "NameError: name 'undefined' is not defined",
        "return undefined",
    ),
    "an import that fails": (
        "import no_such_framework\ndef make(): ...\n", "No module named 'no_such_framework'",
        "import no_such_framework",
    ),
    "a syntax error": ("def make(:\n    pass\n", "SyntaxError", "def make(:"),
    "a factory that raises": (
        "def make():\n    raise ValueError('no disk')\n", "ValueError: no disk",
        "raise ValueError('no disk')",
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
@virtual
async def test_a_broken_environment_ends_a_call_with_the_place(
    mistake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    text, said, line = MISTAKES[mistake]
    name = f"broken_{abs(hash(mistake))}"
    (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    async with pair(f"{name}:make") as (server, client):
        with pytest.raises(EnvironmentBroken) as caught:
            await client.run_rollout(1)
        for wait_ready in (client.wait_ready, server.wait_ready):
            with pytest.raises(EnvironmentBroken):
                await wait_ready()
    assert said in str(caught.value)
    note = "\n".join(caught.value.__notes__)
    assert line in note
    assert {Path(file).name for file in files_of(note)} <= {f"{name}.py"}


def lacks_an_argument(size: int = 3) -> object:
    raise AssertionError


@pytest.mark.parametrize(
    ("environment", "args", "hint"),
    [
        (lacks_an_argument, {"sise": 1}, "did you mean 'size'"),
        (lambda r: r.input, {}, 'calls its first parameter "rollout"'),
    ],
    ids=["argument", "parameter"],
)
async def test_a_function_with_another_name_in_its_head_ends_a_call(
    environment: Any, args: dict[str, int], hint: str
):
    network = MemoryNetwork()
    async with (
        open_server(environment, args=args, bind=ADDRESS, workers=0, network=network),
        open_client(ADDRESS, network=network) as client,
    ):
        with pytest.raises(EnvironmentBroken, match=hint):
            await client.run_rollout(1)


def calls_trio(rollout: Any) -> None:
    import trio

    trio.lowlevel.current_task()


async def sleeps_on_asyncio(rollout: Any) -> None:
    import asyncio

    await asyncio.sleep(0.01)


class SleepsOnTrio:
    backend = "asyncio"

    async def run_rollout(self, rollout: Any) -> None:
        await trio.sleep(0.01)


async def forgets_to_await(rollout: Any) -> Any:
    async def answer() -> str:
        return "5"

    given: Any = answer()
    try:
        return given.text
    finally:
        given.close()


async def takes_it_for_the_input(rollout: Any) -> Any:
    return rollout["question"]


async def awaits_a_process(rollout: Any) -> Any:
    return await rollout.process(["true"])


async def never_enters_a_sandbox(rollout: Any) -> Any:
    return await rollout.sandbox("bubblewrap").exec(["true"])


def takes_it_for_the_input_in_a_thread(rollout: Any) -> Any:
    return rollout.get("question")


@pytest.mark.parametrize(
    ("environment", "hint"),
    [
        (calls_trio, "coroutine function"),
        (SleepsOnTrio, "trio code"),
        (sleeps_on_asyncio, 'set backend = "asyncio"'),
        (forgets_to_await, "await rollout.ask(...)"),
        (forgets_to_await, "A plain function calls the one with _sync"),
        (awaits_a_process, "A block is entered: async with"),
        (never_enters_a_sandbox, "A block is entered: async with"),
        (takes_it_for_the_input, "is rollout.input"),
        (takes_it_for_the_input_in_a_thread, "is rollout.input"),
    ],
)
async def test_who_makes_a_common_mistake_is_told_what_to_write(environment: Any, hint: str):
    error = await failure_of(environment)
    assert hint in "\n".join(error.__notes__)

"""``trio-envserve init``: a first environment, with a test, that runs as it is."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import keyword
import os
import sys
from pathlib import Path

from ..core.errors import ConfigError
from ..options import argument
from .common import OK, Result
from .verbs import VerbOptions, verb

_ENVIRONMENT = '''\
"""An environment: reverse a word."""

import random

WORDS = ["retry", "rollout", "session", "worker", "reward", "request", "outcome", "lease"]


class Reverse:
    """Asks for a word backwards; the reward is the share of its letters that are right."""

    name = "reverse"
    rerun = True  # a rollout may be run again after its worker was proven dead

    async def run_rollout(self, rollout):
        word = rollout.input["word"]
        right = word[::-1]
        question = {"role": "user", "content": f"Write {word!r} backwards. Only the word."}
        # `reference` is for tests without a model: `--model oracle` answers with it.
        answer = await rollout.ask([question], reference=right)
        said = answer.text.strip()
        return {
            "reward": sum(a == b for a, b in zip(said, right)) / max(len(said), len(right)),
            "completion": [question, answer.message],
            "state": {"right": right},
        }

    def inputs(self, n, seed):
        """The inputs of `eval`: n of them, which follow from the seed."""
        rng = random.Random(seed)
        return [{"word": rng.choice(WORDS)} for _ in range(n)]
'''

_TEST = '''\
"""Tests of the environment, without a model: the oracle is right, and random is wrong."""

import trio
from trio_envserve import open_client, open_server

from reverse import Reverse


def rewards(model):
    async def main():
        async with (
            open_server(Reverse, workers=0) as server,
            open_client(server.address) as client,
        ):
            return [
                (await client.run_rollout(each, model=model))["reward"]
                for each in Reverse().inputs(8, seed=0)
            ]

    return trio.run(main)


def test_right_answers_get_the_whole_reward():
    assert rewards("oracle") == [1.0] * 8


def test_wrong_answers_do_not():
    assert max(rewards("random")) < 1.0


def test_inputs_follow_from_their_seed():
    assert Reverse().inputs(20, seed=1) == Reverse().inputs(20, seed=1)
    assert Reverse().inputs(20, seed=1) != Reverse().inputs(20, seed=2)
'''


@dataclasses.dataclass(frozen=True, kw_only=True)
class Init(VerbOptions):
    """The options of ``init``."""

    name: str = argument("The name of the environment's module.")


@verb(Init)
def init(asked: Init) -> Result:
    """Write an environment, NAME.py, and its test, test_NAME.py, into this folder.

    Example:
      trio-envserve init reverse
      trio-envserve eval reverse.py:Reverse -n 20 --model oracle

    Both run as they are; change them. Existing files are not overwritten.

    With --json, the last line of standard output has files (their names) and environment
    (what to give to `eval` and `serve`).
    """
    name = asked.name
    _check_name(name)
    cls = "".join(part.capitalize() for part in name.split("_")) or "Environment"
    files = {
        f"{name}.py": _named(_ENVIRONMENT, name, cls),
        f"test_{name}.py": _named(_TEST, name, cls),
    }
    _write(files)
    spec = f"{name}.py:{cls}"
    text = (
        f"wrote {' and '.join(files)}. Try:\n"
        f"  trio-envserve eval {spec} -n 20 --model oracle\n"
        f"  trio-envserve validate {spec}\n"
        "  python -m pytest  # needs: pip install pytest"
    )
    return Result(OK, {"files": list(files), "environment": spec}, [text])


def _named(template: str, name: str, cls: str) -> str:
    """The template under another name, in its code but not in its sentences."""
    template = template.replace("Reverse", cls)
    for code in ('name = "{}"', "from {} import"):
        template = template.replace(code.format("reverse"), code.format(name))
    return template


def _check_name(name: str) -> None:
    """Raise ConfigError for a name that cannot be a module's, or is another's."""
    plain = name.isascii() and name.isidentifier() and name == name.lower()
    if not plain or keyword.iskeyword(name) or name.startswith(("_", "test_")):
        raise ConfigError(
            f"NAME becomes a module, so it must be like `reverse` or `my_game`, not {name!r}"
        )
    here = os.path.abspath(f"{name}.py")
    found = None
    if name in sys.builtin_module_names or name in sys.stdlib_module_names:
        raise ConfigError(f"{name} is a module of Python's own: take another name")
    with contextlib.suppress(ImportError, ValueError):
        found = importlib.util.find_spec(name)  # imports nothing: there is no package around it
    if found is not None and found.origin != here:
        where = found.origin or "a folder of that name"
        raise ConfigError(f"{name} is a module already ({where}): take another name")


def _write(files: dict[str, str]) -> None:
    """Write all of the files or none.  Raises ConfigError."""
    there = [file for file in files if os.path.lexists(file)]
    if there:
        raise ConfigError(f"{there[0]} exists, and is not overwritten: take another name")
    written: list[Path] = []
    try:
        for file, text in files.items():
            with open(file, "x", encoding="utf-8") as stream:
                written.append(Path(file))
                stream.write(text)
    except OSError as error:
        for path in written:
            path.unlink(missing_ok=True)
        raise ConfigError(f"cannot write {file}: {error.strerror}") from None

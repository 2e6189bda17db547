"""The page about another protocol: what it shows is what happens, and it names all."""

from __future__ import annotations

import dataclasses
import inspect
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from examples import kv_store
from tests.cli.commands import run
from trio_envserve.retrylab import Actor, Fault, System
from trio_envserve.retrylab.failure import examine

ROOT = Path(__file__).parent.parent.parent
EXAMPLE = ROOT / "examples" / "kv_store.py"
PAGE = (ROOT / "docs" / "another-protocol.md").read_text(encoding="utf-8")
COMMANDS = re.search(r"^```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
SHOWN = re.search(r"^```text\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
TEST = re.search(r"^<!-- file: (\S+) -->\n```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def section(heading: str) -> str:
    return PAGE.split(f"# {heading}\n")[1].split("\n#")[0]


def in_code(text: str) -> set[str]:
    """What stands in the first column of its tables."""
    return set(re.findall(r"\b(\w+)", " ".join(re.findall(r"^\| (`.*?`) \|", text, re.MULTILINE))))


@pytest.mark.real
async def test_the_commands_do_what_the_page_says(tmp_path: Path):
    shutil.copytree(EXAMPLE.parent, tmp_path / "examples")
    assert COMMANDS is not None
    assert SHOWN is not None
    lines = [shlex.split(line) for line in COMMANDS[1].splitlines()]
    assert {line[0] for line in lines} == {"trio-envserve"}
    holds, fails = [await run(tmp_path, *line[1:]) for line in lines]
    assert (holds.code, fails.code) == (0, 1), fails.err
    assert fails.out == SHOWN[1]


@pytest.mark.real
def test_the_test_on_the_page_passes(tmp_path: Path):
    assert TEST is not None
    shutil.copy(EXAMPLE, tmp_path)
    (tmp_path / TEST[1]).write_text(TEST[2])
    environ = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "pytest", "-p", "no:cacheprovider", "-q"],
        cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{TEST[2].count('def test_')} passed" in done.stdout


def test_every_handler_and_all_that_an_actor_can_do_is_named():
    public = {name for name, _ in inspect.getmembers(Actor) if not name.startswith("_")}
    named = in_code(section("Actors"))
    assert {name for name in public if name.startswith("on_")} <= named
    assert public <= named


def test_every_fault_and_every_field_is_named():
    assert in_code(section("What goes wrong")) == {"Fault", *Fault.__members__}
    fields = {field.name for field in dataclasses.fields(System)}
    assert in_code(section("The protocol")) == fields


def test_the_parts_of_the_example_are_there():
    """That they stand in it to the letter: `tests/docs/test_samples.py`."""
    for start in ("class Client(", "class Server(", "class Forgetful", "def asks(", "class Store("):
        assert f"<!-- part of: examples/kv_store.py -->\n```python\n{start}" in PAGE


@pytest.mark.slow
def test_how_small_failures_get_is_so():
    said = r"seeds 0 to 199 \((\d+) of them\) shrink to one request, in (\d+) to (\d+) runs"
    found = re.search(said, PAGE)
    assert found is not None
    failures = [failure for seed in range(200) if (failure := examine(kv_store.FORGETFUL, seed))]
    tried = [failure.tried for failure in failures]
    assert [len(failure.plan.asks) for failure in failures] == [1] * len(failures)
    assert tuple(map(int, found.groups())) == (len(failures), min(tried), max(tried))

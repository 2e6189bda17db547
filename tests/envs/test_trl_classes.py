"""The environment classes of TRL's own documentation, examples and tests, run as they are.

TRIO_ENVSERVE_TRL is the folder of a checkout of TRL; without it the test fetches one.  A module
that a class needs and that is not here (a client of OpenEnv, say) is replaced by a stand-in, so
what is shown is that the class is taken, its tools are found and called, and a reward comes.
"""

from __future__ import annotations

import ast
import builtins
import importlib.abc
import importlib.machinery
import io
import itertools
import json
import os
import re
import sys
import tarfile
import types
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.envs.scripted import Scripted, calls, running
from trio_envserve.core.errors import ConfigError
from trio_envserve.core.values import encode
from trio_envserve.envs import load
from trio_envserve.worker.failures import EnvironmentFailure

pytestmark = [pytest.mark.slow, pytest.mark.real]

SOURCE = "https://codeload.github.com/huggingface/trl/tar.gz/refs/heads/main"
TRL_REFUSES = ("needs a docstring", "needs an annotation")
"""What TRL refuses, too: pages leave out what an example has shown before."""

LEAST = 30
"""There were 44 classes in all when this was written, some of them without tools."""


class StandIn(str):
    """Text that is callable, has any attribute, and counts as the number 1."""

    def __new__(cls) -> StandIn:
        return super().__new__(cls, "1")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return StandIn()

    def __call__(self, *args: object, **options: object) -> Any:
        return args[0] if args and isinstance(args[0], types.FunctionType) else StandIn()

    def __lt__(self, other: object) -> bool:
        return False

    __gt__ = __ge__ = __le__ = __lt__

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *about: object) -> None:
        pass

    def __format__(self, form: str) -> str:
        return "1"

    def __iter__(self) -> Iterator[Any]:
        return iter([StandIn()])

    def __getitem__(self, key: object) -> Any:
        return StandIn()

    def __mro_entries__(self, bases: object) -> tuple[type, ...]:
        return ()


class Names(dict[str, Any]):
    """The built-in names; all others are stand-ins: a page has a class without its module."""

    def __missing__(self, name: str) -> Any:
        return StandIn()


class StandInModules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Makes a module of stand-ins for each one that is not here."""

    def find_spec(self, name: str, path: object, target: object = None) -> Any:
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: Any) -> Any:
        module = types.ModuleType(spec.name)
        vars(module)["__getattr__"] = lambda name: StandIn()
        vars(module)["__path__"] = []
        return module

    def exec_module(self, module: Any) -> None:
        pass


def checkout(folder: Path) -> Path:
    given = os.environ.get("TRIO_ENVSERVE_TRL")
    if given:
        return Path(given)
    try:
        with urllib.request.urlopen(SOURCE, timeout=60) as answer:
            data = answer.read()
    except OSError as error:
        pytest.skip(f"TRL cannot be fetched: {error}")
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        archive.extractall(folder, filter="data")
    return next(folder.iterdir())


def sources(root: Path) -> Iterator[tuple[str, str]]:
    for folder in ("docs/source", "examples", "tests"):
        for path in sorted((root / folder).rglob("*")):
            name = str(path.relative_to(root))
            if path.suffix == ".py":
                yield name, path.read_text()
            elif path.suffix == ".md":
                found = re.findall(
                    r"^```python\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL
                )
                yield from ((f"{name}#{i}", text) for i, text in enumerate(found))
            elif path.suffix == ".ipynb":
                cells = json.loads(path.read_text())["cells"]
                code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
                kept = [line for text in code for line in text.splitlines() if line[:1] not in "!%"]
                yield name, "\n".join(kept)


KEPT = (
    ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign, ast.FunctionDef,
    ast.AsyncFunctionDef, ast.ClassDef,
)  # fmt: skip


def made(body: list[ast.stmt], scope: dict[str, Any], name: str) -> None:
    """Run what only defines, each statement by itself."""
    for node in body:
        if isinstance(node, KEPT):
            code = compile(ast.Module([node], []), name, "exec", dont_inherit=True)
            try:
                exec(code, scope)
            except (Exception, SystemExit):  # what the rest of a script needs, the class does not
                continue


def classes(name: str, text: str) -> Iterator[tuple[ast.ClassDef, type]]:
    """The classes with ``reset`` of a text, those inside functions, too."""
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return
    bodies = [tree.body]
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    bodies += [node.body for node in ast.walk(tree) if isinstance(node, functions)]
    for body in bodies:
        found = [node for node in body if isinstance(node, ast.ClassDef) and has_reset(node)]
        if found:
            names = Names(vars(builtins))
            scope: dict[str, Any] = {"__name__": "trl_class", "__builtins__": names}
            made(tree.body, scope, name)
            made([] if body is tree.body else body, scope, name)
            for node in found:
                kind = scope.get(node.name)
                # Without the class that it stands on there is nothing to run.
                if kind is not None and len(kind.__mro__) > len(node.bases) + 1:
                    yield node, kind


def has_reset(node: ast.ClassDef) -> bool:
    return any(getattr(each, "name", "") == "reset" for each in node.body)


def given_for(schema: Any) -> Any:
    if "enum" in schema:
        return schema["enum"][0]
    for each in schema.get("anyOf", ()):
        return given_for(each)
    plain = {"integer": 1, "number": 1.0, "boolean": True, "array": [], "object": {}}
    return plain.get(schema.get("type"), "a")


def input_of(kind: Any) -> dict[str, Any]:
    """The prompt, and what ``reset`` needs besides."""
    code = kind.reset.__code__
    names = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]
    return {"prompt": "Go.", **{name: "a" for name in names if name != "prompt"}}


async def test_trls_own_classes_run_as_they_are(tmp_path, monkeypatch):
    root = checkout(tmp_path)
    known = set(sys.modules)
    monkeypatch.setattr(sys, "argv", ["script"])
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, StandInModules()])
    told: dict[str, list[str]] = {"ran": [], "refused": [], "failed": []}
    try:
        for name, text in sources(root):
            for node, kind in classes(name, text):
                how, why = "ran", ""
                if hasattr(kind, "_env_url_iter"):  # a script's main() sets it
                    kind._env_url_iter = itertools.repeat("http://127.0.0.1:1")
                try:
                    await run_through(kind)
                except (ConfigError, EnvironmentFailure, AssertionError) as error:
                    why = f" {type(error).__name__}: {error}"
                    how = "refused" if any(sign in why for sign in TRL_REFUSES) else "failed"
                told[how].append(f"{name}:{node.name}{why}")
    finally:
        for name in set(sys.modules) - known:
            del sys.modules[name]
    print("\n".join(f"{how} {each}" for how, them in told.items() for each in them))
    assert told["failed"] == []
    assert len(told["ran"]) >= LEAST


async def run_through(kind: type) -> None:
    """Call each tool once, and ask for the reward."""
    tools = load(kind).environment.tools
    wanted = [
        (name, {key: given_for(each) for key, each in parameters["properties"].items()})
        for name, tool in tools.items()
        for parameters in [tool.schema["function"]["parameters"]]
    ]
    model = Scripted([calls(*wanted) if wanted else "Nothing.", "Done."])
    async with running(kind, model) as run:
        result = await run(input_of(kind), "tools", "tool_calls")
    assert result["state"]["tool_calls"] == len(wanted)
    assert ("reward" in result) == hasattr(kind, "get_reward"), result.get("no_reward")
    encode(result)

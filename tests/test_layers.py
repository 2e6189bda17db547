"""Layers: who may import whom, read from the source of every module.

Arrows point one way only.  ``MAY_IMPORT`` is the rule; a package that is not in
it is a failure, so that a new one must find its place.  Imports inside functions
and under ``TYPE_CHECKING`` count: what a module names, it knows.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = "trio_envserve"

# What the modules of a layer may import of the package: a layer, or a module of
# one.  A layer's modules may always import each other, and nobody the package itself
# (that would be all of it).  `core` as a whole never includes what knows the inside of
# a body, for which `core.values` stands below: to the router bodies are opaque.
WORDS = {"core.terms", "core.limits", "core.errors"}
MAY_IMPORT: dict[str, set[str]] = {
    "near": set(),
    "core": {"near"},
    "redaction": set(),
    "tracing": {"redaction"},
    "logs": {"redaction", "tracing"},
    "foreign": set(),
    "large_pickles": set(),
    "extras": set(),
    "file_modules": set(),
    "otlp": set(),
    "carrier": set(),
    "commands": set(),
    "pages": set(),
    "removal": set(),
    "turns": set(),
    "retrylab": set(),
    "regular_files": WORDS,
    # What is declared once: records of options, for functions, files, the command and the docs.
    "options": {"core.errors", "near", "regular_files"},
    "json_values": {"core.values", "foreign"},
    "net": {"extras", "core.strict_cbor", "regular_files", *WORDS},
    "models": WORDS | {
        "extras", "redaction", "core.durations", "foreign", "near", "options", "regular_files",
        "tracing", "turns",
    },
    # Where rollouts run what they do not trust.
    "sandboxes": WORDS | {"carrier", "near", "commands", "removal"},
    "envs": WORDS | {
        "redaction", "core.values", "core.notes", "core.stack_frames", "large_pickles", "models",
        "foreign", "near", "options", "commands", "sandboxes", "tracing",
        "carrier", "extras", "file_modules",
    },
    "worker": {
        "carrier", "file_modules",
        "core", "core.values", "net", "models", "envs", "large_pickles", "logs", "foreign",
        "redaction", "removal", "tracing", "otlp", "commands", "turns",
    },
    "host": {"near", "core", "net", "envs", "worker", "commands", "redaction"},
    "server": {
        "core", "net", "models", "envs", "worker", "host", "logs", "regular_files", "tracing",
        "options",
    },
    "launchers": {"extras", "core", "host", "server"},
    "client": {"core", "core.values", "net", "envs", "near", "tracing", "turns"},
    "doors": {
        "core", "core.values", "net", "envs", "server", "client", "json_values", "tracing",
        "near", "options", "pages", "regular_files", "turns", "extras",
    },
    "evals": {"extras", "core", "client", "envs", "foreign", "json_values", "near", "pages"},
    "trainers": WORDS | {"client", "envs.rewards", "models.interface", "net.keypairs"},
    "testing": {"core", "core.values", "net", "models", "envs", "server", "client", "retrylab"},
    "lab": {
        "core", "core.values", "net", "models", "envs", "worker", "host", "server", "client",
        "doors", "testing", "logs", "foreign", "retrylab",
    },
    "cli": {
        "core", "core.values", "net", "models", "envs", "worker", "host", "server", "client",
        "doors", "evals", "testing", "lab", "retrylab", "launchers", "logs", "foreign",
        "json_values", "redaction", "tracing", "near", "otlp", "options", "pages", "extras",
        "commands",
    },
}  # fmt: skip

# On top of everything: what `import trio_envserve` and `python -m trio_envserve` find.
TOP = {"__init__", "__main__"}

# The modules that know the inside of a body, and who in the core may import them.
BODIES = {"core.values", "core.arrays", "core.objects"}
BODY_USERS = {"core.client", "core.worker"} | BODIES

# All that the core may import from elsewhere: pure, or there for its types.
PURE = {
    "__future__", "abc", "array", "base64", "binascii", "bisect", "cbor2", "collections",
    "contextlib", "copy", "dataclasses", "datetime", "decimal", "enum", "fractions",
    "functools", "hashlib", "heapq", "hmac", "io", "ipaddress", "itertools", "json", "math",
    "numbers", "numpy", "operator", "pathlib", "re", "string", "struct", "sys", "textwrap",
    "torch", "types", "typing", "uuid", "zlib",
}  # fmt: skip

# What those have that is not: (module, name).
IMPURE = {
    ("datetime", "now"), ("datetime", "today"), ("datetime", "utcnow"), ("date", "today"),
    ("uuid", "uuid1"), ("uuid", "uuid4"), ("uuid", "getnode"), ("sys", "stdin"),
    ("sys", "stdout"), ("sys", "stderr"), ("io", "open"), ("numpy", "random"), ("np", "random"),
    ("Path", "cwd"), ("Path", "home"),
}  # fmt: skip
IMPURE_NAMES = {
    "uuid1", "uuid4", "getnode", "open", "print", "input", "exec", "eval", "__import__",
    "breakpoint",
}  # fmt: skip


class Module(NamedTuple):
    """A module by its name inside the package (``core.terms``) and its source."""

    name: str
    is_package: bool
    source: str

    @property
    def layer(self) -> str:
        return self.name.partition(".")[0]


def read_modules() -> list[Module]:
    modules = []
    for path in sorted((ROOT / PACKAGE).rglob("*.py")):
        parts = path.relative_to(ROOT / PACKAGE).with_suffix("").parts
        is_package = parts[-1] == "__init__" and len(parts) > 1
        name = ".".join(parts[:-1] if is_package else parts)
        modules.append(Module(name, is_package, path.read_text(encoding="utf-8")))
    return modules


MODULES = read_modules()
NAMES = {module.name for module in MODULES}


@cache
def parsed(module: Module) -> ast.Module:
    return ast.parse(module.source)


@pytest.fixture(scope="module", autouse=True)
def trees_are_forgotten() -> Iterator[None]:
    """Else whoever collects garbage in a later test would look at them for half a second."""
    yield
    parsed.cache_clear()


@cache
def imported(module: Module) -> set[str]:
    """Absolute names of all that a module imports, ``from a import b`` as ``a.b``."""
    return imports_in(statements(parsed(module).body), module)


def statements(block: Iterable[ast.stmt], *, for_types: bool = True) -> Iterator[ast.stmt]:
    """Those of a block, and all within, those that only the type checker sees among them.
    Expressions, most of a tree, import nothing."""
    for each in block:
        yield each
        is_for_types = isinstance(each, ast.If) and ast.unparse(each.test).endswith("TYPE_CHECKING")
        if is_for_types and not for_types:
            continue
        for name in ("body", "orelse", "finalbody"):
            yield from statements(getattr(each, name, ()), for_types=for_types)
        for part in (*getattr(each, "handlers", ()), *getattr(each, "cases", ())):
            yield from statements(part.body, for_types=for_types)


def imports_in(block: Iterable[ast.stmt], module: Module) -> set[str]:
    """The same of some statements of that module."""
    found = set()
    parts = [PACKAGE] + ([] if module.name in TOP else module.name.split("."))
    if not (module.is_package or module.name in TOP):
        parts = parts[:-1]
    for node in block:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = parts[: len(parts) - node.level + 1] if node.level else []
            base = base + (node.module.split(".") if node.module else [])
            found |= {".".join([*base, alias.name]) for alias in node.names}
    return found


def within(name: str, whole: str) -> bool:
    return name == whole or name.startswith(f"{whole}.")


def wrong_arrows(module: Module, may_import: dict[str, set[str]] = MAY_IMPORT) -> list[str]:
    """What a module imports of the package against the rule."""
    wrong = []
    for name in sorted(imported(module)):
        if not within(name, PACKAGE):
            continue
        inner = name.removeprefix(PACKAGE).removeprefix(".")
        if not allowed(module, inner, may_import[module.layer]):
            wrong.append(f"{module.name} imports {inner or PACKAGE}")
    return wrong


def allowed(module: Module, inner: str, may: set[str]) -> bool:
    if any(within(inner, one) for one in BODIES):
        if module.layer == "core":
            return module.name in BODY_USERS
        return "core.values" in may
    if within(inner, module.layer):
        return True
    if inner == "core":  # a name that the core's __init__ re-exports is all of the core
        return "core" in may
    return any(within(inner, one) for one in may)


def needed(module: Module, names: set[str]) -> set[str]:
    """The modules of the package that this one imports when it is imported, not only
    for its types."""
    names_in = imports_in(statements(parsed(module).body, for_types=False), module)
    found = {name.removeprefix(f"{PACKAGE}.") for name in names_in if within(name, PACKAGE)}
    return {longest_known(name, names) for name in found} - {module.name, ""}


def longest_known(name: str, names: set[str]) -> str:
    """The module that has a name: ``core.terms`` of ``core.terms.short``."""
    while name and name not in names:
        name = name.rpartition(".")[0]
    return name


def circle(modules: list[Module]) -> list[str]:
    """Modules each of which imports the next, and the last one the first; empty if
    there are none."""
    names = {module.name for module in modules}
    below = {module.name: needed(module, names) for module in modules}
    while leaves := {name for name, used in below.items() if not used & below.keys()}:
        below = {name: used for name, used in below.items() if name not in leaves}
    way: list[str] = []
    name = min(below, default="")
    while below and name not in way:
        way.append(name)
        name = min(below[name] & below.keys())
    return way[way.index(name) :] if way else []


def impurities(module: Module) -> list[str]:
    """What a module of the core uses that is not pure."""
    wrong = []
    for name in sorted(imported(module)):
        if not within(name, PACKAGE) and name.partition(".")[0] not in PURE:
            wrong.append(f"{module.name} imports {name}")
        if name.rpartition(".")[2] in IMPURE_NAMES:
            wrong.append(f"{module.name} imports {name}")
    for node in ast.walk(parsed(module)):
        if isinstance(node, ast.Attribute):
            owner = ast.unparse(node.value).rpartition(".")[2]
            if (owner, node.attr) in IMPURE:
                wrong.append(f"{module.name} uses {owner}.{node.attr}")
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in IMPURE_NAMES:
            wrong.append(f"{module.name} calls {ast.unparse(node.func)}")
    return wrong


def test_every_module_has_its_layer():
    strays = {module.layer for module in MODULES} - set(MAY_IMPORT) - TOP
    assert not strays, "give them a place in MAY_IMPORT"


def test_the_modules_that_the_rule_names_exist():
    assert WORDS | BODY_USERS <= NAMES


def test_the_rule_has_no_circles():
    height: dict[str, int] = {}
    for layer, may in MAY_IMPORT.items():
        below = {one.partition(".")[0] for one in may} - {layer}
        assert below <= set(height), f"{layer} imports what comes after it"
        height[layer] = len(height)


def test_no_module_imports_itself_in_a_circle():
    assert circle(MODULES) == []


def test_a_circle_is_seen():
    modules = [
        Module("core.a", False, "from .b import x"),
        Module("core.b", False, "from . import c"),
        Module("core.c", False, "def late():\n    from trio_envserve.core.a import y"),
        Module("core.d", False, "from .a import z\nif TYPE_CHECKING:\n    from .e import w"),
        Module("core.e", False, "from .d import v"),
    ]
    assert circle(modules) == ["core.a", "core.b", "core.c"]
    assert circle(modules[2:]) == []


def test_arrows_point_one_way():
    assert [
        each for module in MODULES if module.name not in TOP for each in wrong_arrows(module)
    ] == []


def test_core_is_pure():
    assert [
        each for module in MODULES if module.layer == "core" for each in impurities(module)
    ] == []


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("core.work", "from ..net.socket import Socket"),
        ("core.work", "from .. import net"),
        ("core.work", "import trio_envserve.net"),
        ("core.router", "from .values import decode"),
        ("core.router", "from . import values"),
        ("net.socket", "from ..core import messages"),
        ("net.socket", "from .. import core"),
        ("net.socket", "from .. import open_client"),
        ("net.socket", "import trio_envserve"),
        ("server.shell", "from ..core.values import decode"),
        ("server.shell", "def late():\n    from ..core import values"),
        ("retrylab.run", "from .. import foreign"),
        ("worker.main", "from ..server.shell import serve"),
        ("client.shell", "from ..server import open_server"),
        ("client.shell", "if TYPE_CHECKING:\n    from ..testing import proxy"),
        ("envs.arithmetic", "from ..core.router import Router"),
        ("testing.proxy", "from ..cli import main"),
        ("server.shell", "from ..doors.http import open_http_door"),
        ("doors.http.app", "from ...host.workers import Workers"),
        ("server.shell", "from trio_envserve.cli.demo import main"),
    ],
)
def test_a_wrong_arrow_is_seen(name: str, source: str):
    assert wrong_arrows(Module(name, False, source)) != []


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("core.client", "from .values import decode"),
        ("net.socket", "from ..core import limits, terms"),
        ("worker.main", "from ..envs.loading import load"),
        ("server.shell", "from ..core.router import Router\nfrom . import processes"),
        ("cli.demo", "from ..testing.proxy import Proxy"),
    ],
)
def test_a_right_arrow_passes(name: str, source: str):
    assert wrong_arrows(Module(name, False, source)) == []


def test_a_package_resolves_its_own_relative_imports():
    source = "from .shell import serve\nfrom ..core import terms"
    found = imported(Module("server", True, source))
    assert found == {"trio_envserve.server.shell.serve", "trio_envserve.core.terms"}
    assert imported(Module("__init__", False, "from .client import x")) == {
        "trio_envserve.client.x"
    }


@pytest.mark.parametrize(
    "source",
    [
        "import trio",
        "import zmq.asyncio as za",
        "def f():\n    import random",
        "import os",
        "from os import urandom",
        "import secrets, struct",
        "from uuid import uuid4",
        "import uuid\nuuid.uuid4()",
        "import datetime\ndatetime.datetime.now()",
        "from datetime import date\ndate.today()",
        "import numpy as np\nnp.random.default_rng()",
        "print('x')",
        "__import__('time')",
    ],
)
def test_an_impurity_is_seen(source: str):
    assert impurities(Module("core.work", False, source)) != []


@pytest.mark.real
def test_importing_the_package_is_cheap():
    heavy = ["click", "hypothesis", "numpy", "pydantic", "pytest", "rich", "torch"]
    program = (
        "import json, sys, trio_envserve\n"
        f"print(json.dumps([name for name in {heavy!r} if name in sys.modules]))"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, check=True, capture_output=True, timeout=60
    )
    assert json.loads(run.stdout) == []

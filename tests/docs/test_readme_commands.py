"""The README's commands are those that CI runs."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
VENV = "python3 -m venv .venv"
QUIET = {"--quiet", "--disable-pip-version-check"}


def readme() -> list[str]:
    """The first two blocks of shell, a line each, less the prefix of the environment."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    first, second = re.findall(r"^```sh\n(.*)\n```$", text, re.MULTILINE)[:2]
    return [first, second]


def commands(line: str) -> list[list[str]]:
    """What a line of the README runs in its environment."""
    make, *others = line.split(" && ")
    assert make == VENV
    assert all(other.startswith(".venv/bin/") for other in others)
    return [shlex.split(other.removeprefix(".venv/bin/")) for other in others]


def test_the_first_command_is_what_the_session_demo_runs():
    tree = ast.parse((ROOT / "noxfile.py").read_text(encoding="utf-8"))
    (demo,) = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "demo"]
    ran = []
    for node in demo.body:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            words = [str(word.value) for word in node.value.args if isinstance(word, ast.Constant)]
            called = ast.unparse(node.value.func)
            ran.append((["pip", "install"] if called == "session.install" else []) + words)
    # For the log of CI it is told as JSON; that changes nothing of what is run.
    assert ran == [*commands(readme()[0])[:-1], [*commands(readme()[0])[-1], "--json"]]


def test_the_second_command_is_what_ci_runs_last():
    lines = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    bin = '"$work/tests/bin/'
    ran = [
        [
            word
            for word in shlex.split(line.removeprefix(bin).replace('"', "", 1))
            if word not in QUIET
        ]
        for line in lines
        if line.startswith(bin)
    ]
    assert ran == commands(readme()[1])
    assert lines[-1].startswith(bin)
    assert '"$python" -m venv "$work/tests"' in lines

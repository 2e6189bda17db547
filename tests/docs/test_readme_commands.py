"""The README's commands are those that CI runs."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
VENV = "python3 -m venv .venv"
QUIET = {"--quiet", "--disable-pip-version-check", "&"}


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
    assert lines[-2].startswith(bin)
    assert lines[-1].startswith('covered >"$work/covered" || ')  # prints only where it fails
    assert '"$python" -m venv "$work/tests"' in lines


def sessions_of_nox() -> tuple[set[str], dict[str, ast.expr]]:
    """The names of all sessions, and what is assigned at the top of the file, by name."""
    tree = ast.parse((ROOT / "noxfile.py").read_text(encoding="utf-8"))
    names, assigned = set(), {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.decorator_list:
            names.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            (target,) = node.targets if isinstance(node, ast.Assign) else (node.target,)
            assigned[ast.unparse(target)] = node.value
    return names, assigned


def test_each_session_is_run_by_ci_or_at_night_or_says_why_not():
    names, assigned = sessions_of_nox()
    by_ci, at_night, never = (
        {name.partition("-")[0] for name in ast.literal_eval(assigned[each])}
        for each in ("nox.options.sessions", "AT_NIGHT", "NEVER")
    )
    assert by_ci | at_night | never == names
    assert not never & (by_ci | at_night)


def test_ci_runs_the_sessions_that_nox_runs_and_the_readme_s_command_all_tests():
    _, assigned = sessions_of_nox()
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    runs = re.findall(r"^nox ((?:[\w.-]+ ?)+)", script, re.MULTILINE)
    ran = {name for line in runs for name in line.split()} - {"dev", "--install-only"}
    assert ran | {"tests-3.12"} == set(ast.literal_eval(assigned["nox.options.sessions"]))

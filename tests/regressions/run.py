"""Puts each known failure back, one at a time, and sees its tests turn red.

    python tests/regressions/run.py [--only NAME] [--since COMMIT]

A check that cannot fail is not a check.  For each patch in ``patches/`` the package
and the tests are copied to a directory of their own, the patch is applied to the
copy, and the tests that it names are run there: each must fail, by an assertion and
in time.  Before that, all of them must pass in a copy without a patch.  Exit status 0
only if all of that is so and there is a patch for each of the 18 failures that servers
of this kind are known for.  With ``--since``, only the patches whose files or tests were
changed since that commit are put back; all of them where git does not know it.

A patch is a unified diff under some lines of prose, of which those that begin with
``Test:`` name its tests, by their path below ``tests``.  Its name begins with the number
of one of the 18, or with a letter and a number: a flaw that was found in this project
(the changelog has them), or under D a bug that was planted and that no test saw at the
time.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PATCHES = HERE / "patches"
TESTS = HERE.parent
FAILURES = {f"{number:02}" for number in range(1, 19)}
CACHES = shutil.ignore_patterns("__pycache__", ".*")
NAME = re.compile(r"([A-D]?[0-9]{2})-(.+)")

AT_ONCE = 4
"""More than cores: what a failure holds up mostly waits."""
LIMIT_S = 240
"""A run that takes longer hangs: twice what the longest took on a machine ten times too slow."""

# Runs in the copy: which package is tested, and how each test ended, as JSON.
INSIDE = """
import json, sys
from pathlib import Path

here = Path.cwd()
import pytest, trio_envserve
package = Path(trio_envserve.__file__).resolve()
if not package.is_relative_to(here.resolve()):
    sys.exit(f"the package tested would be {package}, not the copy in {here}")

how = {}

def leaves(error):
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    return [leaf for each in error.exceptions for leaf in leaves(each)]

class Recorder:
    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item, call):
        report = yield
        name = f"{item.location[0].removeprefix('tests/')}::{item.location[2]}"
        if call.excinfo is not None:
            errors = leaves(call.excinfo.value)  # pytest-trio raises groups
            red = report.when == "call" and all(isinstance(e, AssertionError) for e in errors)
            how[name] = "red" if red else f"{report.when}: {errors!r:.300}"
        elif report.when == "call":
            how[name] = "green"
        return report

status = pytest.main(
    ["-q", "-p", "no:cacheprovider", "-p", "pytest_trio.plugin", "--tb=no", *sys.argv[1:]],
    plugins=[Recorder()],
)
Path("how.json").write_text(json.dumps(how))
sys.exit(status)
"""


class Patch(NamedTuple):
    """One file in ``patches/``."""

    path: Path
    tests: tuple[str, ...]
    number: str
    name: str


class Ended(NamedTuple):
    """How a run in a copy ended."""

    how: dict[str, str]
    """By test: ``green``, ``red``, or what else went wrong."""
    trouble: str
    """The reason why there is nothing to tell of some tests."""
    seconds: float = 0.0


def read_patch(path: Path) -> Patch:
    tests = re.findall(r"^Test: (\S+)$", path.read_text(), re.MULTILINE)
    if not tests:
        raise SystemExit(f"{path}: it must have a line 'Test: ...'")
    found = NAME.fullmatch(path.stem)
    if found is None or (found[1].isdigit() and found[1] not in FAILURES):
        raise SystemExit(f"{path}: it must have a name like 01-name or A01-name")
    return Patch(path, tuple(tests), *found.groups())


def make_base(directory: Path) -> None:
    """What the tests need: the package, themselves, and pytest's configuration."""
    for folder in ("trio_envserve", "tests"):
        shutil.copytree(ROOT / folder, directory / folder, ignore=CACHES)
    shutil.copy(ROOT / "pyproject.toml", directory)
    compileall.compile_dir(directory, quiet=2)  # once for all copies


def apply(patch: Patch, directory: Path) -> str:
    """Apply it to the copy, wherever its lines are by now; why not, if not."""
    command = ["git", "apply", "--recount", "-C1", str(patch.path)]
    if shutil.which("git") is None:
        command = ["patch", "-p1", "-F2", "--batch", "-i", str(patch.path)]
    # A copy inside somebody's checkout, or under a hook, is no part of that one.
    environ = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    environ["GIT_CEILING_DIRECTORIES"] = str(directory.parent)
    done = subprocess.run(command, cwd=directory, env=environ, capture_output=True, text=True)
    if done.returncode:
        return f"the patch does not apply any more: {done.stderr.strip() or done.stdout.strip()}"
    return ""


def run_in_copy(base: Path, tests: Iterable[str], patch: Patch | None = None) -> Ended:
    """Run tests in a copy of the base that has this patch applied, or none."""
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="regressions-") as name:
        directory = Path(name).resolve() / "copy"
        shutil.copytree(base, directory)  # with what is compiled there
        trouble = apply(patch, directory) if patch else ""
        ended = Ended({}, trouble) if trouble else run_tests(directory, tuple(tests))
    return ended._replace(seconds=time.monotonic() - began_s)


def run_tests(directory: Path, tests: tuple[str, ...]) -> Ended:
    """Run tests against the package in this directory."""
    report = directory / "how.json"
    report.unlink(missing_ok=True)
    arguments = [f"tests/{test}" for test in tests]
    environ = {
        **os.environ,
        "PYTHONPATH": str(directory),
        # Half of the time would go into importing plugins that nothing here uses.
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    try:
        done = subprocess.run(
            [sys.executable, "-c", INSIDE, *arguments],
            cwd=directory, env=environ, capture_output=True, text=True, timeout=LIMIT_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return Ended({}, f"it hangs: no end within {LIMIT_S} s")
    if not report.exists():
        return Ended({}, f"no test was run: {(done.stderr or done.stdout).strip()[-500:]}")
    trouble = ""
    if done.returncode not in (0, 1):
        trouble = f"pytest ended with {done.returncode}: {done.stdout.strip()[-500:]}"
    return Ended(json.loads(report.read_text()), trouble)


def became_of(ended: Ended, test: str) -> str:
    """How one test ended; of one with parameters: ``red`` if any of them is."""
    hows = [how for name, how in ended.how.items() if name == test or name.startswith(test + "[")]
    other = [how for how in hows if how not in ("green", "red")]
    if other or not hows:
        return other[0] if other else ended.trouble or "it was not run"
    return "red" if "red" in hows else "green"


def changed_since(commit: str) -> set[str] | None:
    """Files that differ from those of a commit, by their path in the tree, committed or not;
    ``None`` if git cannot tell."""
    command = ["git", "diff", "--name-only", commit, "--"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    except FileNotFoundError:
        return None
    return set(done.stdout.split("\n")) if done.returncode == 0 else None


def concerns(patch: Patch, changed: set[str]) -> bool:
    """Whether the patch, a file that it changes or a file of its tests is among those changed."""
    files = set(re.findall(r"^\+\+\+ b/(\S+)$", patch.path.read_text(), re.MULTILINE))
    files |= {f"tests/{test.partition('::')[0]}" for test in patch.tests}
    return not changed.isdisjoint(files | {str(patch.path.relative_to(ROOT))})


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", metavar="NAME", help="only those whose names begin so")
    parser.add_argument("--since", metavar="COMMIT", help="only those that changes concern")
    arguments = parser.parse_args()
    only = arguments.only
    patches = [read_patch(path) for path in sorted(PATCHES.glob(f"{only or ''}*.patch"))]
    wanted = FAILURES if only is None else {only[:3].partition("-")[0]}
    absent = sorted(wanted - {patch.number for patch in patches})
    missing = f"There is no patch for failure {', '.join(absent)}." if absent else ""
    if arguments.since and (changed := changed_since(arguments.since)) is not None:
        patches = [patch for patch in patches if concerns(patch, changed)]
    if not patches:
        print(missing or "No failure concerns what has changed.")
        return 1 if missing else 0

    with tempfile.TemporaryDirectory(prefix="regressions-") as name:
        base = Path(name).resolve() / "base"
        make_base(base)
        with ThreadPoolExecutor(AT_ONCE) as pool:
            every = sorted({test for patch in patches for test in patch.tests})
            unpatched = pool.submit(run_in_copy, base, every)
            runs = [pool.submit(run_in_copy, base, patch.tests, patch) for patch in patches]
            ok = not missing
            width = max((len(patch.name) for patch in patches), default=0)
            before = unpatched.result()
            print(f"NN   {'failure put back':{width}}  before  after  seconds  test")
            for patch, run in zip(patches, runs, strict=True):
                ok = _report(patch, before, run.result(), width) and ok
    if missing:
        print(f"\n{missing}")
    if ok:
        print(f"\nEach of the {len(patches)} failures, put back, turned its tests red.")
    else:
        print("\nNot every failure is caught as it should be: see above.")
    return 0 if ok else 1


def _report(patch: Patch, before: Ended, after: Ended, width: int) -> bool:
    """A line for each test of a patch; whether each is as it should be."""
    ok = True
    for test in patch.tests:
        hows = became_of(before, test), became_of(after, test)
        was, became = (how if how in ("green", "red") else "?" for how in hows)
        print(
            f"{patch.number:3}  {patch.name:{width}}  {was:6}  {became:5}  "
            f"{after.seconds:7.1f}  {test.partition('::')[2]}",
            flush=True,
        )
        if (was, became) != ("green", "red"):
            ok = False
            print(
                "    it must be green before, and fail by an assertion once the failure is put "
                f"back; before: {hows[0]}; then: {hows[1]}"
            )
    return ok


if __name__ == "__main__":
    sys.exit(main())

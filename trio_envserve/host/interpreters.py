"""Another Python for the workers: found, and asked whether it can host them.

Theory of operation
-------------------
A framework that is large, or that needs other versions than the trainer, lives in an
interpreter of its own.  The workers run there (``worker_python``).  They need this
package there, in the same version, and what it depends on; nothing else of the server's
interpreter reaches them, but the folders on its ``sys.path`` that belong to the user.

:func:`check_interpreter` asks that interpreter before anything is started, because a
worker that cannot even be imported cannot say why.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import trio

from ..core.errors import ConfigError
from ..core.terms import gist

_LINES, _ANSWER_CHARS = 5, 400
"""Most lines and characters of an interpreter's output that are shown if it cannot run: the last
ones, since the reason often follows a stack."""

ASK_S = 60.0
"""An interpreter that has not answered by then is not one."""

_PROBE = """
import sys
if "" in sys.path: sys.path.remove("")
import json
found = {"python": "%d.%d.%d" % sys.version_info[:3]}
try:
    import trio_envserve
    found["version"] = trio_envserve.__version__
    found["where"] = trio_envserve.__path__[0]
    if sys.argv[1] == found["version"]:
        import trio_envserve.worker.main, trio_envserve.worker.shell, trio_envserve.worker.config
except ImportError as error:
    found["missing"] = error.name or str(error)
print()
print(json.dumps(found))
"""

_LEAST = (3, 11)


def find_interpreter(python: str | os.PathLike[str]) -> str:
    """The program of a Python: a path, a name on PATH, or the folder of a virtual
    environment.  Symbolic links stay as they are: they say which environment it is.
    Raises ConfigError."""
    given = os.fspath(python)
    if not isinstance(given, str) or not given or "\0" in given:
        raise ConfigError(f"worker_python must be the path of a Python, not {python!r}")
    inside = Path(given, "bin", "python")
    if inside.exists():
        return str(inside.absolute())
    found = shutil.which(given)
    if found is None:
        why = "is not a program that can be run" if os.path.exists(given) else "is not there"
        raise ConfigError(f"worker_python: {given} {why}")
    return os.path.abspath(found)


async def check_interpreter(python: str) -> None:
    """Raise ConfigError, with what to do, if workers cannot run under this Python."""
    version_here: str = import_module(__name__.partition(".")[0]).__version__
    found = await _ask(python, version_here)
    label = f"worker_python: {python} (Python {found['python']})"
    if tuple(map(int, found["python"].split(".")[:2])) < _LEAST:
        raise ConfigError(f"{label} is too old: workers need Python 3.11 or later")
    install = f"{python} -m pip install trio_envserve=={version_here}"
    version = found.get("version")
    if version is not None and version != version_here:
        raise ConfigError(
            f"{label} has trio_envserve {version} ({found['where']}), and this server is "
            f"{version_here}: both must be the same. Install it there: {install}"
        )
    missing = found.get("missing")
    if missing is not None:
        raise ConfigError(f"{label} has no module {missing!r}. Install it there: {install}")


async def _ask(python: str, version: str) -> dict[str, Any]:
    try:
        with trio.fail_after(ASK_S):
            done = await trio.run_process(
                [python, "-c", _PROBE, version], capture_stdout=True, capture_stderr=True,
                check=False, stdin=subprocess.DEVNULL,
            )  # fmt: skip
    except trio.TooSlowError:
        raise ConfigError(f"worker_python: {python} says nothing for {ASK_S:g} s") from None
    except OSError as error:
        raise ConfigError(f"worker_python: {python} cannot be run: {error.strerror}") from None
    try:
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        found["python"].split(".")
    except (ValueError, IndexError, TypeError, KeyError, AttributeError):
        last = done.stderr.decode(errors="replace").strip().splitlines()[-_LINES:]
        answer = gist("\n".join(last), _ANSWER_CHARS)
        raise ConfigError(
            f"worker_python: {python} is not a Python: {answer or 'no answer'}"
        ) from None
    return found


def helper(
    python: str | os.PathLike[str] | None, module: str
) -> tuple[list[str], list[str]]:  # fmt: skip
    """The words of a process that runs ``main()`` of a module of this package, under this Python or
    another one, and the folders in which it looks for environments.  Raises ConfigError."""
    call = f"from {module} import main; main()"
    if python is not None:
        return [find_interpreter(python), "-P", "-c", call], own_folders()
    boot = f"import sys; sys.path.insert(0, sys.argv.pop(1)); {call}"
    package = str(Path(__file__).resolve().parents[2])
    path = [entry or os.getcwd() for entry in sys.path]
    return [sys.executable, "-P", "-c", boot, package], path


def own_folders() -> list[str]:
    """The folders on ``sys.path`` that are the user's, and not this interpreter's: the
    working directory, a script's folder, PYTHONPATH."""
    prefixes = {sys.prefix, sys.base_prefix, sys.exec_prefix}
    library = tuple(os.path.join(prefix, "lib") for prefix in prefixes)
    package = str(Path(__file__).resolve().parents[2])
    here = os.getcwd()
    return [
        folder for folder in (entry or here for entry in sys.path)
        if folder == here
        or not (
            folder == package
            or folder.startswith(library)
            or {"site-packages", "dist-packages"} & {*Path(folder).parts}
        )
    ]  # fmt: skip

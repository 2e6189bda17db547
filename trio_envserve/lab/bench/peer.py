"""The peer's virtual environment: given, found in the cache, or made on demand."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import trio

PEER_REQUIREMENT = "verifiers==0.3.0"

_INSTALL_S = 900.0
_CHECK = "import verifiers.serve, uvloop, importlib.metadata as m; print(m.version('verifiers'))"


class NoPeer(Exception):
    """The peer cannot take part; the text says why."""


def cache_folder() -> Path:
    """Where the environment is kept between runs."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "trio-envserve" / f"bench-peer-{sys.version_info[0]}.{sys.version_info[1]}"


async def peer_python(given: str | None, *, install: bool) -> str:
    """A Python with the peer: the given one, or that of the cache, which is made if
    ``install``.  NoPeer with the reason if there is none."""
    if given is not None:
        await _check(given)
        return given
    folder = cache_folder()
    python = folder / "bin" / "python"
    if not python.exists():
        if not install:
            raise NoPeer(f"{PEER_REQUIREMENT} is not installed yet; a full run does that")
        await _make(folder, python)
    await _check(str(python))
    return str(python)


async def _make(folder: Path, python: Path) -> None:
    """All or nothing: an installation that was interrupted is no environment."""
    done = False
    try:
        await _run([sys.executable, "-m", "venv", str(folder)])
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        await _run([*pip, PEER_REQUIREMENT, "uvloop"])
        done = True
    finally:
        if not done:
            shutil.rmtree(folder, ignore_errors=True)


async def _check(python: str) -> None:
    await _run([python, "-c", _CHECK])


async def _run(command: list[str]) -> None:
    with trio.move_on_after(_INSTALL_S):
        try:
            await trio.run_process(command, capture_stdout=True, capture_stderr=True)
        except OSError as error:
            raise NoPeer(f"{command[0]} cannot be run: {error}") from error
        except subprocess.CalledProcessError as error:
            said = error.stderr.decode(errors="replace").strip().splitlines()
            last = said[-1] if said else f"exit code {error.returncode}"
            raise NoPeer(f"{PEER_REQUIREMENT} cannot be installed or imported: {last}") from error
        return
    raise NoPeer(f"{' '.join(command[:4])} ... took longer than {_INSTALL_S:g} s")

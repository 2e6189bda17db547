"""The origin of a run: the code that it ran, without which a seed says nothing."""

from __future__ import annotations

import importlib.metadata
import platform
import subprocess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent.parent

GIT_S = 10.0
"""How long git may take to name the commit."""


def origin() -> dict[str, Any]:
    """``version`` of the package, ``commit`` if it runs from a checkout (with ``+`` if
    something is changed in it; None elsewhere), and ``python``."""
    try:
        version = importlib.metadata.version("trio-envserve")
    except importlib.metadata.PackageNotFoundError:
        version = "unknown"
    return {"version": version, "commit": _commit(), "python": platform.python_version()}


def _commit() -> str | None:
    if not (ROOT / ".git").exists():
        return None
    commit = _git("rev-parse", "--short=12", "HEAD")
    if commit is None:
        return None
    return commit + "+" * bool(_git("status", "--porcelain", "--", "trio_envserve"))


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(ROOT), *arguments],
            capture_output=True, text=True, timeout=GIT_S, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None  # no git, or a checkout that it does not like
    return done.stdout.strip()


def describe(made_by: dict[str, Any]) -> str:
    """In a few words, for people."""
    commit = f", commit {made_by['commit']}" if made_by["commit"] else ""
    return f"trio-envserve {made_by['version']}{commit}, Python {made_by['python']}"

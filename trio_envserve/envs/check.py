"""A check whether a name can mean an environment, without loading it.

Theory of operation
-------------------
A server runs no environment code in its own process, so it cannot simply load
the environment to see whether the name is right.  :func:`check_spec` makes only
cheap and harmless checks: names, entry points, whether a module can be found,
and whether its text mentions the attribute.  If that looks like a typo, it loads
the environment after all.  This raises the error with the near names, or shows
that the name is right (attributes made at import time).

A name that passes may still be wrong; the workers find out.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path

from ..core.errors import ConfigError
from .specs import BUILT_IN, SCHEMES, resolve


def check_spec(spec: str) -> None:
    """Raise ConfigError, with the near names, if ``spec`` probably names no environment."""
    head, colon, rest = spec.partition(":")
    if spec in BUILT_IN:
        return
    if not colon:
        resolve(spec)  # an entry point, which is loaded; or the error with the near names
    elif head == "reasoning-gym" and rest:
        _check_reasoning_gym(rest)
    elif not _is_path(head) or not _mentions(head, rest.strip().partition(".")[0]):
        resolve(spec)


def _is_path(head: str) -> bool:
    return head not in SCHEMES and all(part.isidentifier() for part in head.split("."))


def _check_reasoning_gym(dataset: str) -> None:
    found = find_spec("reasoning_gym") if "reasoning_gym" not in sys.modules else None
    if found is not None and found.origin:
        quoted = f'"{dataset}"'
        if any(quoted in _text(path) for path in Path(found.origin).parent.rglob("*.py")):
            return
    from .loading import load

    load(f"reasoning-gym:{dataset}")


def _mentions(module: str, attribute: str) -> bool:
    """Whether the module is there and its text has the attribute's name."""
    try:
        found = _find(module)
    except (ImportError, ValueError, AttributeError):
        return False  # importlib's errors for odd modules: load it and see
    if found is None or not attribute:
        return False
    if found.origin is None or not found.origin.endswith(".py"):
        return True  # compiled, or a namespace: only importing would tell
    return attribute in _text(Path(found.origin))


def _find(module: str) -> ModuleSpec | None:
    """The module's spec, without importing the packages that it is in."""
    top, *rest = module.split(".")
    found, name = find_spec(top), top
    for part in rest:
        if found is None or found.submodule_search_locations is None:
            return None
        name = f"{name}.{part}"
        found = PathFinder.find_spec(name, list(found.submodule_search_locations))
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error}") from error

"""A check whether a name can mean an environment, without loading it.

Theory of operation
-------------------
A server runs no environment code in its own process, so it cannot simply load
the environment to see whether the name is right.  :func:`check_spec` makes only
cheap and harmless checks: names, entry points, whether a module or file can be found,
and whether its text mentions the attribute.  If that looks like a typo, it loads
the environment after all.  This raises the error with the near names, or shows
that the name is right (attributes made at import time).

A name that passes may still be wrong; the workers find out.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..core.errors import ConfigError
from .specs import BUILT_IN, CLASS_SCHEME, SCHEMES, is_file, resolve

LIBRARIES = {
    "gymnasium": "gymnasium",
    "reasoning-gym": "reasoning_gym",
    "textarena": "textarena",
}
"""Schemes whose names stand in the source of a library."""


def check_spec(spec: str, args: Mapping[str, Any] | None = None) -> None:
    """Raise ConfigError, with the near names, if ``spec`` probably names no environment.

    ``args`` are for the case that it is loaded.
    """
    spec = spec.removeprefix(f"{CLASS_SCHEME}:")
    head, colon, rest = spec.partition(":")
    if spec in BUILT_IN:
        return
    if not colon:
        resolve(spec)  # an entry point, which is loaded; or the error with the near names
    elif head in LIBRARIES and rest:
        _check_library(spec, LIBRARIES[head], rest, args)
    elif head in ("http", "https"):
        _load(spec, args)
    elif not _is_path(head) or not _mentions(head, rest.strip().partition(".")[0]):
        resolve(spec)


def _is_path(head: str) -> bool:
    if head in SCHEMES:
        return False
    return is_file(head) or all(part.isidentifier() for part in head.split("."))


def _check_library(spec: str, library: str, name: str, args: Mapping[str, Any] | None) -> None:
    """Look for the name in the library's source, which takes less than importing it."""
    found = find_spec(library) if library not in sys.modules else None
    if found is not None and found.origin:
        quoted = f'"{name}"'
        if any(quoted in _text(path) for path in Path(found.origin).parent.rglob("*.py")):
            return
    _load(spec, args)


def _load(spec: str, args: Mapping[str, Any] | None) -> None:
    from .loading import load

    load(spec, args)


def _mentions(module: str, attribute: str) -> bool:
    """Whether the module is there and its text has the attribute's name."""
    if is_file(module):
        path = Path(module)
        return path.is_file() and bool(attribute) and attribute in _text(path)
    try:
        found = _find(module)
    except (ImportError, ValueError, AttributeError, KeyError):
        # importlib's errors for odd modules, and for namespaces inside one: load it and see
        return False
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

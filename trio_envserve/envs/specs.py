"""From a specification string to the object it names.

Theory of operation
-------------------
There are four kinds of name, tried in this order; the first that fits counts:

1. ``scheme:rest`` where the scheme is built in or an entry point of the group
   ``trio_envserve.env_schemes``: its factory is called with ``rest`` first;
2. ``package.module:attribute``;
3. a built-in name;
4. an entry point of the group ``trio_envserve.envs``.

Built-in names work without installation metadata.  If nothing fits, a
:class:`ConfigError` has the nearest names.  The search for those (a walk over all
modules that could be imported) happens only then.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Iterable, Mapping
from importlib import import_module
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any

from .. import foreign
from ..core.errors import ConfigError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

ENVIRONMENT_GROUP = "trio_envserve.envs"
"""Entry points that are environments, their classes or factories."""

SCHEME_GROUP = "trio_envserve.env_schemes"
"""Entry points that are factories, called with the text after ``scheme:``."""

BUILT_IN: Mapping[str, str] = MappingProxyType(
    {"arithmetic": "trio_envserve.envs.arithmetic:Arithmetic"}
)
"""Built-in names, and where their environments are."""

SCHEMES: Mapping[str, str] = MappingProxyType(
    {"reasoning-gym": "trio_envserve.envs.reasoning_gym:ReasoningGym"}
)
"""Built-in schemes, and where their factories are."""


def resolve(spec: str) -> tuple[Any, str]:
    """The object that ``spec`` names, and a short label for messages.

    Raises :class:`ConfigError`.
    """
    head, colon, rest = spec.partition(":")
    if colon:
        return _resolve_path(spec, head, rest)
    if spec in BUILT_IN:
        return _attribute(BUILT_IN[spec]), spec
    points = _entry_points(ENVIRONMENT_GROUP)
    if spec in points:
        return _load_entry_point(points[spec]), spec
    known = {*BUILT_IN, *points}
    hint = _did_you_mean(spec, known)
    if "." in spec:
        hint += "; a path needs an attribute: package.module:factory"
    raise ConfigError(f"no environment {spec!r}{hint} (known: {', '.join(sorted(known))})")


def _resolve_path(spec: str, head: str, rest: str) -> tuple[Any, str]:
    if head in SCHEMES:
        factory = _attribute(SCHEMES[head])
    elif head in (schemes := _entry_points(SCHEME_GROUP)):
        factory = _load_entry_point(schemes[head])
    elif all(part.isidentifier() for part in head.split(".")):
        return _attribute(spec), rest
    else:
        known = {*SCHEMES, *schemes}
        raise ConfigError(
            f"{head!r} is neither a module nor a scheme{_did_you_mean(head, known)} "
            f"(schemes: {', '.join(sorted(known))})"
        )
    if not rest:
        raise ConfigError(f"{spec!r} needs a name after the colon")
    return functools.partial(factory, rest), spec


def _entry_points(group: str) -> dict[str, EntryPoint]:
    # Imported here: it costs more than this whole package, and most specs need none.
    from importlib.metadata import entry_points

    return {point.name: point for point in entry_points(group=group)}


def _load_entry_point(point: EntryPoint) -> Any:
    try:
        return _attribute(point.value)
    except ConfigError as exc:
        raise ConfigError(f"the entry point {point.name!r} is broken: {exc}") from exc


def _attribute(path: str) -> Any:
    """What ``package.module:a.b`` names.  Raises :class:`ConfigError`."""
    module_name, _, attributes = path.partition(":")
    found: Any = _import(module_name.strip())
    where = module_name
    for name in attributes.strip().split("."):
        if not name:
            raise ConfigError(f"{path!r} needs an attribute: {where}:factory")
        try:
            found = getattr(found, name)
        except AttributeError:
            public = [other for other in dir(found) if not other.startswith("_")]
            raise ConfigError(f"{where} has no {name!r}{_did_you_mean(name, public)}") from None
        where = f"{where}.{name}"
    return found


def _import(name: str) -> ModuleType:
    # Importing runs the user's code; a script without a main guard even exits.
    ended = foreign.call(import_module, name)
    error = ended.error
    if error is None:
        found: ModuleType = ended.value
        return found
    if isinstance(error, ConfigError):
        raise error
    why = f"{type(error).__name__}: {foreign.text(error)}"
    if isinstance(error, ModuleNotFoundError):
        missing = error.name or ""
        if name == missing or name.startswith(f"{missing}."):
            raise ConfigError(f"No module named {missing!r}{_near_modules(missing)}") from error
        why = str(error)
    raise ConfigError(f"importing {name} failed: {why}") from error


def _near_modules(missing: str) -> str:
    import pkgutil
    import sys

    parent, _, last = missing.rpartition(".")
    path = getattr(sys.modules.get(parent), "__path__", None) if parent else None
    names = {module.name for module in pkgutil.iter_modules(path)}
    if not parent:
        names |= sys.stdlib_module_names
    near = difflib.get_close_matches(last, names, n=3)
    prefix = f"{parent}." if parent else ""
    return f"; near: {', '.join(prefix + name for name in near)}" if near else ""


def _did_you_mean(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=3)
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else ""

"""From a specification string to the object it names.

Theory of operation
-------------------
There are five kinds of name, tried in this order; the first that fits counts:

1. ``scheme:rest`` where the scheme is built in or an entry point of the group
   ``trio_envserve.env_schemes``: its factory is called with ``rest`` first;
2. ``folder/file.py:attribute``;
3. ``package.module:attribute``;
4. a built-in name;
5. an entry point of the group ``trio_envserve.envs``.

A file becomes a module named after it, unless that name is another module's.  Its
folder goes to the end of ``sys.path``: it can import its neighbours, and none of them
hides a module that something else needs.

Built-in names work without installation metadata.  If nothing fits, a
:class:`ConfigError` has the nearest names.  The search for those (a walk over all
modules that could be imported) happens only then.
"""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from itertools import islice
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any

from .. import foreign
from ..core.errors import ConfigError
from ..extras import needs_extra
from ..file_modules import module_of_file
from ..near import did_you_mean

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
    {
        "gymnasium": "trio_envserve.envs.gymnasium:make",
        "http": "trio_envserve.envs.http_service:from_url",
        "https": "trio_envserve.envs.http_service:from_https",
        "reasoning-gym": "trio_envserve.envs.reasoning_gym:ReasoningGym",
        "textarena": "trio_envserve.envs.textarena:make",
        "verifiers": "trio_envserve.envs.verifiers:Verifiers",
    }
)
"""Built-in schemes, and where their factories are."""

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)

CLASS_SCHEME = "class"
"""Before a path: it names a class with ``reset``, of which each rollout has an object."""


def resolve(spec: str) -> tuple[Any, str]:
    """The object that ``spec`` names, and a short label for messages.

    Raises :class:`ConfigError`.
    """
    head, colon, rest = spec.partition(":")
    if colon:
        return _resolve_path(spec, head, rest)
    if spec in BUILT_IN:
        return attribute(BUILT_IN[spec]), spec
    points = _entry_points(ENVIRONMENT_GROUP)
    if spec in points:
        return _load_entry_point(points[spec]), spec
    known = {*BUILT_IN, *points}
    inside = _in_file(spec)
    hint = inside or did_you_mean(spec, known)
    if "." in spec and not inside:
        hint += "; a path needs an attribute: package.module:factory"
    raise ConfigError(f"no environment {spec!r}{hint} (known: {', '.join(sorted(known))})")


def _resolve_path(spec: str, head: str, rest: str) -> tuple[Any, str]:
    if head == CLASS_SCHEME:
        return _rollout_class(rest)
    if head in SCHEMES:
        factory = attribute(SCHEMES[head])
    elif head in (schemes := _entry_points(SCHEME_GROUP)):
        factory = _load_entry_point(schemes[head])
    elif is_file(head) or all(part.isidentifier() for part in head.split(".")):
        return attribute(spec), rest
    else:
        known = {CLASS_SCHEME, *SCHEMES, *schemes}
        raise ConfigError(
            f"{head!r} is neither a module, a file nor a scheme{did_you_mean(head, known)} "
            f"(schemes: {', '.join(sorted(known))})"
        )
    if not rest:
        raise ConfigError(f"{spec!r} needs a name after the colon")
    return functools.partial(factory, rest), spec


def _rollout_class(path: str) -> tuple[Any, str]:
    found = attribute(path)
    if not (isinstance(found, type) and callable(getattr(found, "reset", None))):
        what = f"the class {path} has no reset()" if isinstance(found, type) else "it is no class"
        raise ConfigError(f"{CLASS_SCHEME}:{path} must name a class with reset(): {what}")
    return found, path.partition(":")[2]


def _entry_points(group: str) -> dict[str, EntryPoint]:
    # Imported here: it costs more than this whole package, and most specs need none.
    from importlib.metadata import entry_points

    return {point.name: point for point in entry_points(group=group)}


def _load_entry_point(point: EntryPoint) -> Any:
    try:
        return attribute(point.value)
    except ConfigError as exc:
        raise ConfigError(f"the entry point {point.name!r} is broken: {exc}") from exc


def is_file(head: str) -> bool:
    """Whether the text before the colon names a file of Python."""
    return head.endswith(".py")


def attribute(path: str) -> Any:
    """The object that ``package.module:a.b`` or ``file.py:a.b`` names.  Raises ConfigError."""
    module_name, _, attributes = path.partition(":")
    module_name = module_name.strip()
    found: Any = _import_file(module_name) if is_file(module_name) else _import(module_name)
    where = module_name
    for name in attributes.strip().split("."):
        if not name:
            raise ConfigError(f"{path!r} needs an attribute: {where}:factory")
        try:
            found = getattr(found, name)
        except AttributeError:
            public = [other for other in dir(found) if not other.startswith("_")]
            raise ConfigError(f"{where} has no {name!r}{did_you_mean(name, public)}") from None
        where = f"{where}.{name}"
    return found


def library(name: str, *parts: str, missing: str = "") -> Any:
    """The library of an adapter, with these modules of it.  Raises ConfigError if it is not
    installed; ``missing`` says what to do then, if that is not to install the extra."""
    try:
        for part in parts:
            import_module(part)
        return import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != name:
            raise
        extra = name.replace("_", "-")
        raise ConfigError(missing or needs_extra(f"{extra}:", extra)) from error


def made(where: str, make: Callable[..., Any], *args: Any, **given: Any) -> Any:
    """The value that code of others makes.  Raises its own ConfigError, or one that begins with
    ``where``."""
    ended = foreign.call(make, *args, **given)
    if isinstance(ended.error, ConfigError):
        raise ended.error
    if ended.error is not None:
        why = f"{type(ended.error).__name__}: {foreign.text(ended.error)}"
        raise ConfigError(f"{where}: {why}") from ended.error
    return ended.value


def _import(name: str) -> ModuleType:
    # Importing runs the user's code; a script without a main guard even exits.
    ended = foreign.call(import_module, name)
    error = ended.error
    if isinstance(error, ModuleNotFoundError):
        missing = error.name or ""
        if name == missing or name.startswith(f"{missing}."):
            hint = _near_modules(missing) or _folder_hint(missing)
            raise ConfigError(f"No module named {missing!r}{hint}") from error
    return _imported(name, ended)


def _import_file(name: str) -> ModuleType:
    path = Path(name).resolve()
    if not path.is_file():
        raise ConfigError(f"there is no file {name}{did_you_mean(path.name, _files(path.parent))}")
    loaded = sys.modules.get(path.stem)
    # Another module of this name stays what it is.  No dot: pickle would look for a package.
    module_name = path.stem if loaded is None else f"{path.stem}@{path}".replace(".", "_")
    for known in (loaded, sys.modules.get(module_name)):
        if known is not None and getattr(known, "__file__", None) == str(path):
            return known
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    return _imported(name, foreign.call(module_of_file, module_name, path))


def _in_file(name: str) -> str:
    """A suggestion for a name of a file, or of its module, with nothing in it."""
    path = Path(name if is_file(name) else f"{name}.py")
    try:
        found = ast.parse(path.read_bytes()).body
    except (OSError, ValueError, SyntaxError):
        return ""
    names = [
        f"{path}:{node.name}"
        for node in found
        if isinstance(node, (ast.ClassDef, *_FUNCTIONS)) and _may_be_environment(node)
    ]
    return f"; did you mean {' or '.join(map(repr, names[:3]))}?" if names else ""


def _may_be_environment(node: ast.stmt) -> bool:
    if isinstance(node, ast.ClassDef):
        methods = {each.name for each in node.body if isinstance(each, _FUNCTIONS)}
        return bool(methods & {"run_rollout", "reset"})
    return isinstance(node, _FUNCTIONS) and [each.arg for each in node.args.args[:1]] == ["rollout"]


def _files(folder: Path) -> list[str]:
    try:
        return [path.name for path in folder.glob("*.py")]
    except OSError:
        return []


def _imported(name: str, ended: foreign.CodeResult) -> ModuleType:
    """The module, or why importing it failed: a ConfigError of its own, or of ours."""
    error = ended.error
    if error is None:
        found: ModuleType = ended.value
        return found
    if isinstance(error, ConfigError):
        raise error
    why = f"{type(error).__name__}: {foreign.text(error)}"
    if isinstance(error, ModuleNotFoundError):
        why = str(error)
    raise ConfigError(f"importing {name} failed: {why}") from error


def _near_modules(missing: str) -> str:
    import pkgutil

    parent, _, last = missing.rpartition(".")
    path = getattr(sys.modules.get(parent), "__path__", None) if parent else None
    names = {module.name for module in pkgutil.iter_modules(path)}
    if not parent:
        names |= sys.stdlib_module_names
    # Of the hundreds of modules of an interpreter some are always a little alike.
    return did_you_mean(last, names, cutoff=0.75, prefix=f"{parent}." if parent else "")


def _folder_hint(missing: str) -> str:
    """A hint where the module is, if the working directory is wrong or is not searched."""
    here, name = Path.cwd(), missing.partition(".")[0]
    if (here / f"{name}.py").exists() or (here / name).is_dir():
        return f"; it is in {here}, which is not on sys.path: add it to PYTHONPATH"
    folders = [here.parent, *(path for path in islice(here.iterdir(), 100) if path.is_dir())]
    for folder in folders:
        if (folder / f"{name}.py").exists() or (folder / name / "__init__.py").exists():
            return f"; the working directory is {here}, but it is in {folder}: start there"
    return f"; the working directory is {here}, and it is not there"

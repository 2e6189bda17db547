"""From a name, a path or an object to an environment that can be run.

Theory of operation
-------------------
:func:`load` does three things in order.  It finds the object that the specification
names (``specs.py``), calls it if it is a class or a factory, and inspects the
environment: which backend runs it, and whether its declarations make sense.  It
finds every mistake here, before a worker says hello, and raises a
:class:`ConfigError` that says what to write instead.

A *function* is ambiguous: it may make an environment, or be one.  A function
whose first parameter is called ``rollout`` is the ``run_rollout`` of an
environment; any other function is a factory.

A server runs no environment code in its own process, so it cannot simply load the environment
to see whether the name is right.  :func:`check_spec` makes only cheap and harmless checks:
names, entry points, whether a module or file can be found, and whether its text mentions the
attribute.  If that looks like a typo, it loads the environment after all.  This raises the
error with the near names, or shows that the name is right (attributes made at import time).  A
name that passes may still be wrong; the workers find out.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast, final, get_args

from ..core.errors import ConfigError
from ..models.endpoints import hide_secrets
from ..near import did_you_mean
from .apart import marked_of
from .classes import OPTIONS, ClassEnvironment, is_rollout_class, split_options
from .interface import Backend, Rollout
from .specs import BUILT_IN, CLASS_SCHEME, SCHEMES, is_file, made, resolve

DEFAULT_ENVIRONMENT = "arithmetic"
"""The environment of a server that is given none."""


CAPACITIES: Mapping[Backend, int] = MappingProxyType({"trio": 256, "asyncio": 256, "thread": 32})
"""Rollouts at once on one worker, of environments that do not say how many, by how their code
is run.  Measured: the page on concurrency has the figures."""

CAPACITY_OF_OBJECTS = 64
"""Rollouts at once on one worker, of classes whose objects have a thread each: between their
tools they wait for a model, which takes no thread."""


@dataclasses.dataclass(frozen=True, slots=True)
class LoadedEnvironment:
    """An environment that was found, made and checked.  Made by :func:`load`."""

    name: str
    """The environment's own name, or else one derived from the specification."""
    rerun: bool
    """Consent to a further execution after a worker's proven death."""
    backend: Backend
    """Backend that runs its code."""
    environment: Any
    """The environment itself."""
    run_rollout: Callable[[Rollout], Any]
    run_group: Callable[[list[Rollout]], Any] | None
    setup: Callable[[], Any] | None
    teardown: Callable[[], Any] | None
    capacity: int = CAPACITIES["trio"]
    """Rollouts at once on one worker: as it declares, or by the kind of its code."""
    one_at_a_time: bool = False
    """Whether a worker cannot run more than one, whatever anybody says."""
    mixed: bool = False
    """Whether it asks models on its loop and in threads of its own."""
    rescore: Callable[[Rollout, Any], Any] | None = None
    """Scores a stored result of a rollout anew."""
    model_roles: tuple[str, ...] = ()
    """Roles in which it asks further models, as it declares."""

    def roles_of(self, given: Mapping[str, str]) -> list[str]:
        """The roles in which a request has models: those that it declares, or else those that the
        request names.  Raises :class:`ConfigError` if the request names another one."""
        for role in given:
            if self.model_roles and role not in self.model_roles:
                raise ConfigError(
                    f"{self.name} asks no model in the role {role!r:.200}"
                    f"{did_you_mean(role, self.model_roles, 1)} "
                    f"(known: {', '.join(self.model_roles)})"
                )
        return [*(self.model_roles or given)]

    def capacity_by(self, option: int | None) -> int:
        """Rollouts at once on one worker, under an option of its server."""
        return 1 if self.one_at_a_time else option or self.capacity

    def inputs(self, n: int, seed: int = 0) -> list[Any]:
        """``n`` inputs to ask for.  Raises :class:`ConfigError` if the
        environment offers none, or not as a list."""
        make = getattr(self.environment, "inputs", None)
        if not callable(make):
            where = "a method of the environment"
            if isinstance(self.environment, _FunctionEnvironment):
                function = getattr(self.run_rollout, "__name__", "FUNCTION")
                where = f"an attribute of the function ({function}.inputs = inputs)"
            raise ConfigError(
                f"{self.name} has no inputs(n, seed), which would be {where}: pass your own inputs"
            )
        _check_takes(make, self.name, "n", "seed")
        if _is_coroutine(make):
            raise ConfigError(
                f"{self.name}: inputs{_where(make)} is a coroutine function: it must be a plain one"
            )
        offered = make(n, seed)
        if not _is_list_like(offered):
            given = "None" if offered is None else f"a value of type {type(offered).__name__}"
            raise ConfigError(
                f"{self.name}: inputs({n}, {seed}){_where(make)} returned {given}, "
                "and not a list of inputs"
            )
        return list(offered)


@final
class _FunctionEnvironment:
    """An environment that is a function, whose attributes are those of the environment."""

    def __init__(self, run_rollout: Callable[[Rollout], Any]) -> None:
        self.run_rollout = run_rollout

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "run_rollout":
            raise AttributeError(name)
        return getattr(self.run_rollout, name)


def load(spec: str | object, args: Mapping[str, Any] | None = None) -> LoadedEnvironment:
    """The environment that ``spec`` names, ready to be run.

    ``spec`` is a built-in name (``arithmetic``), a scheme (``reasoning-gym:NAME``),
    an entry point of the group ``trio_envserve.envs``, a path
    ``package.module:attribute`` or ``file.py:attribute``; or an environment, a class or a
    factory itself.  ``args`` are keyword arguments for the class or factory; with a class
    that has ``reset`` in the place of ``run_rollout``, those of its loop, too.

    Imports and calls the environment's code.  Raises :class:`ConfigError`, with
    the original exception as its cause where there is one.
    """
    args = dict(args or {})
    if isinstance(spec, str):
        found, label = resolve(spec)
    else:
        found, label = spec, getattr(spec, "__name__", type(spec).__name__)
    return _inspect(_make(found, label, args), label)


def _make(found: Any, label: str, args: dict[str, Any]) -> object:
    """The environment object: ``found`` itself, or what it makes."""
    if is_rollout_class(found):
        options, own = split_options(found, args)
        _check_arguments(found, label, own, more=OPTIONS)
        return ClassEnvironment(found, label, own, options)
    if not inspect.isclass(found):
        if hasattr(found, "run_rollout") or not callable(found) or _is_rollout_function(found):
            if args:
                raise ConfigError(
                    f"{label} is an environment, not a factory: it takes no arguments "
                    f"({', '.join(args)})"
                )
            return _FunctionEnvironment(found) if _is_rollout_function(found) else found
        if inspect.iscoroutinefunction(found):
            raise ConfigError(
                f"the factory {label} is a coroutine function: use a plain function, and await "
                "in the environment's setup(). A function that runs rollouts itself must call "
                'its first parameter "rollout"'
            )
    _check_arguments(found, label, args)
    # Factories are the user's code; whatever they raise, nothing was started.
    found = made(f"{label} could not be made", found, **args)
    return _FunctionEnvironment(found) if _is_rollout_function(found) else cast(object, found)


def _is_rollout_function(found: Any) -> bool:
    if inspect.isclass(found) or not callable(found) or hasattr(found, "run_rollout"):
        return False
    signature = _signature(found)
    return signature is not None and next(iter(signature.parameters), "") == "rollout"


def _signature(found: Any) -> inspect.Signature | None:
    try:
        return inspect.signature(found)
    except (TypeError, ValueError):
        return None  # built-in callables need not have one


def _check_arguments(
    found: Any, label: str, args: dict[str, Any], more: Iterable[str] = ()
) -> None:
    """Compare with the signature first, so that a TypeError from inside the
    factory is not taken for a wrong argument.  ``more`` are arguments that are taken,
    though not by the factory."""
    signature = _signature(found)
    if signature is None:
        return
    try:
        signature.bind(**args)
    except TypeError as exc:
        names = [
            name
            for name, parameter in signature.parameters.items()
            if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        ]
        names += [name for name in more if name not in names]
        hints = [did_you_mean(arg, names, 1) for arg in args if arg not in names]
        takes = ", ".join(names) or "no arguments"
        if not args and inspect.isfunction(found):
            hints.append('; a function that runs rollouts calls its first parameter "rollout"')
        raise ConfigError(f"{label}: {exc}{''.join(hints)} (it takes: {takes})") from None


def _inspect(environment: object, label: str) -> LoadedEnvironment:
    """Check the environment; see the errors for what may be wrong."""
    run_rollout = _method(environment, "run_rollout", label)
    if run_rollout is None:
        raise ConfigError(
            f"{label} is not an environment: {type(environment).__name__} has no "
            f"run_rollout(rollout){_near_name(environment)}"
        )
    declared = getattr(environment, "backend", None)
    if declared is not None and declared not in get_args(Backend):
        raise ConfigError(
            f"{label}: backend must be one of {', '.join(get_args(Backend))}, not {declared!r}"
        )
    _check_takes(run_rollout, label, "rollout")
    backend: Backend = declared or ("trio" if _is_coroutine(run_rollout) else "thread")
    rerun = getattr(environment, "rerun", False)
    if not isinstance(rerun, bool):
        raise ConfigError(f"{label}: rerun must be True or False, not {rerun!r}")
    one_at_a_time, capacity = False, CAPACITIES[backend]
    mixed = getattr(environment, "uses_carrier", False) is True
    marked = next(iter(marked_of(type(environment))), "")
    if marked:
        raise ConfigError(
            f"{label}.{marked} is marked @apart, which is for get_reward of a class with tools: "
            f"in run_rollout call a function apart (await rollout.apart(function, ...))"
        )
    if isinstance(environment, ClassEnvironment):
        one_at_a_time = environment.main_thread
        capacity = CAPACITY_OF_OBJECTS if environment.has_threads else capacity
    name = getattr(environment, "name", None) or label
    if not isinstance(name, str):
        raise ConfigError(f"{label}: name must be a string, not {name!r}")
    run_group = _method(environment, "run_group", label)
    if run_group is not None:
        _check_takes(run_group, label, "rollouts")
    rescore = _method(environment, "rescore", label)
    if rescore is not None:
        _check_takes(rescore, label, "rollout", "value")
    setup = _method(environment, "setup", label)
    teardown = _method(environment, "teardown", label)
    if backend == "thread":
        for function in (run_rollout, run_group, rescore, setup, teardown):
            if function is not None and _is_coroutine(function):
                raise ConfigError(
                    f"{label}: {_name(function)} is a coroutine function, but the environment "
                    'runs in threads; make run_rollout one too, or set backend = "asyncio"'
                )
    return LoadedEnvironment(
        name, rerun, backend, environment, run_rollout, run_group, setup, teardown,
        _capacity(environment, label) or capacity, one_at_a_time, mixed, rescore,
        _roles(environment, label),
    )  # fmt: skip


def _capacity(environment: object, label: str) -> int | None:
    """The number of rollouts at once that an environment declares; a method of that name, a
    tool perhaps, declares nothing."""
    declared = getattr(environment, "capacity", None)
    if declared is None or callable(declared):
        return None
    if type(declared) is not int or declared < 1:
        raise ConfigError(
            f"{label}: capacity is how many rollouts run at once on one worker, a whole number "
            f"from 1 on, not {declared!r}"
        )
    return declared


def _roles(environment: object, label: str) -> tuple[str, ...]:
    """The roles that an environment declares; a method of that name declares nothing."""
    declared = getattr(environment, "model_roles", ())
    if callable(declared):
        return ()
    listed = isinstance(declared, list | tuple)
    if not listed or not all(isinstance(role, str) and role for role in declared):
        raise ConfigError(
            f"{label}: model_roles are those in which it asks further models, a list of texts "
            f'such as ["judge"], not {declared!r:.80}'
        )
    return tuple(declared)


def _near_name(environment: object) -> str:
    near = difflib.get_close_matches("run_rollout", dir(environment), n=1)
    return f"; it has {near[0]}: is that what was meant?" if near else ""


def _method(environment: object, name: str, label: str) -> Callable[..., Any] | None:
    method = getattr(environment, name, None)
    if method is None:
        return None
    if not callable(method):
        raise ConfigError(f"{label}: {name} must be a function, not {type(method).__name__}")
    if inspect.isasyncgenfunction(method) or inspect.isgeneratorfunction(method):
        raise ConfigError(
            f"{label}: {name} is a generator function (it has a yield); it must return a value"
        )
    return cast("Callable[..., Any]", method)


def _check_takes(function: Callable[..., Any], label: str, *given: str) -> None:
    """Raise ConfigError if a function cannot be called with this number of arguments."""
    try:
        inspect.signature(function).bind(*given)
    except (TypeError, ValueError) as error:
        if isinstance(error, ValueError) and not inspect.ismethod(function):
            return  # built-in callables need not have a signature
        call = f"{_name(function)}({', '.join(given)})"
        raise ConfigError(
            f"{label}: it is called as {call}{_where(function)}, and that fails: {error} "
            "(the first parameter of a method is self)"
        ) from None


def _is_list_like(given: object) -> bool:
    """Whether it has members.  The keys of a mapping and the letters of a text are none that
    anybody means."""
    if isinstance(given, str | bytes | Mapping):
        return False
    return hasattr(type(given), "__iter__") or hasattr(type(given), "__getitem__")


def _where(function: Callable[..., Any]) -> str:
    """File and line of a function of the author's, for messages; empty if they are unknown."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if not inspect.iscode(code):
        return ""
    return f" ({os.path.basename(code.co_filename)}:{code.co_firstlineno})"


def _is_coroutine(function: Callable[..., Any]) -> bool:
    call = getattr(function, "__call__", None)  # noqa: B004  # looked into, not tested for
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def _name(function: Callable[..., Any]) -> str:
    inner = function.func if isinstance(function, functools.partial) else function
    return getattr(inner, "__name__", type(inner).__name__)


# -- a check without loading ----------------------------------------------------

_LIBRARIES = {
    "gymnasium": "gymnasium", "reasoning-gym": "reasoning_gym", "textarena": "textarena",
}  # fmt: skip
"""Schemes whose names stand in the source of a library."""


def check_spec(spec: str, args: Mapping[str, Any] | None = None) -> None:
    """Raise ConfigError, with the near names, if ``spec`` probably names no environment.

    ``args`` are for the case that it is loaded.
    """
    spec = spec.removeprefix(f"{CLASS_SCHEME}:")
    head, colon, rest = spec.partition(":")
    if spec in BUILT_IN:
        return
    hide_secrets()  # what is imported may show them
    if not colon:
        resolve(spec)  # an entry point, which is loaded; or the error with the near names
    elif head in _LIBRARIES and rest:
        _check_library(spec, _LIBRARIES[head], rest, args)
    elif head in ("http", "https"):
        load(spec, args)
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

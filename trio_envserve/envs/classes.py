"""Environments that are a class, with an object for each rollout and methods as tools.

Theory of operation
-------------------
This is the shape of TRL's ``environment_factory``::

    class Increment:
        def reset(self, **kwargs):        # begins a rollout; returns the prompt, or None
            self.counter = 0
            return "Increment the counter by 3."

        def increment(self, step: int) -> int:
            "Add a step to the counter."
            self.counter += step
            return self.counter

        def get_reward(self):             # optional: a number, or named numbers
            return self.counter == 3

The loop asks the model with the tools, calls what it asks for, and ends when it asks for none, or
after ``max_turns`` answers.  The model is told of a name that no tool has, of wrong arguments, of
an ``Exception`` of a tool, and of a tool that takes longer than ``tool_timeout_s``.  An exception
of ``reset``, ``get_reward``, ``next_message`` or ``oracle`` fails the rollout.

All plain methods of an object, ``__init__`` among them, run in one thread, its own
(:mod:`.methods`); coroutines run on the loop.  If ``reset``, the tools, ``get_reward``,
``next_message`` and ``close`` are all coroutines, then so does ``__init__``.  With the
attribute ``main_thread = True`` plain methods run in the main thread of the worker, which is
that of its loop; such a worker takes one request at a time, and tells its server so.  The
attribute ``capacity`` says how many run at once on one worker otherwise.

Tools are found as TRL finds them: the public bound methods of the object, once it is made.
Those that the class has are described when it is loaded; those that ``__init__`` has added
(``self.search = self._client.search``), with each object.

A class that declares ``rollout`` (``rollout = None``, or an annotation) has the rollout there in
each method but ``__init__``: ``await self.rollout.ask(messages, endpoint="judge")`` in a coroutine,
``self.rollout.ask_sync(...)`` in a plain method.

A class that says ``sandbox = "bubblewrap"``, or ``sandbox = Sandboxed("docker", image=...)``, has a
sandbox for each object: ``self.sandbox``, in each method but ``__init__``.  A plain method calls
``self.sandbox.exec_sync(...)``, a coroutine awaits ``self.sandbox.exec(...)``.

Besides ``reset`` and ``get_reward`` these methods are not tools: ``close()``, called at
the end, cancelled or not; ``next_message(text)``, called when an answer asks for no tool,
which returns what the user says next, or None to end; ``oracle()``, called after
``reset``, which returns what the model ``oracle`` is to answer, one item for each turn: a
text, or ``{"name": ..., "arguments": {...}}`` for a tool call, or a list of those;
``rollout_state()``, which returns what is added to the result's ``state``;
``rescore(rollout, value)``, called with a new object, which returns the reward of a stored result;
and the static method ``inputs(n, seed)``.  A method of such a name that takes other arguments is
refused.

With the attribute ``resumable = True`` the loop saves before each turn: the conversation and what
``snapshot()`` returns.  A further execution calls ``restore(state)`` with that in place of
``reset``, and goes on with that turn.  Only then these two names are reserved, and both needed.

A result has ``reward``, or else ``no_reward``, which says why there is none; ``rewards``
if they are named; ``completion``, the messages after the prompt; ``stop``, which is
``answer``, ``max_turns``, ``length`` (the model's answer was cut off), ``context`` (its context is
full) or ``deadline`` (the rollout was late); ``usage``;
``segments``, the token records, if the endpoint gives the ids of every turn; and ``state``
with ``prompt``, ``turns``, ``tool_calls``, ``tool_errors`` and ``tools``.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import logging
import os
import threading
import typing
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import nullcontext
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar, final

import trio

from .. import foreign
from ..core.errors import ConfigError
from ..foreign import CodeResult
from ..sandboxes.sandbox import Sandbox, Sandboxed
from .apart import marked_of, need_library
from .interface import Backend, Rollout
from .methods import Methods, ObjectThread, PlainCalls, TookTooLong, TrioMethods, plainly, same
from .saves import loop_saves
from .tool_loop import LoopOptions, ToolLoop
from .tools import Tool, check_returns, tools_of, tools_of_object

CALLED: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "get_reward": (),
        "close": (),
        "next_message": ("text",),
        "oracle": (),
        "rollout_state": (),
        "rescore": ("rollout", "value"),
        "inputs": ("n", "seed"),
    }
)
"""Public methods that are not tools, and what they are called with."""

ITERATED = frozenset({"oracle", "inputs"})
"""Those of them that may have a yield."""

RESUMING: Mapping[str, tuple[str, ...]] = MappingProxyType({"snapshot": (), "restore": ("state",)})
"""The same of a class that is resumable."""

CLOSE_S = 10.0
"""Time that a ``close`` that is a coroutine may take, in seconds."""

_log = logging.getLogger("trio_envserve.envs")

T = TypeVar("T")

OPTIONS = tuple(field.name for field in dataclasses.fields(LoopOptions))


def is_rollout_class(found: object) -> bool:
    """Whether this is a class of the shape above."""
    return (
        inspect.isclass(found)
        and not hasattr(found, "run_rollout")
        and callable(getattr(found, "reset", None))
    )


def split_options(kind: type, args: Mapping[str, Any]) -> tuple[LoopOptions, dict[str, Any]]:
    """The options of the loop, and the arguments of the class (which takes precedence).
    Raises :class:`ConfigError` for options out of range."""
    try:
        own = set(inspect.signature(kind).parameters)
    except (TypeError, ValueError):
        own = set()  # built-in classes need not have one
    options = {name: args[name] for name in OPTIONS if name in args and name not in own}
    rest = {name: value for name, value in args.items() if name not in options}
    return LoopOptions(**{**_declared(kind), **options}), rest


_Use: TypeAlias = Callable[[Any, Methods, Mapping[str, Tool]], Awaitable[T]]
"""Code that uses an object, with calls of its methods, and its tools."""


@final
class ClassEnvironment:
    """An environment that makes an object of a class for each rollout.

    Raises :class:`ConfigError` if a method cannot be described to a model.
    """

    def __init__(
        self,
        kind: type,
        label: str,
        args: Mapping[str, Any],
        options: LoopOptions,
        *,
        rerun: bool = False,
    ) -> None:
        name = getattr(kind, "name", None)
        self.name = name if isinstance(name, str) and name else label
        self.rerun = _attribute(kind, "rerun", rerun)
        self.capacity = _attribute(kind, "capacity", None)
        self.model_roles = _attribute(kind, "model_roles", ())
        self.max_reward = _attribute(kind, "max_reward", 1.0)
        # Plain methods have threads wherever the loop is; what is no backend, the loader tells.
        declared = _attribute(kind, "backend", None)
        self.backend: Backend = "trio" if declared in (None, "thread") else declared
        self.options = options
        self.resumable = _flag(kind, "resumable", label)
        called = {**CALLED, **(RESUMING if self.resumable else {})}
        _check(kind, label, called)
        self._reserved = {"reset", *called}
        self.tools = tools_of(kind, label, reserved=self._reserved)
        self._kind: Any = kind
        self._label = label
        self._make = functools.partial(kind, **args)
        self._on_loop = _is_on_loop(kind, self.tools, RESUMING if self.resumable else ())
        self.gets_rollout = _declares_rollout(kind)
        """Whether its objects have the rollout, and may ask models from their threads."""
        self.sandboxed = _sandboxed(kind, label)
        """The sandbox that each of its objects has, if any."""
        self.rescore = self._rescore if hasattr(kind, "rescore") else None
        self.inputs: Callable[[int, int], Any] = getattr(kind, "inputs", self._inputs_of_reset)
        self.main_thread = _flag(kind, "main_thread", label)
        if self.main_thread and self.backend == "asyncio":
            raise ConfigError(
                f"{label}: with main_thread = True its coroutines run on trio, not on asyncio, "
                "whose loop has another thread"
            )
        if self.main_thread and self.sandboxed is not None:
            raise ConfigError(
                f"{label}: with main_thread = True its loop stands still during a method, and "
                "nothing could run in a sandbox meanwhile: leave one of the two out"
            )
        self.uses_carrier = self.gets_rollout or self.sandboxed is not None
        """Whether plain methods of its objects have work done on the loop."""
        self.has_threads = not (self._on_loop or self.main_thread)
        """Whether each object has a thread of its own."""
        # The worker takes one request at a time: this is for the members of a group.
        self._turns = trio.Semaphore(1) if self.main_thread else None
        self.setup: Callable[[], None] | None = None
        if self.main_thread:
            self.setup = self._check_thread
        elif self.sandboxed is not None:
            self.setup = self.sandboxed.check

    def _check_thread(self) -> None:
        """Say that there is one rollout at a time; raise where this is not the main thread."""
        if threading.current_thread() is not threading.main_thread():
            raise ConfigError(
                f"{self._label} has main_thread = True, and the loop here runs in another thread: "
                "serve it with workers of their own (workers=1 or more)"
            )
        _log.info(
            "%s has main_thread = True: this worker runs one rollout at a time, and its loop "
            "stands still during a method; start as many workers as rollouts shall run at once",
            self._label,
        )

    def _inputs_of_reset(self, n: int, seed: int) -> list[Any]:
        """Inputs for a ``reset`` that needs nothing but a seed."""
        parameters = list(inspect.signature(self._kind.reset).parameters.values())[1:]
        needed = [
            parameter.name
            for parameter in parameters
            if parameter.default is parameter.empty
            and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
            and parameter.name != "seed"
        ]
        if needed:
            raise ConfigError(
                f"{self.name} has no inputs(n, seed), and its reset() needs "
                f"{', '.join(needed)}: pass your own inputs"
            )
        if any(parameter.name == "seed" for parameter in parameters):
            return [{"seed": seed + i} for i in range(n)]
        return [{} for _ in range(n)]

    async def run_rollout(self, rollout: Rollout) -> dict[str, Any]:
        """One rollout with an object of its own."""

        async def play(made: Any, methods: Methods, tools: Mapping[str, Tool]) -> dict[str, Any]:
            return await ToolLoop(
                rollout, made, methods, name=self.name, tools=tools, options=self.options,
                resumable=self.resumable,
            ).run()  # fmt: skip

        return await self._with_object(rollout, play)

    async def _rescore(self, rollout: Rollout, value: Any) -> Any:
        async def score(made: Any, methods: Methods, tools: Mapping[str, Tool]) -> Any:
            return (await methods.call(functools.partial(made.rescore, rollout, value))).unwrap()

        return await self._with_object(rollout, score)

    async def _with_object(self, rollout: Rollout, use: _Use[T]) -> T:
        """Make an object when it is its turn, use it, and close it."""
        sandboxed = nullcontext() if self.sandboxed is None else rollout.sandbox(self.sandboxed)
        async with self._turns or nullcontext(), sandboxed as sandbox:
            return await self._with_object_in(rollout, sandbox, use)

    async def _with_object_in(self, rollout: Rollout, sandbox: Sandbox | None, use: _Use[T]) -> T:
        methods = self._methods(rollout)
        made: list[Any] = []
        try:
            make = functools.partial(self._made, made, rollout, sandbox)
            if self._on_loop:
                tools = plainly(make, same, os.getpid()).unwrap()
            else:
                tools = (await methods.call(make)).unwrap()
            return await use(made[0], methods, tools)
        finally:
            try:
                await methods.settle()  # noqa: ASYNC102
            finally:
                try:
                    if made and hasattr(made[0], "close"):
                        closed = await methods.close(made[0].close, CLOSE_S)  # noqa: ASYNC102
                        self._report(closed)
                        await methods.settle()  # noqa: ASYNC102
                finally:
                    # The last reference: what the object does at its end, it does in its thread.
                    await methods.end(made.clear)  # noqa: ASYNC102

    def _made(
        self, made: list[Any], rollout: Rollout, sandbox: Sandbox | None
    ) -> Mapping[str, Tool]:
        """Make the object, as the one member of ``made``; returns its tools."""
        made.append(self._make())
        if sandbox is not None:
            made[0].sandbox = sandbox
        if self.gets_rollout:
            services = rollout._services
            if self.resumable and services is not None:
                services = dataclasses.replace(services, save=loop_saves)
                rollout = dataclasses.replace(rollout, _services=services)
            made[0].rollout = rollout
        return tools_of_object(made[0], self.tools, self._label, reserved=self._reserved)

    def _methods(self, rollout: Rollout) -> Methods:
        # The name is the one under which threads of an execution are looked for.
        thread = f"request {rollout.request}"
        plain = PlainCalls() if self.main_thread else ObjectThread(thread)
        if self.backend != "asyncio":
            return TrioMethods(plain)
        from .methods_asyncio import AsyncioMethods

        return AsyncioMethods(plain)

    def _report(self, closed: CodeResult) -> None:
        # The rollout is done, and what came of it counts for more than this.
        if isinstance(closed.error, TookTooLong):
            _log.warning("%s.close() took longer than %g s", self._label, CLOSE_S)
        elif closed.error is not None:
            why = f"{type(closed.error).__name__}: {foreign.text(closed.error)}"
            _log.warning("%s.close() failed: %s", self._label, why)


def _attribute(kind: type, name: str, default: Any) -> Any:
    """An attribute of the class; ``default`` where a method, which is a tool, has its name."""
    found = inspect.getattr_static(kind, name, default)
    return default if callable(found) or hasattr(found, "__get__") else found


def _flag(kind: type, name: str, label: str) -> bool:
    """An attribute that is True or False, which it is by default."""
    found = _attribute(kind, name, False)
    if type(found) is not bool:
        raise ConfigError(f"{label}: {name} must be True or False, not {found!r}")
    return found


def _declares_rollout(kind: type) -> bool:
    """Whether the class has an attribute ``rollout`` that is for the rollout: None, or only
    annotated."""
    found = inspect.getattr_static(kind, "rollout", kind)
    if found is kind:
        return any("rollout" in inspect.get_annotations(each) for each in kind.__mro__)
    return found is None


def _sandboxed(kind: type, label: str) -> Sandboxed | None:
    """The sandbox that a class says; a tool of that name says none."""
    declared = _attribute(kind, "sandbox", None)
    try:
        made = Sandboxed(declared) if isinstance(declared, str) else declared
    except ConfigError as error:
        raise ConfigError(f"{label}: {error}") from error
    if made is not None and not isinstance(made, Sandboxed):
        raise ConfigError(
            f'{label}: sandbox is the name of a provider ("bubblewrap") or a Sandboxed, not '
            f"{declared!r:.80}"
        )
    return made


def _declared(kind: type) -> dict[str, Any]:
    """The loop's options among the attributes."""
    found = {name: _attribute(kind, name, None) for name in OPTIONS}
    return {name: value for name, value in found.items() if value is not None}


def _is_on_loop(kind: type, tools: Mapping[str, Tool], resuming: Iterable[str]) -> bool:
    """Whether the methods that do the work are all coroutines."""
    optional = {"get_reward", "next_message", "close"}.intersection(dir(kind))
    names = ["reset", *tools, *resuming, *optional]
    return all(inspect.iscoroutinefunction(getattr(kind, name)) for name in names)


def _check(kind: type, label: str, called: Mapping[str, tuple[str, ...]]) -> None:
    if any(base.__module__.partition(".")[0] == "gymnasium" for base in kind.__mro__):
        raise ConfigError(
            f"{label} is an environment of gymnasium: register it there, and name it "
            "gymnasium:ID or gymnasium:package.module:ID"
        )
    for name in marked_of(kind):
        if name != "get_reward":
            raise ConfigError(
                f"{label}.{name} is marked @apart, and only get_reward may be: it runs on a copy "
                "of its object, so what another method changes there would be lost"
            )
        need_library()
    for name in ("reset", *called):
        method = inspect.getattr_static(kind, name, None)
        if method is None and name in RESUMING:
            raise ConfigError(
                f"{label} has resumable = True and no method {name}: it needs snapshot(), which "
                "returns a state, and restore(state), which begins from that in place of reset()"
            )
        if method is None:
            continue
        function = getattr(kind, name)
        if not callable(function):
            raise ConfigError(f"{label}.{name} must be a method, not {type(method).__name__}")
        if name not in ITERATED:
            check_returns(function, f"{label}.{name}", "this method")
        if name == "inputs" and not isinstance(method, (staticmethod, classmethod)):
            raise ConfigError(
                f"{label}.inputs is asked before there is an object: make it a @staticmethod "
                "inputs(n, seed). If it is a tool for the model, give it another name"
            )
        if name in called:
            _check_signature(kind, name, method, label, called[name])


def _check_signature(
    kind: type, name: str, method: Any, label: str, given: tuple[str, ...]
) -> None:
    """Raise :class:`ConfigError` for a method of a reserved name that cannot be called as that
    is: a tool, most likely."""
    function = getattr(kind, name)
    is_plain = not isinstance(method, (staticmethod, classmethod))
    try:
        inspect.signature(function).bind(*(["self"] if is_plain else []), *given)
        fits = name != "next_message" or _takes_text(function, int(is_plain))
    except TypeError:
        fits = False
    except ValueError:
        return  # built-in callables need not have a signature
    if not fits:
        raise ConfigError(
            f"{label}.{name}{inspect.signature(function)}: the name {name} is reserved for a "
            f"method that is called as {name}({', '.join(given)}), and is no tool. If it is a "
            f"tool for the model, give it another name, such as {name}_it"
        )


def _takes_text(function: Callable[..., Any], position: int) -> bool:
    """Whether a parameter is not annotated as something else than text."""
    parameters = list(inspect.signature(function).parameters.values())
    # Annotations are code, and may name what is not there.
    hints = foreign.call(typing.get_type_hints, function).value or {}
    hint = hints.get(parameters[min(position, len(parameters) - 1)].name, str)
    return hint in (str, Any, object) or str in typing.get_args(hint)

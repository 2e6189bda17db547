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

The loop asks the model with the tools, calls what it asks for, and ends when it asks for
none, or after ``max_turns`` answers.  The model is told of a name that no tool has, of
wrong arguments, of an ``Exception`` of a tool, and of a tool that takes longer than
``tool_timeout_s``.  What ``reset``, ``get_reward``, ``next_message`` and ``oracle`` raise
is a failed rollout.

Besides ``reset`` and ``get_reward`` these methods are not tools: ``close()``, called at
the end, cancelled or not; ``next_message(text)``, called when an answer asks for no tool,
which returns what the user says next, or None to end; ``oracle()``, called after
``reset``, which returns what the model ``oracle`` is to answer, one item for each turn: a
text, or ``{"name": ..., "arguments": {...}}`` for a tool call, or a list of those;
``rollout_state()``, which returns what is added to the result's ``state``; and the static
method ``inputs(n, seed)``.

A result has ``reward``, or else ``no_reward``, which says why there is none; ``rewards``
if they are named; ``completion``, the messages after the prompt; ``stop``, which is
``answer``, ``max_turns`` or ``length`` (the model's answer was cut off); ``usage``;
``segments``, the token records, if the endpoint gives the ids of every turn; and ``state``
with ``prompt``, ``turns``, ``tool_calls``, ``tool_errors`` and ``tools``.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import logging
from collections.abc import Mapping
from typing import Any, final

from .. import foreign
from ..core.errors import ConfigError
from ..foreign import CodeResult
from .interface import Backend, Rollout
from .methods import Methods, TookTooLong, TrioMethods
from .tool_loop import LoopOptions, ToolLoop
from .tools import tools_of

RESERVED = frozenset(
    {"reset", "get_reward", "close", "next_message", "oracle", "rollout_state", "inputs"}
)
"""Public methods that are not tools."""

CLOSE_S = 10.0
"""How long a ``close`` that is a coroutine may take."""

_log = logging.getLogger("trio_envserve.envs")

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
        self.rerun = getattr(kind, "rerun", rerun)
        self.backend = _backend(kind, label)
        self.options = options
        _check(kind, label)
        self.tools = tools_of(kind, label, reserved=RESERVED)
        self._kind: Any = kind
        self._label = label
        self._make = functools.partial(kind, **args)

    def inputs(self, n: int, seed: int) -> list[Any]:
        """The inputs that the class offers, or ``n`` for a ``reset`` that needs none."""
        if hasattr(self._kind, "inputs"):
            return list(self._kind.inputs(n, seed))
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
        methods = self._methods()
        made: list[Any] = []
        try:
            (await methods.call(lambda: made.append(self._make()))).unwrap()
            loop = ToolLoop(
                rollout, made[0], methods, name=self.name, tools=self.tools, options=self.options
            )
            return await loop.run()
        finally:
            try:
                await methods.settle()  # noqa: ASYNC102
            finally:
                if made and hasattr(made[0], "close"):
                    self._report(await methods.close(made[0].close, CLOSE_S))  # noqa: ASYNC102
                    await methods.settle()  # noqa: ASYNC102

    def _methods(self) -> Methods:
        if self.backend != "asyncio":
            return TrioMethods()
        # Imported here: most workers need no asyncio.
        from .methods_asyncio import AsyncioMethods

        return AsyncioMethods()

    def _report(self, closed: CodeResult) -> None:
        # The rollout is done, and what came of it counts for more than this.
        if isinstance(closed.error, TookTooLong):
            _log.warning("%s.close() took longer than %g s", self._label, CLOSE_S)
        elif closed.error is not None:
            why = f"{type(closed.error).__name__}: {foreign.text(closed.error)}"
            _log.warning("%s.close() failed: %s", self._label, why)


def _backend(kind: type, label: str) -> Backend:
    declared = getattr(kind, "backend", None)
    if declared not in (None, "trio", "asyncio", "thread"):
        raise ConfigError(
            f"{label}: backend must be one of trio, thread, asyncio, not {declared!r}"
        )
    return "asyncio" if declared == "asyncio" else "trio"


def _declared(kind: type) -> dict[str, Any]:
    """The loop's options among the attributes; a method of the same name is a tool."""
    found = {name: inspect.getattr_static(kind, name, None) for name in OPTIONS}
    return {
        name: value
        for name, value in found.items()
        if value is not None and not callable(value) and not hasattr(value, "__get__")
    }


def _check(kind: type, label: str) -> None:
    if any(base.__module__.partition(".")[0] == "gymnasium" for base in kind.__mro__):
        raise ConfigError(
            f"{label} is an environment of gymnasium: register it there, and name it "
            "gymnasium:ID or gymnasium:package.module:ID"
        )
    for name in RESERVED:
        method = inspect.getattr_static(kind, name, None)
        if method is None:
            continue
        if not callable(getattr(kind, name)):
            raise ConfigError(f"{label}.{name} must be a method, not {type(method).__name__}")
        if name == "inputs" and not isinstance(method, (staticmethod, classmethod)):
            raise ConfigError(
                f"{label}.inputs is asked before there is an object: make it a @staticmethod"
            )

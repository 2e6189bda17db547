"""Calls apart: functions of environments that run in processes of their own.

Theory of operation
-------------------
A function that holds the interpreter (a regular expression that backtracks for ever, say) holds
up every rollout of its worker, and nothing can stop it but the end of that process.  So it is
called in another process, which is killed at a limit of time::

    reward = await rollout.apart(score, answer, timeout_s=5)

    class Regex:
        @apart(timeout_s=5)
        def get_reward(self): ...

Function, arguments and value travel as pickles, made and read where the environment's code runs.
What cannot be pickled is refused, by name.  What the function raises is raised at its caller; if
that cannot be pickled, or not be read, a ``RuntimeError`` with its type and message is.

A value may be an object that code of a model has made, and the pickle of an object names the
function that makes it anew.  So values and exceptions are read by one that calls nothing but
classes of data, sets no state of a class or of an enum's member, and imports nothing but what is
in :data:`_DATA` (:class:`_Reader`).

The processes belong to the worker (:mod:`trio_envserve.worker.apart`).
"""

from __future__ import annotations

import enum
import functools
import inspect
import io
import math
import os
import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any, ClassVar, NamedTuple, TypeVar, final, overload
from zoneinfo import ZoneInfo

from .. import foreign
from ..core.errors import ConfigError, EnvServeError
from ..extras import needs_extra
from ..large_pickles import dump
from ..redaction import redacted

TIMEOUT_S = 5.0
"""Time that a call apart may take, in seconds, if it says nothing else."""

MOST_BYTES = 1 << 28
"""Most bytes of the pickle of a call, or of its value."""

MOST_BESIDE = 1 << 32
"""Most bytes of the large arrays beside one of them."""
BESIDE = hasattr(os, "memfd_create")
"""Whether large arrays can travel beside a pickle."""

_LIMITS = "__trio_envserve_apart__"
"""Attribute of a method that :func:`apart` has marked."""

_SHOWN = 200
"""Most characters of the name of a function or the text of a pickling error."""


class ApartError(EnvServeError):
    """A call apart had no result, and its process is gone."""

    def __init__(self, text: str, where: str = "", stack: str = "") -> None:
        super().__init__(text)
        self.where = where
        """Innermost line of the environment's code in that process at its end, such as
        ``File "env.py", line 7, in score``; empty if it is not known."""
        if stack:
            self.add_note(redacted(f"it stood here:\n{stack}"))


class ApartTimeout(ApartError):
    """A call apart took longer than its ``timeout_s``; its process was ended."""

    code = "apart-timeout"


class ApartOutOfMemory(ApartError):
    """A call apart needed more memory than its ``memory_bytes``."""

    code = "apart-memory"


class ApartDied(ApartError):
    """The process of a call apart died: it was killed, crashed, or left by ``os._exit``."""

    code = "apart-died"


class ApartLimits(NamedTuple):
    """The limits of a call apart."""

    timeout_s: float
    memory_bytes: int | None
    """Memory that the call may take beside what its process has; None: no limit."""


class ApartCall(NamedTuple):
    """A call apart, ready to travel."""

    name: str
    """Name of the function, for people."""
    module: str
    """Name of the module of the function, if only its file tells how to import it."""
    file: str
    """That file; empty for other modules."""
    job: bytes
    """Pickle of the function and its arguments."""
    buffers: Sequence[memoryview]
    """Large buffers that the pickle leaves out."""
    limits: ApartLimits


class ApartReply(NamedTuple):
    """The result of a call apart that came to its end."""

    value: bytes | None
    """Pickle of the value; None if there is none."""
    buffers: Sequence[memoryview] = ()
    """Large buffers that the pickle leaves out."""
    error: bytes | None = None
    """Pickle of the exception; None if there is none, or it cannot be pickled."""
    told: str = ""
    """Type and message of the exception; for a value that cannot be pickled, the reason."""
    traceback: str = ""
    """Its traceback."""


def checked(timeout_s: float, memory_bytes: int | None) -> ApartLimits:
    """ApartLimits of an environment's author.  Raises ``ValueError``, ``TypeError``."""
    for name, value in (("timeout_s", timeout_s), ("memory_bytes", memory_bytes)):
        if value is None and name == "memory_bytes":
            continue
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TypeError(f"{name} is a number, not {type(value).__name__}")
        if not (0 < value < math.inf):
            raise ValueError(f"{name} is a number above zero, not {value!r}")
    return ApartLimits(float(timeout_s), None if memory_bytes is None else int(memory_bytes))


def call_of(function: Callable[..., Any], args: tuple[Any, ...], limits: ApartLimits) -> ApartCall:
    """A call of a function.  Raises ``TypeError`` for what cannot be called or cannot travel."""
    name = _name(function)
    if not callable(function):
        raise TypeError(f"apart() calls a function, not {type(function).__name__}")
    if inspect.iscoroutinefunction(function):
        raise TypeError(f"{name} is a coroutine function: a call apart is one of a plain function")
    job = foreign.call(dump, (function, args), beside=BESIDE)
    if job.error is not None:
        raise TypeError(
            f"{name} cannot be called in another process, since it or an argument cannot be "
            f"pickled ({_why(job.error)}): make it a function at the top of a module, and pass "
            "what it needs as arguments that can be pickled"
        ) from job.error
    return _travelling(name, function, job.value, limits)


def call_of_method(method: Any, limits: ApartLimits) -> ApartCall:
    """A call of a method with a copy of its object.  Raises ``TypeError`` if that has no copy."""
    made = getattr(method, "__self__", None)
    if made is None:  # a static method has no object
        return call_of(method, (), limits)
    name = f"{type(made).__qualname__}.{method.__name__}"
    job = foreign.call(dump, (method, ()), beside=BESIDE)
    if job.error is not None:
        raise TypeError(
            f"{name}() is marked @apart: it runs in another process with a pickled copy of its "
            f"object, and {_culprit(made)} cannot be pickled ({_why(job.error)}). Leave "
            "that out in __getstate__, or keep in the object only what can be pickled"
        ) from job.error
    return _travelling(name, type(made), job.value, limits)


def value_of(name: str, reply: ApartReply) -> Any:
    """The value of a call, or raises what it has raised."""
    if reply.value is not None:
        read = foreign.call(_read, reply.value, reply.buffers)
        if read.error is not None:
            raise TypeError(
                f"{name} returned what is not read here: {_why(read.error)}. A value is plain "
                "data, numbers and arrays of numpy, an enum, a named tuple, or an object of a "
                "dataclass, attrs or pydantic, of a module that is imported here"
            ) from read.error
        return read.value
    error: BaseException | None = None
    if reply.error is not None:
        read = foreign.call(_read, reply.error)
        # What is no Exception (an exit, say) has a meaning in this process, and had it there.
        error = read.value if foreign.is_exception(read.value, Exception) else None
    if error is None:
        error = RuntimeError(reply.told)
    if reply.traceback:
        note = redacted(f"{name} raised it in a process apart:\n{reply.traceback}")
        foreign.call(BaseException.add_note, error, note)
    raise error


def _read(data: bytes, buffers: Sequence[memoryview] = ()) -> Any:
    try:
        return _Plain(io.BytesIO(data), buffers=buffers).load()
    except _NamesClass:
        return _Reader(io.BytesIO(data), buffers=buffers).load()


class _NamesClass(Exception):
    """A pickle is for :class:`_Reader`, which is ten times as slow."""


@final
class _Plain(pickle.Unpickler):
    """Reads pickles in which there are no classes."""

    def find_class(self, module: str, name: str) -> Any:
        raise _NamesClass


@final
class _Reader(pickle._Unpickler):
    """Reads pickles that code of a model may have made."""

    def find_class(self, module: str, name: str) -> Any:
        """Raises ``UnpicklingError`` if it is no data."""
        full = f"{module}.{name}"
        if full in _INSTEAD:
            return _INSTEAD[full]
        if full in _DATA:
            return super().find_class(module, name)
        found: Any = sys.modules.get(module)
        try:
            for part in name.split("."):  # getattr would run code of the module, or import others
                found = vars(found)[part]
        except (KeyError, TypeError):
            raise pickle.UnpicklingError(f"{full} is not imported here") from None
        if _is_data(found) if isinstance(found, type) else issubclass(type(found), enum.Enum):
            return found
        raise pickle.UnpicklingError(f"{full} is no class of data")

    def load_build(self) -> None:
        """Set the state of an object.  Raises ``UnpicklingError`` for one that others share."""
        made, state = self.stack[-2:]  # type: ignore[attr-defined]
        if isinstance(made, (type, enum.Enum)) or not _is_state_of_dtype(made, state):
            raise pickle.UnpicklingError(f"the state of {type(made).__name__} is not read")
        super().load_build()  # type: ignore[misc]

    dispatch: ClassVar[Any] = {**pickle._Unpickler.dispatch, pickle.BUILD[0]: load_build}


def _is_state_of_dtype(made: Any, state: Any) -> bool:
    """Whether numpy would give that state to an object, if it is a dtype: numpy believes all."""
    numpy: Any = sys.modules.get("numpy")
    kind: Any = getattr(numpy, "dtype", ())  # not there while it is imported
    if not isinstance(made, kind):
        return True
    own, is_shared = made.__reduce__()[2], made is numpy.dtype(made.str)
    return not is_shared and state[1] in ("<", ">", "|", "=") and state[2:8] == own[2:8]


def _array(*_: Any) -> Any:
    """An empty array, of which the state is read next.  (The class would be called with memory of
    a pickle, and numpy would take that for objects.)"""
    import numpy

    return numpy.empty(0, "b")


def _named(kind: Any, name: str) -> Any:
    """What is called for a ``ZoneInfo``, whose pickle names it so; or the member of an enum, as
    Python before 3.11.4 has it."""
    if kind is ZoneInfo and name == "_unpickle":
        return ZoneInfo._unpickle  # type: ignore[attr-defined]
    if issubclass(type(kind), enum.EnumType) and name in kind._member_map_:
        return kind._member_map_[name]
    raise pickle.UnpicklingError("builtins.getattr is no class of data")


def _joined(first: Any, second: Any) -> Any:
    """Flags of one enum together, as Python before 3.11.4 has them."""
    if not issubclass(type(first), enum.Flag) or type(first) is not type(second):
        raise pickle.UnpicklingError("operator.or_ is no class of data")
    return type(first)(first._value_ | second._value_)


def _is_data(kind: type) -> bool:
    marks = ("__dataclass_fields__", "__attrs_attrs__", "model_dump")  # the last is pydantic's
    return issubclass(kind, _PLAIN) or any(hasattr(kind, mark) for mark in marks)


_PLAIN = (
    bool, int, float, str, tuple, list, dict, set, frozenset, enum.Enum, BaseException,
)  # fmt: skip
"""Classes of data, with all that derive from them."""

_NUMPY = ("numpy.core", "numpy._core")  # the first before version 2
_DATA = {
    "builtins.complex", "builtins.range", "builtins.slice", "collections.deque", "datetime.date",
    "datetime.datetime", "datetime.time", "datetime.timedelta", "datetime.timezone",
    "decimal.Decimal", "fractions.Fraction", "numpy.dtype", "pathlib.PosixPath",
    "pathlib.PurePosixPath", "pathlib.PureWindowsPath", "pathlib._local.PosixPath",
    "pathlib._local.PurePosixPath", "pathlib._local.PureWindowsPath", "types.SimpleNamespace",
    "uuid.UUID", "zoneinfo.ZoneInfo",
    *(f"{numpy}.multiarray.scalar" for numpy in _NUMPY),
    *(f"{numpy}.numeric._frombuffer" for numpy in _NUMPY),
}  # fmt: skip
"""Further ones by name, and functions that make them; imported if they are not yet."""
_INSTEAD: Mapping[str, Any] = {
    "builtins.getattr": _named, "_operator.or_": _joined, "numpy.ndarray": "numpy.ndarray",
    **{f"{numpy}.multiarray._reconstruct": _array for numpy in _NUMPY},
}  # fmt: skip
"""By name, what is used in its place."""


def _travelling(
    name: str, found: Any, dumped: tuple[bytes, Sequence[memoryview]], limits: ApartLimits
) -> ApartCall:
    """A module whose name has a file in it was loaded from that file, and cannot be imported."""
    job, buffers = dumped
    arrays_bytes = sum(each.nbytes for each in buffers)
    for taken, most in ((len(job), MOST_BYTES), (arrays_bytes, MOST_BESIDE)):
        if taken > most:
            raise TypeError(f"{name} and its arguments take {taken} bytes, of {most} at most")
    while isinstance(found, functools.partial):
        found = found.func
    module = getattr(found, "__module__", None) or ""
    if "@" not in module:
        return ApartCall(name, "", "", job, buffers, limits)
    file = getattr(sys.modules.get(module), "__file__", "")
    return ApartCall(name, module, file, job, buffers, limits)


def _name(function: Any) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    found = foreign.text(getattr(function, "__qualname__", None) or type(function).__name__)
    return (found or "the function")[:_SHOWN]


def _why(error: BaseException) -> str:
    return redacted(f"{type(error).__name__}: {foreign.text(error)}")[:_SHOWN]


def _culprit(made: Any) -> str:
    """The first attribute of an object that cannot be pickled, in words."""
    found = foreign.call(vars, made).value
    for name, value in (found or {}).items():
        if foreign.call(pickle.dumps, value, pickle.HIGHEST_PROTOCOL).error is not None:
            return f"its attribute {name!r}"
    return "it"


# -- the mark of methods ------------------------------------------------------------------

Method = TypeVar("Method", bound=Callable[..., Any])


@overload
def apart(method: Method, /) -> Method: ...


@overload
def apart(
    *, timeout_s: float = ..., memory_bytes: int | None = ...
) -> Callable[[Method], Method]: ...


def apart(
    method: Any = None, /, *, timeout_s: float = TIMEOUT_S, memory_bytes: int | None = None
) -> Any:
    """Marks ``get_reward`` of a class with tools: it runs in a process of its own::

        @apart(timeout_s=5, memory_bytes=1 << 30)
        def get_reward(self):
            return float(re.search(self.pattern, self.answer) is not None)

    It gets a pickled copy of its object: what it changes there is not seen here.  Called directly,
    as in a test, it is the plain method.  Needs the extra ``apart``.

    Args:
        method: The method, where ``@apart`` stands without limits.
        timeout_s: Time that a call may take, in seconds, before its process is ended
            (``ApartTimeout``).
        memory_bytes: Memory that a call may take (``ApartOutOfMemory``); None: no limit.
    """
    limits = checked(timeout_s, memory_bytes)

    def mark(found: Method) -> Method:
        if isinstance(found, (staticmethod, classmethod, property, type)):
            raise TypeError(f"@apart marks a plain method, not a {type(found).__name__}")
        if not callable(found) or inspect.iscoroutinefunction(found):
            raise TypeError(f"@apart marks a plain method, which {_name(found)} is not")
        setattr(found, _LIMITS, limits)
        return found

    return mark if method is None else mark(method)


def limits_of(method: Any) -> ApartLimits | None:
    """The limits of a method that is marked; None if it is not."""
    found = getattr(method, _LIMITS, None)
    return found if isinstance(found, ApartLimits) else None


def marked_of(kind: type) -> Mapping[str, Any]:
    """The marked methods of a class, by name."""
    found = {name: inspect.getattr_static(kind, name, None) for name in dir(kind)}
    return {name: each for name, each in found.items() if limits_of(each) is not None}


def need_library() -> None:
    """Raise ConfigError if what calls apart need is not installed."""
    if find_spec("trio_parallel") is None:
        raise ConfigError(needs_extra("a call apart", "apart"))

"""Failures of environment code, as records that can travel.

Theory of operation
-------------------
Environment code may raise anything, even something that is not an ``Exception``, and
must not end the worker by it.  The runner catches whatever it is and raises an
:class:`EnvironmentFailure` around it.

An exception has code of its own, which runs whenever the exception is formatted, by a
logging handler or the ``traceback`` module.  So nothing here formats one.
:func:`plain` makes a copy without such code: type name, message, notes, causes and
traceback, less the frames of this package (:mod:`.tracebacks`).  All of them are plain
and bounded, and are read from the interpreter, whatever the class claims.  The log
(:func:`log`) gets that copy.

For the wire, :func:`describe_exception` turns any exception into three strings that can
always be encoded, without secrets (:mod:`~trio_envserve.redaction`).  Lone surrogates are
escaped, and long texts lose their middle
(:data:`MESSAGE_CHARS`, :data:`TRACEBACK_CHARS`), because the two ends of a traceback say
most.
"""

from __future__ import annotations

import logging
import traceback
from itertools import islice
from types import TracebackType
from typing import Any, Literal, NamedTuple, TypeAlias, final

from .. import foreign
from ..core.endings import RAISED
from ..core.errors import EnvironmentUnavailable
from ..core.messages import is_seconds
from ..redaction import redacted
from .tracebacks import has_own_frames, own_frames

Stage: TypeAlias = Literal["rollout", "group", "rescore", "setup", "teardown"]

MESSAGE_CHARS = 8 * 1024
"""Longest message: some libraries put a whole response into it."""

TRACEBACK_CHARS = 256 * 1024
"""Longest traceback; a deep recursion's has about 100 kB."""

COPIES = 64
"""Most exceptions in one description: its causes, and the members of groups.  Each takes
the time of a traceback, and a loop of retries makes a chain of thousands."""

FRAMES = 1_000
"""Most frames of a traceback; as many as the interpreter allows by default."""

NOTES = 16
"""Most notes of an exception."""

_DEEPEST = 10
"""Groups nested deeper are not shown in a traceback anyway."""

_LEAVES = 5

_CODED_LEAVES = 1_000
"""Most exceptions of a group that are asked for their codes."""

_NAME_CHARS = 200

_log = logging.getLogger("trio_envserve.worker")


class Description(NamedTuple):
    """The texts of an exception."""

    type: str
    message: str
    traceback: str


class EnvironmentFailure(Exception):
    """Environment code raised.  ``__cause__`` is the exception as well."""

    def __init__(self, exception: BaseException, *, attempts: int, during: Stage) -> None:
        super().__init__(exception, attempts, during)
        self.exception = exception
        """The exception of the last attempt; any ``BaseException``."""
        self.attempts = attempts
        """Number of attempts in this execution."""
        self.during = during
        """The environment's stage at the time."""

    def __str__(self) -> str:
        tried = f" after {self.attempts} attempts" if self.attempts > 1 else ""
        what = f"{_type_name(self.exception)}: {_message(self.exception)}"
        return f"{self.during} failed{tried}: {what}"


def describe_exception(exc: BaseException) -> Description:
    """Type, message and whole traceback of ``exc``, as encodable strings.

    An :class:`EnvironmentFailure` is described by its exception.  The message of an
    exception group names its leaves, too.  Never raises.
    """
    if type(exc) is EnvironmentFailure:
        exc = exc.exception
    described = foreign.call(_describe, exc)
    if described.error is not None:  # out of memory, say
        why = f"(it cannot be described: {type(described.error).__name__})"
        return Description(foreign.call(_type_name, exc).value or "an exception", why, "")
    found: Description = described.value
    return found


def code_of(exc: BaseException) -> str:
    """The code of :data:`~.core.endings.RAISED` for a rollout that raised ``exc``.

    An :class:`EnvironmentFailure` has that of its exception, and a group the one that all its
    leaves have.  Only classes of this package say a code; it is read from the classes
    themselves, so no code of the exception runs.  A ``ConnectionError`` that nobody caught is
    one of a peer that is down: ``environment-unavailable``.  Never raises.
    """
    if type(exc) is EnvironmentFailure:
        exc = exc.exception
    return foreign.call(_code_of, exc).value or "rollout-failed"


def _code_of(exc: BaseException) -> str:
    codes = {_code_of_class(type(leaf)) for leaf in islice(foreign.leaves(exc), _CODED_LEAVES)}
    return codes.pop() if len(codes) == 1 else "rollout-failed"


def _code_of_class(kind: type[BaseException]) -> str:
    for each in _MRO.__get__(kind):
        code = _DICT.__get__(each).get("code")
        if _is_of_this_package(each) and type(code) is str:
            return code if code in RAISED else "rollout-failed"
    return "environment-unavailable" if issubclass(kind, ConnectionError) else "rollout-failed"


def _is_of_this_package(kind: type) -> bool:
    module = _DICT.__get__(kind).get("__module__")
    return type(module) is str and module.startswith("trio_envserve.")


def retry_after_of(exc: BaseException) -> float | None:
    """Time in seconds for which a service that the environment needs will be down: the longest that
    an :class:`~trio_envserve.EnvironmentUnavailable` among the leaves of ``exc`` states; None if
    none states one.  Never raises."""
    if type(exc) is EnvironmentFailure:
        exc = exc.exception
    found: float | None = foreign.call(_retry_after_of, exc).value
    return found


def _retry_after_of(exc: BaseException) -> float | None:
    stated = (
        getattr(leaf, "retry_after_s", None)
        for leaf in islice(foreign.leaves(exc), _CODED_LEAVES)
        if foreign.is_exception(leaf, EnvironmentUnavailable)
    )
    return max(
        (float(each) for each in stated if each is not None and is_seconds(each)), default=None
    )


def described_cause(exc: BaseException) -> str:
    """The traceback of what made this package raise ``exc``; empty if none of it is in
    code that somebody else wrote.  Never raises."""
    cause = _CAUSE.__get__(exc)
    if cause is None:
        return ""
    if has_own_frames(_TRACEBACK.__get__(cause)):
        return describe_exception(cause).traceback
    return _fit(_syntax(cause), TRACEBACK_CHARS)


def failure_record(failure: EnvironmentFailure) -> dict[str, Any]:
    """The failure of one member of a group, as it is sent: texts, code and attempts."""
    about = describe_exception(failure)
    record = {**about._asdict(), "code": code_of(failure), "attempts": failure.attempts}
    again_s = retry_after_of(failure)
    return record if again_s is None else {**record, "retry_after_s": again_s}


def log(level: int, text: str, *args: object, about: BaseException | None = None) -> None:
    """Write a line to the worker's log, with the traceback of ``about``.

    Never raises, whatever the exception or the environment's log handlers do.
    """
    if _log.isEnabledFor(level):
        foreign.call(_write, level, text, args, about)


def _write(level: int, text: str, args: tuple[object, ...], about: BaseException | None) -> None:
    _log.log(level, text, *args, exc_info=None if about is None else plain(about))


def plain(exc: BaseException) -> Exception:
    """A copy of ``exc`` that has no code of its own, and looks like it in a traceback.

    The copy has a class of its own.  At most :data:`COPIES` exceptions are copied with
    it.
    """
    return _Copier().copy(exc)


def _describe(exc: BaseException) -> Description:
    text = "".join(traceback.format_exception(plain(exc)))
    return Description(_type_name(exc), _message(exc), _fit(text, TRACEBACK_CHARS))


@final
class _Copier:
    """Copies one exception, with its causes and members."""

    def __init__(self) -> None:
        self._left = COPIES
        self._copies: dict[int, Exception] = {}
        """Copies, by the id of the original, which the outermost one keeps alive."""
        self._new: list[tuple[BaseException, Exception]] = []
        """Exceptions whose causes are still to be copied."""

    def copy(self, exc: BaseException) -> Exception:
        copied = self._copied(exc, 0)
        while self._new:
            original, copy = self._new.pop(0)
            copy.__cause__ = self._linked(copy, _CAUSE.__get__(original))
            copy.__context__ = self._linked(copy, _CONTEXT.__get__(original))
            copy.__suppress_context__ = _SUPPRESS.__get__(original)
        return copied

    def _linked(self, copy: Exception, exc: BaseException | None) -> Exception | None:
        if exc is None:
            return None
        if self._left > 0 or id(exc) in self._copies:
            return self._copied(exc, 0)
        copy.add_note("[... what came before it is left out]")
        return None

    def _copied(self, exc: BaseException, depth: int) -> Exception:
        known = self._copies.get(id(exc))
        if known is not None:
            return known
        self._left -= 1
        members = foreign.members_of(exc) if depth < _DEEPEST else ()
        shown: list[Exception] = []
        for member in members:
            if self._left <= 0:
                break
            shown.append(self._copied(member, depth + 1))
        copy = _stand_in(exc, shown)
        if len(shown) < len(members):
            copy.add_note(f"[... {len(members) - len(shown)} of its members are left out]")
        self._copies[id(exc)] = copy
        self._new.append((exc, copy))
        return copy


def _stand_in(exc: BaseException, members: list[Exception]) -> Exception:
    """An exception that looks like ``exc``, without its causes."""
    module, name = _type_parts(exc)
    message = _fit(_own_message(exc), MESSAGE_CHARS)
    looks = {"__module__": module, "__qualname__": name, "__str__": lambda _: message}
    copy: Exception
    if members:
        copy = type("StandIn", (ExceptionGroup,), looks)(message, members)
    else:
        copy = type("StandIn", (Exception,), looks)(message)
    tb = _TRACEBACK.__get__(exc)
    # The message of this package's own errors says all where none of the code is the author's.
    is_ours = _is_of_this_package(type(exc)) and not has_own_frames(tb)
    copy.__traceback__, left_out = _bounded(None if is_ours else own_frames(tb))
    for note in _notes(exc):
        copy.add_note(note)
    if where := _syntax(exc):
        copy.add_note(_fit(where.rstrip(), MESSAGE_CHARS))
    if left_out:
        copy.add_note(f"[... {left_out} frames in the middle of its traceback are left out]")
    return copy


# What the interpreter knows of an exception, whatever its class claims.
_CAUSE = vars(BaseException)["__cause__"]
_CONTEXT = vars(BaseException)["__context__"]
_SUPPRESS = vars(BaseException)["__suppress_context__"]
_TRACEBACK = vars(BaseException)["__traceback__"]
_MODULE = vars(type)["__module__"]
_MRO = vars(type)["__mro__"]
_DICT = vars(type)["__dict__"]
_QUALNAME = vars(type)["__qualname__"]


def _type_parts(exc: BaseException) -> tuple[str, str]:
    kind = type(exc)
    return (
        _fit(foreign.text(_MODULE.__get__(kind)) or "builtins", _NAME_CHARS),
        _fit(_QUALNAME.__get__(kind), _NAME_CHARS),
    )


def _type_name(exc: BaseException) -> str:
    module, name = _type_parts(exc)
    return name if module in ("builtins", "__main__") else f"{module}.{name}"


def _message(exc: BaseException) -> str:
    message = _own_message(exc)
    if foreign.is_exception(exc, BaseExceptionGroup):
        some = list(islice(foreign.leaves(exc), _LEAVES + 1))
        shown = [f"{_type_name(leaf)}: {_own_message(leaf)}" for leaf in some[:_LEAVES]]
        shown += ["..."] if len(some) > _LEAVES else []
        message = f"{message}: {'; '.join(shown)}"
    return _fit(message, MESSAGE_CHARS)


def _own_message(exc: BaseException) -> str:
    message = foreign.text(exc)
    # If an exception's own __str__ raises, the failure is still reported.
    return "(its message cannot be formatted)" if message is None else message


def _notes(exc: BaseException) -> list[str]:
    found = foreign.call(getattr, exc, "__notes__", ()).value
    if type(found) not in (list, tuple):
        return []
    return [_fit(foreign.text(note) or "", MESSAGE_CHARS) for note in found[:NOTES]]


def _syntax(exc: BaseException) -> str:
    """File, line and place of a syntax error; empty for others."""
    if type(exc) not in (SyntaxError, IndentationError, TabError):  # no code of its own
        return ""
    return "".join(foreign.call(traceback.format_exception_only, exc).value or ())


def _bounded(tb: TracebackType | None) -> tuple[TracebackType | None, int]:
    """A traceback of at most :data:`FRAMES` frames, and how many are left out."""
    frames = []
    each = tb
    while each is not None:
        frames.append(each)
        each = each.tb_next
    left_out = len(frames) - FRAMES
    if left_out <= 0:
        return tb, 0
    made: TracebackType | None = None
    for each in reversed(frames[: FRAMES // 2] + frames[-FRAMES // 2 :]):
        made = TracebackType(made, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return made, left_out


def _fit(text: str, limit_chars: int) -> str:
    escaped = _cut(redacted(text), limit_chars).encode("utf-8", "backslashreplace").decode()
    return _cut(escaped, limit_chars)  # escapes are longer than the characters


def _cut(text: str, limit_chars: int) -> str:
    if len(text) <= limit_chars:
        return text
    half = (limit_chars - 40) // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters cut ...]\n{text[-half:]}"

"""Failures of environment code, as records that can travel.

Theory of operation
-------------------
Environment code may raise anything, also what is no ``Exception``: it must not
end the worker.  The runner catches whatever it is and raises an
:class:`EnvironmentFailure` around it.  For the wire, :func:`describe_exception`
turns any exception into three strings that can always be encoded: lone
surrogates are escaped, and lengths are bounded (:data:`MESSAGE_CHARS`,
:data:`TRACEBACK_CHARS`), the middle being cut, since a traceback's two ends
say most.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple, TypeAlias

Stage: TypeAlias = Literal["rollout", "group", "setup", "teardown"]

MESSAGE_CHARS = 8 * 1024
"""Longest message kept: some libraries put a whole response into it."""

TRACEBACK_CHARS = 256 * 1024
"""Longest traceback kept; a deep recursion's is about 100 kB."""

_LEAVES = 5


class Description(NamedTuple):
    """What an exception says about itself."""

    type: str
    message: str
    traceback: str


class EnvironmentFailure(Exception):
    """Environment code raised.  ``__cause__`` is the exception as well."""

    def __init__(self, exception: BaseException, *, attempts: int, during: Stage) -> None:
        super().__init__(exception, attempts, during)
        self.exception = exception
        """What was raised by the last attempt; any ``BaseException``."""
        self.attempts = attempts
        """How often it was tried in this execution."""
        self.during = during
        """What the environment was doing."""

    def __str__(self) -> str:
        about = describe_exception(self.exception)
        tried = f" after {self.attempts} attempts" if self.attempts > 1 else ""
        return f"{self.during} failed{tried}: {about.type}: {about.message}"


def describe_exception(exc: BaseException) -> Description:
    """Type, message and whole traceback of ``exc``, as encodable strings.

    An :class:`EnvironmentFailure` is described by what it is about.  The message
    of an exception group names its leaves, too.  Never raises an ``Exception``.
    """
    if isinstance(exc, EnvironmentFailure):
        exc = exc.exception
    try:
        text = "".join(traceback.format_exception(exc))
    except Exception as error:
        # Formatting calls code of the exception's author (__str__, __notes__).
        text = f"{_type_name(exc)} (its traceback cannot be formatted: {_type_name(error)})\n"
    return Description(
        _type_name(exc), _fit(_message(exc), MESSAGE_CHARS), _fit(text, TRACEBACK_CHARS)
    )


def failure_record(failure: EnvironmentFailure) -> dict[str, Any]:
    """The failure of one member of a group, as it travels."""
    about = describe_exception(failure)
    return {**about._asdict(), "attempts": failure.attempts}


def _type_name(exc: BaseException) -> str:
    kind = type(exc)
    if kind.__module__ in ("builtins", "__main__"):
        return kind.__qualname__
    return f"{kind.__module__}.{kind.__qualname__}"


def _message(exc: BaseException) -> str:
    try:
        message = str(exc)
    except Exception:
        # An exception whose own __str__ raises is still a failure to report.
        return "(its message cannot be formatted)"
    if isinstance(exc, BaseExceptionGroup):
        leaves = [f"{_type_name(leaf)}: {_message(leaf)}" for leaf in _leaves(exc)]
        shown = leaves[:_LEAVES] + (["..."] if len(leaves) > _LEAVES else [])
        message = f"{message}: {'; '.join(shown)}"
    return message


def _leaves(group: BaseExceptionGroup[Any]) -> Iterator[BaseException]:
    """The exceptions in a group that are no groups.  A stack, not recursion:
    groups may be nested deeper than the interpreter's limit."""
    stack: list[BaseException] = [group]
    while stack:
        exc = stack.pop()
        if isinstance(exc, BaseExceptionGroup):
            stack.extend(reversed(exc.exceptions))
        else:
            yield exc


def _fit(text: str, limit_chars: int) -> str:
    text = text.encode("utf-8", "backslashreplace").decode()
    if len(text) <= limit_chars:
        return text
    half = (limit_chars - 40) // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters cut ...]\n{text[-half:]}"

"""Calls of code that is not ours; whatever it raises comes back as a value.

Theory of operation
-------------------
Environments and models bring code of their own, and so do values (a lazy mapping's
``__iter__``) and exceptions (``__str__``).  This code may raise anything, even
exceptions that mean something else to the code around it: a ``trio.Cancelled`` or an
``asyncio.CancelledError`` without a cancel, a ``KeyboardInterrupt`` that nobody typed,
``SystemExit``, ``MemoryError``.  So it is called by :func:`call` or :func:`acall`, which
return what it returned or raised as an :class:`CodeResult`.

A real Ctrl-C or cancel keeps its meaning:

- Ctrl-C.  Inside a trio run these calls are protected: trio delivers Ctrl-C to its main
  task, where that awaits something.  A ``KeyboardInterrupt`` from anywhere else was
  raised by the code, and so was one in any thread but the main one.  One that may be
  real is raised further.
- A cancel.  trio delivers it where something is awaited, so never inside
  :func:`call`.  After :func:`acall` the caller looks at the scope that it owns.

Code that never ends holds up its caller for ever, without a bound.  If it blocks the
loop of a worker, the worker is reported as blocked, with the place.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, final

import trio


@final
class CodeResult(NamedTuple):
    """The result of a piece of code: a value, or whatever it raised."""

    value: Any = None
    error: BaseException | None = None

    def unwrap(self) -> Any:
        """The value; or raises the error."""
        if self.error is not None:
            raise self.error
        return self.value


@trio.lowlevel.enable_ki_protection
def call(code: Callable[..., Any], /, *args: Any, **options: Any) -> CodeResult:
    """Run ``code`` to its end."""
    try:
        return CodeResult(code(*args, **options))
    except BaseException as error:  # noqa: ASYNC103
        if _may_be_typed(error):
            raise
        return CodeResult(error=error)  # noqa: ASYNC104


@trio.lowlevel.enable_ki_protection
async def acall(code: Callable[..., Any], /, *args: Any) -> CodeResult:
    """Run ``code`` to its end, and await what it returns if that is awaitable."""
    try:
        value = code(*args)
        if inspect.isawaitable(value):
            value = await value
    except BaseException as error:  # noqa: ASYNC103
        if _may_be_typed(error) or (is_exception(error, KeyboardInterrupt) and _in_main_task()):
            raise
        return CodeResult(error=error)  # noqa: ASYNC104
    return CodeResult(value)


def text(value: object) -> str | None:
    """``str(value)`` as a plain str, or None if that raises."""
    # What __str__ returns may be of a subclass of str, with methods of its own.
    ended = call(lambda: str.__str__(str(value)))
    return None if ended.error is not None else str(ended.value)


def is_exception(value: object, kind: type[BaseException] = BaseException) -> bool:
    """``isinstance`` by the value's real type, whatever its ``__class__`` says."""
    return issubclass(type(value), kind)


def leaves(error: BaseException) -> Iterator[BaseException]:
    """The exceptions in a group that are not groups; ``error`` itself if it is not one.

    A stack, not recursion: groups may be nested deeper than the interpreter's limit.
    """
    stack = [error]
    while stack:
        found = stack.pop()
        members = members_of(found)
        if members:
            stack.extend(reversed(members))
        else:
            yield found


def members_of(error: BaseException) -> tuple[BaseException, ...]:
    """The real exceptions in a group, whatever its class claims; () for other errors."""
    if not is_exception(error, BaseExceptionGroup):
        return ()
    found: tuple[BaseException, ...] = _EXCEPTIONS.__get__(error)
    return found


def holds_interrupt(error: BaseException) -> bool:
    """Whether ``error`` is, or holds, a ``KeyboardInterrupt``."""
    return any(is_exception(leaf, KeyboardInterrupt) for leaf in leaves(error))


_EXCEPTIONS = vars(BaseExceptionGroup)["exceptions"]


def _may_be_typed(error: BaseException) -> bool:
    return (
        is_exception(error, KeyboardInterrupt)
        and not trio.lowlevel.in_trio_run()
        and threading.current_thread() is threading.main_thread()
    )


def _in_main_task() -> bool:
    """Whether this is trio's main task (or one of its system tasks)."""
    if not trio.lowlevel.in_trio_task():
        return False
    nursery = trio.lowlevel.current_task().parent_nursery
    return nursery is None or nursery.parent_task is trio.lowlevel.current_root_task()

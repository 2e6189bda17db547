"""A hint for a name that is not known: the nearest ones that are.  Pure."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Collection, Iterable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_NAME_CHARS = 200
"""Most characters of a name that are compared: a model may have written it."""


def did_you_mean(
    name: str, known: Iterable[str], most: int = 3, *, cutoff: float = 0.6, prefix: str = ""
) -> str:
    """A question behind a message, with up to ``most`` names; empty if none is near.

    ``cutoff`` is how alike names must be, from 0 to 1; ``prefix`` stands before each of them.
    """
    near = difflib.get_close_matches(name[:_NAME_CHARS], list(known), n=most, cutoff=cutoff)
    names = " or ".join(repr(prefix + each) for each in near)
    return f"; did you mean {names}?" if near else ""


def check_names(call: str, given: Iterable[str], known: Collection[str]) -> None:
    """Raises TypeError, with the nearest name, for an option that a call does not take."""
    for name in given:
        if name not in known:
            raise TypeError(f"{call} has no option {name!r}{did_you_mean(name, known, most=1)}")


def with_near_names(function: Callable[P, T]) -> Callable[P, T]:
    """A decorator for a function that refuses a wrong option with the nearest name."""
    known = inspect.signature(function).parameters
    call = f"{function.__qualname__.removesuffix('.__init__')}()"

    @functools.wraps(function)
    def called(*args: P.args, **given: P.kwargs) -> T:
        check_names(call, given, known)
        return function(*args, **given)

    return called

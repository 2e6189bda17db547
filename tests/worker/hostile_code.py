"""Values and exceptions whose own code does what no such code should."""

import asyncio
import collections.abc
from collections.abc import Callable
from typing import Any

import trio

from trio_envserve.envs import RolloutCancelled

# Newer versions of trio want to know why.
_WHY: dict[str, Any] = (
    {"source": "unknown"} if "source" in getattr(trio.Cancelled, "__annotations__", {}) else {}
)


def cancelled() -> trio.Cancelled:
    """A Cancelled that is of no cancel."""
    return trio.Cancelled._create(**_WHY)


RAISED: dict[str, Callable[[], BaseException]] = {
    "asyncio.CancelledError": asyncio.CancelledError,
    "RolloutCancelled": RolloutCancelled,
    "KeyboardInterrupt": KeyboardInterrupt,
    "SystemExit": SystemExit,
    "GeneratorExit": GeneratorExit,
    "MemoryError": MemoryError,
    "RecursionError": RecursionError,
    "StopIteration": StopIteration,
    "trio.Cancelled": cancelled,
}
"""By name: what makes an exception that must not get past the code of a value."""


class Text(str):
    """What __str__ may return: text with methods of its own."""

    __slots__ = ()

    def raise_(self, *args, **kwargs):
        raise SystemExit("a method of a text")

    __len__ = __contains__ = __getitem__ = __iter__ = __format__ = __str__ = __repr__ = raise_
    __eq__ = __ne__ = __hash__ = __add__ = __mod__ = encode = partition = replace = raise_


def values(make):
    """By name: values with code that raises what ``make`` makes."""

    def fail(*args):
        raise make()

    class LazyMapping(collections.abc.Mapping[str, object]):
        def __getitem__(self, key):
            raise make()

        def __iter__(self):
            raise make()

        def __len__(self):
            return 1

    class NoLength(collections.abc.Mapping[str, object]):
        def __getitem__(self, key):
            return None

        def __iter__(self):
            return iter(("a",))

        def __len__(self):
            raise make()

    class LazyState(dict):  # type: ignore[type-arg]
        def get(self, key, default=None):
            raise make()

    class List(list):  # type: ignore[type-arg]
        def __len__(self):
            raise make()

        def __iter__(self):
            raise make()

    class Claims:
        __class__ = property(fail)

    class Dumped:
        def model_dump(self):
            raise make()

    class Number:
        def __int__(self):
            raise make()

        __float__ = __index__ = __array__ = __int__

        @property
        def dtype(self):
            raise make()

    class Key:
        def __init__(self):
            self.armed = False

        def __hash__(self):
            if self.armed:
                raise make()
            return 1

        def __eq__(self, other):
            raise make()

    class Reduced:
        def __reduce__(self):
            raise make()

        def __getattr__(self, name):
            raise make()

    def key():
        made = Key()
        keyed = {made: 1}
        made.armed = True
        return keyed

    return {
        "a lazy mapping": LazyMapping(),
        "a lazy mapping inside": {"a": [LazyMapping()]},
        "a mapping without length": [NoLength()],
        "a lazy state": {"state": LazyState(a=1)},
        "a lazy list": List([1]),
        "a class of its own": Claims(),
        "a model's dump": [Dumped()],
        "a number": Number(),
        "a key": key(),
        "a reduced one": Reduced(),
    }


def exceptions(make):
    """By name: exceptions with code that raises what ``make`` makes."""

    def fail(*args, **kwargs):
        raise make()

    failing = property(fail)

    def of(base, **members):
        return type("Hostile", (base,), members)

    def group(**members):
        return of(ExceptionGroup, **members)("g", [ValueError("x"), TypeError("y")])

    return {
        "text": of(Exception, __str__=fail, __repr__=fail)(),
        "text of a base exception": of(BaseException, __str__=fail)(),
        "a text with methods": of(Exception, __str__=lambda self: Text("t"))("x"),
        "notes": of(Exception, __notes__=failing)("x"),
        "a list of notes": of(Exception, __notes__=[of(Exception, __str__=fail)(), 1, None])("x"),
        "no list of notes": of(Exception, __notes__=of(list, __iter__=fail, __len__=fail)())("x"),
        "a class": of(Exception, __class__=failing)("x"),
        "a truth": of(Exception, __bool__=fail, __eq__=fail, __hash__=fail)("x"),
        "a dictionary": of(Exception, __dict__=failing, __getattribute__=fail)("x"),
        "a cause": of(Exception, __cause__=failing)("x"),
        "a context": of(Exception, __context__=failing, __suppress_context__=failing)("x"),
        "a traceback": of(Exception, __traceback__=failing, with_traceback=fail)("x"),
        "a group's members": group(exceptions=failing),
        "a group's parts": group(derive=fail, split=fail, subgroup=fail),
        "a group's message": group(message=failing, __str__=fail),
        "a member": ExceptionGroup("g", [of(Exception, __str__=fail, __notes__=failing)()]),
        "a syntax error": of(SyntaxError, filename=failing, text=failing, __str__=fail)("x"),
        "a missing module": of(ImportError, name=failing, msg=failing, __str__=fail)("x"),
        "a missing attribute": of(AttributeError, obj=failing, name=failing, __str__=fail)("x"),
        "a system call": of(OSError, errno=failing, __str__=fail)(2, "x"),
        "a module's name": of(Exception, __module__=Text("m"))("x"),
        "a module that is no text": of(Exception, __module__=17)("x"),
    }


def cycle():
    """Two exceptions, each caused by the other."""
    first, second = ValueError("first"), TypeError("second")
    first.__cause__, second.__cause__ = second, first
    first.__context__, second.__context__ = second, first
    return first


def chain(length):
    """Exceptions that follow one another."""
    last = None
    for number in range(length):
        made = ValueError(f"number {number}")
        made.__cause__, last = last, made
    return last

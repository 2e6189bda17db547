"""Values and exceptions whose own code does what no such code should."""

import asyncio
from collections.abc import Callable, Mapping
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


def hostile(base, members):
    return type("Hostile", (base,), members)


class Key:
    """A key of a dictionary that fails from when it is armed."""

    def __init__(self, fail):
        self.fail, self.armed = fail, False

    def __hash__(self):
        return self.fail() if self.armed else 1

    def __eq__(self, other):
        return self.fail()


def values(make):
    """By name: values with code that raises what ``make`` makes."""

    def fail(*args):
        raise make()

    def lazy(base, *names, **members):
        return hostile(base, dict.fromkeys(names, fail) | members)

    mapping = lazy(Mapping, "__getitem__", "__iter__", __len__=lambda self: 1)
    no_length = lazy(
        Mapping, "__len__", __getitem__=lambda self, key: None, __iter__=lambda self: iter("a")
    )
    numbers = ("__int__", "__float__", "__index__", "__array__")
    key = Key(fail)
    keyed = {key: 1}
    key.armed = True
    return {
        "a lazy mapping": mapping(),
        "a lazy mapping inside": {"a": [mapping()]},
        "a mapping without length": [no_length()],
        "a lazy state": {"state": lazy(dict, "get")(a=1)},
        "a lazy list": lazy(list, "__len__", "__iter__")([1]),
        "a class of its own": lazy(object, __class__=property(fail))(),
        "a model's dump": [lazy(object, "model_dump")()],
        "a number": lazy(object, *numbers, dtype=property(fail))(),
        "a key": keyed,
        "a reduced one": lazy(object, "__reduce__", "__getattr__")(),
    }


def exceptions(make):
    """By name: exceptions with code that raises what ``make`` makes."""

    def fail(*args, **kwargs):
        raise make()

    failing = property(fail)

    def of(base, **members):
        return hostile(base, members)

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

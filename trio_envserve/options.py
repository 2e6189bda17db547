"""Options that are declared once, as the fields of a frozen record.

Theory of operation
-------------------
A field made by :func:`option` has the words, the bounds and the reader of an option beside its
type and its default.  Everything else follows from the record: the signature of the function
that takes it (:func:`taken_by`), the options of a verb of the command, what a file of
configuration may say (:func:`read_file`), and the tables of the documentation.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Concatenate, ParamSpec, TypeVar

from .core.errors import ConfigError
from .near import check_names, did_you_mean
from .regular_files import parse_toml, read_regular

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")
T = TypeVar("T")

_KEY = "option"
_FILE_BYTES = 1 << 20
_WORDS = {
    "int": "a whole number", "float": "a number", "bool": "true or false", "Mapping": "a table",
    "tuple": "a list of texts", "Sequence": "a list",
}  # fmt: skip
_TAKEN: Mapping[str, Any] = {
    "bool": bool, "str |": (str, os.PathLike, list, tuple), "str": str, "Mapping": Mapping,
    "Sequence": (list, tuple),
}  # fmt: skip
"""Types of values that may be given, by the beginning of the annotation."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """An option apart from its type and default."""

    help: str
    """Help text; its first sentence is all that the first screen of help shows."""
    name: str
    """The name of its field."""
    kind: str
    """Type as it is written, without None."""
    default: Any
    """Default; ``dataclasses.MISSING`` if the option must be given."""
    flag: str = ""
    """Name on the command line, if that is not the field's."""
    short: str = ""
    """A letter for the command, such as ``-n``."""
    metavar: str = ""
    """Stand-in for the value in help."""
    shown: str = ""
    """Default in words."""
    group: str = ""
    """Heading that it stands below where all options are shown."""
    common: bool = False
    """Whether it is one of the few that ``--help`` shows."""
    in_program: bool = False
    """Whether no file can say it, nor the command where it is one of a server."""
    argument: bool = False
    """Whether the command takes it as a word without a flag."""
    least: float = -math.inf
    most: float = math.inf
    above: float = -math.inf
    """A bound that its value is above."""
    choices: tuple[str, ...] = ()
    parse: Callable[[str, Any], Any] | None = None
    """Makes what a file would say of a flag and the texts behind it."""
    make: Callable[[Any], Any] | None = None
    """Makes the value of what a file says."""
    needs: str = ""
    """Field without which it says nothing."""

    @property
    def flags(self) -> str:
        """Name of the option on the command line."""
        return self.flag or f"--{self.name.replace('_', '-')}"

    @property
    def is_many(self) -> bool:
        """Whether the command takes it more than once."""
        return self.parse is not None or self.kind.startswith(("tuple", "Sequence[str]"))

    @property
    def unit(self) -> str:
        """Unit of its number, by the end of its name; empty if it has none."""
        return "seconds" if self.kind == "float" and self.name.endswith("_s") else ""

    def value_of(self, given: Any, where: str) -> Any:
        """The value of what a file says, or one text of the command.  Raises ConfigError."""
        if self.make is not None:
            return self.make(given)
        wrong = ConfigError(f"{where} is {self.described()}, not {given!r}")
        if self.choices and given not in self.choices:
            raise ConfigError(f"{wrong}{did_you_mean(str(given), self.choices, most=1)}")
        if self.kind in ("int", "float"):
            number = isinstance(given, int if self.kind == "int" else (int, float))
            if not number or isinstance(given, bool) or not self._is_within(given):
                raise wrong
            return float(given) if self.kind == "float" else given
        if self.kind.startswith("tuple"):
            if not isinstance(given, (list, tuple)) or not all(isinstance(x, str) for x in given):
                raise wrong
            return tuple(given)
        taken = next(
            (types for kind, types in _TAKEN.items() if self.kind.startswith(kind)), object
        )
        if not isinstance(given, taken):
            raise wrong
        return given

    def _is_within(self, given: float) -> bool:
        return self.least <= given <= self.most and given > self.above

    def described(self) -> str:
        """The allowed values in words."""
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        words = _WORDS.get(self.kind.partition("[")[0], "a text")
        words += f" of {self.unit}" if self.unit else ""
        if self.most < math.inf:
            least = f"above {self.above:g}" if self.above > -math.inf else f"from {self.least:g}"
            return f"{words} {least} to {self.most:g}"
        if self.above > -math.inf:
            return f"{words} above {self.above:g}"
        return f"{words}, {self.least:g} or more" if self.least > -math.inf else words


def option(default: Any, help: str, **about: Any) -> Any:
    """A field that is an option.

    Args:
        default: Its default, or a function that makes it, such as ``dict``.
        help: The text of the help.
        **about: Further fields of :class:`Option`.
    """
    metadata = {_KEY: {"help": help, **about}}
    return _field(default, metadata)


def argument(help: str, default: Any = dataclasses.MISSING, **about: Any) -> Any:
    """A field that is a word without a flag; without a default it must be given."""
    return _field(default, {_KEY: {"help": help, "argument": True, **about}})


def _field(default: Any, metadata: Mapping[str, Any]) -> Any:
    if callable(default):
        return dataclasses.field(default_factory=default, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def options_of(record: Any) -> dict[str, Option]:
    """The options that a record declares, by the names of their fields."""
    return {
        field.name: Option(
            name=field.name, kind=str(field.type).removesuffix(" | None"),
            default=field.default if field.default_factory is dataclasses.MISSING else None,
            **field.metadata[_KEY],
        )
        for field in dataclasses.fields(record)
        if _KEY in field.metadata
    }  # fmt: skip


def taken_by(
    record: Callable[P, R], complete: Callable[..., Mapping[str, Any]] = dict
) -> Callable[[Callable[[R], T]], Callable[P, T]]:
    """A decorator for a function of a record: who calls it gives the fields.

    Args:
        record: The record, whose signature the function gets.
        complete: Makes all fields that are given of those in the call.
    """
    return lambda function: _taken(function, record, complete)


def taken_beside(
    record: Callable[P, R],
) -> Callable[[Callable[[S, R], T]], Callable[Concatenate[S, P], T]]:
    """As :func:`taken_by`, for a function of something else and a record."""
    return lambda function: _taken(function, record, dict)


def _taken(function: Any, record: Any, complete: Callable[..., Mapping[str, Any]]) -> Any:
    """A function that takes the fields of a record in the place of its last argument."""
    signature, name = inspect.signature(function), function.__name__
    *first, _ = signature.parameters.values()
    fields = inspect.signature(record).parameters.values()
    signature = signature.replace(parameters=[*first, *fields])

    @functools.wraps(function)
    def called(*args: Any, **named: Any) -> Any:
        check_names(f"{name}()", named, signature.parameters)
        given = signature.bind_partial(*args, **named).arguments
        for each in first:
            if each.name not in given:
                raise TypeError(f"{name}() needs {each.name}: {each.annotation}")
        own = [given.pop(each.name) for each in first]
        return function(*own, record(**complete(**given)))

    shown: Any = called
    shown.record, shown.__signature__ = record, signature
    return shown


def with_options_of(function: Callable[P, object]) -> Callable[[Callable[..., T]], Callable[P, T]]:
    """A decorator for a function that passes its options on to another one, for type checkers."""
    return lambda passing: passing


def read_file(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The tables and values of a file of configuration.  Raises ConfigError."""
    try:
        text, _ = read_regular(path, _FILE_BYTES)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from error
    try:
        return parse_toml(text)
    except ValueError as error:
        raise ConfigError(f"{path} is no TOML: {error}") from error


def values_of(record: Any, given: object, path: Any) -> dict[str, Any]:
    """The values of a record's fields that a file says.  Raises ConfigError with the near
    names."""
    if not isinstance(given, Mapping):
        raise ConfigError(f"{path} is a table, not {given!r}")
    options = {name: each for name, each in options_of(record).items() if not each.in_program}
    values: dict[str, Any] = {}
    for name, value in given.items():
        if name not in options:
            raise ConfigError(f"{path}: no option {name!r}{nearest(name, options)}")
        try:
            values[name] = options[name].value_of(value, name)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from None
    return values


def nearest(name: str, names: Iterable[str]) -> str:
    """Names like this one as the end of a sentence, or all there are."""
    known = sorted(names)
    return did_you_mean(name, known) or f" (known: {', '.join(known)})"

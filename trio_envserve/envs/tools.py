"""Tools for a model, made from the methods of a class.

Theory of operation
-------------------
A method is a tool by its signature and its docstring: the annotations become a JSON schema, the
first paragraphs of the docstring say what the tool does, and its section ``Args:`` what each
argument means.  Tools that cannot be described to a model (an argument without an annotation, a
type that JSON does not have) are refused when the class is loaded.

These annotations also read the model's arguments: :meth:`Tool.read` takes what the model wrote,
tells it in words what is wrong, and gives the method the types that it declares.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import enum
import functools
import inspect
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

from ..core.errors import ConfigError
from ..near import did_you_mean

_SECTION = re.compile(
    r"(Args|Arguments|Parameters|Returns?|Raises|Yields|Examples?|Notes?|Attributes):\s*"
)
_ARGUMENT = re.compile(r"(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)")
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""The names of tools that endpoints accept."""

_NOTHING = inspect.Parameter.empty


class WrongArguments(ValueError):
    """The model called a tool with arguments that do not fit; the text is for the model."""


_Read: TypeAlias = Callable[[Any, str], Any]
"""Makes an argument from its JSON value; raises WrongArguments, which begin with the
argument's name."""


class _Kind(NamedTuple):
    schema: dict[str, Any]
    read: _Read


class _Unknown(Exception):
    """JSON has no such type."""


@dataclasses.dataclass(frozen=True, slots=True)
class Tool:
    """One tool.  Made by :func:`tools_of`."""

    name: str
    schema: dict[str, Any]
    """Schema of the arguments, in the form of OpenAI's chat completions."""
    kinds: Mapping[str, _Kind]
    """The arguments, by name."""
    required: tuple[str, ...]

    def read(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments for the method.  Raises :class:`WrongArguments`."""
        for name in arguments:
            if name not in self.kinds:
                takes = ", ".join(self.kinds) or "no arguments"
                raise WrongArguments(
                    f"{self.name} has no argument {name[:80]!r}{did_you_mean(name, self.kinds, 1)} "
                    f"(it takes: {takes})"
                )
        missing = [name for name in self.required if name not in arguments]
        if missing:
            raise WrongArguments(f"{self.name} needs {' and '.join(missing)}")
        return {name: self.kinds[name].read(value, name) for name, value in arguments.items()}


def tools_of(kind: type, label: str, *, reserved: Iterable[str]) -> dict[str, Tool]:
    """The tools of a class: its public methods but the reserved ones, in the order of
    their names.  Raises :class:`ConfigError` for a method that cannot be described."""
    found = {}
    for name in sorted(set(dir(kind)) - set(reserved)):
        method = inspect.getattr_static(kind, name)
        if name.startswith("_") or not isinstance(method, _METHODS):
            continue
        function = method.__func__ if isinstance(method, classmethod) else method
        found[name] = _tool(name, function, f"{label}.{name}")
    return found


def tools_of_object(
    made: Any, known: Mapping[str, Tool], label: str, *, reserved: Iterable[str]
) -> Mapping[str, Tool]:
    """The tools of an object, as TRL finds them: its public bound methods, in the order of
    their names.  ``known``: those of its class when that was loaded.  ``__init__`` may have
    bound others to the object or added them to the class, and may have hidden some.
    Raises :class:`ConfigError` for a method that cannot be described."""
    own = getattr(made, "__dict__", {})
    found = {name: tool for name, tool in known.items() if name not in own}
    changed = len(found) < len(known)
    for name in set(dir(made)) - found.keys() - set(reserved):
        # Not by getattr: that would run the code of properties.
        member = own[name] if name in own else inspect.getattr_static(made, name, None)
        if name.startswith("_") or not isinstance(
            member, types.MethodType if name in own else _METHODS
        ):
            continue
        function = member if isinstance(member, _PLAIN_METHODS) else member.__func__
        found[name] = _tool(name, function, f"{label}.{name}")
        changed = True
    return dict(sorted(found.items())) if changed else known


_PLAIN_METHODS = (types.FunctionType, functools._lru_cache_wrapper)
_METHODS = (*_PLAIN_METHODS, classmethod)
"""Kinds of functions that an object of a class has as bound methods."""


def check_returns(function: Callable[..., Any], where: str, what: str) -> None:
    """Raise ConfigError for a generator function: whoever calls it makes a generator, and runs
    nothing."""
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigError(f"{where} is a generator function (it has a yield); {what} returns")


def _tool(name: str, function: Callable[..., Any], where: str) -> Tool:
    about, meanings = _described(inspect.getdoc(function) or "")
    if not about:
        raise ConfigError(
            f"{where} is a public method, so it is a tool, and needs a docstring that tells "
            f"the model what it does (a method that is not for the model is named _{name})"
        )
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{where}: models take letters of ASCII in a tool's name, at most 64")
    check_returns(function, where, "a tool")
    kinds, required = _arguments(function, where)
    properties = {
        argument: {**kind.schema, **({"description": text} if text else {})}
        for argument, kind in kinds.items()
        for text in [meanings.get(argument)]
    }
    parameters = {"type": "object", "properties": properties, "required": list(required)}
    described = {"name": name, "description": about, "parameters": parameters}
    return Tool(name, {"type": "function", "function": described}, kinds, required)


def _arguments(
    function: Callable[..., Any], where: str
) -> tuple[dict[str, _Kind], tuple[str, ...]]:
    """The parameters of a method after its first, and those of them without a default."""
    parameters = list(inspect.signature(function).parameters.values())[1:]
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except Exception as error:  # annotations are code, and may name what is not there
        raise ConfigError(f"{where}: its annotations cannot be read: {error}") from error
    kinds, required = {}, []
    for parameter in parameters:
        name = parameter.name
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ConfigError(f"{where}: a tool's arguments have names; {parameter} has none")
        if name not in hints:
            raise ConfigError(f"{where}: the argument {name} needs an annotation, such as: int")
        try:
            kind = _kind(hints[name])
        except _Unknown as unknown:
            raise ConfigError(
                f"{where}: the argument {name} is of the type {unknown}, which JSON does not have"
            ) from None
        if parameter.default is _NOTHING:
            required.append(name)
        kinds[name] = _or_none(kind) if parameter.default is None else kind
    return kinds, tuple(required)


def _described(text: str) -> tuple[str, dict[str, str]]:
    """The descriptions of a function and its arguments, by a docstring in Google's style."""
    about: list[str] = []
    meanings: dict[str, str] = {}
    section, name, indent = "", "", 0
    for line in text.splitlines():
        found = _SECTION.fullmatch(line)
        if found:
            section, name, indent = found[1], "", 0
        elif not section:
            about.append(line)
        elif section in ("Args", "Arguments", "Parameters") and line.strip():
            depth = len(line) - len(line.lstrip())
            indent = indent or depth
            entry = _ARGUMENT.fullmatch(line.strip()) if depth <= indent else None
            if entry:
                name = entry[1]
                meanings[name] = entry[2]
            elif name:
                meanings[name] = f"{meanings[name]} {line.strip()}".strip()
    return "\n".join(about).strip(), meanings


def _kind(hint: Any) -> _Kind:
    """Description and reader of a type's values.  Raises _Unknown."""
    origin, given = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return _kind(given[0])
    if hint in _PLAIN:
        return _PLAIN[hint]
    if origin in (typing.Union, types.UnionType):
        return _union([_kind(each) for each in given])
    if origin is typing.Literal:
        return _one_of({each: each for each in given})
    if origin is None and typing.is_typeddict(hint):
        return _record(hint)
    base = origin or hint
    if isinstance(base, type) and issubclass(base, enum.Enum):
        return _one_of({member.value: member for member in base})
    if base is tuple and given and given[-1] is not Ellipsis:
        return _tuple([_kind(each) for each in given])
    if base in _ARRAYS:
        return _array(_kind(given[0]) if given else _ANY, _ARRAYS[base])
    if base in (dict, collections.abc.Mapping, collections.abc.MutableMapping):
        if given and given[0] is not str:
            raise _Unknown(f"{hint} (keys are str)")
        return _map(_kind(given[1]) if given else _ANY)
    raise _Unknown(getattr(hint, "__name__", None) or str(hint))


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _plain(name: str, fits: Callable[[Any], bool], make: Callable[[Any], Any]) -> _Kind:
    def read(value: Any, where: str) -> Any:
        if not fits(value):
            raise WrongArguments(f"{where} must be of the type {name}, not {_shown(value)}")
        try:
            return make(value)
        except OverflowError:
            raise WrongArguments(f"{where} is too large") from None

    return _Kind({"type": name}, read)


def _same(value: Any) -> Any:
    return value


def _is_whole(value: Any) -> bool:
    # Models write 3.0 for 3.
    return type(value) is int or (type(value) is float and value.is_integer())


_ANY = _Kind({}, lambda value, where: value)
_NULL = _plain("null", lambda value: value is None, _same)
_PLAIN: Mapping[Any, _Kind] = {
    Any: _ANY,
    object: _ANY,
    None: _NULL,
    types.NoneType: _NULL,
    str: _plain("string", lambda value: type(value) is str, _same),
    bool: _plain("boolean", lambda value: type(value) is bool, _same),
    int: _plain("integer", _is_whole, int),
    float: _plain("number", lambda value: type(value) in (int, float), float),
}
_ARRAYS: Mapping[Any, Callable[[list[Any]], Any]] = {
    list: list,
    tuple: tuple,
    set: set,
    frozenset: frozenset,
    collections.abc.Sequence: list,
    collections.abc.Iterable: list,
}


def _or_none(kind: _Kind) -> _Kind:
    return _Kind(
        kind.schema, lambda value, where: None if value is None else kind.read(value, where)
    )


def _union(kinds: list[_Kind]) -> _Kind:
    def read(value: Any, where: str) -> Any:
        wrong = []
        for kind in kinds:
            try:
                return kind.read(value, where)
            except WrongArguments as error:
                wrong.append(str(error))
        raise WrongArguments(", and ".join(wrong))

    return _Kind({"anyOf": [kind.schema for kind in kinds]}, read)


def _one_of(members: Mapping[Any, Any]) -> _Kind:
    # By type, too: True is not 1.
    known = {(type(value), value): member for value, member in members.items()}

    def read(value: Any, where: str) -> Any:
        if isinstance(value, collections.abc.Hashable) and (type(value), value) in known:
            return known[type(value), value]
        raise WrongArguments(
            f"{where} must be one of {', '.join(map(_shown, members))}, not {_shown(value)}"
        )

    if not all(isinstance(value, (str, int, float, types.NoneType)) for value in members):
        raise _Unknown("of values that are neither text nor numbers")
    return _Kind({"enum": list(members)}, read)


def _array(item: _Kind, make: Callable[[list[Any]], Any]) -> _Kind:
    def read(value: Any, where: str) -> Any:
        items = _list(value, where)
        try:
            return make([item.read(each, f"{where}[{i}]") for i, each in enumerate(items)])
        except TypeError:
            raise WrongArguments(f"{where} must have members that can be compared") from None

    return _Kind({"type": "array", "items": item.schema}, read)


def _tuple(items: list[_Kind]) -> _Kind:
    def read(value: Any, where: str) -> Any:
        given = _list(value, where)
        if len(given) != len(items):
            raise WrongArguments(f"{where} must have {len(items)} members, not {len(given)}")
        return tuple(
            item.read(each, f"{where}[{i}]")
            for i, (item, each) in enumerate(zip(items, given, strict=True))
        )

    schemas = [item.schema for item in items]
    length = {"minItems": len(items), "maxItems": len(items)}
    return _Kind({"type": "array", "prefixItems": schemas, **length}, read)


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise WrongArguments(f"{where} must be an array, not {_shown(value)}")
    return value


def _map(item: _Kind) -> _Kind:
    def read(value: Any, where: str) -> Any:
        given = _object(value, where)
        return {key: item.read(each, f"{where}.{key[:80]}") for key, each in given.items()}

    return _Kind({"type": "object", "additionalProperties": item.schema}, read)


def _record(hint: Any) -> _Kind:
    fields = {name: _kind(each) for name, each in typing.get_type_hints(hint).items()}
    required = sorted(hint.__required_keys__)

    def read(value: Any, where: str) -> Any:
        given = _object(value, where)
        for name in [*required, *given]:
            if name not in given or name not in fields:
                verb = "needs" if name not in given else "has no"
                raise WrongArguments(f"{where} {verb} {name[:80]!r} (it has: {', '.join(fields)})")
        return {name: fields[name].read(each, f"{where}.{name}") for name, each in given.items()}

    schemas = {name: kind.schema for name, kind in fields.items()}
    return _Kind({"type": "object", "properties": schemas, "required": required}, read)


def _object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise WrongArguments(f"{where} must be an object, not {_shown(value)}")
    return value

"""Records of plain data as dataclasses, checked: a peer may say anything."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Protocol, TypeVar

from .errors import ProtocolError


class Dataclass(Protocol):
    """Any class made by ``dataclasses.dataclass``."""

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]


T = TypeVar("T", bound=Dataclass)

_PLAIN: Mapping[str, tuple[type, ...]] = {
    "str | None": (str, type(None)),
    "int": (int,), "float": (int, float), "str": (str,), "bool": (bool,),
    "Mapping[str, float]": (dict,),
    "int | None": (int, type(None)), "float | None": (int, float, type(None)),
}  # fmt: skip
"""The types of plain data, by the annotation of the field that takes it."""


def checked(record: Mapping[str, Any], name: str, types: Any, default: Any) -> Any:
    """The value of a key, or the default.  ProtocolError if it is of no such type."""
    found = record.get(name, default)
    if not isinstance(found, types):
        raise ProtocolError(f"{name} is of type {type(found).__name__}")
    return found


def typed(cls: type[T], record: Mapping[str, Any], **made: Any) -> T:
    """A record of plain data as a dataclass.  ``made``: the fields that are made already."""
    if not isinstance(record, dict) or not all(isinstance(key, str) for key in record):
        raise ProtocolError(
            f"a record is of type {type(record).__name__}, or has keys that are no text"
        )
    fields = {field.name: field for field in dataclasses.fields(cls)}
    more = {key: value for key, value in record.items() if key not in fields or key == "more"}
    if "more" in fields:
        made["more"] = more
    for name in fields.keys() & (record.keys() - made.keys()):
        if type(record[name]) not in _PLAIN[str(fields[name].type)]:
            raise ProtocolError(
                f"{name} is of type {type(record[name]).__name__}, and no {fields[name].type}"
            )
        made[name] = record[name]
    try:
        return cls(**made)
    except TypeError as missing:
        raise ProtocolError(f"a record is not whole: {missing}") from None

"""The types of message fields: the check of each, and its notation in the protocol document.  They
annotate the fields of the classes of :mod:`.messages`."""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Callable
from typing import Annotated, Any, TypeAlias

from .ranges import is_flat
from .terms import DIGEST_BYTES, ID_BYTES, NOTE_BYTES, TAG_BYTES

MAX_UINT = 2**63
"""Exclusive bound of every integer on the wire."""


ABOUT = ("statistics", "keys", "running", "stack")
"""The records that a client can ask for."""

ABOUT_CDDL = " / ".join(f'"{each}"' for each in ABOUT)
"""The same in CDDL."""


@dataclasses.dataclass(frozen=True, slots=True)
class Field:
    """The check of a field, and its notation in the protocol document."""

    cddl: str
    """Notation in CDDL."""
    check: Callable[[Any], bool]
    """Whether a decoded value is allowed."""
    optional: bool = False
    """Whether it may be null, and left out at the end of a header; optional fields come last."""


def fields_of(message: type) -> tuple[tuple[str, Field], ...]:
    """The names and fields of a message class, in order."""
    hints = typing.get_type_hints(message, include_extras=True)
    return tuple((name, annotation.__metadata__[0]) for name, annotation in hints.items())


def is_uint(value: Any) -> bool:
    """Whether a value is a non-negative integer below :data:`MAX_UINT`."""
    return type(value) is int and 0 <= value < MAX_UINT


def _is_positive(value: Any) -> bool:
    return is_uint(value) and value > 0


def _is_id(value: Any) -> bool:
    return type(value) is bytes and len(value) == ID_BYTES


def _is_digest(value: Any) -> bool:
    return type(value) is bytes and len(value) in (ID_BYTES, DIGEST_BYTES)


def _is_tag(value: Any) -> bool:
    return is_uint(value) or (type(value) is bytes and 0 < len(value) <= TAG_BYTES)


def is_seconds(value: Any) -> bool:
    """Whether a value is None or a number of seconds below 10¹²."""
    return value is None or (type(value) in (int, float) and 0 <= value < 1e12)


def _is_record(value: Any) -> bool:
    return type(value) is dict and all(type(key) is str for key in value)


def is_ranges(value: Any) -> bool:
    """Whether a value is the wire form of :class:`~.ranges.Ranges`."""
    if type(value) is not list or not {int}.issuperset(map(type, value)):
        return False
    return not value or (is_flat(value) and is_uint(value[-1]))


def _is_notes(value: Any) -> bool:
    if type(value) is not list:
        return False
    return all(type(each) is bytes and len(each) <= NOTE_BYTES for each in value)


def _of_type(kind: type) -> Callable[[Any], bool]:
    """A check for instances of a type.  The decoder makes no instances of subclasses, but for
    bool."""
    return kind.__instancecheck__


_TRACEPARENT = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


def is_traceparent(value: Any) -> bool:
    """Whether a value is a traceparent of version 00 of W3C's Trace Context."""
    return type(value) is str and _TRACEPARENT.fullmatch(value) is not None


Uint: TypeAlias = Annotated[int, Field("uint", is_uint)]
Positive: TypeAlias = Annotated[int, Field("positive", _is_positive)]
Id: TypeAlias = Annotated[bytes, Field("id", _is_id)]
Digest: TypeAlias = Annotated[bytes, Field("digest", _is_digest)]
Bytes: TypeAlias = Annotated[bytes, Field("bstr", _of_type(bytes))]
Name: TypeAlias = Annotated["bytes | None", Field("bstr", _of_type(bytes), optional=True)]
Act: TypeAlias = Annotated[
    "int | None", Field("1..3", lambda v: type(v) is int and 0 < v < 4, optional=True)
]
About: TypeAlias = Annotated[str, Field(ABOUT_CDDL, ABOUT.__contains__)]
Tag: TypeAlias = Annotated["int | bytes | None", Field("tag", _is_tag, optional=True)]
Count: TypeAlias = Annotated["int | None", Field("uint", is_uint, optional=True)]
Text: TypeAlias = Annotated[str, Field("tstr", _of_type(str))]
Bool: TypeAlias = Annotated[bool, Field("bool", _of_type(bool))]
Choice: TypeAlias = Annotated[
    "bool | None", Field("bool / null", lambda v: v is None or type(v) is bool)
]
Seconds: TypeAlias = Annotated["float | None", Field("seconds / null", is_seconds)]
OptionalSeconds: TypeAlias = Annotated["float | None", Field("seconds", is_seconds, optional=True)]
Spans: TypeAlias = Annotated["list[int]", Field("spans", is_ranges)]
NoteList: TypeAlias = Annotated["list[bytes]", Field("[* note]", _is_notes)]
Record: TypeAlias = Annotated[dict[str, Any], Field("{* tstr => any}", _is_record)]
Traceparent: TypeAlias = Annotated[
    "str | None", Field("traceparent", is_traceparent, optional=True)
]
"""The parent of this work's spans; no decision depends on it."""

"""Objects in bodies: dates, UUIDs, decimals, enums, dataclasses and their like.

Theory of operation
-------------------
An object has an encoding if it is *data*: a value that another process, or
another language, can understand without its class.  Scalars keep their meaning
through a tag; records (dataclasses, attrs classes, pydantic models) become a
map of field name to value, and stay a map.  Nothing here makes the reader
import or call anything that the writer named.

Format and normal forms
-----------------------
===================  =============================================  ===================
written              as                                             comes back as
===================  =============================================  ===================
datetime, aware      tag 0, RFC 3339 text                           datetime, its offset fixed
datetime, naive      tag 1701737989, the same text, no offset       datetime, naive
date                 tag 1004, text                                 date
time                 tag 1701737990, ISO 8601 text                  time, its offset fixed
timedelta            tag 1701737994, [seconds, microseconds]        timedelta
UUID                 tag 37, 16 bytes                               UUID
Decimal, finite      tag 4, [exponent, mantissa]                    Decimal; -0 as 0
Decimal, not finite  float                                          float
complex              tag 43000, [real, imaginary]                   complex
Enum member          its value                                      the value
Path                 text                                           str
dataclass, attrs     map of field name to value                     dict
pydantic model       what ``model_dump()`` returns                  dict, usually
===================  =============================================  ===================

A naive datetime stays naive: neither side can know what zone was meant, and a
result must not be lost for it.  Also read, never written: tag 1 (seconds since
1970) and tag 100 (days since 1970).

Decimals have at most 4,300 digits and exponents of at most six digits: the
conversion between decimal and binary is quadratic, so that a larger one could
stop its reader for minutes.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import pathlib
import uuid
from typing import Any, Final

from cbor2 import CBORTag

TAG_DECIMAL: Final = 4
TAG_DATETIME: Final = 0
TAG_UUID: Final = 37
TAG_DATE: Final = 1004
TAG_COMPLEX: Final = 43000
TAG_NAIVE_DATETIME: Final = 1701737989
TAG_TIME: Final = 1701737990
TAG_DURATION: Final = 1701737994

MAX_DECIMAL_DIGITS: Final = 4_300
"""Most digits of a Decimal; Python's own limit for the like conversion."""

MAX_DECIMAL_EXPONENT: Final = 999_999
"""Largest exponent of a Decimal; that of Python's default context."""

_MAX_MANTISSA_BITS: Final = 14_285
"""Bits of the largest mantissa: ``MAX_DECIMAL_DIGITS * log2(10)``, rounded up."""


_EXACT: Final = decimal.Context(
    prec=MAX_DECIMAL_DIGITS + 1, Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN, traps=[]
)
"""Rounds no Decimal that is read."""


class ObjectProblem(ValueError):
    """An object that has no encoding, or bytes that are no such object."""


# --- writing ---------------------------------------------------------------


def lower_scalar(value: object) -> object:
    """``value`` as something that CBOR has, if it is one of the scalars of the
    table above; else None.

    The result is a ``CBORTag``, a str or a float.  Raises
    :class:`ObjectProblem`.
    """
    if isinstance(value, datetime.datetime):  # before date, which it is too
        aware = value.utcoffset() is not None
        text = (value if aware else value.replace(tzinfo=None)).isoformat()
        if type(value) is not datetime.datetime:
            datetime.datetime.fromisoformat(text)  # a subclass may write anything ("NaT")
        return CBORTag(TAG_DATETIME if aware else TAG_NAIVE_DATETIME, text)
    if isinstance(value, datetime.date):
        return CBORTag(TAG_DATE, value.isoformat())
    if isinstance(value, datetime.time):
        return CBORTag(TAG_TIME, value.isoformat())
    if isinstance(value, datetime.timedelta):
        seconds = value.days * 86_400 + value.seconds
        return CBORTag(TAG_DURATION, [seconds, value.microseconds])
    if isinstance(value, uuid.UUID):
        return CBORTag(TAG_UUID, value.bytes)
    if isinstance(value, decimal.Decimal):
        return _lower_decimal(value)
    if isinstance(value, complex):
        return CBORTag(TAG_COMPLEX, [value.real, value.imag])
    if isinstance(value, pathlib.PurePath):
        return str(value)
    return None


def _lower_decimal(value: decimal.Decimal) -> object:
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):  # "n", "N" or "F": not finite
        return float("nan") if value.is_nan() else float(value)
    if len(digits) > MAX_DECIMAL_DIGITS or abs(exponent) > MAX_DECIMAL_EXPONENT:
        raise ObjectProblem("a Decimal of so many digits has no encoding")
    return CBORTag(TAG_DECIMAL, [exponent, int(decimal.Decimal((sign, digits, 0)))])


def fields_of(value: object) -> object:
    """The fields of a dataclass or attrs instance as a dict, or what a pydantic
    model dumps as; None if ``value`` is none of these.

    It runs code of the class (properties, serializers), which may raise
    anything.
    """
    kind = type(value)
    model_dump = getattr(kind, "model_dump", None)
    if callable(model_dump):
        dumped: object = model_dump(value)
        return dumped
    if dataclasses.is_dataclass(kind):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(kind)}
    attributes = getattr(kind, "__attrs_attrs__", None)
    if attributes is not None:
        return {attribute.name: getattr(value, attribute.name) for attribute in attributes}
    return None


# --- reading ---------------------------------------------------------------


def naive_datetime(content: object) -> datetime.datetime:
    """The content of tag 1701737989.  Raises ValueError or TypeError."""
    if not isinstance(content, str):
        raise ObjectProblem("a datetime must be text")
    value = datetime.datetime.fromisoformat(content)
    if value.tzinfo is not None:
        raise ObjectProblem("a naive datetime must have no offset")
    return value


def time_of_day(content: object) -> datetime.time:
    """The content of tag 1701737990.  Raises ValueError."""
    if not isinstance(content, str):
        raise ObjectProblem("a time must be text")
    return datetime.time.fromisoformat(content)


def duration(content: object) -> datetime.timedelta:
    """The content of tag 1701737994.  Raises ValueError or OverflowError."""
    seconds, microseconds = _two(content, "a duration", int)
    return datetime.timedelta(seconds=seconds, microseconds=microseconds)


def decimal_fraction(content: object) -> decimal.Decimal:
    """The content of tag 4.  Raises ValueError."""
    exponent, mantissa = _two(content, "a Decimal", int)
    if abs(exponent) > MAX_DECIMAL_EXPONENT or mantissa.bit_length() > _MAX_MANTISSA_BITS:
        raise ObjectProblem("the Decimal is too large")
    return decimal.Decimal(mantissa).scaleb(exponent, _EXACT)


def complex_number(content: object) -> complex:
    """The content of tag 43000.  Raises ValueError."""
    return complex(*_two(content, "a complex number", int, float))


def _two(content: Any, what: str, *kinds: type) -> Any:
    """Two numbers of these kinds.  Raises ObjectProblem."""
    is_two = isinstance(content, list | tuple) and len(content) == 2
    if not is_two or not {*kinds}.issuperset(map(type, content)):
        names = " or ".join(kind.__name__ for kind in kinds)
        raise ObjectProblem(f"{what} must hold two numbers, each {names}")
    return content

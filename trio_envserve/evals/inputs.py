"""Inputs out of a file, and which of them to take.

Theory of operation
-------------------
A file is read as the kind that its name says, and each input stands in it as it is handed to the
environment.  Input that a reader of that kind would quietly change or drop is refused, with file,
line and reason: a doubled key or column (the last one would win), a number that a float does not
hold (``1e400``), a row of another length, one object around all rows or of columns.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import json
import re
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from ..core.errors import ConfigError
from ..core.limits import WireLimits
from .files import is_table, read_rows

KINDS: Final = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet", ".pq")
"""The kinds of files, by the ends of their names; all but the last two also with ``.gz``."""

_UNREAD: Final = re.compile(r"\.(ya?ml|toml|xml|xlsx?|ods|arrow|feather|bz2|xz|zst|zip)")
"""Kinds that are refused by name.  A name with another end, or none, is taken for JSON."""

_MARKS: Final = (
    (codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"), (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)  # fmt: skip
"""Byte order marks and the encodings they stand for, longer marks first."""

_WRAPPERS: Final = frozenset(
    ("data", "dataset", "examples", "inputs", "instances", "items", "records", "rows", "samples")
)
"""Names under which others put all their rows into one object."""

_BLANK: Final = re.compile(r"[ \t\r\n]*")
_SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]")
_DEEPEST: Final = WireLimits().depth - 1
"""Levels of nesting that an input may have; the request around it has one."""


class Slice(NamedTuple):
    """The range of inputs to take, counted from 0."""

    start: int = 0
    stop: int | None = None

    @classmethod
    def parse(cls, text: str) -> Slice:
        """``10:20``, ``10:`` or ``:20``.  Raises ConfigError."""
        found = re.fullmatch(r"(\d*):(\d*)", text, re.ASCII)
        if found is None:
            raise ConfigError(f"--slice takes START:STOP, such as 10:20, not {text!r}")
        start = int(found[1] or 0)
        stop = int(found[2]) if found[2] else None
        if stop is not None and stop <= start:
            raise ConfigError(f"--slice {text}: there is nothing between {start} and {stop}")
        return cls(start, stop)


def read_inputs(path: str) -> list[Any]:
    """The inputs in a file: Parquet, CSV or TSV (a mapping for each row; the cells of text are
    text), JSON lines, or JSON (an array, or one value after the other), by the end of its
    name.  Raises ConfigError."""
    if is_table(path):
        inputs: list[Any] = read_rows(path)
    else:
        kind = path.removesuffix(".gz")
        unread = _UNREAD.fullmatch(kind, max(kind.rfind("."), 0))
        if unread is not None:
            raise ConfigError(f"{path}: inputs are read from {', '.join(KINDS)}, not {unread[0]}")
        text = _text(path)
        if kind.endswith((".csv", ".tsv")):
            inputs = list(_cells(path, text, "\t" if kind.endswith(".tsv") else ","))
        else:
            inputs = _json(path, text, lines=kind.endswith((".jsonl", ".ndjson")))
    if not inputs:
        raise ConfigError(f"{path} is empty")
    return inputs


class _Refused(ValueError):
    """A value that cannot be read as it is meant."""


def _text(path: str) -> str:
    try:
        with open(path, "rb") as file:
            data = file.read()
        if path.endswith(".gz"):
            data = gzip.decompress(data)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ConfigError(f"{path} is no whole gzip file: {error}") from None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    mark, encoding = next((each for each in _MARKS if data.startswith(each[0])), (b"", "utf-8"))
    try:
        text = data[len(mark) :].decode(encoding)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}, line {line} is not {encoding.upper()}: {error}") from error
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise ConfigError(f"{path}, line {line}: it holds a NUL; is it UTF-16 without a mark?")
    return text


# -- cells -----------------------------------------------------------------------


def _cells(path: str, text: str, separator: str) -> Iterator[dict[str, str]]:
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    names: list[str] = []
    blank = 0
    try:
        for row in rows:
            if not row:
                blank = blank or (rows.line_num if len(names) == 1 else 0)
            elif not names:
                names = _names(row, separator)
            elif blank:
                raise _Refused(f'line {blank}: it is blank; an empty cell is written ""')
            elif len(row) != len(names):
                raise _Refused(
                    f"line {rows.line_num}: it has another number of cells than the first, "
                    f"{len(row)} and not {len(names)}"
                )
            else:
                yield dict(zip(names, row, strict=True))
    except _Refused as error:
        raise ConfigError(f"{path}, {error}") from None
    except csv.Error as error:
        raise ConfigError(f"{path}, line {rows.line_num}: {error}") from None


def _names(row: list[str], separator: str) -> list[str]:
    """The names of columns.  Raises _Refused."""
    for number, name in enumerate(row, 1):
        if not name.strip():
            raise _Refused(f"line 1: column {number} has no name")
        if row.index(name) < number - 1:
            raise _Refused(f"line 1: two columns are called {name!r}")
        other = next((each for each in ";\t|" if each in name and each != separator), None)
        if other is not None:
            raise _Refused(
                f"line 1: the column {name!r} holds {other!r}; the cells of this kind of file "
                f"are separated by {separator!r}"
            )
    return row


# -- JSON ------------------------------------------------------------------------


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for number, name in enumerate(names) if name in names[:number])
        raise _Refused(f"the key {twice!r} is there twice")
    return found


def _float(text: str) -> float:
    found = float(text)
    if found in (float("inf"), float("-inf")):
        raise _Refused(f"the number {text} is larger than a float holds")
    if not found and text.strip("-0.")[:1] not in ("", "e", "E"):
        raise _Refused(f"the number {text} is smaller than a float holds")
    return found


_DECODER: Final = json.JSONDecoder(parse_float=_float, object_pairs_hook=_object)


def _json(path: str, text: str, *, lines: bool) -> list[Any]:
    if lines:
        inputs = list(_in_lines(path, text))
    else:
        items = _in_array(path, text)
        if items is not None:
            return items
        inputs = [value for value, _ in _in_a_row(path, text, 0)]
    reason = _wrapped(inputs[0]) if len(inputs) == 1 else None
    if reason is not None:
        line = text.count("\n", 0, _after_blank(text, 0)) + 1
        raise ConfigError(
            f"{path}, line {line}: the file is one value, {reason}. Write the rows themselves, "
            "one a line in .jsonl or as an array in .json; if it is one input, put it into "
            "an array in .json"
        )
    return inputs


def _wrapped(value: Any) -> str | None:
    """The reason why the only value of a file is taken for all of its inputs."""
    if isinstance(value, list) and value and all(map(_is_row, value)):
        return f"an array of {len(value)} objects"
    if not isinstance(value, Mapping):
        return None
    for name, inner in value.items():
        if isinstance(inner, list) and inner:
            if name.lower() in _WRAPPERS:
                return f"an object with {len(inner)} items in {name!r}"
            if len(inner) > 1 and len(value) == 1 and all(map(_is_row, inner)):
                return f"an object with {len(inner)} objects in {name!r}"
    return _in_columns(value)


def _in_columns(value: Mapping[str, Any]) -> str | None:
    """The reason why the fields of an object are taken for columns, or for rows by number."""
    columns = [*value.values()]
    if all(isinstance(column, list) and not all(map(_is_message, column)) for column in columns):
        if len({len(column) for column in columns}) == 1:
            names = ", ".join(map(repr, value))
            return f"an object of columns: {names:.200}, {len(columns[0])} items each"
    elif all(isinstance(column, Mapping) and column for column in columns):
        rows = [key for column in columns for key in column]
        if all(map(str.isdecimal, value)) or all(map(str.isdecimal, rows)):
            return "an object of rows or cells by numbers, as pandas writes it without orient"
    return None


def _is_row(value: Any) -> bool:
    """Whether a member of a list may be an input: an object that is no message of a chat."""
    return isinstance(value, Mapping) and not _is_message(value)


def _is_message(value: Any) -> bool:
    return isinstance(value, Mapping) and "role" in value


def _in_lines(path: str, text: str) -> Iterator[Any]:
    for number, line in enumerate(text.split("\n"), 1):
        start = _after_blank(line, 0)
        if start < len(line):
            value, end = _value(path, line, start, number)
            end = _after_blank(line, end)
            if end < len(line):
                raise ConfigError(
                    f"{path}, line {number} is not JSON: more follows in column {end + 1}"
                )
            yield value


def _in_a_row(path: str, text: str, at: int) -> Iterator[tuple[Any, int]]:
    """Values one after the other, each with its end."""
    line, counted = 1, 0
    while (at := _after_blank(text, at)) < len(text):
        line, counted = line + text.count("\n", counted, at), at
        value, at = _value(path, text, at, line)
        yield value, at


def _in_array(path: str, text: str) -> list[Any] | None:
    """The members of an array; None if the text is something else, or goes on behind it."""
    at = _after_blank(text, 0)
    if not text.startswith("[", at):
        return None
    inputs: list[Any] = []
    line, counted = 1, 0
    at = _after_blank(text, at + 1)
    closed = text.startswith("]", at)
    while not closed:
        line, counted = line + text.count("\n", counted, at), at
        value, at = _value(path, text, at, line)
        inputs.append(value)
        at = _after_blank(text, at)
        closed = text.startswith("]", at)
        if not closed:
            if not text.startswith(",", at):
                line += text.count("\n", counted, at)
                raise ConfigError(f"{path}, line {line} is not JSON: ',' or ']' is missing")
            at = _after_blank(text, at + 1)
    return inputs if _after_blank(text, at + 1) == len(text) else None


def _value(path: str, text: str, start: int, line: int) -> tuple[Any, int]:
    """The value that begins at ``start``, in line ``line``, and its end.  ConfigError."""
    try:
        value, end = _DECODER.raw_decode(text, start)
        part = text[start:end]
        if part.count("[") + part.count("{") > _DEEPEST and _is_deep(value):
            raise _Refused(f"it is nested too deeply: more than {_DEEPEST} levels")
        if _SURROGATE.search(part):
            json.dumps(value, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        inner = text.count("\n", start, error.pos)
        raise ConfigError(
            f"{path}, line {line + inner} is not JSON: {error.msg} (column {error.colno})"
        ) from None
    except RecursionError:
        raise ConfigError(f"{path}, line {line}: it is nested too deeply") from None
    except UnicodeEncodeError:
        raise ConfigError(f"{path}, line {line}: half a surrogate pair is no Unicode") from None
    except ValueError as error:  # a value that is refused, a number with too many digits
        raise ConfigError(f"{path}, line {line}: {error}") from None
    return value, end


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(_DEEPEST):
        inner = [each.values() if isinstance(each, dict) else each for each in level]
        level = [item for each in inner for item in each if isinstance(item, (list, dict))]
        if not level:
            return False
    return True


def _after_blank(text: str, at: int) -> int:
    found = _BLANK.match(text, at)
    assert found is not None  # it matches nothing, too
    return found.end()

"""Inputs out of a file, and which of them to take."""

from __future__ import annotations

import csv
import json
import re
from typing import Any, NamedTuple

from ..core.errors import ConfigError
from .table import is_table, read_rows


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
    """The inputs in a file: Parquet or CSV (a mapping for each row; the cells of CSV are
    text), JSON lines, or one JSON array.  By the file's name; one that ends with neither
    ``.jsonl`` nor ``.ndjson`` may be either kind of JSON.  Raises ConfigError."""
    if is_table(path):
        inputs: list[Any] = read_rows(path)
    else:
        try:
            with open(path, encoding="utf-8-sig", newline="") as file:
                inputs = _csv(path, file) if path.endswith(".csv") else _json(path, file.read())
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise ConfigError(f"{path} is not UTF-8: {error}") from error
    if not inputs:
        raise ConfigError(f"{path} is empty")
    return inputs


def _csv(path: str, file: Any) -> list[Any]:
    rows = csv.DictReader(file, restkey="", strict=True)
    inputs = []
    try:
        for row in rows:
            if "" in row or None in row.values():
                raise ConfigError(
                    f"{path}, line {rows.line_num}: it has another number of cells than the first"
                )
            inputs.append(dict(row))
    except csv.Error as error:
        raise ConfigError(f"{path}, line {rows.line_num}: {error}") from None
    return inputs


def _json(path: str, text: str) -> list[Any]:
    if not path.endswith((".jsonl", ".ndjson")):
        try:
            whole = json.loads(text)
        except ValueError:
            whole = None  # then they are lines, and those have numbers
        if isinstance(whole, list):
            return whole
    inputs = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            inputs.append(json.loads(line))
        except ValueError as error:
            raise ConfigError(f"{path}, line {number} is not JSON: {error}") from None
    return inputs

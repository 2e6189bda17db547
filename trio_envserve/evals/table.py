"""Results and inputs as Parquet.  Needs the extra ``table``.

Theory of operation
-------------------
A Parquet file is finished by its last bytes, and cannot be appended to.  So an evaluation
writes JSON lines beside it (``FILE.jsonl``) and makes the table at its end; if it is
killed before, the lines are there, and it goes on from them.

Arrays are not text in a table: in ``value`` and ``input``, which are JSON, the ``data`` of
an array is ``{"$part": N}``, and the bytes are the N-th member of the column ``parts``.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from typing import Any

from ..core.errors import ConfigError
from .files import Check, NotWritten, nothing, replace_file
from .records import result_from

_BATCH_BYTES = 64 * 1024 * 1024
_BATCH = 1000


def is_table(path: str) -> bool:
    """Whether a file is Parquet, by its name."""
    return path.endswith((".parquet", ".pq"))


def arrow() -> Any:
    """The library that reads and writes Parquet.  ConfigError if it is missing."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise ConfigError(
            'Parquet needs pyarrow, which is not installed: pip install "trio-envserve[table]"'
        ) from None
    return pyarrow


def write_table(path: str, records: Iterator[Mapping[str, Any]], check: Check = nothing) -> None:
    """Write records to a file, whole or not at all.  Raises NotWritten."""
    pa = arrow()
    schema = _schema(pa)

    def write(beside: str) -> None:
        try:
            with pa.parquet.ParquetWriter(beside, schema) as writer:
                for rows in _batches(records, check):
                    writer.write_table(pa.Table.from_pylist(rows, schema=schema))
        except pa.ArrowException as error:
            raise NotWritten(f"{path}: {error}") from error

    replace_file(path, write)


def read_table(path: str, check: Check = nothing) -> Iterator[dict[str, Any]]:
    """The records of a file, as those of JSON lines, with bytes as the data of arrays.
    Raises ConfigError."""
    for number, row in enumerate(_rows(path, check), 1):
        yield _record(path, number, row)


def read_row(path: str, place: int) -> dict[str, Any]:
    """The record of a row, counted from 0; other rows are not read.  Raises ConfigError, and
    IndexError if there is none."""
    pa = arrow()
    try:
        with pa.parquet.ParquetFile(path) as file:
            left = place
            for group in range(file.num_row_groups):
                rows = file.metadata.row_group(group).num_rows
                if left < rows:
                    (row,) = file.read_row_group(group).slice(left, 1).to_pylist()
                    return _record(path, place + 1, row)
                left -= rows
    except (OSError, pa.ArrowException) as error:
        raise ConfigError(f"{path}: {error}") from error
    raise IndexError(f"{path} has no row {place + 1}")


def _record(path: str, number: int, row: dict[str, Any]) -> dict[str, Any]:
    try:
        record = {**row, **{name: _joined(row, name) for name in ("input", "value")}}
        record["metrics"], record["usage"] = dict(row["metrics"]), dict(row["usage"])
        result_from(record)
    except (KeyError, TypeError, ValueError, IndexError, RecursionError) as error:
        raise ConfigError(f"{path}, row {number}: this is no result ({error})") from None
    return record


def read_rows(path: str) -> list[dict[str, Any]]:
    """The rows of any table, as mappings.  Raises ConfigError, also if two columns have one
    name: a mapping would keep the last one."""
    pa = arrow()
    try:
        with pa.parquet.ParquetFile(path) as file:
            twice = _doubled(file.schema_arrow)
    except (OSError, pa.ArrowException) as error:
        raise ConfigError(f"{path}: {error}") from error
    if twice is not None:
        raise ConfigError(f"{path}: two columns are called {twice!r}")
    return list(_rows(path, nothing))


def _doubled(fields: Any) -> str | None:
    """A name that two columns, or two fields of one column, have."""
    names = [field.name for field in fields]
    if len(set(names)) < len(names):
        return str(next(name for number, name in enumerate(names) if name in names[:number]))
    inner = (_doubled(list(field.type)) for field in fields if hasattr(field.type, "fields"))
    return next((name for name in inner if name is not None), None)


def _rows(path: str, check: Check) -> Iterator[dict[str, Any]]:
    pa = arrow()
    try:
        with pa.parquet.ParquetFile(path) as file:
            # A batch has no rows of two groups: groups are bounded in bytes.
            for group in range(file.num_row_groups):
                for batch in file.iter_batches(batch_size=100, row_groups=[group]):
                    check()
                    yield from batch.to_pylist()
    except (OSError, pa.ArrowException) as error:
        raise ConfigError(f"{path}: {error}") from error


def _schema(pa: Any) -> Any:
    text, number = pa.string(), pa.float64()
    numbers = pa.map_(text, number)
    error = pa.struct(
        [(n, text) for n in ("class", "code", "verdict", "fault", "type", "message", "traceback")]
    )
    return pa.schema(
        [
            ("index", pa.int64()), ("repeat", pa.int64()), ("reward", number),
            ("bad_reward", text), ("metrics", numbers), ("usage", numbers), ("error", error),
            ("worker", text), ("duration_s", number), ("took_s", number),
            ("executions", pa.int64()), ("ended_s", number), ("environment", text),
            ("model", text), ("run", text),
            ("input", pa.large_string()), ("value", pa.large_string()),
            ("parts", pa.list_(pa.large_binary())),
        ]
    )  # fmt: skip


def _batches(records: Iterator[Mapping[str, Any]], check: Check) -> Iterator[list[dict[str, Any]]]:
    rows: list[dict[str, Any]] = []
    size = 0
    for record in records:
        check()
        row = _row(record)
        rows.append(row)
        size += sum(map(len, row["parts"])) + len(row["input"]) + len(row["value"])
        if len(rows) == _BATCH or size >= _BATCH_BYTES:
            yield rows
            rows, size = [], 0
    if rows:
        yield rows


def _row(record: Mapping[str, Any]) -> dict[str, Any]:
    result = result_from(record)
    parts: list[bytes] = []
    try:
        texts = {name: json.dumps(_split(record.get(name), parts)) for name in ("input", "value")}
    except RecursionError:  # nested too deeply to be looked through: its arrays stay text
        parts.clear()
        texts = {name: json.dumps(record.get(name)) for name in ("input", "value")}
    return {
        **{name: record.get(name) for name in ("error", "environment", "model", "run", "worker")},
        "index": result.index, "repeat": result.repeat, "reward": result.reward,
        "bad_reward": result.bad_reward or None, "metrics": list(result.metrics.items()),
        "usage": list(result.usage.items()), "duration_s": result.duration_s,
        "took_s": result.took_s, "executions": result.executions, "ended_s": result.ended_s,
        **texts, "parts": parts,
    }  # fmt: skip


def _split(value: Any, parts: list[bytes]) -> Any:
    """The same with the bytes of arrays in ``parts``."""
    if isinstance(value, list):
        return [_split(item, parts) for item in value]
    if not isinstance(value, dict):
        return value
    inner = value.get("$array")
    if len(value) == 1 and isinstance(inner, dict) and isinstance(inner.get("data"), str):
        parts.append(base64.b64decode(inner["data"]))
        return {"$array": {**inner, "data": {"$part": len(parts) - 1}}}
    return {key: _split(item, parts) for key, item in value.items()}


def _joined(row: Mapping[str, Any], name: str) -> Any:
    def join(value: dict[str, Any]) -> Any:
        inner = value.get("$array")
        if len(value) == 1 and isinstance(inner, dict) and isinstance(inner.get("data"), dict):
            return {"$array": {**inner, "data": row["parts"][inner["data"]["$part"]]}}
        return value

    # By the decoder, because values may be nested deeper than Python's stack.
    return json.loads(row[name], object_hook=join)


def lines_of(path: str) -> str:
    """The file of JSON lines beside a table."""
    return f"{path}.jsonl"


def line_of(record: Mapping[str, Any]) -> bytes:
    """The line of JSON of a record that was read from a table."""
    text = json.dumps(record, default=lambda data: base64.b64encode(data).decode("ascii"))
    return f"{text}\n".encode()

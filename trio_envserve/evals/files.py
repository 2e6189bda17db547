"""Files of results: JSON lines, whole to the last one whatever happens, and tables.

Theory of operation
-------------------
A line is written piece by piece and ends with a line end.  If it cannot be written whole (a full
disk, an interruption), the file is cut back to the line before.  A last line without its end, as a
killed process leaves it, is no line: readers ignore it, and a writer that continues the file cuts
it off.  One evaluation at a time has a file: it is locked.

A table is a file of Parquet (the extra ``table``), which is finished by its last bytes and
cannot be appended to.  So an evaluation writes JSON lines beside it (``FILE.jsonl``) and makes
the table at its end; if it is killed before, the lines are there, and it goes on from them.
Arrays are not text in a table: in ``value`` and ``input``, which are JSON, the ``data`` of
an array is ``{"$part": N}``, and the bytes are the N-th member of the column ``parts``.

Both are read by :func:`records`, and a single record by :func:`record_at`.  Everything here blocks,
and is called in a thread, whose task may be cancelled: see :func:`give_way`.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, final

import trio

from ..core.errors import ConfigError, EnvServeError
from ..extras import needs_extra
from ..json_values import base64_text, pieces
from ..near import did_you_mean
from .records import FAILURE, FIELDS, RolloutResult, digest, record_of, result_from

See: TypeAlias = Callable[[RolloutResult, Mapping[str, Any]], object]
"""Gets a result, and the record that it is of."""

Errors: TypeAlias = tuple[type[Exception], ...]

_BATCH_BYTES = 64 * 1024 * 1024
_BATCH = 1000


class NotWritten(EnvServeError):
    """A result could not be written.  The file ends with the line before it."""


class Found(NamedTuple):
    """The results that a file has already."""

    results: list[RolloutResult]
    runs: set[tuple[str, str, str]]
    """The digest, environment and model of each result."""
    inputs: dict[int, str]
    """The digest of each input, by its index."""


class Record(NamedTuple):
    """A record of a file."""

    at: int
    """Position in the file: the first byte of its line, or the number of its row."""
    record: dict[str, Any]
    result: RolloutResult


class Entry(NamedTuple):
    """One rollout of a file."""

    at: int
    """Position of its record in the file."""
    result: RolloutResult
    """Without the traceback of a failure: there may be many, and they may be large."""
    input: str
    """The digest of its input."""


class Overview(NamedTuple):
    """The content of a file without inputs and values."""

    entries: list[Entry]
    """The last one of each name, in the order of their inputs."""
    about: dict[str, str]
    """``environment`` and ``model``, as the last record says."""
    is_cut_off: bool
    """Whether the last line is not whole, so that nobody reads it."""

    @property
    def notes(self) -> list[str]:
        """What its figures do not show, as ends of sentences about the file."""
        runs = len({(e.result.run, e.result.environment, e.result.model) for e in self.entries})
        mixed = (
            f"it has results of {runs} evaluations (of other models, arguments or options), and "
            "the last one of each rollout counts"
        )
        cut_off = "the last line is not whole, and is left out"
        return [cut_off] * self.is_cut_off + [mixed] * (runs > 1)


def give_way() -> None:
    """Let other threads run, between two steps of what may take long.  Raises ``trio.Cancelled`` in
    a thread whose task was cancelled."""
    with contextlib.suppress(RuntimeError):  # this is no thread of trio's
        trio.from_thread.check_cancelled()
    time.sleep(0)


@contextmanager
def _told(
    path: str, kind: type[EnvServeError] = ConfigError, errors: Errors = (OSError,)
) -> Iterator[None]:
    """Raise one of these errors, which are the system's, as one of this kind."""
    try:
        yield
    except errors as error:
        why = getattr(error, "strerror", None) or str(error)
        hint = _near_file(path) if isinstance(error, FileNotFoundError) else ""
        raise kind(f"{path}: {why}{hint}") from error


def _near_file(path: str) -> str:
    """A hint with the files of like names beside one that is missing."""
    folder, name = os.path.split(path)
    try:
        return did_you_mean(name, os.listdir(folder or "."), prefix=folder and f"{folder}/")
    except OSError:
        return ""  # the folder is missing, too


# -- writing lines ---------------------------------------------------------------


@final
class ResultsFile:
    """A file to which results are appended.  Made by :func:`open_results`."""

    def __init__(self, path: str, fd: int, end: int | None) -> None:
        self.path = path
        self._fd = fd
        self._end = end
        """End of the last whole line; None for what is not a regular file."""

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one line.  Raises NotWritten, or ``trio.Cancelled``; there is nothing of the line
        in the file then."""
        try:
            written = 0
            for piece in pieces(record):
                give_way()
                written += self._write(piece)
        except OSError as error:
            self._cut()
            raise NotWritten(f"{self.path}: {error.strerror}") from error
        except BaseException:
            self._cut()
            raise
        if self._end is not None:
            self._end += written

    def _write(self, piece: bytes) -> int:
        left = memoryview(piece)
        while left:
            try:
                left = left[os.write(self._fd, left) :]
            except BrokenPipeError:
                # The reader has enough (`| head -1`): the rest goes nowhere.
                with open(os.devnull, "wb") as nowhere:
                    os.dup2(nowhere.fileno(), self._fd)
        return len(piece)

    def _cut(self) -> None:
        if self._end is not None:
            os.ftruncate(self._fd, self._end)
            os.lseek(self._fd, self._end, os.SEEK_SET)

    def close(self) -> None:
        """Close the file.  Raises NotWritten: some file systems tell so late that there
        was no room."""
        fd, self._fd = self._fd, -1
        with _told(self.path, NotWritten):
            if fd >= 0:
                os.close(fd)


def open_results(path: str) -> ResultsFile:
    """Open a file of results, made anew or with what it has.  Raises ConfigError."""
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_CREAT
    with _told(path):
        if not stat.S_ISREG(_mode(path)):
            flags = os.O_WRONLY | os.O_CLOEXEC
        fd = os.open(path, flags, 0o666)
    try:
        if flags & os.O_WRONLY:
            return ResultsFile(path, fd, None)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"{path}: another evaluation is writing to it") from None
        return ResultsFile(path, fd, _end_of_lines(fd))
    except BaseException:
        os.close(fd)
        raise


def standard_output() -> ResultsFile:
    """Standard output as a file of results."""
    return ResultsFile("-", os.dup(1), None)


def _mode(path: str) -> int:
    try:
        return os.stat(path).st_mode
    except FileNotFoundError:
        return stat.S_IFREG


def _end_of_lines(fd: int) -> int:
    """The end of the last whole line, from which the file is read on."""
    end = os.fstat(fd).st_size
    while end:
        start = max(0, end - 65536)
        found = os.pread(fd, end - start, start).rfind(b"\n")
        if found >= 0:
            end = start + found + 1
            break
        end = start
    os.lseek(fd, end, os.SEEK_SET)
    return end


def replace_file(path: str, write: Callable[[str], None]) -> None:
    """Write a file whole or not at all: beside its place, and then into it."""
    beside = f"{path}.new-{os.getpid()}"
    try:
        with _told(path, NotWritten):
            write(beside)
            os.replace(beside, path)
    finally:
        with contextlib.suppress(OSError):  # a folder that is read-only: the error says so
            Path(beside).unlink(missing_ok=True)


# -- reading ---------------------------------------------------------------------


def records(path: str) -> Iterator[Record]:
    """The records of a file, in order.  Raises ConfigError for a file that cannot be read, or
    that has anything but results, with the number of the line or row.  A last line without its
    end is left out: it was not written whole."""
    if is_table(path):
        for number, row in enumerate(_rows(path)):
            yield _record(path, f"row {number + 1}", number, _of_row, row)
        return
    at = 0
    with _told(path), open(path, "rb") as lines:
        for number, line in enumerate(lines, 1):
            give_way()
            if not line.endswith(b"\n"):
                return
            if line.strip():
                yield _record(path, f"line {number}", at, json.loads, line)
            at += len(line)


def _record(
    path: str, where: str, at: int, read: Callable[[Any], dict[str, Any]], given: Any
) -> Record:
    try:
        record = read(given)
        return Record(at, record, result_from(record))
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise ConfigError(f"{path}, {where}: this is no result ({error})") from None


def _is_cut_off(path: str) -> bool:
    if is_table(path):
        return False
    with _told(path), open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 1))
        return file.read(1) not in (b"\n", b"")


def record_at(path: str, entry: Entry) -> dict[str, Any]:
    """The record of an entry; nothing before it is read again.  Raises ConfigError."""
    index, repeat = entry.result.name
    changed = f"{path} has changed: input {index}, repeat {repeat} is not where it was"
    try:
        found = (_at_row if is_table(path) else _at_byte)(path, entry.at)
    except ConfigError as error:
        raise ConfigError(changed) from error
    give_way()
    if found.result.name != entry.result.name:
        raise ConfigError(changed)
    return found.record


def _at_byte(path: str, at: int) -> Record:
    with _told(path), open(path, "rb") as lines:
        lines.seek(at)
        return _record(path, f"byte {at}", at, json.loads, lines.readline())


def take_up(opened: ResultsFile) -> Found:
    """The records in the file, before more is written to it; a line that was left
    unfinished is cut off.  Raises ConfigError if it has anything but results."""
    found = Found([], set(), {})
    if opened._end is None:
        return found
    for _, record, result in records(opened.path):
        found.results.append(result)
        found.runs.add((result.run, result.environment, result.model))
        found.inputs[result.index] = digest(record.get("input"), is_json=True)
    if not found.results and os.fstat(opened._fd).st_size:
        raise ConfigError(f"{opened.path} exists, and has no results")
    opened._cut()
    return found


def last_records(path: str) -> Iterator[dict[str, Any]]:
    """The records that count: the last one of each name.  Reads the file twice, because
    all records together may be larger than memory.  Raises as :func:`records`."""
    last = {result.name: at for at, _, result in records(path)}
    for at, record, result in records(path):
        if last[result.name] == at:
            yield record


def overview(path: str, see: See | None = None) -> Overview:
    """The totals of a file.  Raises ConfigError, also if it has no results.  ``see`` gets each
    record on the way."""
    found: dict[tuple[int, int], Entry] = {}
    about: dict[str, str] = {}
    for at, record, result in records(path):
        known = digest(record.get("input"), is_json=True)
        found[result.name] = Entry(at, result.short(), known)
        if see is not None:
            see(result, record)
        about = {"environment": result.environment, "model": result.model}
    if not found:
        raise ConfigError(f"{path} has no results")
    cut_off = os.path.isfile(path) and _is_cut_off(path)  # a pipe is not read again
    return Overview([found[name] for name in sorted(found)], about, cut_off)


def chosen(
    entries: Iterable[Entry], *, errors: bool = False, index: int | None = None,
    below: float | None = None, above: float | None = None, worst: bool = False,
    best: bool = False, slowest: bool = False,
) -> list[Entry]:  # fmt: skip
    """The rollouts that pass all filters, in the requested order.  A rollout without a finite
    reward passes no filter of rewards, and comes last by reward."""
    found = [
        each
        for each in entries
        if (not errors or each.result.failure is not None)
        and (index is None or each.result.index == index)
        and (below is None or (each.result.score is not None and each.result.score < below))
        and (above is None or (each.result.score is not None and each.result.score > above))
    ]
    if worst or best:
        sign = 1 if worst else -1
        found.sort(key=lambda e: (e.result.score is None, sign * (e.result.score or 0.0)))
    elif slowest:
        found.sort(key=lambda each: -(each.result.duration_s or 0.0))
    return found


# -- tables ----------------------------------------------------------------------


def is_table(path: str) -> bool:
    """Whether a file is Parquet, by its name."""
    return path.endswith((".parquet", ".pq"))


def arrow() -> Any:
    """The library that reads and writes Parquet.  ConfigError if it is missing."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise ConfigError(needs_extra("Parquet", "table")) from None
    return pyarrow


@contextmanager
def _opened_table(path: str) -> Iterator[Any]:
    pa = arrow()
    told = _told(path, errors=(OSError, pa.ArrowException))
    with told, pa.parquet.ParquetFile(path) as file:
        yield file


def lines_of(path: str) -> str:
    """The file of JSON lines beside a table."""
    return f"{path}.jsonl"


def line_of(record: Mapping[str, Any]) -> bytes:
    """The line of JSON of a record that was read from a table."""
    return f"{json.dumps(record, default=base64_text)}\n".encode()


def write_table(path: str, records: Iterator[Mapping[str, Any]]) -> None:
    """Write records to a file, whole or not at all.  Raises NotWritten."""
    pa = arrow()
    text, number = pa.string(), pa.float64()
    failure = pa.struct([(name, text) for name in (*FAILURE, "fault")])
    kinds = {
        "int64": pa.int64(), "float64": number, "string": text, "numbers": pa.map_(text, number),
        "failure": failure,
    }  # fmt: skip
    fields = [(name, kinds[kind.arrow]) for name, (_, kind) in FIELDS.items()]
    fields += [(name, pa.large_string()) for name in ("input", "value")]
    schema = pa.schema([*fields, ("parts", pa.list_(pa.large_binary()))])

    def write(beside: str) -> None:
        told = _told(path, NotWritten, (OSError, pa.ArrowException))
        with told, pa.parquet.ParquetWriter(beside, schema) as writer:
            for rows in _batches(records):
                writer.write_table(pa.Table.from_pylist(rows, schema=schema))

    replace_file(path, write)


def _batches(records: Iterator[Mapping[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    rows: list[dict[str, Any]] = []
    size = 0
    for record in records:
        row = _row(record)
        rows.append(row)
        size += sum(map(len, row["parts"])) + len(row["input"]) + len(row["value"])
        if len(rows) == _BATCH or size >= _BATCH_BYTES:
            yield rows
            rows, size = [], 0
    if rows:
        yield rows


def _row(record: Mapping[str, Any]) -> dict[str, Any]:
    parts: list[bytes] = []
    both = {name: record.get(name) for name in ("input", "value")}
    try:
        texts = {name: json.dumps(_split(value, parts)) for name, value in both.items()}
    except RecursionError:  # nested too deeply to be looked through: its arrays stay text
        parts.clear()
        texts = {name: json.dumps(value) for name, value in both.items()}
    row = record_of(result_from(record), **texts)
    for name in ("metrics", "usage"):
        row[name] = list(row[name].items())
    return {**row, "parts": parts}


def _split(value: Any, parts: list[bytes]) -> Any:
    """The record with the bytes of its arrays moved to ``parts``."""
    if isinstance(value, list):
        return [_split(item, parts) for item in value]
    if not isinstance(value, dict):
        return value
    inner = value.get("$array")
    if len(value) == 1 and isinstance(inner, dict) and isinstance(inner.get("data"), str):
        parts.append(base64.b64decode(inner["data"]))
        return {"$array": {**inner, "data": {"$part": len(parts) - 1}}}
    return {key: _split(item, parts) for key, item in value.items()}


def _of_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """The record of a row, as that of a line, with bytes as the data of arrays."""

    def join(value: dict[str, Any]) -> Any:
        inner = value.get("$array")
        if len(value) == 1 and isinstance(inner, dict) and isinstance(inner.get("data"), dict):
            return {"$array": {**inner, "data": row["parts"][inner["data"]["$part"]]}}
        return value

    # By the decoder, because values may be nested deeper than Python's stack.
    both = {name: json.loads(row[name], object_hook=join) for name in ("input", "value")}
    numbers = {name: dict(row[name]) for name in ("metrics", "usage")}
    return {**{name: row[name] for name in FIELDS if name in row}, **numbers, **both}


def _at_row(path: str, at: int) -> Record:
    """The record of a row, counted from 0; other rows are not read."""
    with _opened_table(path) as file:
        left = at
        for group in range(file.num_row_groups):
            rows = file.metadata.row_group(group).num_rows
            if left < rows:
                (row,) = file.read_row_group(group).slice(left, 1).to_pylist()
                return _record(path, f"row {at + 1}", at, _of_row, row)
            left -= rows
    raise ConfigError(f"{path} has no row {at + 1}")


def read_rows(path: str) -> list[dict[str, Any]]:
    """The rows of any table, as mappings.  Raises ConfigError, also if two columns have one
    name: a mapping would keep the last one."""
    with _opened_table(path) as file:
        twice = _doubled(file.schema_arrow)
    if twice is not None:
        raise ConfigError(f"{path}: two columns are called {twice!r}")
    return list(_rows(path))


def _doubled(fields: Any) -> str | None:
    """A name that two columns, or two fields of one column, have."""
    names = [field.name for field in fields]
    if len(set(names)) < len(names):
        return str(next(name for number, name in enumerate(names) if name in names[:number]))
    inner = (_doubled(list(field.type)) for field in fields if hasattr(field.type, "fields"))
    return next((name for name in inner if name is not None), None)


def _rows(path: str) -> Iterator[dict[str, Any]]:
    with _opened_table(path) as file:
        # A batch has no rows of two groups: groups are bounded in bytes.
        for group in range(file.num_row_groups):
            for batch in file.iter_batches(batch_size=100, row_groups=[group]):
                give_way()
                yield from batch.to_pylist()

"""Files of results as JSON lines, whole to the last line whatever happens.

Theory of operation
-------------------
A line is written piece by piece and ends with a line end.  If it cannot be written whole
(a full disk, an interruption), the file is cut back to the line before.  What a killed
process left of a line is no line: readers leave it out, and who goes on with the file cuts
it off.  One evaluation at a time has a file: it is locked.

Everything here blocks, and is called in a thread.  What may take long calls ``check``
between its steps, which may raise.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, final

from ..core.errors import ConfigError, EnvServeError
from ..json_values import pieces
from .records import RolloutResult, digest, result_from

Check: TypeAlias = Callable[[], object]
"""Called between steps; raises if the work is to be given up."""


class NotWritten(EnvServeError):
    """A result could not be written.  The file ends with the line before it."""


class Found(NamedTuple):
    """The results that a file has already."""

    results: list[RolloutResult]
    runs: set[tuple[str, str, str]]
    """The digest, environment and model of each result."""
    inputs: dict[int, str]
    """The digest of each input, by its index."""


def nothing() -> None:
    """A check that never gives up."""


@final
class ResultsFile:
    """A file to which results are appended.  Made by :func:`open_results`."""

    def __init__(self, path: str, fd: int, end: int | None) -> None:
        self.path = path
        self._fd = fd
        self._end = end
        """Where the last whole line ends; None for what is not a regular file."""

    def append(self, record: Mapping[str, Any], check: Check = nothing) -> None:
        """Write one line.  Raises NotWritten, or what ``check`` raises; there is nothing
        of the line in the file then."""
        try:
            written = 0
            for piece in pieces(record):
                check()
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
        try:
            if fd >= 0:
                os.close(fd)
        except OSError as error:
            raise NotWritten(f"{self.path}: {error.strerror}") from error


def open_results(path: str, *, must_exist: bool = False) -> ResultsFile:
    """Open a file of results, made anew or with what it has.  Raises ConfigError."""
    flags = os.O_RDWR | os.O_CLOEXEC | (0 if must_exist else os.O_CREAT)
    try:
        if not stat.S_ISREG(_mode(path)):
            flags = os.O_WRONLY | os.O_CLOEXEC
        fd = os.open(path, flags, 0o666)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
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
    """Where the last whole line ends; the file is read from there on."""
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


def take_up(opened: ResultsFile, check: Check = nothing) -> Found:
    """The records in the file, before more is written to it; a line that was left
    unfinished is cut off.  Raises ConfigError if it has anything but results."""
    found = Found([], set(), {})
    if opened._end is None:
        return found
    for record in read_records(opened.path, check):
        found.results.append(result_from(record))
        run, environment, model = (str(record.get(k, "")) for k in ("run", "environment", "model"))
        found.runs.add((run, environment, model))
        found.inputs[found.results[-1].index] = digest(record.get("input"), is_json=True)
    if not found.results and os.fstat(opened._fd).st_size:
        raise ConfigError(f"{opened.path} exists, and has no results")
    opened._cut()
    return found


def read_records(path: str, check: Check = nothing) -> Iterator[dict[str, Any]]:
    """The records of a file of JSON lines, in order.  Raises ConfigError for a file that
    cannot be read, or that has anything but results, with the number of the line.  A
    last line without its end is left out: it was not written whole.
    """
    return (record for _, record in placed_records(path, check))


def placed_records(path: str, check: Check = nothing) -> Iterator[tuple[int, dict[str, Any]]]:
    """The same, each with the place of its line in the file, in bytes."""
    place = 0
    try:
        with open(path, "rb") as lines:
            for number, line in enumerate(lines, 1):
                check()
                if not line.endswith(b"\n"):
                    return
                if line.strip():
                    yield place, _record(path, f"line {number}", line)
                place += len(line)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error


def record_of_line(path: str, place: int) -> dict[str, Any]:
    """The record of the line that begins at a place.  Raises ConfigError."""
    try:
        with open(path, "rb") as lines:
            lines.seek(place)
            return _record(path, f"byte {place}", lines.readline())
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error


def _record(path: str, where: str, line: bytes) -> dict[str, Any]:
    try:
        record = json.loads(line)
        result_from(record)
    except (ValueError, AttributeError, RecursionError) as error:
        raise ConfigError(f"{path}, {where}: this is no result ({error})") from None
    found: dict[str, Any] = record
    return found


def replace_file(path: str, write: Callable[[str], None]) -> None:
    """Write a file whole or not at all: beside its place, and then into it."""
    beside = f"{path}.new-{os.getpid()}"
    try:
        write(beside)
        os.replace(beside, path)
    except OSError as error:
        raise NotWritten(f"{path}: {error.strerror or error}") from error
    finally:
        Path(beside).unlink(missing_ok=True)


def last_records(path: str, check: Check = nothing) -> Iterator[dict[str, Any]]:
    """The records that count: the last one of each name.  Reads the file twice, because
    all records together may be larger than memory.  Raises as :func:`read_records`."""
    last = {
        result_from(record).name: number for number, record in enumerate(read_records(path, check))
    }
    for number, record in enumerate(read_records(path, check)):
        if last[result_from(record).name] == number:
            yield record

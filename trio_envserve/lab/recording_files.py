"""Reads the files of a recording, and believes none of it before it has looked."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, NoReturn

import cbor2

from ..core.closing import ClosingStage
from ..core.errors import ConfigError
from ..core.strict_cbor import NO_TAGS
from ..core.terms import ID_BYTES
from ..server.recording import records


class BadRecording(ConfigError):
    """It is no recording, or cannot be read any further."""


class File(NamedTuple):
    """One file of a recording and its header."""

    path: Path
    about: dict[str, Any]


def read(path: str | os.PathLike[str]) -> tuple[list[File], Iterator[list[Any]]]:
    """The files of the recording up to this one, the oldest first, and their records.

    A record that was cut off at the end of a file (the server was killed) is
    left out.  BadRecording for anything else that is wrong.
    """
    newest = _file(Path(path))
    files = [newest]
    while files[0].about["file"] > 0:
        older = _older(Path(path), newest, files[0].about["file"] - 1)
        if older is None:
            break
        files.insert(0, older)
    return files, _all_records(files)


def _older(path: Path, newest: File, wanted: int) -> File | None:
    """The file of that index, by the names that rotation gives."""
    back = newest.about["file"] - wanted
    names = [f"{path.name}.{back}"]
    numbered = re.fullmatch(r"(.+)\.([0-9]+)", path.name)
    if numbered:
        names.append(f"{numbered[1]}.{int(numbered[2]) + back}")
    for name in names:
        try:
            file = _file(path.with_name(name))
        except BadRecording:
            continue  # not there, or somebody else's
        about = file.about
        if (about["recording"], about["file"]) == (newest.about["recording"], wanted):
            return file
    return None


def _file(path: Path) -> File:
    for record in _records(path):
        return File(path, record[3])
    raise BadRecording(f"{path} is empty")


def _all_records(files: list[File]) -> Iterator[list[Any]]:
    for file in files:
        yield from _records(file.path)


def _records(path: Path) -> Iterator[list[Any]]:
    try:
        with path.open("rb") as stream:
            yield from _decoded(path, stream)
    except OSError as error:
        raise BadRecording(f"cannot read {path}: {error.strerror or error}") from None


def _decoded(path: Path, stream: BinaryIO) -> Iterator[list[Any]]:
    decoder = cbor2.CBORDecoder(
        stream, max_depth=records.MAX_DEPTH, allow_indefinite=False, tag_hook=_no_tag,
        semantic_decoders=NO_TAGS,
    )  # fmt: skip
    size = os.fstat(stream.fileno()).st_size
    first = True
    at = 0
    while at < size:
        try:
            record = decoder.decode()
        except cbor2.CBORDecodeEOF:
            if first:
                raise BadRecording(f"{path} is no recording: it has no whole record") from None
            return
        except Exception as error:  # cbor2 documents no complete list of what bad data raises
            why = "is no recording" if first else f"is damaged at byte {at}"
            raise BadRecording(f"{path} {why}: {type(error).__name__}") from None
        _check(path, at, record, first)
        yield record
        first = False
        at = stream.tell()


def _no_tag(decoder: Any, tag: Any) -> NoReturn:
    raise ValueError("a tag")


def _is_step(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _is_slots(value: Any) -> bool:
    return type(value) is int and 0 < value < 100_000


def _is_seconds(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < 1e15


def _is_date(value: Any) -> bool:
    return _is_seconds(value) and 0 <= value < 1e11


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def _is_bytes(value: Any) -> bool:
    return type(value) is bytes


def _is_text(value: Any) -> bool:
    return type(value) is str


def _is_frame(value: Any) -> bool:
    return type(value) is bytes or (type(value) is int and 0 <= value <= 2**31)


def _is_frames(value: Any) -> bool:
    return type(value) is list and all(map(_is_frame, value))


def _is_worker_frames(value: Any) -> bool:
    return _is_frames(value) and len(value) > 0 and type(value[0]) is bytes


def _is_ids(value: Any) -> bool:
    return type(value) is list and all(map(_is_bytes, value))


def _is_record(value: Any) -> bool:
    return type(value) is dict


def _is_stage(value: Any) -> bool:
    return type(value) is str and value in _STAGES


def _is_limit(value: Any) -> bool:
    return value is None or _is_number(value)


def _is_id(value: Any) -> bool:
    return type(value) is bytes and len(value) == ID_BYTES


def _is_frozen(value: Any) -> bool:
    pair = type(value) is list and len(value) == 2
    return pair and type(value[0]) is dict and type(value[1]) is list


_STAGES = {stage.value for stage in ClosingStage}

_ARGUMENTS: dict[int, tuple[Callable[[Any], bool], ...]] = {
    records.CLIENT: (_is_seconds, _is_bytes, _is_frames),
    records.WORKER: (_is_seconds, _is_worker_frames),
    records.PULSE: (_is_seconds, _is_bytes, _is_number, _is_number, _is_text),
    records.SPAWNED: (_is_seconds, _is_bytes, _is_step),
    records.EXITED: (_is_seconds, _is_bytes, _is_text),
    records.TICK: (_is_seconds,),
    records.OPEN_POOL: (_is_seconds, _is_ids),
    records.CLOSE: (_is_seconds, _is_stage, _is_limit),
    records.FLUSHED: (_is_seconds,),
    records.STARTING: (_is_seconds, _is_text),
    records.DRAW: (_is_id,),
    records.STATS: (_is_record,),
    records.RAISED: (_is_text, _is_text),
    records.CHECK: (_is_step, _is_bytes),
    records.STATE: (_is_step, _is_seconds, _is_frozen),
    records.GAP: (_is_step,),
    records.END: (_is_step,),
}
"""What a record holds after its code."""

_ABOUT: dict[str, Callable[[Any], bool]] = {
    "recording": _is_id, "file": _is_step, "step": _is_step, "now_s": _is_seconds,
    "began_s": _is_seconds, "time": _is_date, "epoch": _is_id, "slots": _is_slots,
    "pulses": lambda value: type(value) is bool, "limits": _is_record, "wire": _is_record,
    "version": _is_text, "environment": _is_text, "address": _is_text,
}  # fmt: skip
"""What a header must have."""


def _check(path: Path, at: int, record: Any, first: bool) -> None:
    """BadRecording if it is no record, or the first is no header."""
    code = record[0] if type(record) is list and record else None
    if first != (code == records.HEADER and type(code) is int):
        why = "is no recording" if first else f"is damaged at byte {at}: a second header"
        raise BadRecording(f"{path} {why}")
    if first:
        _check_header(path, record)
        return
    checks = _ARGUMENTS.get(code) if type(code) is int else None
    if (
        checks is None
        or len(record) != len(checks) + 1
        or not all(check(value) for check, value in zip(checks, record[1:], strict=True))
    ):
        raise BadRecording(f"{path} is damaged at byte {at}: not a record that is known")


def _check_header(path: Path, record: list[Any]) -> None:
    if len(record) < 3 or record[1] != records.NAME:
        raise BadRecording(f"{path} is no recording")
    if record[2] != records.FORMAT:
        raise BadRecording(
            f"{path} has format {record[2]!r}, and this version reads {records.FORMAT}"
        )
    about = record[3] if len(record) == 4 else None
    if type(about) is not dict:
        raise BadRecording(f"{path} is no recording: its header has no description")
    missing = [name for name, check in _ABOUT.items() if not check(about.get(name))]
    if missing:
        raise BadRecording(f"{path}: the header has no right {', '.join(missing)}")

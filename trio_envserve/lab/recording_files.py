"""Reads a recording, and believes none of it before it has looked."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, TypeAlias

import cbor2

from ..core.errors import ConfigError
from ..core.router_inputs import RouterInput
from ..core.strict_cbor import NO_TAGS
from ..core.terms import ID_BYTES
from ..core.worker_range import most_of
from ..server.recording import records

MAX_DEPTH = 8


class BadRecording(ConfigError):
    """It is no recording, or cannot be read any further."""


@dataclasses.dataclass(slots=True)
class RecordedInput:
    """One input of the router."""

    step: int
    """Its number, from 1."""
    at_s: float
    """Seconds since the router was made."""
    given: RouterInput
    """The input itself.  A frame that was not recorded has as many zeros."""
    drawn: list[bytes] = dataclasses.field(default_factory=list)
    """Ids that the router drew for it."""
    raised: str = ""
    """The type of what the router raised."""


@dataclasses.dataclass(frozen=True, slots=True)
class Mark:
    """A check, of the effects or of the state, or the end of the recording."""

    code: int
    step: int
    what: Any
    """The hash; or why the recording ends, empty if the server did."""


Part: TypeAlias = RecordedInput | Mark


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Any], Iterator[Part]]:
    """The header of a recording, and what follows.

    A record that was cut off at the end of the file (the server was killed) is left
    out.  BadRecording for anything else that is wrong.
    """
    path = Path(path)
    items = _records(path)
    first = next(items, None)
    if first is None:
        raise BadRecording(f"{path} is empty")
    about = first[1][3]
    return about, _parts(path, items, about["began_s"])


def _parts(path: Path, items: Iterator[tuple[int, list[Any]]], began_s: float) -> Iterator[Part]:
    step, now_s = 0, began_s
    pending: RecordedInput | None = None
    for at, record in items:
        try:
            part = _part(record, step, pending)
        except Exception as error:  # whatever bad data raises where a record is made of it
            raise BadRecording(f"{path} is damaged at byte {at}: {error}") from None
        if part is None:
            continue
        if pending is not None:
            yield pending
            pending = None
        if isinstance(part, RecordedInput):
            now_s = max(now_s, getattr(part.given, "now_s", now_s))
            step, part.at_s, pending = part.step, now_s - began_s, part
        else:
            yield part
    if pending is not None:
        yield pending


def _part(record: list[Any], step: int, pending: RecordedInput | None) -> Part | None:
    """The entry that a record begins; None if it belongs to the input before it."""
    code, *rest = record
    if type(code) is not int:
        raise ValueError("not a record that is known")
    if code in records.INPUTS:
        return RecordedInput(step + 1, 0.0, records.input_of(record))
    if code in (records.DRAWN, records.RAISED):
        if pending is None:
            raise ValueError("it belongs to no input")
        if code == records.DRAWN:
            pending.drawn.append(_checked(rest, _is_id)[0])
        else:
            pending.raised = _checked(rest, _is_text, _is_text)[0]
        return None
    if code in (records.CHECK, records.STATE):
        return Mark(code, *_checked(rest, _is_step, _is_bytes))
    if code == records.END:
        return Mark(code, *_checked(rest, _is_step, _is_text))
    raise ValueError("a second header" if code == records.HEADER else "not a record that is known")


def _checked(values: list[Any], *checks: Callable[[Any], bool]) -> list[Any]:
    pairs = zip(checks, values, strict=True)  # ValueError if there are not as many
    if not all(check(value) for check, value in pairs):
        raise ValueError("not a record that is known")
    return values


def _records(path: Path) -> Iterator[tuple[int, list[Any]]]:
    """Where each record begins, and the record."""
    try:
        with path.open("rb") as stream:
            yield from _decoded(path, stream)
    except OSError as error:
        raise BadRecording(f"cannot read {path}: {error.strerror or error}") from None


def _decoded(path: Path, stream: BinaryIO) -> Iterator[tuple[int, list[Any]]]:
    decoder = cbor2.CBORDecoder(
        stream, max_depth=MAX_DEPTH, allow_indefinite=False, tag_hook=_no_tag,
        semantic_decoders=NO_TAGS,
    )  # fmt: skip
    size = os.fstat(stream.fileno()).st_size
    at = 0
    while at < size:
        try:
            record = decoder.decode()
        except cbor2.CBORDecodeEOF:
            if not at:
                raise BadRecording(f"{path} is no recording: it has no whole record") from None
            return
        except Exception as error:  # cbor2 documents no complete list of what bad data raises
            why = f"is damaged at byte {at}" if at else "is no recording"
            raise BadRecording(f"{path} {why}: {type(error).__name__}") from None
        if not at:
            _check_header(path, record)
        elif type(record) is not list or not record:
            raise BadRecording(f"{path} is damaged at byte {at}: not a record that is known")
        yield at, record
        at = stream.tell()


def _no_tag(decoder: Any, tag: Any) -> NoReturn:
    raise ValueError("a tag")


def _is_step(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _is_seconds(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < 1e15


def _is_bytes(value: Any) -> bool:
    return type(value) is bytes


def _is_text(value: Any) -> bool:
    return type(value) is str


def _is_record(value: Any) -> bool:
    return type(value) is dict


def _is_id(value: Any) -> bool:
    return type(value) is bytes and len(value) == ID_BYTES


def _is_slots(value: Any) -> bool:
    try:
        return 0 < most_of(records.slots_of(value)) < 100_000
    except ConfigError:
        return False


_ABOUT: dict[str, Callable[[Any], bool]] = {
    "began_s": _is_seconds, "time": lambda value: _is_seconds(value) and 0 <= value < 1e11,
    "epoch": _is_id, "slots": _is_slots,
    "heartbeats": lambda value: type(value) is bool, "limits": _is_record, "wire": _is_record,
    "version": _is_text, "environment": _is_text, "address": _is_text,
}  # fmt: skip
"""The fields that a header must have."""


def _check_header(path: Path, record: Any) -> None:
    """BadRecording if it is the header of something else."""
    if type(record) is not list or len(record) < 3 or record[:2] != [records.HEADER, records.NAME]:
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

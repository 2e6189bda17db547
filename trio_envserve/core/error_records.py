"""Errors as they travel: the bodies of outcomes that are no results.

The protocol document has the fields ("Bodies"); the class is
:class:`~trio_envserve.core.errors.ErrorInfo`.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import cbor2

from . import strict_cbor
from .errors import ErrorInfo
from .messages import is_seconds, is_uint
from .terms import Verdict

_NAMES = tuple(field.name for field in dataclasses.fields(ErrorInfo))

_MOST_BYTES = 1024 * 1024
"""Most bytes of a record: six texts of 128 KiB are less."""


def to_record(info: ErrorInfo, *, most_bytes: int = 128 * 1024) -> dict[str, Any]:
    """An error as plain data that can be encoded, whatever its texts hold.

    A text of more than ``most_bytes`` keeps its beginning and its end.
    """
    record = {name: getattr(info, name) for name in _NAMES}  # asdict takes much longer
    record["verdict"] = info.verdict.name
    for name, value in record.items():
        if isinstance(value, str):
            record[name] = _clipped(value, most_bytes)
    return record


def _clipped(text: str, most_bytes: int) -> str:
    """Valid UTF-8 of about ``most_bytes`` at most, less out of the middle."""
    raw = text.encode("utf-8", "backslashreplace")
    if len(raw) <= most_bytes:
        return raw.decode()
    half = most_bytes // 2
    first, last = raw[:half].decode(errors="ignore"), raw[-half:].decode(errors="ignore")
    return f"{first}\n[... {len(raw) - 2 * half} bytes left out ...]\n{last}"


def encode(info: ErrorInfo, *, most_bytes: int = 128 * 1024) -> bytes:
    """The body of an error outcome; see :func:`to_record`."""
    return cbor2.dumps(to_record(info, most_bytes=most_bytes))


def decode(body: bytes | memoryview) -> ErrorInfo:
    """The error record of an outcome.  A record that cannot be read is still
    an error, and of a request that ran or may have run: it says so."""
    try:
        if len(body) > _MOST_BYTES:
            raise ValueError("too large")
        record = strict_cbor.loads(body)
        known = {key: value for key, value in record.items() if key in _NAMES}
        known["verdict"] = Verdict[known["verdict"]]
        info = ErrorInfo(**known)
        texts = (info.code, info.message, info.type, info.traceback, info.worker, info.incarnation)
        if not all(type(text) is str for text in texts):
            raise TypeError("a text field is not text")
        numbers = is_seconds(info.duration_s), is_seconds(info.retry_after_s)
        if not (all(numbers) and is_uint(info.executions)):
            raise TypeError("a number field is not a number")
        return info
    except Exception as error:  # whatever a broken record raises, the caller must be told
        return ErrorInfo(
            code="unreadable",
            verdict=Verdict.MAY_HAVE_RUN,
            message=f"the error record of the outcome cannot be read: {type(error).__name__}",
        )

"""Notes: the progress that a rollout last reported.

A note is a small map of plain data.  It is encoded where it is written and decoded where it is
shown; everything in between treats it as opaque bytes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypeAlias

import cbor2

from . import strict_cbor
from .messages import MAX_UINT
from .terms import NOTE_BYTES, Body

Plain: TypeAlias = "str | int | float | bool | None"
Note: TypeAlias = dict[str, Plain]
"""The fields of a note by their names: texts, numbers, booleans and None."""

NAME_CHARACTERS = 64
"""Most characters of a field's name."""

_TEXT_HEAD_BYTES = 3
_CUT = "…"


def encode(fields: Mapping[str, Plain]) -> bytes:
    """The encoded note: at most :data:`~.terms.NOTE_BYTES`.

    Where it would be longer, its longest texts are cut and end in ``…``.  Raises TypeError for a
    field that is no plain data, and ValueError for a number that is not finite or has more than 63
    bits, for a long name, and for more fields than fit.
    """
    note = {_name(name): _plain(name, value) for name, value in fields.items()}
    encoded = cbor2.dumps(note)
    if len(encoded) <= NOTE_BYTES:
        return encoded
    texts = sorted((len(v.encode()), k) for k, v in note.items() if isinstance(v, str))
    others = cbor2.dumps({k: "" if isinstance(v, str) else v for k, v in note.items()})
    left = NOTE_BYTES - len(others) - _TEXT_HEAD_BYTES * len(texts)
    for at, (size_bytes, name) in enumerate(texts):  # short texts leave their rest to long ones
        share = left // (len(texts) - at)
        if share < len(_CUT.encode()) < size_bytes:
            raise ValueError(f"a note has at most {NOTE_BYTES} bytes: write fewer fields")
        text = str(note[name])
        note[name] = text = text if size_bytes <= share else _shortened(text, share)
        left -= len(text.encode())
    if left < 0:
        raise ValueError(f"a note has at most {NOTE_BYTES} bytes: write fewer fields")
    return cbor2.dumps(note)


def _name(name: str) -> str:
    if type(name) is not str or not name.isprintable() or not 0 < len(name) <= NAME_CHARACTERS:
        raise ValueError(
            f"the name of a field has 1 to {NAME_CHARACTERS} printable characters: {name!r:.80}"
        )
    return name


def _plain(name: str, value: Plain) -> Plain:
    """The value as plain data.  Exact types only: a subclass may have code of its own."""
    if type(value) is str:
        # Cut before anything else reads it.  A lone surrogate, which models produce, cannot be
        # encoded.
        text = value if len(value) <= NOTE_BYTES else value[:NOTE_BYTES] + _CUT
        return text.encode("utf-8", "replace").decode()
    if value is None or type(value) is bool:
        return value
    if type(value) is int:
        if not -MAX_UINT <= value < MAX_UINT:
            raise ValueError(f"{name} has more than 63 bits")
        return value
    if type(value) is float:
        if not math.isfinite(value):
            raise ValueError(f"{name} is {value}, which is not finite")
        return value
    raise TypeError(
        f"{name} is of type {type(value).__name__}: a note has text, numbers, booleans and None"
    )


def _shortened(text: str, most_bytes: int) -> str:
    text_bytes = most_bytes - len(_CUT.encode())
    return text.encode()[:text_bytes].decode(errors="ignore") + _CUT


def decode(note: Body) -> Note:
    """The fields of a note; empty for bytes that are no note, since a note is not worth an
    error."""
    try:
        fields = strict_cbor.loads(note)
    except Exception:  # cbor2 documents no complete list of what hostile bytes raise
        return {}
    if type(fields) is not dict:
        return {}
    return {k: v for k, v in fields.items() if type(k) is str and _is_plain(v)}


def _is_plain(value: object) -> bool:
    if type(value) is float:
        return math.isfinite(value)
    return type(value) in (str, int, bool, type(None))

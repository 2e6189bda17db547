"""The traceback of an author's code, for people."""

from __future__ import annotations

import traceback
from importlib import import_module
from types import TracebackType
from typing import Any

from ... import foreign


def raised(error: BaseException) -> str:
    """The traceback from where the code was called, less our own calls of it."""
    frames = error.__traceback__
    while frames is not None and _ours(frames):
        frames = frames.tb_next
    shown = error.with_traceback(frames)
    ended = foreign.call(lambda: "".join(traceback.format_exception(shown)))
    text: Any = ended.value if ended.error is None else type(error).__name__
    return str(text).rstrip()


def _ours(frame: TracebackType) -> bool:
    """Whether it is before the code that was called: ours, or the import system's."""
    code = frame.tb_frame.f_code
    return (
        frame.tb_frame.f_globals.get("__package__", "") in OURS
        or code.co_filename.startswith("<frozen importlib")
        or code is import_module.__code__
    )


OURS = ("trio_envserve", __package__)
"""Where the calls are made: :mod:`trio_envserve.foreign`, and here."""

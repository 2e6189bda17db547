"""The part of a traceback that belongs to the author of the environment.

Theory of operation
-------------------
Between the worker and the environment's code stand frames of this package, of trio,
asyncio, threads and the import system.  They say nothing to the author, whose mistake is
to be found.  :func:`own_frames` leaves out those of this package everywhere, and the
others before the author's first frame; behind it they may say what was called wrongly.  A block
or a dataclass of this package is entered through a frame of ``contextlib`` or of a generated
``__init__``, which says nothing, wherever it stands.
The environments that come with this package count as an author's.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import importlib
import os
import threading
from types import TracebackType

import outcome
import trio

from ..core import stack_frames

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_FOLDERS = tuple(
    os.path.abspath(folder) + os.sep
    for module in (asyncio, concurrent.futures, importlib, outcome, trio)
    for folder in module.__path__
)
_FROZEN = "<frozen "


def is_ours(file: str) -> bool:
    """Whether a file of this process is of this package, and not an environment in it.  A folder of
    the author's may have the package's name."""
    return file.startswith(_PACKAGE) and stack_frames.is_ours(file)


def own_frames(tb: TracebackType | None) -> TracebackType | None:
    """The author's part of a traceback; all of it if none of it is the author's."""
    kept: list[TracebackType] = []
    each, left_out = tb, False
    while each is not None:
        file = each.tb_frame.f_code.co_filename
        if is_ours(file) or (not kept and _is_machinery(file)):
            left_out = True
            while len(kept) > 1 and _is_entrance(kept[-1]):
                kept.pop()
        else:
            kept.append(each)
        each = each.tb_next
    if not kept or not left_out:
        return tb
    made: TracebackType | None = None
    for each in reversed(kept):
        made = TracebackType(made, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return made


def has_own_frames(tb: TracebackType | None) -> bool:
    """Whether any frame is the author's."""
    while tb is not None:
        file = tb.tb_frame.f_code.co_filename
        if not is_ours(file) and not _is_machinery(file):
            return True
        tb = tb.tb_next
    return False


def _is_entrance(tb: TracebackType) -> bool:
    """Whether a frame may stand between a caller and a block or a dataclass."""
    code = tb.tb_frame.f_code
    is_generated = code.co_filename == "<string>" and code.co_name == "__init__"
    return is_generated or code.co_filename == contextlib.__file__


def _is_machinery(file: str) -> bool:
    return file.startswith((*_FOLDERS, _FROZEN)) or file == threading.__file__

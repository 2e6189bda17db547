"""The author's code: imported, called, and its tracebacks.

Theory of operation
-------------------
A system brings code of its own, which may raise anything.  :func:`call` returns what it
returned or raised, as a value; only a ``KeyboardInterrupt`` is raised further, for somebody
may have typed it.  :func:`raised` is the traceback for people, from where the author's code
was called.  Code that never returns holds up its caller (:mod:`.jobs` ends its process).
"""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, NamedTuple

from .system import BrokenSystem


class AuthorResult(NamedTuple):
    """The result of a piece of code: a value, or whatever it raised."""

    value: Any = None
    error: BaseException | None = None


def call(code: Callable[..., Any], /, *args: Any) -> AuthorResult:
    """Run ``code`` to its end."""
    try:
        return AuthorResult(code(*args))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # any error of an author's code is told in words
        return AuthorResult(error=error)


def raised(error: BaseException) -> str:
    """The traceback from where the code was called, less our own calls of it."""
    frames = error.__traceback__
    while frames is not None and _ours(frames):
        frames = frames.tb_next
    shown = error.with_traceback(frames)
    ended = call(lambda: "".join(traceback.format_exception(shown)))
    text: Any = ended.value if ended.error is None else type(error).__name__
    return str(text).rstrip()


def _ours(frame: TracebackType) -> bool:
    """Whether a frame is before the code that was called: ours, or the import system's."""
    code = frame.tb_frame.f_code
    return (
        frame.tb_frame.f_globals.get("__package__") == __package__
        or code.co_filename.startswith("<frozen importlib")
        or code is import_module.__code__
    )


def load(name: str) -> ModuleType:
    """The module of this name; BrokenSystem if there is none, or it raises."""
    ended = call(import_module, name)
    if isinstance(ended.error, ModuleNotFoundError) and name.startswith(ended.error.name or " "):
        raise BrokenSystem(f"no module {name!r}; a file is named with its .py: file.py:NAME")
    return _imported(name, ended)


def load_file(path: Path) -> ModuleType:
    """The file as a module; BrokenSystem if there is none, or it raises."""
    if not path.is_file():
        raise BrokenSystem(f"no file {path}")
    sys.path.insert(0, str(path.parent.resolve()))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    ended = call(spec.loader.exec_module, module)
    return _imported(str(path), ended._replace(value=module))


def _imported(name: str, ended: AuthorResult) -> ModuleType:
    if isinstance(ended.error, BrokenSystem):
        raise ended.error
    if ended.error is not None:
        raise BrokenSystem(f"importing {name} failed:\n{raised(ended.error)}")
    module: ModuleType = ended.value
    return module

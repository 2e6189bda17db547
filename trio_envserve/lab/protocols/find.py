"""From ``file.py:NAME`` or ``package.module:NAME`` to a protocol."""

from __future__ import annotations

import difflib
import importlib.util
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

from ... import foreign
from .interface import BrokenProtocol, Protocol
from .tracebacks import raised


def find(spec: str) -> Protocol:
    """The protocol that ``spec`` names; BrokenProtocol if there is none.

    Runs the code of its module, and puts the folder of a file on the path, as Python
    does for a script.
    """
    where, _, name = spec.rpartition(":")
    if not where or not name:
        raise BrokenProtocol(f"{spec!r}: write file.py:NAME or package.module:NAME")
    module = _file(Path(where)) if where.endswith(".py") else _module(where)
    found = getattr(module, name, None)
    if isinstance(found, Protocol):
        return found
    there = [other for other, value in vars(module).items() if isinstance(value, Protocol)]
    hint = f"; its protocols: {', '.join(there)}" if there else "; it has no Protocol at all"
    if found is not None:
        raise BrokenProtocol(f"{spec} is of the class {type(found).__name__}, not Protocol{hint}")
    near = difflib.get_close_matches(name, there, n=1)
    hint = f"; did you mean {near[0]}?" if near else hint
    raise BrokenProtocol(f"{where} has no {name}{hint}")


def _module(name: str) -> ModuleType:
    ended = foreign.call(import_module, name)
    if isinstance(ended.error, ModuleNotFoundError) and name.startswith(ended.error.name or " "):
        raise BrokenProtocol(f"no module {name!r}; a file is named with its .py: file.py:NAME")
    return _imported(name, ended)


def _file(path: Path) -> ModuleType:
    if not path.is_file():
        raise BrokenProtocol(f"no file {path}")
    sys.path.insert(0, str(path.parent.resolve()))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    ended = foreign.call(spec.loader.exec_module, module)
    return _imported(str(path), ended._replace(value=module))


def _imported(name: str, ended: foreign.CodeResult) -> ModuleType:
    if isinstance(ended.error, BrokenProtocol):
        raise ended.error
    if ended.error is not None:
        raise BrokenProtocol(f"importing {name} failed:\n{raised(ended.error)}")
    module: ModuleType = ended.value
    return module

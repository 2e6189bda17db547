"""Modules that are loaded from a file, under a name that is not that of the file, say.

Nothing heavy is imported here: processes for calls apart pay for it.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from types import ModuleType


def module_of_file(name: str, path: str | os.PathLike[str]) -> ModuleType:
    """Load a module from a file, under this name.  Raises what its code raises, and ImportError.
    Nothing of a module that cannot be loaded stays."""
    found = importlib.util.spec_from_file_location(name, path)
    if found is None or found.loader is None:
        raise ImportError(f"{path} is no module")
    module = sys.modules[name] = importlib.util.module_from_spec(found)
    try:
        found.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)  # its code may have done so
        raise
    return module

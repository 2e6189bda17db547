"""The command ``trio-envserve``: one module a verb.

Theory of operation
-------------------
:func:`main` takes over the signals before it imports anything large, so that Ctrl-C
never shows a traceback.  Then it finds the verb by name (:mod:`.verbs`); a verb does
not load what the others need.  :mod:`.common` has what all verbs share (exit codes, JSON,
signals).

Importing this package needs only the standard library.  Running the command needs the
extra ``cli``, and says so if it is missing.
"""

from __future__ import annotations

import io
import json
import math
import sys
from collections.abc import Sequence

from ..extras import needs_extra
from .interrupts import Interrupts

__all__ = ["main"]

_EXTRA = {"click", "rich"}
_DESCRIPTORS = 64
"""Least number of descriptors that the command needs: below it even imports fail."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with ``arguments`` (default: those of this process).

    Takes over this process's signals, and ignores them once it returns: the
    process is expected to end.  Returns the exit code; :mod:`.common` has their
    meanings.
    """
    given = sys.argv[1:] if arguments is None else arguments
    interrupts = Interrupts(as_json="--log-json" in given)
    interrupts.install()
    if arguments is None and isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as standard error has it
    if (most := _most_descriptors()) < _DESCRIPTORS:
        message = f"{_DESCRIPTORS} descriptors are needed, and this process may have {most} open"
        return _refuse("ConfigError", f"{message}: raise that limit (ulimit -n)", given)
    try:
        import rich  # noqa: F401  # the verbs need it; its absence is reported here

        from .verbs import run
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _EXTRA:
            raise
        message = f"there is no {error.name}: {needs_extra('the command', 'cli')}"
        return _refuse(type(error).__name__, message, given)
    code = run(arguments, interrupts)
    interrupts.ignore()
    return code


def _most_descriptors() -> float:
    """Most descriptors that this process may have open."""
    try:
        import resource
    except ImportError:  # no Unix
        return math.inf
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return math.inf if soft == resource.RLIM_INFINITY else soft


def _refuse(kind: str, message: str, given: Sequence[str]) -> int:
    """Say why the command cannot run; returns the exit code."""
    print(f"trio-envserve: {message}", file=sys.stderr)
    if "--json" in given:
        print(json.dumps({"error": {"type": kind, "message": message}, "exit": 2}))
    return 2

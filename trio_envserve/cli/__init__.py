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
import sys
from collections.abc import Sequence

from ..extras import needs_extra
from .interrupts import Interrupts

__all__ = ["main"]

_EXTRA = {"click", "rich"}


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
    try:
        import rich  # noqa: F401  # the verbs need it; its absence is reported here

        from .verbs import run
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _EXTRA:
            raise
        message = f"there is no {error.name}: {needs_extra('the command', 'cli')}"
        print(f"trio-envserve: {message}", file=sys.stderr)
        if "--json" in given:
            about = {"type": type(error).__name__, "message": message}
            print(json.dumps({"error": about, "exit": 2}))
        return 2
    code = run(arguments, interrupts)
    interrupts.ignore()
    return code

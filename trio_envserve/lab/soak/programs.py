"""How the soak starts its programs: in its own folder, whatever is installed.

The folder is the programs' working directory, and that of all that they start:
so everything that belongs to a run, and is left over by it, can be found
(:mod:`.sampler`).  Titles and environments may be overwritten, this may not.
"""

from __future__ import annotations

import sys
from pathlib import Path

_ROOT = str(Path(__file__).resolve().parent.parent.parent.parent)
_BOOT = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); from {module} import main; sys.exit(main())"
)


def program(module: str) -> tuple[str, ...]:
    """The command that runs ``main()`` of a module; its arguments are added."""
    return (sys.executable, "-P", "-c", _BOOT.format(module=module), _ROOT)


SERVER_PROGRAM = program("trio_envserve.lab.demo.server")
CLIENT_PROGRAM = program("trio_envserve.lab.soak.client")

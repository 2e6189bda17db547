"""The command, broken as its first argument says, for a rig to find.

``consent``: whatever a worker ran when it died is run again.  ``journal``: the journal is thrown
away before each start.
"""

import shutil
import sys

from trio_envserve.cli import main
from trio_envserve.core.dedup import DedupCache

if __name__ == "__main__":
    match sys.argv.pop(1):
        case "consent":
            DedupCache.may_rerun = lambda self, entry: True  # type: ignore[method-assign]
        case "journal":
            shutil.rmtree("journal", ignore_errors=True)
    sys.exit(main())

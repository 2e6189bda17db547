"""The command, which throws its journal away before it starts.  A program, run by
test_kills.py."""

import shutil
import sys

from trio_envserve.cli import main

if __name__ == "__main__":
    shutil.rmtree("journal", ignore_errors=True)
    sys.exit(main())

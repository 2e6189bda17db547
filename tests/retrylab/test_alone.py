"""The package stands alone: it imports nothing of the rest, and little before it is used."""

from __future__ import annotations

import subprocess
import sys

LOADED = """
import sys
import trio_envserve
before = set(sys.modules)
import trio_envserve.retrylab
print(*sorted(set(sys.modules) - before))
"""

MOST_MODULES = 100
"""Modules that importing it loads, the standard library's included: 50 ms at half a
millisecond for each."""


def loaded() -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", LOADED], capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout.split()


def test_importing_it_loads_the_standard_library_only_and_not_much_of_it():
    names = loaded()
    own = "trio_envserve.retrylab"
    assert own in names
    others = [name for name in names if not name.startswith(own)]
    assert [n for n in others if n.partition(".")[0] not in sys.stdlib_module_names] == []
    assert len(names) <= MOST_MODULES, names

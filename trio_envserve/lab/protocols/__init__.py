"""The laboratory for another protocol: yours.

A protocol is :class:`Actor` classes, what callers ask for, and a judge.  It is run on
a virtual clock and network under faults that a seed draws; a failing schedule is made
small and drawn.  :func:`check` is for a test, :func:`search` and :func:`run` for
anything else, ``trio-envserve fuzz --protocol file.py:NAME`` for a shell.  The page
``docs/another-protocol.md`` has an example.
"""

from ..kit.violation import Violation
from .failure import Failure, check, search
from .interface import Actor, Ask, BrokenProtocol, Disk, Entry, Fault, History, Protocol
from .plan import Plan, Strike
from .run import Run, run

__all__ = [
    "Actor", "Ask", "BrokenProtocol", "Disk", "Entry", "Failure", "Fault", "History", "Plan",
    "Protocol", "Run", "Strike", "Violation", "check", "run", "search",
]  # fmt: skip

"""A laboratory for any protocol with retries: yours, and the one that ships.

A *system* is :class:`Actor` classes, what callers ask for, which faults may strike, and a
judge.  It is run on a virtual clock and network under faults that a seed draws; a failing
schedule is made small and drawn.  :func:`check` is for a test, :func:`search` and
:func:`run` for anything else, ``trio-envserve fuzz --protocol file.py:NAME`` for a shell.
The page ``docs/another-protocol.md`` has an example.

For developers
--------------
One thought in one file; each imports only files above it:

=============  ====================================================================
``values``     plain values: what travels and what is kept
``judges``     what happened (events), what must hold (judges, violations)
``system``     what an author writes with: actors, disks, asks, faults
``author``     an author's code: found by name, called, its tracebacks
``world``      virtual time, processes, links, a run around them: for any simulation
``draw``       schedules and sequence diagrams as text
``plan``       what is drawn before a run starts
``run``        the engine that runs one seed
``shrink``     a failing plan made small
``failure``    seeds searched, failures told: ``search``, ``check``
``jobs``       the same in a process of its own; sums over runs
``campaign``   the parent of such processes (the one file that needs trio)
=============  ====================================================================

It imports nothing of the rest of trio_envserve, and without ``campaign`` nothing but the
standard library.
"""

from .failure import Failure, check, search
from .judges import Violation
from .plan import Plan, Strike
from .run import Run, run
from .system import Actor, Ask, BrokenSystem, Disk, Entry, Fault, History, System

__all__ = [
    "Actor", "Ask", "BrokenSystem", "Disk", "Entry", "Failure", "Fault", "History", "Plan", "Run",
    "Strike", "System", "Violation", "check", "run", "search",
]  # fmt: skip

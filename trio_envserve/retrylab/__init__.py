"""A laboratory for any protocol with retries: yours, and the one that ships.

A :class:`System` is :class:`Actor` classes, what callers ask for, which faults may strike,
and judges.  There are several engines for it: :func:`run` is one seed on a virtual clock and
network, under faults that the seed draws; :func:`explore` is every order of a small one;
:func:`sweep` is a crash at every act; :func:`judge_log` judges the log of real processes.  A
failing schedule is made small and drawn.  :func:`check` is for a test, :func:`search` for
anything else, ``trio-envserve fuzz --protocol file.py:NAME`` for a shell.
The page ``docs/another-protocol.md`` has an example.

For developers
--------------
One thought in one file; each imports only files above it:

=============  ====================================================================
``values``     plain values: the contents of messages and of states
``judges``     events, judges of them (guarantees), violations
``system``     an author's vocabulary: actors, disks, asks, faults
``mutants``    code that is broken on purpose, for as long as a block lasts
``target``     whatever a search tries: plans, runs, sums, plans made small, mutants hunted
``author``     an author's code: found by name, called, its tracebacks
``life``       one life of an actor, whichever engine runs it
``world``      virtual time, processes, links, a run around them: for any simulation
``draw``       schedules and sequence diagrams as text
``plan``       the plan of a run: its asks and faults, drawn before it starts
``run``        the engine that runs one seed
``explore``    the engine that looks at every order
``trial``      the engine that runs trio code as it is (needs trio)
``shrink``     what may be taken away from a plan of actors
``failure``    failures looked for, told, saved and replayed: ``search``, ``check``
``jobs``       searches and replays in a process of their own
``campaign``   the parent of such processes (needs trio)
=============  ====================================================================

It imports nothing of the rest of trio_envserve, and without ``campaign`` and ``trial``
nothing but the standard library.
"""

from .explore import Explored, explore
from .failure import Failure, check, load_failure, replay, save_failure, search
from .judges import (
    AtMostOnce,
    Event,
    Judge,
    NoLostAcknowledgement,
    OneHolder,
    OneTrueAnswer,
    Violation,
    judge_log,
    read_log,
)
from .plan import Plan
from .run import Run, run, sweep
from .system import USUAL, Actor, Ask, Bounds, BrokenSystem, Choice, Fault, System
from .values import Bag, Counted, Rule

__all__ = [
    "USUAL", "Actor", "Ask", "AtMostOnce", "Bag", "Bounds", "BrokenSystem", "Choice",
    "Counted", "Event", "Explored", "Failure", "Fault", "Judge",
    "NoLostAcknowledgement", "OneHolder", "OneTrueAnswer", "Plan", "Rule", "Run",
    "System", "Violation", "check", "explore", "judge_log", "load_failure", "read_log", "replay",
    "run", "save_failure", "search", "sweep",
]  # fmt: skip

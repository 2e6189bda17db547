"""A trial of an environment: the real server and client, under faults.

::

    def test_it_survives() -> None:
        run_trial(Maze(), range(30), seed=7).check()

Theory of operation
-------------------
:func:`run_trial` runs a server with your environment and some clients, the
shells that ship, on a network in memory and a virtual clock; hours pass in
milliseconds.  At random moments the clients ask, and at random moments one of the
faults strikes.  Then the faults end, and everything must come to an end: all
calls answered, all executions over, nothing left on the server.  The judges
look at the history, which the environment's code and the callers wrote, and
report problems.

The seed decides all random choices, including the order in which tasks run, so a
trial that fails fails again.  (The module ``random`` is seeded for your environment,
too; threads, other clocks and other sources are not.)
"""

from __future__ import annotations

from .history import AskRecord, Event, Execution, History, Life, TrialReport
from .judges import JUDGES, Judge
from .run import FAULTS, Ask, Fault, Trial, run_trial

__all__ = [
    "FAULTS",
    "JUDGES",
    "Ask",
    "AskRecord",
    "Event",
    "Execution",
    "Fault",
    "History",
    "Judge",
    "Life",
    "Trial",
    "TrialReport",
    "run_trial",
]

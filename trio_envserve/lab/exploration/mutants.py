"""The mutants of which some configuration may show something."""

from __future__ import annotations

from ..hosts.mutants import MUTANTS as MUTANTS_OF_LEASES
from ..mutants import MUTANTS, Mutant, find_in
from ..simulation.plan import Fault

OTHERS = tuple(mutant for mutant in MUTANTS if Fault.HOSTS not in mutant.needs)
"""Those of the simulator that need no host."""

ALL_MUTANTS: tuple[Mutant, ...] = (*OTHERS, *MUTANTS_OF_LEASES)
"""Those, and those of the leases that are imitated here; their names are unique."""


def find(name: str) -> Mutant:
    """The mutant of this name.  KeyError with the near names if there is none."""
    return find_in(ALL_MUTANTS, name)

"""The mutants of which some configuration may show something."""

from __future__ import annotations

from ..hosts.mutants import MUTANTS as MUTANTS_OF_LEASES
from ..mutants import MUTANTS, Mutant, find_in

ALL_MUTANTS: tuple[Mutant, ...] = (*MUTANTS, *MUTANTS_OF_LEASES)
"""Those of the simulator, and those of leases; their names are unique."""


def find(name: str) -> Mutant:
    """The mutant of this name.  KeyError with the near names if there is none."""
    return find_in(ALL_MUTANTS, name)

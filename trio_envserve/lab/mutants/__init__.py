"""Variants of the core that are broken on purpose: each must be caught.

A check that no mutant fails is not a check.  Each mutant is applied from outside
(:mod:`trio_envserve.retrylab.mutants`) and names the guarantees by which it may be found.  They
stand by what is broken: works and who waits for them (:mod:`.work`), the router and what it says
(:mod:`.router`), workers and their processes (:mod:`.workers`), the client's side
(:mod:`.client`), the journal (:mod:`.journal`), hosts and their leases (:mod:`.leases`), and
what is done to many at once (:mod:`.batches`).
"""

from __future__ import annotations

from collections.abc import Mapping

from ...retrylab.mutants import Mutant, Patches, find_in
from . import batches, client, journal, leases, router, work, workers

__all__ = ["MUTANTS", "NOT_BY_CHANCE", "Mutant", "Patches", "find", "find_in"]

MUTANTS: tuple[Mutant, ...] = (
    *work.FAMILY.mutants,
    *router.FAMILY.mutants,
    *workers.FAMILY.mutants,
    *client.FAMILY.mutants,
    *batches.FAMILY.mutants,
    *work.KEYS.mutants,
    *journal.FAMILY.mutants,
    *leases.FAMILY.mutants,
)
"""All of them; their names are unique."""

NOT_BY_CHANCE: Mapping[str, str] = {
    "any-router-answers-a-beat": (
        "a host says hello before it beats: several hellos must be lost, and an old one be late"
    ),
}
"""Mutants that random runs do not show, each with its reason: a search of every order does."""


def find(name: str) -> Mutant:
    """The mutant of this name.  KeyError with the near names if there is none."""
    return find_in(MUTANTS, name)

"""All cases, in the order of the protocol document."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Sequence
from types import ModuleType

from ...core.errors import ConfigError
from . import (
    cases_bounds,
    cases_ends,
    cases_faults,
    cases_keys,
    cases_messages,
    cases_refusals,
    cases_repair,
    cases_requests,
    cases_routes,
    cases_sessions,
)
from .findings import Case

SECTIONS = (
    "Transport", "Headers", "Bodies", "Requests", "A session", "Sync", "Connections",
    "Cancel, and a caller's limit", "Refusals", "When the session is unknown",
    "A minimal client", "A good client", "What can be asked", "Generations",
    "Cancel and forget", "Which keys there are", "Issued again", "Versions",
)  # fmt: skip
"""The headings of ``docs/protocol.md`` from which there are cases, in its order."""


def _of(*modules: ModuleType) -> tuple[Case, ...]:
    found = [each for module in modules for each in vars(module).values() if type(each) is Case]
    return tuple(sorted(found, key=lambda each: (each.faults, SECTIONS.index(each.section))))


CASES = _of(
    cases_messages, cases_routes, cases_sessions, cases_requests, cases_repair, cases_refusals,
    cases_bounds, cases_ends, cases_keys, cases_faults,
)  # fmt: skip
"""Every case; those through the fault proxy last."""


def select(
    patterns: Iterable[str] = (), *, faults: bool = True, among: Sequence[Case] = CASES
) -> Sequence[Case]:
    """The cases whose names match one of the patterns (as of file names; none:
    all), with or without those through the fault proxy.

    Raises :class:`ConfigError` for a pattern that no case matches.
    """
    names = [case.name for case in among]
    for pattern in patterns:
        if not fnmatch.filter(names, pattern):
            raise ConfigError(f"no case matches {pattern!r}; --list shows them")
    return [
        case
        for case in among
        if (faults or not case.faults)
        and (not patterns or any(fnmatch.fnmatchcase(case.name, each) for each in patterns))
    ]

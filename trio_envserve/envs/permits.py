"""Permits of a rollout: limits over all workers and hosts, for any backend."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, final

from ..carrier import Work, WorkCarrier
from ..core.limits import LEAST_PER_S, MOST_PER_S, MOST_PERMITS, PERMIT_NAME_BYTES


class Claimed(NamedTuple):
    """The permit that code claims."""

    name: str
    """Name, with its kind."""
    most: int
    """Most permits that are held at once; 0 of a rate."""
    per_s: float | None = None
    """Most grants in a second; None of a limit."""


GiveBack = Callable[[], object]
"""Gives a permit back, without waiting; on the worker's loop."""


@final
class Permit:
    """A permit for a block of code, made by :meth:`~.interface.Rollout.limit` and
    :meth:`~.interface.Rollout.rate`.  It may be used again, also by several tasks at once: each
    block has a permit of its own."""

    def __init__(self, claim: tuple[WorkCarrier, Work] | None, *, is_rate: bool) -> None:
        """``claim``: the work that waits for the permit and returns what gives it back, and its
        carrier; None for a rollout that no worker runs, which has no limits."""
        self._claim = claim
        self._is_rate = is_rate
        self._held: list[Callable[[], object]] = []

    async def __aenter__(self) -> None:
        if self._claim is not None:
            carrier, claim = self._claim
            self._begun(carrier, await carrier.call(claim, carrier.soon))

    async def __aexit__(self, *error: object) -> None:
        self._give_back()

    def __enter__(self) -> None:
        if self._claim is not None:
            carrier, claim = self._claim
            self._begun(carrier, carrier.call_sync(claim))

    def __exit__(self, *error: object) -> None:
        self._give_back()

    def _begun(self, carrier: WorkCarrier, give_back: GiveBack) -> None:
        """The code goes on: of a rate there is nothing to give back later."""
        if self._is_rate:
            carrier.soon(give_back)
        else:
            self._held.append(partial(carrier.soon, give_back))

    def _give_back(self) -> None:
        if self._held:
            self._held.pop()()


def claimed_limit(name: Any, most: Any) -> Claimed:
    """The claim of ``rollout.limit``.  Raises TypeError or ValueError."""
    if isinstance(most, bool) or not isinstance(most, int):
        raise TypeError(f"a limit is a whole number of permits, not {_shown(most)}")
    if not 1 <= most <= MOST_PERMITS:
        raise ValueError(f"a limit has from 1 to {MOST_PERMITS} permits, not {_shown(most)}")
    return Claimed(f"limit:{_named(name)}", int(most))


def claimed_rate(name: Any, per_s: Any) -> Claimed:
    """The claim of ``rollout.rate``.  Raises TypeError or ValueError."""
    if isinstance(per_s, bool) or not isinstance(per_s, int | float):
        raise TypeError(f"a rate is a number of grants in a second, not {_shown(per_s)}")
    if not LEAST_PER_S <= per_s <= MOST_PER_S or math.isnan(per_s):
        raise ValueError(
            f"a rate is from 1/3600 to {MOST_PER_S:g} grants in a second, not {_shown(per_s)}"
        )
    return Claimed(f"rate:{_named(name)}", 0, float(per_s))


def claimed_endpoint(name: str, most: int) -> Claimed:
    """The claim of a request to an endpoint with ``concurrency_total``."""
    return Claimed(f"endpoint:{name}", most)


def _shown(value: Any) -> str:
    try:
        return f"{value!r:.80}"
    except ValueError:  # Python writes no whole number of that many digits
        return "a number of thousands of digits"


def _named(name: Any) -> str:
    """A name, checked: it is shown to people, and as a label of metrics."""
    if not isinstance(name, str):
        raise TypeError(f"the name of a permit is text, not {type(name).__name__}")
    if not name.isprintable() or not 0 < len(name.encode()) <= PERMIT_NAME_BYTES:
        raise ValueError(
            f"the name of a permit is printable text of 1 to {PERMIT_NAME_BYTES} bytes, not "
            f"{name!r:.80}"
        )
    return str.__str__(name)

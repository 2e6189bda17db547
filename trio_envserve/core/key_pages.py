"""Which keys a server knows, a page at a time.

Theory of operation
-------------------
A page has generations in the order in which they were opened, which is that of their
numbers.  The next question goes on from a number, so nothing is remembered about who
asks, and what is opened or dropped in between moves nothing else.

There may be 65,536 generations, and those of one namespace lie anywhere among them.  So a
page ends after so many keys, after so many bytes, and after so many generations of
whatever namespace; and all pages of one turn look at a bounded number of them (G10).  A
page may be empty, with more behind it.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Any, final

from .archive import Archived
from .work import Work, Works, WorkState

PAGE_KEYS = 100
PAGE_NAMES_BYTES = 8 * 1024
"""Most bytes of keys and namespaces on a page, which then fits into a frame of 32 KiB: any peer
takes that."""
PAGE_LOOKED_AT = 1024
"""Generations at which one question looks."""
TURN_LOOKED_AT = 16_384
"""Generations at which all questions of one turn look."""
QUESTION_LOOKED_AT = 128
"""A question costs as much as so many, however few there are."""


@final
class KeyPages:
    """Answers what keys there are.  It changes no key."""

    def __init__(self, works: Works) -> None:
        self._works = works
        self._resting = works.archive
        self._numbers: list[int] = []
        """Numbers of generations, in order; those of gone ones are removed now and then."""
        self._next_number = 0
        """The first that is not among them."""
        self._turn_s = -1.0
        self._left = 0
        """Number of generations that may still be looked at in this turn."""

    def page(self, namespace: bytes, first: int, now_s: float, turn_s: float) -> dict[str, Any]:
        """The keys of a namespace (empty: of all) from a generation's number on, as plain
        data.  ``now_s`` is the time awake; all questions with one ``turn_s`` are of one
        turn."""
        if turn_s != self._turn_s:
            self._turn_s, self._left = turn_s, TURN_LOOKED_AT
        self._catch_up()
        most = min(PAGE_LOOKED_AT, self._left)
        numbers, rested = self._from(first, most + 1)
        rows: list[dict[str, Any]] = []
        names_bytes = at = 0
        end = min(most, len(numbers))
        for at in range(end):
            number = numbers[at]
            generation = self._works.generations.get(number, rested.get(number))
            name = None if generation is None else generation.name
            if generation is None or name is None or namespace not in (b"", name.namespace):
                continue
            names_bytes += name.size_bytes
            if rows and (len(rows) == PAGE_KEYS or names_bytes > PAGE_NAMES_BYTES):
                break
            rows.append(self._describe(generation, now_s))
        else:
            at = end
        self._left = max(0, self._left - max(at, QUESTION_LOOKED_AT))
        usage = self._works.accounts.usage(namespace)
        keys, size_bytes = usage.works, usage.size_bytes
        if self._resting is not None:
            resting = self._resting.usage(namespace)
            keys, size_bytes = keys + resting.keys, size_bytes + resting.disk_bytes
        return {
            "keys": rows,
            "next": numbers[at] if at < len(numbers) else None,
            "generations": keys,
            "size_bytes": size_bytes,
        }

    def _from(self, first: int, most: int) -> tuple[list[int], dict[int, Archived]]:
        """The numbers from this one on, so many, and those of them that rest."""
        begin = bisect_left(self._numbers, first)
        numbers = self._numbers[begin : begin + most]
        if self._resting is None:
            return numbers, {}
        rested = {each.number: each for each in self._resting.following(first, most)}
        return sorted({*numbers, *rested})[:most], rested

    def _catch_up(self) -> None:
        """The list is made anew only where as much has changed as is in it: so a question
        costs little, however often it is asked."""
        known, opened = self._works.generations, self._works.next_number
        if self._resting is not None:  # few are awake, and what wakes may have any number
            self._numbers = sorted(known)
        elif opened - self._next_number > len(known) or len(self._numbers) > 2 * len(known) + 64:
            self._numbers = list(known)
        else:
            self._numbers += (n for n in range(self._next_number, opened) if n in known)
        self._next_number = opened

    def _describe(self, generation: Work | Archived, now_s: float) -> dict[str, Any]:
        if isinstance(generation, Archived):
            return self._describe_rested(generation, now_s)
        name = generation.name
        assert name is not None
        counting = sum(ticket.counts for ticket in generation.tickets)
        return {
            "namespace": name.namespace,
            "key": name.key,
            "generation": generation.number,
            "state": generation.state.value,
            "waiters": counting,
            "watchers": len(generation.tickets) - counting,
            "lost": len(generation.lost),
            "executions": generation.executions,
            "age_s": round(now_s - generation.opened_s, 3),
            "left_s": self._left_s(generation, now_s),
            "size_bytes": generation.size_bytes,
        }

    def _describe_rested(self, rested: Archived, now_s: float) -> dict[str, Any]:
        left_s = rested.since_s + self._works.keys.retention_s - now_s
        return {
            "namespace": rested.name.namespace,
            "key": rested.name.key,
            "generation": rested.number,
            "state": WorkState.COMPLETED.value,
            "waiters": 0,
            "watchers": 0,
            "lost": 0,
            "executions": rested.executions,
            "age_s": round(now_s - rested.opened_s, 3),
            "left_s": max(0.0, round(left_s, 3)),
            "size_bytes": rested.size_bytes + rested.name.size_bytes,
        }

    def _left_s(self, generation: Work, now_s: float) -> float | None:
        """Seconds until its orphan deadline or the end of its retention; None if neither runs."""
        for timed, most_s in (
            (self._works.orphans, self._works.keys.orphan_s),
            (self._works.retained, self._works.keys.retention_s),
        ):
            if generation.number in timed:
                return max(0.0, round(generation.since_s + most_s - now_s, 3))
        return None

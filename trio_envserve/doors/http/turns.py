"""The bound on one turn of the loop for all requests together.

Theory of operation
-------------------
trio gives every task that can run a step before it waits for anything again, and each
connection is a task.  So hundreds of requests that end in the same moment would be read in
one turn, however little each takes, and nothing else runs meanwhile: no other client, no
sign of life.  Here each takes its part of a turn before it works; when the turn is full it
waits for one of the next, in order.  What is more than a turn has one alone.

Costs are in microseconds, and guesses: they need only be of the right size.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, final

import trio

MOST_US: Final = 20_000
"""Most work of one turn.  Twice as much may come together: of those that waited, and of the
others."""

READ_US: Final = 100
"""Cost of taking in what a connection has sent."""

REQUEST_US: Final = 150
"""Cost of finding out what a request is."""

ANSWER_US: Final = 150
"""Cost of answering it."""

BYTE_US: Final = 0.5
"""Cost of reading a byte of a body, or of encoding what was read: JSON of small objects."""

ITEM_US: Final = 0.5
"""Cost of writing an item of an answer, or as much: see
:func:`~trio_envserve.json_values.weight`."""

SCRAPE_US: Final = 3_000
"""Cost of writing the metrics of a server; SCRAPED_WORKER_US: of each worker."""

SCRAPED_WORKER_US: Final = 100

VIEW_US: Final = 1_000
"""Cost of sending a view.  It takes a third of that; but all viewers are sent one in the same
moment, and calls are not to wait for hundreds of them."""

RUNNING_US: Final = 20
"""Cost of writing what is known of one execution."""


@final
class Turns:
    """The turns of one loop, while :meth:`run` runs."""

    def __init__(self, most_us: float = MOST_US) -> None:
        self._most_us = most_us
        self._taken_us = 0.0
        """Work of this turn, with that of those that were admitted to the next."""
        self._waiting: OrderedDict[trio.Event, float] = OrderedDict()
        """The tasks that wait for one of the next turns, and how much of it each takes."""
        self._began = trio.lowlevel.ParkingLot()

    async def take(self, cost_us: float) -> None:
        """Go on at once if there is room in this turn, else in a later one."""
        if not self._waiting and _fits(self._taken_us, cost_us, self._most_us):
            self._taken_us += cost_us
            self._began.unpark()
            return
        admitted = trio.Event()
        self._waiting[admitted] = cost_us
        try:
            await admitted.wait()
        finally:
            self._waiting.pop(admitted, None)

    async def run(self) -> None:
        """Begin a turn after the other, until cancelled."""
        admitted_us = 0.0
        while True:
            if self._taken_us:
                await trio.lowlevel.checkpoint()
            else:
                await self._began.park()
            # Those that were admitted work in the turn that begins now: some of them before this
            # task, the others after it.
            working_us, admitted_us = admitted_us, self._admit()
            self._taken_us = working_us + admitted_us

    def _admit(self) -> float:
        """Let as many go on in the next turn as it has room for; what they take of it."""
        admitted_us = 0.0
        while self._waiting:
            admitted, cost_us = next(iter(self._waiting.items()))
            if not _fits(admitted_us, cost_us, self._most_us):
                break
            del self._waiting[admitted]
            admitted.set()
            admitted_us += cost_us
        return admitted_us


def _fits(taken_us: float, cost_us: float, most_us: float) -> bool:
    return not taken_us or taken_us + cost_us <= most_us

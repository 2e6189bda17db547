"""The clients of the soak as processes: started, told what to do, killed, replaced.

Theory of operation
-------------------
A slot has one client process after the other: when one was killed, the next
takes its place, under a name of its own (``c1-2`` is the second life of slot 1).
A client that ends without having been killed ends the soak.  What a client says
on standard output moves plain state here; whoever waits for it waits on that.

A client ends when its standard input does, so none is left behind however this
process ends.  (One that is stopped just then is woken by the system, which
continues, and hangs up, a stopped process group that has lost its parent.)
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, final

import trio

from ..programs import Program, program, start_program

CLIENT_PROGRAM = program("trio_envserve.lab.soak.client")

_END_S = 20.0
"""How long a client may take to end when it is told to."""


@final
class CallerProcess:
    """One life of one client."""

    def __init__(self, name: str, program: Program) -> None:
        self.name = name
        self.program = program
        self.asked = 0
        self.ended = 0
        self.ready = False
        self.idle = False
        self.steady: list[dict[str, Any]] = []
        """The answers to the measurements."""

    def heard(self, said: dict[str, Any]) -> None:
        """Take in what it says."""
        match said["event"]:
            case "ready":
                self.ready = True
            case "count":
                self.asked, self.ended = said["asked"], said["ended"]
            case "idle":
                self.idle = True
            case "steady":
                self.steady.append(said)

    async def tell(self, **order: Any) -> None:
        """Say what to do.  Nothing happens if it has been killed."""
        await self.program.tell(order)


@final
class Callers:
    """All clients.  Each slot is a task of the soak's nursery: :meth:`live`."""

    def __init__(
        self, directory: Path, options: dict[str, Any], slots: int,
        ended_by_itself: Callable[[str], object],
    ) -> None:  # fmt: skip
        self.lives: list[CallerProcess | None] = [None] * slots
        """By slot, who lives there now."""
        self.before_ended = 0
        """Calls with an end of those that are dead by now; the others have none."""
        self.in_flight = 0
        """Calls at once for each; 0: they rest."""
        self._directory = directory
        self._options = options
        self._ended_by_itself = ended_by_itself
        self._changed = trio.lowlevel.ParkingLot()

    async def live(self, slot: int) -> None:
        """One client after the other, until cancelled."""
        number = 0
        while True:
            number += 1
            caller = await self._start(f"c{slot}-{number}")
            self.lives[slot] = caller
            resting = {"do": "rest"}
            loading = {"do": "load", "in_flight": self.in_flight}
            status = await caller.program.live(
                partial(self._heard, caller), _END_S, first=loading if self.in_flight else resting
            )
            if status is not None:
                self._ended_by_itself(caller.name)
                raise caller.program.ended_by_itself(status)
            self.before_ended += caller.ended

    def _heard(self, caller: CallerProcess, said: dict[str, Any]) -> None:
        caller.heard(said)
        self._changed.unpark_all()

    async def _start(self, name: str) -> CallerProcess:
        options = {**self._options, "name": name}
        started = await start_program(
            [*CLIENT_PROGRAM, json.dumps(options)], what=f"client {name}", cwd=self._directory,
            errors=self._directory / f"client-{name}.log",
        )  # fmt: skip
        return CallerProcess(name, started)

    # -- what they do ---------------------------------------------------------

    async def load(self, in_flight: int) -> None:
        """All of them ask, and those that come after them, so many at once."""
        self.in_flight = in_flight
        for caller in self._living():
            await caller.tell(do="load", in_flight=in_flight)

    async def rest(self) -> None:
        """None of them asks anything new."""
        self.in_flight = 0
        for caller in self._living():
            caller.idle = False
            await caller.tell(do="rest")

    async def wait_all(self, condition: Callable[[CallerProcess], bool]) -> None:
        """Sleep until every slot has a living client of which this is true."""
        while not all(
            caller is not None and caller.program.living and condition(caller)
            for caller in self.lives
        ):
            await self._changed.park()

    async def steady(self, caller: CallerProcess, requests: int, in_flight: int) -> dict[str, Any]:
        """Let one of them ask for so many short rollouts; what came of it."""
        done = len(caller.steady)
        await caller.tell(do="steady", requests=requests, in_flight=in_flight)
        while len(caller.steady) == done:
            await self._changed.park()
        return caller.steady[done]

    def _living(self) -> list[CallerProcess]:
        return [caller for caller in self.lives if caller is not None and caller.program.living]

    # -- figures --------------------------------------------------------------

    @property
    def asked(self) -> int:
        """Calls made so far that have or want an end, as far as they have said."""
        return self.before_ended + sum(caller.asked for caller in self.lives if caller)

    @property
    def ended(self) -> int:
        """Calls answered or withdrawn so far, as far as they have said."""
        return self.before_ended + sum(caller.ended for caller in self.lives if caller)

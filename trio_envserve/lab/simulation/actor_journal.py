"""The simulated thread that writes the journal of a server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...core.journal import Closed, Completed, Record
from ...core.rested import left_at_rest
from ...core.restored import remains_of
from ...core.router_effects import Load, Save
from ...core.terms import Body
from .disk import Disk
from .plan import Fault

if TYPE_CHECKING:
    from .actor_server import SimServer

GROUP_S = 0.005
"""For so long at most it waits for more before it syncs."""

CRASHES = 0.04
"""How often a server is killed as it writes."""

SLOW = 0.08
"""How often a sync takes long."""

DAMAGED = 0.2
"""How often an outcome cannot be read, in harsh runs: the next time perhaps it can."""

READ_S = (0.0, 0.05)
"""How long it takes to read an outcome; as long as a slow sync, where that is drawn."""


def given(records: Sequence[Record]) -> tuple[list[Record], list[bytes]]:
    """The input of a server that starts with these records: the records, and the keys at rest."""
    remains = remains_of(records)
    packed = {
        left.opened.number: left_at_rest(left)
        for left in remains.generations.values() if left.frames is not None
    }  # fmt: skip
    resting = {number for number, each in packed.items() if each is not None}
    kept: list[Record] = [each for each in records if getattr(each, "number", None) not in resting]
    if remains.next_number:
        kept.insert(0, Closed(remains.next_number - 1))
    return kept, [each for each in packed.values() if each is not None]


class SimJournal:
    """Writes what its router says, syncs it, and says how much is safe."""

    def __init__(self, server: SimServer, disk: Disk) -> None:
        self._server = server
        self._world = server.world
        self._events = server.events
        self._disk = disk
        self._rng = server.world.luck_of(f"journal of {server.name}")
        self._damage = server.world.luck_of(f"damage of {server.name}")
        self._upto: list[int] = []
        """The router's number after each group that is written and not safe."""
        self._syncing = False

    def save(self, save: Save) -> None:
        """A group is written; perhaps the server dies of it."""
        world = self._world
        if not self._server.alive:  # it has closed, and this was in its last turn
            return
        world.faults[Fault.JOURNAL] += 1
        self._disk.write(save.records)
        self._upto.append(save.upto)
        world.happened("wrote", self._server.name, "", save.records)
        if self._disk.writes == world.plan.crash_at_write or world.strikes(
            Fault.CRASH_AT_WRITE, CRASHES, self._rng
        ):
            world.end_server(self._server, "killed", self._rng.uniform(0.01, 1.0))
        elif not self._syncing:
            self._begin()

    def load(self, load: Load) -> None:
        """An outcome is read, some time later; a server that dies meanwhile never has it."""
        self._world.happened("reads", self._server.name, "", load.number)
        for_s = self._rng.uniform(*READ_S)
        if self._world.strikes(Fault.SLOW_DISK, SLOW, self._rng):
            for_s += self._rng.uniform(0.3, 3.0)
        self._events.after(for_s, self._loaded, load.number)

    def _loaded(self, number: int) -> None:
        if not self._server.alive:
            return
        frames: tuple[Body, ...] = ()
        if self._world.strikes(Fault.DAMAGED_READ, DAMAGED, self._damage):
            self._world.happened("damaged", self._server.name, "", number)
            self._server.post(self._server.loaded, number, frames, "its checksum is wrong")
            return
        for record in self._disk.records:
            if isinstance(record, Completed) and record.number == number:
                frames = record.frames
            elif isinstance(record, Closed) and record.number == number:
                frames = ()
        self._server.post(self._server.loaded, number, frames)

    def _begin(self) -> None:
        self._syncing = True
        self._events.after(self._rng.uniform(0.0, GROUP_S), self._sync)

    def _sync(self) -> None:
        world = self._world
        if not self._server.alive:
            return
        for_s = self._rng.uniform(*world.plan.sync_s)
        if world.strikes(Fault.SLOW_DISK, SLOW, self._rng):
            for_s += self._rng.uniform(0.3, 3.0)
        self._events.after(for_s, self._synced, self._disk.dirty)

    def _synced(self, groups: int) -> None:
        server = self._server
        if not server.alive:
            return
        upto = self._upto[groups - 1]
        del self._upto[:groups]
        self._world.happened("synced", server.name, "", self._disk.sync(groups))
        self._syncing = False
        if self._disk.dirty:
            self._begin()
        server.post(server.saved, upto)

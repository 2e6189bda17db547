"""The saves of executions, from environment code to the core and back.

Theory of operation
-------------------
An execution saves one value: a map from the member of a group (0 for a single rollout) to the
encoded record of that member, its state above all.  So each save has the newest states of all
members, and replaces the save before.

An execution has one unanswered save at most; who saves meanwhile waits.  A caller that is cancelled
while it waits leaves its save under way: it may become safe all the same.  So the next attempt
begins when that is answered.

Large states are encoded and decoded in a thread (:mod:`.long_values`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, final

import trio

from .. import foreign
from ..core import values
from ..core.limits import WireLimits
from ..core.terms import Body, SentBody, weight
from ..core.worker import ENDED, BeginRun, too_large
from ..envs.saves import SaveRefused
from ..turns import Threads
from .long_values import worked


@final
class SaveCodec:
    """Encodes and decodes the saves of one worker."""

    def __init__(self, wire: WireLimits, save_bytes: int) -> None:
        self._wire = wire
        self._save_bytes = save_bytes
        self._threads = Threads()

    def states(self, save: Body) -> dict[int, bytes]:
        """The encoded states of a save, by member.  Raises ``DecodingError``."""
        states = values.decode(save, root="saved", limits=self._wire)
        if isinstance(states, dict):
            plain = {number: bytes(each) for number, each in states.items() if type(each) is bytes}
            if len(plain) == len(states) and {int}.issuperset(map(type, plain)):
                return plain
        raise values.DecodingError("saved: it is not what a rollout saves")

    def save_of(self, states: dict[int, bytes]) -> bytes:
        """The save with these states."""
        return values.encode(states, root="save", limits=self._wire)

    async def encoded(self, record: Mapping[str, Any]) -> bytes:
        """The encoded record.  Raises ``EncodingError``, or what the state's code raises, and
        :class:`SaveRefused` for one that is too large."""
        work = partial(foreign.call, values.encode_to_send, record, root="save", limits=self._wire)
        encoded: SentBody = (await worked(self._threads, work)).unwrap()
        if weight(encoded) > self._save_bytes:  # before it is copied
            raise _refused(too_large(weight(encoded), self._save_bytes))
        return bytes(encoded)

    async def decoded(self, encoded: bytes) -> Mapping[str, Any]:
        """The record.  Raises ``DecodingError``."""
        work = partial(foreign.call, values.decode, encoded, root="saved", limits=self._wire)
        record = (await worked(self._threads, work)).unwrap()
        if isinstance(record, dict):
            return record
        raise values.DecodingError("saved: it is not what a rollout saves")


@dataclasses.dataclass(slots=True, eq=False)
class _Pending:
    """A save that is not answered."""

    states: dict[int, bytes]
    answered: trio.Event = dataclasses.field(default_factory=trio.Event)
    refused: str = ""


def _refused(why: str) -> SaveRefused:
    return SaveRefused(f"the state was not saved: {why}")


@final
class ExecutionSaves:
    """The saves of one execution."""

    def __init__(
        self, before: Body | None, send: Callable[[bytes], None], codec: SaveCodec
    ) -> None:
        """``before``: the newest save of an earlier execution."""
        self._before = before
        self._send = send
        self._codec = codec
        self._states: dict[int, bytes] = {}
        """The newest encoded states that are safe, by member."""
        self._pending: _Pending | None = None
        self._is_over = False

    async def saved(self, member: int) -> Mapping[str, Any] | None:
        """The newest record of a member that is safe; None if there is none.  Raises
        ``DecodingError``."""
        while self._pending is not None:
            await self._pending.answered.wait()
        self._take_before()
        encoded = self._states.get(member)
        return None if encoded is None else await self._codec.decoded(encoded)

    async def save(self, member: int, record: Mapping[str, Any]) -> None:
        """Save a record of a member, and wait until that is safe.  Raises
        :class:`SaveRefused`, and what encoding raises."""
        encoded = await self._codec.encoded(record)
        while self._pending is not None:
            await self._pending.answered.wait()
        if self._is_over:
            raise _refused(ENDED)
        self._take_before()
        pending = self._pending = _Pending({**self._states, member: encoded})
        self._send(self._codec.save_of(pending.states))  # which may be answered at once
        await pending.answered.wait()
        if pending.refused:
            raise _refused(pending.refused)

    def answered(self, refused: str) -> None:
        """The save under way has ended."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.refused = refused
            if not refused:
                self._states = pending.states
            pending.answered.set()

    def close(self) -> None:
        """The execution has ended."""
        self._is_over = True
        self.answered(ENDED)

    def _take_before(self) -> None:
        if self._before is not None:
            before, self._before = self._before, None
            self._states = self._codec.states(before)


@final
class Saves:
    """The saves of all executions of one worker."""

    def __init__(
        self, send: Callable[[int, bytes], None], wire: WireLimits, save_bytes: int
    ) -> None:
        self._send = send
        self._codec = SaveCodec(wire, save_bytes)
        self._running: dict[int, ExecutionSaves] = {}

    def begin(self, run: BeginRun) -> ExecutionSaves:
        """The saves of an execution that begins."""

        def send(save: bytes) -> None:
            self._send(run.number, save)

        begun = self._running[run.number] = ExecutionSaves(run.saved, send, self._codec)
        return begun

    def answered(self, number: int, refused: str) -> None:
        """The save of an execution has ended."""
        if number in self._running:
            self._running[number].answered(refused)

    def end(self, number: int) -> None:
        """An execution has ended."""
        if number in self._running:
            self._running.pop(number).close()

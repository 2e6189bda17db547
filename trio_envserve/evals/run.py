"""Running an evaluation: asking, writing down, counting.

Theory of operation
-------------------
One task takes outcomes as they come; another gives all that have come meanwhile to a
thread, which makes records of them and writes them, and counts them when they are
written.  What has been taken is held until then, so whenever the evaluation is cancelled,
nothing of what came is lost: what is left is written in a last moment (``LAST_S``), and
the line that this cuts short is taken back.

If a result cannot be written, the evaluation stops: whatever else came would be lost. Outcomes that
have arrived by then are counted all the same.

An evaluation with a name never asks twice for the run of one rollout.  A rollout has the key
``NAME/INDEX/REPEAT``, and a group ``NAME/INDEX/group``.  So an evaluation that was killed and is
started again joins what runs, and takes what there is from the server.  An error is an outcome,
too, and its key is answered with it for ever.  A rollout that is to run again after one therefore
gets another key: ``NAME/INDEX/REPEAT/again-1``.  Its number is how often the file of results was
told an outcome; so it stays the same until that of this key is in the file, whenever the evaluation
is killed.
"""

from __future__ import annotations

import dataclasses
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple, Unpack, final

import trio

from ..client import CallOptions, Client, Outcome
from ..client.shell import run_parts
from ..core.errors import (
    CallError,
    ConfigError,
    KeyConflict,
    NoAnswer,
    NotDurable,
    ServerLost,
    UnknownKey,
)
from .files import NotWritten, ResultsFile
from .records import Name, RolloutResult, record_of, result_of
from .tally import ResultsTally

MOST_NAME_BYTES = 200
"""Most bytes of an evaluation's name, of the 256 of a key; the rest is for numbers."""

_NOT_TOLD = frozenset(
    error.__name__ for error in (NoAnswer, ServerLost, NotDurable, UnknownKey)
)  # fmt: skip


def check_name(name: str) -> str:
    """The name of an evaluation.  Raises ConfigError."""
    try:
        size_bytes = len(name.encode())
    except UnicodeEncodeError as error:
        raise ConfigError(f"--run: a name that cannot be encoded: {error}") from None
    if not 0 < size_bytes <= MOST_NAME_BYTES:
        raise ConfigError(f"--run: a name has 1 to {MOST_NAME_BYTES} bytes, this one {size_bytes}")
    return name


def is_told(result: RolloutResult) -> bool:
    """Whether a result is what became of its key.  Otherwise the server did not say, and may be
    asked again: with a journal it knows.  A rollout that never ran has no outcome."""
    failure = result.failure
    return failure is None or not (result.did_not_run or failure.kind in _NOT_TOLD)


@final
class RunKeys:
    """The keys of an evaluation.  ``told``: how often the file has an outcome of a rollout."""

    def __init__(self, name: str, told: Callable[[Name], int] = lambda name: 0) -> None:
        self.name = name
        self._told = told

    def rollout(self, name: Name) -> str:
        """The part of a rollout's key behind the evaluation's name."""
        index, repeat = name
        return _again(f"{index}/{repeat}", self._told(name))

    def group(self, index: int, repeat: int) -> str:
        """The part of a group's key behind the evaluation's name.  A group counts as told once each
        member has been told."""
        told = min(self._told((index, member)) for member in range(repeat))
        return _again(f"{index}/group", told)


def _again(part: str, told: int) -> str:
    return f"{part}/again-{told}" if told else part


HELD = 64
"""Most outcomes that are taken and not written yet."""

LAST_S = 0.3
"""Time after a cancel in which results that were taken before may be written, in seconds."""


@dataclasses.dataclass(frozen=True, slots=True)
class EvaluationPlan:
    """The rollouts that an evaluation asks for."""

    inputs: Sequence[Any]
    first: int = 0
    """The index of the first of these inputs."""
    repeat: int = 1
    grouped: bool = False
    """The repeats of an input are one group, scored together."""

    def names(self) -> Iterator[Name]:
        """The names of all rollouts, input by input."""
        for index in range(self.first, self.first + len(self.inputs)):
            for repeat in range(self.repeat):
                yield index, repeat

    def input(self, name: Name) -> Any:
        """The input of a rollout."""
        return self.inputs[name[0] - self.first]

    @property
    def rollouts(self) -> int:
        """Number of rollouts."""
        return len(self.inputs) * self.repeat


class Came(NamedTuple):
    """An outcome as it was taken, and the rollout that it is of."""

    name: Name
    input: Any
    outcome: Outcome


@dataclasses.dataclass(slots=True)
class Progress:
    """The progress of an evaluation.  One clock for all that is said of it."""

    total: int
    """Rollouts that are asked for, without those that were there before."""
    began_s: float
    done: int = 0
    ended_s: float | None = None

    @property
    def seconds(self) -> float:
        """Time since the start, in seconds."""
        return (trio.current_time() if self.ended_s is None else self.ended_s) - self.began_s

    @property
    def rate(self) -> float:
        """Rollouts in a second."""
        return self.done / self.seconds if self.seconds > 0 else 0.0

    @property
    def left_s(self) -> float | None:
        """Time that the rest will take at this rate, in seconds; None if unknown."""
        return (self.total - self.done) / self.rate if self.done else None


@final
class Evaluation:
    """One evaluation: its plan, its file and its figures."""

    def __init__(
        self, plan: EvaluationPlan, tally: ResultsTally, *, file: ResultsFile | None = None,
        environment: str = "", model: str = "", run: str = "", most_errors: int | None = None,
        keys: RunKeys | None = None,
    ) -> None:  # fmt: skip
        self.plan = plan
        self.tally = tally
        self.progress = Progress(0, trio.current_time())
        self.not_written: NotWritten | None = None
        """Reason for which writing stopped."""
        self.unwritten = 0
        """Results that came and are not in the file."""
        self.gave_up = False
        """Whether as many rollouts as ``most_errors`` have ended in errors."""
        self.conflict: KeyConflict | None = None
        """Reason for which it stopped: another evaluation has used its name."""
        self._keys = keys
        self._whole = trio.CancelScope()
        self._file = file
        self._about: dict[str, Any] = {"environment": environment, "model": model, "run": run}
        self._most_errors = most_errors
        self._errors = 0
        self._taken: deque[tuple[Came, RolloutResult]] = deque()
        self._wake = trio.lowlevel.ParkingLot()
        self._room = trio.lowlevel.ParkingLot()
        self._all_taken = False

    async def run(
        self, client: Client, names: Sequence[Name], in_flight: int, **options: Unpack[CallOptions]
    ) -> None:
        """Ask for the rollouts of these names, until all have come or there is a reason
        to stop."""
        self.progress = Progress(len(names), trio.current_time())
        try:
            async with trio.open_nursery() as nursery:
                self._whole = nursery.cancel_scope
                nursery.start_soon(self._keep_writing)
                if self.plan.grouped:
                    await self._ask_groups(client, names, in_flight, options)
                else:
                    await self._ask_rollouts(client, names, in_flight, options)
                self._all_taken = True
                self._wake.unpark_all()
        finally:
            self.progress.ended_s = trio.current_time()
            with trio.move_on_after(LAST_S, shield=True):
                await self._write_rest()
            self._count_rest()

    async def _ask_rollouts(
        self, client: Client, names: Sequence[Name], in_flight: int, options: CallOptions
    ) -> None:
        async with self._many(client, names, in_flight, options) as outcomes:
            async for number, outcome in outcomes:
                self._take(Came(names[number], self.plan.input(names[number]), outcome))
                await self._until_room()

    def _many(
        self, client: Client, names: Sequence[Name], in_flight: int, options: CallOptions
    ) -> AbstractAsyncContextManager[AsyncIterator[tuple[int, Outcome]]]:
        inputs = map(self.plan.input, names)
        if self._keys is None:
            return client.run_many(inputs, in_flight=in_flight, **options)
        parts = zip(map(self._keys.rollout, names), inputs, strict=True)
        return run_parts(client, parts, in_flight, **_with_key(options, self._keys.name))

    async def _ask_groups(
        self, client: Client, names: Sequence[Name], in_flight: int, options: CallOptions
    ) -> None:
        """A request for each input.  A group runs whole, also if only a part is asked for."""
        count, keys = self.plan.repeat, self._keys
        limiter = trio.CapacityLimiter(max(1, in_flight // count))

        async def ask(index: int) -> None:
            input = self.plan.input((index, 0))
            named = options
            if keys is not None:
                named = _with_key(options, f"{keys.name}/{keys.group(index, count)}")
            try:
                whole = await client.outcome([input] * count, kind="group", **named)
            finally:
                limiter.release_on_behalf_of(index)
            for repeat, outcome in enumerate(_members(whole, count)):
                self._take(Came((index, repeat), input, outcome))

        async with trio.open_nursery() as asking:
            for index in sorted({index for index, _ in names}):
                await limiter.acquire_on_behalf_of(index)
                await self._until_room()
                asking.start_soon(ask, index)

    async def _until_room(self) -> None:
        while len(self._taken) >= HELD:
            await self._room.park()

    def _take(self, came: Came) -> None:
        if self._keys is not None and isinstance(came.outcome.error, KeyConflict):
            self.conflict = came.outcome.error
            self._whole.cancel()
            return
        ended_s = round(time.time(), 3)
        result = result_of(*came.name, came.outcome, ended_s=ended_s, **self._about)
        self._taken.append((came, result))
        self._wake.unpark_all()

    async def _keep_writing(self) -> None:
        while self._taken or not self._all_taken:
            if not self._taken:
                await self._wake.park()
                continue
            await self._write()
            self._room.unpark_all()
            self.gave_up = self._most_errors is not None and self._errors >= self._most_errors
            if self.gave_up or self.not_written:
                self._whole.cancel()
                await trio.lowlevel.checkpoint()

    async def _write_rest(self) -> None:
        while self._taken and not self.not_written:
            await self._write()

    def _count_rest(self) -> None:
        while self._taken:
            self.unwritten += self._file is not None
            self._count(self._taken.popleft()[1])

    async def _write(self) -> None:
        """Write and count what has been taken.  A rollout whose wait a cancel interrupts stays
        taken."""
        batch = list(self._taken)
        written = 0

        def write() -> None:
            nonlocal written
            for came, result in batch:
                check()
                assert self._file is not None
                self._file.append(record_of(result, came.input, came.outcome.value), check)
                written += 1

        if self._file is None or self.not_written:
            written = len(batch)
            self.unwritten += written if self._file else 0
            await trio.lowlevel.checkpoint_if_cancelled()
        else:
            try:
                await trio.to_thread.run_sync(write)
            except NotWritten as problem:
                self.not_written = problem
            finally:
                self._counted(written)
            return
        self._counted(written)

    def _counted(self, written: int) -> None:
        for _ in range(written):
            self._count(self._taken.popleft()[1])

    def _count(self, result: RolloutResult) -> None:
        self.progress.done += 1
        self._errors += result.failure is not None
        self.tally.add(result)


def _with_key(options: CallOptions, key: str) -> CallOptions:
    named = options.copy()
    named["key"] = key
    return named


def check() -> None:
    """In a thread of trio's: raise if its task was cancelled, and let others run."""
    trio.from_thread.check_cancelled()
    time.sleep(0)


def _members(whole: Outcome, count: int) -> list[Outcome]:
    """An outcome for each member, also if the group has none."""
    try:
        members = Outcome.members(whole)
    except CallError as error:
        return [dataclasses.replace(whole, value=None, error=error)] * count
    return members

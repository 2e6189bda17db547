"""Running an evaluation: asking, writing down, counting.  So is a file of results scored anew.

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
is killed.  A result says how many were before it, since a table has the last ones only.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Unpack, final

import trio

from ..client import CallOptions, Client, Outcome
from ..client.options import Asked, checked
from ..client.shell import open_many
from ..core.errors import (
    CallError,
    ConfigError,
    KeyConflict,
    NoAnswer,
    NotDurable,
    ServerLost,
    UnknownKey,
)
from ..envs.rewards import reward_in
from ..json_values import WrittenJson, restored
from .files import Entry, NotWritten, ResultsFile, give_way, is_table, line_of, record_at
from .records import (
    Name,
    RolloutResult,
    digest,
    record_of,
    rescored_result,
    result_from,
    result_of,
    stored_digest,
)
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
        self.told = told

    def rollout(self, name: Name) -> str:
        """The key of a rollout."""
        index, repeat = name
        return self._key(f"{index}/{repeat}", self.told(name))

    def group(self, index: int, repeat: int) -> str:
        """The key of a group, which counts as told once each member has been told."""
        told = min(self.told((index, member)) for member in range(repeat))
        return self._key(f"{index}/group", told)

    def _key(self, part: str, told: int) -> str:
        return f"{self.name}/{part}" + (f"/again-{told}" if told else "")


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

    def indexes(self) -> Iterable[int]:
        """The indexes of all inputs."""
        return range(self.first, self.first + len(self.inputs))

    def may_run(self, name: Name) -> bool:
        """Whether a rollout that is there, and failed, may run again."""
        return True

    def digest(self, index: int) -> str:
        """The digest of an input."""
        return digest(self.input((index, 0)))

    def is_current(self, result: RolloutResult) -> bool:
        """Whether a result of the file that is continued still holds: all do whose input is the
        same."""
        return True


@final
class StoredPlan:
    """The rollouts of a file, which are to be scored anew."""

    grouped = False

    def __init__(self, path: str, entries: Iterable[Entry], stored: Mapping[Name, str]) -> None:
        """``stored`` has the digest of each result: see :func:`.stored_digest`."""
        self._path = path
        self._stored = stored
        self._entries = {each.result.name: each for each in entries}
        self._digests = {index: each.input for (index, _), each in self._entries.items()}

    def names(self) -> Iterator[Name]:
        """The names of all rollouts, in the order of the file's inputs."""
        return iter(self._entries)

    @property
    def rollouts(self) -> int:
        """Number of rollouts."""
        return len(self._entries)

    def indexes(self) -> Iterable[int]:
        """The indexes of all inputs."""
        return self._digests

    def digest(self, index: int) -> str:
        """The digest of an input."""
        return self._digests[index]

    def is_current(self, result: RolloutResult) -> bool:
        """Whether a result of the file that is continued was made from the one that is stored now:
        another evaluation, or ``--retry-errors``, may have stored another one."""
        return result.rescored_of == self._stored.get(result.name)

    def may_run(self, name: Name) -> bool:
        """Whether a rollout can be scored: one that has failed has nothing to be scored."""
        return self.result(name).failure is None

    def result(self, name: Name) -> RolloutResult:
        """The stored result of a rollout, without its traceback."""
        return self._entries[name].result

    def read(self, name: Name) -> tuple[Came, dict[str, Any], str]:
        """The stored result of a rollout, with input and value in JSON, the request by which
        it is scored, and its digest.  Raises ConfigError if the file has changed."""
        record = record_at(self._path, self._entries[name])
        known = stored_digest(record)
        if is_table(self._path):  # its arrays are bytes
            record = json.loads(line_of(record))
        stored = {each: record.get(each) for each in ("input", "value")}
        came = Came(result_from(record), *map(WrittenJson, stored.values()))
        return came, {each: restored(value) for each, value in stored.items()}, known


class Came(NamedTuple):
    """A result as it was taken, and what is written beside it."""

    result: RolloutResult
    input: Any
    value: Any


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
        """Rollouts in a second, to three decimals: so it is the same wherever it is shown."""
        return round(self.done / self.seconds, 3) if self.seconds > 0 else 0.0

    @property
    def left_s(self) -> float | None:
        """Time that the rest will take at this rate, in seconds; None if unknown."""
        return (self.total - self.done) * self.seconds / self.done if self.done else None


@final
class Evaluation:
    """One evaluation: its plan, its file and its figures."""

    def __init__(
        self, plan: EvaluationPlan | StoredPlan, tally: ResultsTally, *,
        file: ResultsFile | None = None, environment: str = "", model: str = "", run: str = "",
        most_errors: int | None = None, keys: RunKeys | None = None,
    ) -> None:  # fmt: skip
        self.plan = plan
        self.tally = tally
        self.progress = Progress(0, trio.current_time())
        self.unrewarded = ""
        """Reason for which the first result without a reward has none."""
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
        self._taken: deque[Came] = deque()
        self._wake = trio.lowlevel.ParkingLot()
        self._space = trio.lowlevel.ParkingLot()
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
                await self._ask(client, names, in_flight, options)
                self._all_taken = True
                self._wake.unpark_all()
        finally:
            self.progress.ended_s = trio.current_time()
            with trio.move_on_after(LAST_S, shield=True):
                await self._write_rest()
            self._count_rest()

    async def _ask(
        self, client: Client, names: Sequence[Name], in_flight: int, options: CallOptions
    ) -> None:
        """A request for each rollout, or for each group, which runs whole also if only a part of it
        is asked for."""
        plan, asked = self.plan, names
        if isinstance(plan, StoredPlan):
            await self._rescore(plan, client, names, in_flight, options)
            return
        if plan.grouped:
            asked = sorted({(index, 0) for index, _ in names})
            in_flight = max(1, in_flight // plan.repeat)
        calls = (self._call(plan, name, options) for name in asked)
        async with open_many(client, calls, in_flight) as outcomes:
            async for number, outcome in outcomes:
                self._take(plan, asked[number], outcome)
                await self._until_space()

    def _call(self, plan: EvaluationPlan, name: Name, options: CallOptions) -> Asked:
        input, (index, _) = plan.input(name), name
        if plan.grouped:
            if self._keys is not None:
                options = _with_key(options, self._keys.group(index, plan.repeat))
            return checked([input] * plan.repeat, kind="group", **options)
        if self._keys is not None:
            options = _with_key(options, self._keys.rollout(name))
        return checked(input, **options)

    async def _rescore(
        self, plan: StoredPlan, client: Client, names: Sequence[Name], in_flight: int,
        options: CallOptions,
    ) -> None:  # fmt: skip
        limiter = trio.CapacityLimiter(in_flight)

        async def one(name: Name) -> None:
            try:
                await self._score(plan, name, client, options)
            finally:
                limiter.release_on_behalf_of(name)

        async with trio.open_nursery() as asking:
            for name in names:
                await limiter.acquire_on_behalf_of(name)
                await self._until_space()
                asking.start_soon(one, name)

    async def _score(
        self, plan: StoredPlan, name: Name, client: Client, options: CallOptions
    ) -> None:
        """Score a stored rollout anew; one that failed has nothing to be scored."""
        run = self._about["run"]
        came, asked, known = await trio.to_thread.run_sync(plan.read, name)
        if not plan.may_run(name):
            kept = dataclasses.replace(came.result, run=run, rescored_of=known)
            self._keep(came._replace(result=kept))
            return
        outcome = await client.outcome(asked, kind="rescore", **options)
        result = rescored_result(came.result, outcome, run=run, rescored_of=known)
        self._keep(Came(result, came.input, outcome.value))

    async def _until_space(self) -> None:
        while len(self._taken) >= HELD:
            await self._space.park()

    def _take(self, plan: EvaluationPlan, name: Name, outcome: Outcome) -> None:
        """Take the outcome of a rollout, or of the group that begins with it."""
        if not plan.grouped:
            self._take_one(plan, name, outcome)
            return
        for repeat, member in enumerate(_members(outcome, plan.repeat)):
            self._take_one(plan, (name[0], repeat), member)

    def _take_one(self, plan: EvaluationPlan, name: Name, outcome: Outcome) -> None:
        if self._keys is not None and isinstance(outcome.error, KeyConflict):
            self.conflict = outcome.error
            self._whole.cancel()
            return
        ended_s = round(time.time(), 3)
        again = 0 if self._keys is None else self._keys.told(name)
        result = result_of(*name, outcome, ended_s=ended_s, again=again, **self._about)
        self._keep(Came(result, plan.input(name), outcome.value))

    def _keep(self, came: Came) -> None:
        if not self.unrewarded and came.result.failure is None and came.result.reward is None:
            self.unrewarded = reward_in(came.value)[1]
        self._taken.append(came)
        self._wake.unpark_all()

    async def _keep_writing(self) -> None:
        while self._taken or not self._all_taken:
            if not self._taken:
                await self._wake.park()
                continue
            await self._write()
            self._space.unpark_all()
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
            self._count(self._taken.popleft().result)

    async def _write(self) -> None:
        """Write and count what has been taken.  A rollout whose wait a cancel interrupts stays
        taken."""
        batch = list(self._taken)
        written = 0

        def write() -> None:
            nonlocal written
            for came in batch:
                give_way()
                assert self._file is not None
                self._file.append(record_of(*came))
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
            self._count(self._taken.popleft().result)

    def _count(self, result: RolloutResult) -> None:
        self.progress.done += 1
        self._errors += result.failure is not None
        self.tally.add(result)


def _with_key(options: CallOptions, key: str) -> CallOptions:
    named = options.copy()
    named["key"] = key
    return named


def _members(whole: Outcome, count: int) -> list[Outcome]:
    """An outcome for each member, also if the group has none."""
    try:
        members = Outcome.members(whole)
    except CallError as error:
        return [dataclasses.replace(whole, value=None, error=error)] * count
    return members

"""The parent of the simulating processes: gives out jobs, adds up results.

Theory of operation
-------------------
One task looks after each process (:mod:`.jobs`): it writes a job, reads results line
by line, and hands them to whoever gave the job.  Processes are in groups of their
own, so Ctrl-C reaches the parent only, which cancels: then they are killed and
reaped.  Nothing is forked: a process starts as a fresh interpreter.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar, final

import trio

from .jobs import Job, JobError
from .target import BaseTally, Catch

MODULE = "trio_envserve.retrylab.jobs"

READ_BYTES = 1 << 16

Result: TypeAlias = dict[str, Any]
T = TypeVar("T", bound=BaseTally[Any])


class ProcessDied(Exception):
    """A simulating process has ended on its own: it was killed, or has a bug."""


class FoundFailure(NamedTuple):
    """A seed that broke a guarantee."""

    seed: int
    guarantee: str
    violation: str
    digest: str


@final
class JobProcess:
    """One process; does one job at a time."""

    def __init__(self, process: trio.Process) -> None:
        self._process = process
        self._pending = b""

    async def do(self, job: Job, tell: Callable[[Result], object]) -> None:
        """Do a job; ``tell`` gets its results as they come.  JobError if the job cannot be
        done, ProcessDied if the process dies."""
        assert self._process.stdin is not None
        try:
            await self._process.stdin.send_all(json.dumps(job).encode() + b"\n")
        except trio.BrokenResourceError:
            raise ProcessDied(await self._how()) from None
        while True:
            result = json.loads(await self._line())
            if result.get("done"):
                return
            if "failed" in result:
                raise JobError(result["failed"])
            tell(result)

    async def _line(self) -> bytes:
        assert self._process.stdout is not None
        while b"\n" not in self._pending:
            chunk = await self._process.stdout.receive_some(READ_BYTES)
            if not chunk:
                raise ProcessDied(await self._how())
            self._pending += chunk
        line, _, self._pending = self._pending.partition(b"\n")
        return line

    async def _how(self) -> str:
        code = await self._process.wait()
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit {code}"
        return f"a simulating process has ended: {how}"


@asynccontextmanager
async def open_worker() -> AsyncIterator[JobProcess]:
    """Start a process; it is killed and reaped at the end."""
    process = await trio.lowlevel.open_process(
        [sys.executable, "-m", MODULE], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        process_group=0,
    )  # fmt: skip
    try:
        yield JobProcess(process)
    finally:
        process.kill()
        with trio.CancelScope(shield=True):  # it is dead already, or will be at once
            await process.wait()
            for stream in (process.stdin, process.stdout):
                assert stream is not None
                await trio.aclose_forcefully(stream)


def cores() -> int:
    """Number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


async def ask(
    do: str, system: str, tell: Callable[[Result], object] = lambda result: None, **job: Any
) -> Result:
    """All results of a job together, which is done in a process of its own.

    Args:
        do: Name of the job, see :data:`.jobs.JOBS`.
        system: Name of the target.
        tell: Function that gets each result as it comes.
        **job: Further fields of the job.
    """
    results: Result = {}

    def take(result: Result) -> None:
        results.update(result)
        tell(result)

    async with open_worker() as worker:
        await worker.do({"do": do, "system": system, **job}, take)
    return results


@final
class Campaign(Generic[T]):
    """Seeds of a target run by several processes, and what has come of them so far.

    ``system`` names the target, which is given ``options``; ``tally`` is empty.
    """

    def __init__(
        self, system: str, tally: T, *, options: Mapping[str, Any] | None = None, base: int,
        runs: int | None = None, seconds: float | None = None, jobs: int = 1,
        keep_going: bool = False,
    ) -> None:  # fmt: skip
        self.tally = tally
        self.found: list[FoundFailure] = []
        self._keep_going = keep_going
        self._jobs = jobs
        self._job = {
            "do": "search", "system": system, "options": dict(options or {}), "base": base,
            "runs": runs, "seconds": seconds, "step": jobs,
        }  # fmt: skip

    async def run(self) -> None:
        """Run the seeds: with ``keep_going`` all of them, else until one breaks a guarantee."""
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                for first in range(self._jobs):
                    nursery.start_soon(self._search, first, scope)
        self.found.sort()

    async def _search(self, first: int, scope: trio.CancelScope) -> None:
        def take(result: Result) -> None:
            if "tally" not in result:
                self.found.append(FoundFailure(**result))
                return
            self.tally.merge(result["tally"])
            if self.found and not self._keep_going:
                scope.cancel()

        async with open_worker() as worker:
            await worker.do({**self._job, "first": first}, take)


async def examine(system: str, found: FoundFailure, **more: Any) -> dict[str, Any]:
    """The failure, made small, as data; ``more`` are ``options`` of the target, and a folder
    to ``save`` it in, and by what code it was ``made_by``."""
    failure: dict[str, Any] | None = (
        await ask(
            "examine", system, seed=found.seed, guarantee=found.guarantee, digest=found.digest,
            **more,
        )
    )["failure"]  # fmt: skip
    if failure is None:
        raise ProcessDied(f"seed {found.seed} failed, and did not when it was run again")
    return failure


async def hunt_all(
    system: str, options: Sequence[Mapping[str, Any]], *, base: int, jobs: int,
    caught: Callable[[Catch], object],
) -> None:  # fmt: skip
    """Hunt the mutant of a target with each of these options, several at once; ``caught`` is
    told of each."""
    left = list(reversed(options))

    async def work() -> None:
        async with open_worker() as worker:
            while left:
                job = {"do": "hunt", "system": system, "options": left.pop(), "base": base}
                await worker.do(job, lambda result: caught(Catch(**result["caught"])))

    async with trio.open_nursery() as nursery:
        for _ in range(min(jobs, len(left))):
            nursery.start_soon(work)

"""The processes of a worker for calls apart (:mod:`trio_envserve.envs.apart`), on trio-parallel.

Theory of operation
-------------------
The pool opens with the first call, has at most :data:`PROCESSES` processes, which are kept for
later calls, and closes with its worker; the guard of a worker that is killed kills them.

A call that takes too long ends its own process, by a timer that needs no interpreter lock
(:mod:`.apart_process`).  The time counts from the moment at which the function is called: not
while the call waits for a process, nor while that starts or imports.  A process that does not even
get there, or is stopped, is killed from here after :data:`START_S` more.  A cancelled call ends at
once, and its process is killed.  With a process all die that it has started
(:mod:`.apart_process`).
"""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import IO, Any, final

import trio

from ..commands import describe_exit
from ..core.stack_frames import authors_line, authors_part, dumped_stacks
from ..envs.apart import (
    BESIDE,
    MOST_BESIDE,
    MOST_BYTES,
    ApartCall,
    ApartDied,
    ApartOutOfMemory,
    ApartReply,
    ApartTimeout,
    need_library,
)
from ..large_pickles import Spans, mapped, write
from . import apart_process
from .failures import log

PROCESSES = max(4, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 4)
"""Most processes of one worker: one for each processor, and more than one where calls hang."""

START_S = 60.0
"""Time that a process may take to start and to import what a call needs, in seconds."""
CLOSE_S = 2.0
"""Time that idle processes have to end when the pool closes, in seconds."""

_NO_GUARD = (
    ". It imports the program that serves, if that is a script: what the script does belongs below "
    'if __name__ == "__main__"'
)


@final
class ApartPool:
    """The processes for calls apart of one worker.  Made by :func:`open_apart`."""

    def __init__(self) -> None:
        self._limiter = trio.CapacityLimiter(PROCESSES)
        self._papers: list[_Paper] = []
        """Papers of which no call has need now."""
        self._opened = AsyncExitStack()
        self._context: Any = None
        """Context of trio-parallel; None before the first call."""

    async def run(self, call: ApartCall) -> ApartReply:
        """Run a call in some process.  Raises ``ApartError`` if that has ended."""
        async with self._limiter:
            if self._context is None:
                self._context = await self._opened.enter_async_context(_open_context())
            paper = self._papers.pop() if self._papers and not call.buffers else _Paper()
            try:
                return await self._run(call, paper)
            finally:
                # One with large arrays is never used again: they are mapped from there.
                if os.fstat(paper.file.fileno()).st_size < apart_process.ARRAYS_AT:
                    self._papers.append(paper)
                else:
                    paper.file.close()

    async def _run(self, call: ApartCall, paper: _Paper) -> ApartReply:
        from trio_parallel import BrokenWorkerError

        limits, most = call.limits, (MOST_BYTES, MOST_BESIDE if BESIDE else 0)
        paper.clear()
        spans: Spans = ()
        if call.buffers:  # which may be gigabytes
            spans = await trio.to_thread.run_sync(
                write, paper.file.fileno(), apart_process.ARRAYS_AT, call.buffers
            )
        reply: Any = None
        for is_last in (False, True):
            try:
                with trio.move_on_after(START_S + limits.timeout_s):
                    reply = await self._context.run_sync(
                        apart_process.run, paper.path, *limits, call.module, call.file, call.job,
                        spans, most, kill_on_cancel=True, limiter=contextlib.nullcontext(),
                    )  # fmt: skip
            except BrokenWorkerError as error:
                if paper.has_begun or is_last:
                    raise self._ended(call, paper, error.args[-1].exitcode) from None
                continue  # it died while it was idle, say: nothing has run
            except OSError as error:  # its pipe ended within a message
                if not paper.has_begun:
                    raise
                told = f"the process in which {call.name} ran died within its answer"
                raise ApartDied(told) from error
            break
        if reply is None:
            text = f"{call.name} had not ended {START_S + limits.timeout_s:g} s after it was called"
            raise ApartTimeout(f"{text}, and its process was killed")
        if reply == apart_process.OUT_OF_MEMORY:
            bound = f"{limits.memory_bytes} bytes of memory that it may take (memory_bytes)"
            raise ApartOutOfMemory(f"{call.name} needed more than the {bound}")
        value, spans, *raised = reply
        return ApartReply(value, mapped(paper.file.fileno(), spans), *raised)

    def _ended(self, call: ApartCall, paper: _Paper, status: int) -> ApartTimeout | ApartDied:
        """The error of a call whose process has ended."""
        text = paper.read()
        # The last one is the main thread's, which runs the call.
        stack = [authors_part(each) for each in dumped_stacks(text)[-1:]]
        where = authors_line(stack[0]) if stack else ""
        at = f", at {where}" if where else ""
        if status == -apart_process.TIMES_OUT or text.startswith(apart_process.TIMED_OUT):
            told = f"{call.name} took longer than {call.limits.timeout_s:g} s (timeout_s)"
            return ApartTimeout(f"{told}, and its process was ended{at}", where, *stack)
        if not paper.has_begun:
            how = describe_exit(status)
            told = f"the process for {call.name} died before it could call it: {how}"
            return ApartDied(told + (_NO_GUARD if status == 1 else ""))
        if status == -apart_process.LEFT:
            told = (
                f"{call.name} made another program of its process (exec), or closed all its files"
            )
            return ApartDied(f"{told}; that process was ended")
        told = f"the process in which {call.name} ran died{at}: {describe_exit(status)}"
        if status < 0 and call.limits.memory_bytes is not None:
            told += "; it may have needed more than its memory_bytes"
        return ApartDied(told, where, *stack)

    async def aclose(self) -> None:
        """End all processes."""
        from trio_parallel import BrokenWorkerError

        for paper in self._papers:
            paper.file.close()
        try:
            await self._opened.aclose()
        except BrokenWorkerError as error:  # one died while it was idle, or had to be killed
            log(logging.DEBUG, "processes for calls apart: %s", error)


@asynccontextmanager
async def open_apart() -> AsyncIterator[ApartPool]:
    """A pool, which starts processes once they are needed.  All calls must have ended before the
    block does."""
    pool = ApartPool()
    try:
        yield pool
    finally:
        if pool._context is not None:
            await pool.aclose()  # noqa: ASYNC102


@asynccontextmanager
async def _open_context() -> AsyncIterator[Any]:
    need_library()
    import trio_parallel

    async with trio_parallel.open_worker_context(
        init=apart_process.begin, retire=apart_process.retire, grace_period=CLOSE_S
    ) as context:
        yield context


@final
class _Paper:
    """A file on which a process writes its id, and its stack if it ends badly."""

    def __init__(self) -> None:
        self.file: IO[bytes]
        """The file, which ends with the last that has it."""
        if hasattr(os, "memfd_create"):  # so that no file is left behind
            made = os.memfd_create("trio-envserve-apart")
            self.file = os.fdopen(made, "r+b", buffering=0)
            self.path = f"/proc/{os.getpid()}/fd/{made}"
        else:
            named = tempfile.NamedTemporaryFile(buffering=0)  # noqa: SIM115
            self.file, self.path = named, named.name

    def clear(self) -> None:
        """Make it empty."""
        self.file.truncate(0)

    @property
    def has_begun(self) -> bool:
        """Whether a process has written its id."""
        return any(os.pread(self.file.fileno(), apart_process.PID_BYTES, 0))

    def read(self) -> str:
        """The text after the process id."""
        most = apart_process.ARRAYS_AT - apart_process.PID_BYTES
        text = os.pread(self.file.fileno(), most, apart_process.PID_BYTES)
        return text.partition(b"\0")[0].decode(errors="replace")

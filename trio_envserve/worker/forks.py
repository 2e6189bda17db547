"""Forked children, which must not return and run their worker's rollouts.

Theory of operation
-------------------
A rollout may fork, by ``os.fork``, ``pty.fork`` or ``multiprocessing``, and the child
may execute a program or end by ``os._exit``.  But a child that returns (the program was
not found, something was raised) is a second worker with the same rollouts, and would do
each of their steps a second time (G1).  So a child is ended, with a line on standard
error, before it goes on with anything that is not its own:

- at the boundary of the rollout's code, which began in another process
  (:func:`end_if_forked`; also where such code asks its model);
- at its next step on trio, or on asyncio, whichever ran when it was forked;
- where its thread would take the next piece of work of an executor.

While workers are open (:func:`watched`), each child is prepared for that when it is
forked.  Whatever it runs in the fork's own frame, and in its own loops and threads, is
left alone.  Threads of the environment that wait for work in a way of their own are not
known here: a child that is forked in one goes on there.

(A child gets none of a worker's descriptors, see :mod:`~trio_envserve.net.forks`:
a peer that waits for their end would wait for the child's end.)

``os.register_at_fork`` cannot be undone, and is for the whole process.  So there is one
pair of hooks, registered when the first worker opens; they do nothing while none is
open.
"""

from __future__ import annotations

import asyncio
import functools
import os
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import thread as _executors
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn, final

import trio

FORKED_STATUS = os.EX_SOFTWARE
"""Exit status of a forked child that has returned."""


@final
class _Watch:
    """The state of the hooks."""

    def __init__(self) -> None:
        self.open = 0
        """Open workers in this process."""
        self.forking = _Forking()


@final
class _Forking(threading.local):
    """The state of the thread that forks."""

    loop: asyncio.AbstractEventLoop | None = None


_watch = _Watch()


@contextmanager
def watched() -> Iterator[None]:
    """While this lasts, a forked child that returns to an event loop is ended."""
    _register()
    _watch.open += 1
    try:
        yield
    finally:
        _watch.open -= 1


def end_if_forked(pid: int) -> None:
    """End this process unless it has this id, that of the process where the code began."""
    if os.getpid() != pid:
        end()


def end() -> NoReturn:
    """End this process, a forked child that has returned."""
    text = (
        f"trio-envserve: process {os.getpid()}, forked by a rollout, has returned from it "
        "and would run the rollouts of its worker a second time: it is ended here. "
        "A forked process must execute a program, or end by os._exit().\n"
    )
    try:
        os.write(2, text.encode())
    finally:
        os._exit(FORKED_STATUS)


@functools.cache
def _register() -> None:
    os.register_at_fork(before=_before, after_in_child=_prepare_child)


def _before() -> None:
    # Asked here: in the child asyncio says that no loop is running.
    if _watch.open:
        _watch.forking.loop = asyncio._get_running_loop()


def _prepare_child() -> None:
    if not _watch.open:
        return
    _watch.open = 0  # children of this child are its own affair
    loop, _watch.forking.loop = _watch.forking.loop, None
    if trio.lowlevel.in_trio_run():
        trio.lowlevel.add_instrument(_EndOnTrio())
    if hasattr(loop, "_ready"):  # asyncio's own loops; others cannot be reached
        vars(loop)["_ready"] = _EndOnAsyncio()
    _end_executors(sys._getframe())


@final
class _EndOnTrio(trio.abc.Instrument):
    """Ends the process after the step in which it was forked."""

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        end()

    def before_io_wait(self, timeout: float) -> None:
        end()


@final
class _EndOnAsyncio:
    """Replaces the queue of callbacks of an asyncio loop."""

    def append(self, handle: object) -> None:
        """Drop a callback: it will not run."""

    def popleft(self) -> Any:
        """The next step, which may be another rollout's."""
        end()

    __bool__ = __len__ = clear = popleft


def _end_executors(frame: FrameType | None) -> None:
    """In an executor's thread, replace the next piece of work by the end of the process."""
    while frame is not None:
        if frame.f_code is _executors._worker.__code__:
            queue = frame.f_locals["work_queue"]
            while not queue.empty():
                queue.get_nowait()
            queue.put(_EndInExecutor())
        frame = frame.f_back


@final
class _EndInExecutor:
    """Replaces a piece of work."""

    def run(self, *args: object) -> None:
        """Called instead of the work."""
        end()

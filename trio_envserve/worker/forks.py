"""Forked processes: they may do what they like, but not come back to run rollouts.

Theory of operation
-------------------
A rollout may fork, by ``os.fork``, ``pty.fork`` or ``multiprocessing``, and the child
may execute a program or end by ``os._exit``.  But if it comes back (the program was not
found, something was raised), it is a second worker with the same rollouts, and goes on
with all of them: each of its steps would be done twice (G1).  So a child ends, with a
word on standard error, where it would go on with anything that is not its own:

- at the boundary of the rollout's code, which has begun in another process
  (:func:`end_if_forked`; also where such code asks its model);
- at its next step on trio, or on asyncio, in whatever run the fork was made;
- where its thread would take the next piece of work of an executor.

While workers are open (:func:`watched`), each child is prepared for that as it is
forked.  What it runs in the fork's own frame, and in loops and threads of its own, is
left alone.  Threads of the environment's that wait for work in a way of their own are
not known here: a child that is forked in one goes on there.

(A child gets none of the descriptors by which a worker lives, see
:mod:`~trio_envserve.net.forks`: who waits for their end would wait for the child's.)

``os.register_at_fork`` cannot be undone, and is for the whole process.  So there is one
pair of hooks, registered when the first worker opens, that do nothing while none is.
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
"""Exit status of a forked process that has come back."""


@final
class _Watch:
    """What the hooks know."""

    def __init__(self) -> None:
        self.open = 0
        """Workers in this process."""
        self.forking = _Forking()


@final
class _Forking(threading.local):
    """Of the thread that forks."""

    loop: asyncio.AbstractEventLoop | None = None


_watch = _Watch()


@contextmanager
def watched() -> Iterator[None]:
    """While this lasts, a forked process that comes back to a loop is ended."""
    _register()
    _watch.open += 1
    try:
        yield
    finally:
        _watch.open -= 1


def end_if_forked(pid: int) -> None:
    """End this process if it is not the one with this id, where the code has begun."""
    if os.getpid() != pid:
        end()


def end() -> NoReturn:
    """End this process, which was forked and has come back."""
    text = (
        f"trio-envserve: process {os.getpid()}, forked by a rollout, has come back from it, "
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
    # Asked here: in the child asyncio says that none is running.
    if _watch.open:
        _watch.forking.loop = asyncio._get_running_loop()


def _prepare_child() -> None:
    if not _watch.open:
        return
    _watch.open = 0  # what this process forks itself is its own affair
    loop, _watch.forking.loop = _watch.forking.loop, None
    if trio.lowlevel.in_trio_run():
        trio.lowlevel.add_instrument(_EndOnTrio())
    if hasattr(loop, "_ready"):  # asyncio's own ones; others cannot be reached
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
    """Stands for what a loop of asyncio would do next."""

    def append(self, handle: object) -> None:
        """What is still to be done will not be done."""

    def popleft(self) -> Any:
        """The next step, which may be another rollout's."""
        end()

    __bool__ = __len__ = clear = popleft


def _end_executors(frame: FrameType | None) -> None:
    """Of an executor's thread: put its end in the place of the work it would do next."""
    while frame is not None:
        if frame.f_code is _executors._worker.__code__:
            queue = frame.f_locals["work_queue"]
            while not queue.empty():
                queue.get_nowait()
            queue.put(_EndInExecutor())
        frame = frame.f_back


@final
class _EndInExecutor:
    """Stands for work."""

    def run(self, *args: object) -> None:
        """Called in the place of the work."""
        end()

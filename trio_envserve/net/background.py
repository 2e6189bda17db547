"""Running a system beside the block that uses it, and closing it in order.

Theory of operation
-------------------
Closing a server awaits: answers go out, workers are ended and reaped.  Until then
its sockets and tasks must live, even if the block that uses the server was cancelled
from outside; but a cancelled scope cancels everything in it.  So the whole system is
one task in a nursery around the block, shielded once it has started.  The end of the
block, however it comes, only sets an event, and the system closes itself.  If the
system fails, the block is cancelled and raises that failure.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TypeVar

import trio

T = TypeVar("T")


@contextmanager
def unwrap_single() -> Iterator[None]:
    """Undo the wrapping of one nursery, which must be directly inside.

    A trio nursery wraps each exception in a group, so users of an
    ``async with open_...()`` block would find their own ``ValueError`` as
    ``ExceptionGroup([ValueError])``, once for each block.  If the nursery ends
    with exactly one exception, that one is raised instead; with several, the group
    stays.
    """
    try:
        yield
    except BaseExceptionGroup as group:
        if len(group.exceptions) != 1:
            raise
        error = group.exceptions[0]
        context = error.__context__
    else:
        return
    try:
        raise error
    finally:
        # raising has put the group there, which contains the error itself
        error.__context__ = context
        del error, context


def need_trio(what: str, elsewhere: str = "") -> None:
    """Raise RuntimeError, with what to do, if trio does not run here.

    ``elsewhere``: what does the same without trio.
    """
    if trio.lowlevel.in_trio_run():
        return
    where = "trio does not run here"
    asyncio = sys.modules.get("asyncio")  # not imported for this: it takes a client's start 10 ms
    with suppress(RuntimeError):
        if asyncio is not None and asyncio.get_running_loop():
            where = "asyncio runs here"
    text = f"{what} needs trio, and {where}: call it in a function that trio.run() runs"
    raise RuntimeError(text + (f"; or use {elsewhere}" if elsewhere else ""))


@asynccontextmanager
async def open_background(
    run: Callable[[Callable[[T], Awaitable[None]]], Awaitable[None]],
) -> AsyncIterator[T]:
    """Start ``run(serve)`` and yield what it passes to ``serve``.

    ``run`` opens what it needs, then awaits ``serve(system)`` once, which
    returns when the block has ended, and then closes what it opened.  Until
    ``serve`` it can be cancelled, afterwards it is shielded.
    """
    ended = trio.Event()

    async def system(*, task_status: trio.TaskStatus[T]) -> None:
        with trio.CancelScope() as scope:

            async def serve(value: T) -> None:
                # started() in a cancelled scope does not move the task, so a shielded
                # one would wait for ever.
                await trio.lowlevel.checkpoint_if_cancelled()
                scope.shield = True
                task_status.started(value)
                await ended.wait()

            await run(serve)

    with unwrap_single():
        async with trio.open_nursery() as nursery:
            value: T = await nursery.start(system)
            try:
                yield value
            finally:
                ended.set()

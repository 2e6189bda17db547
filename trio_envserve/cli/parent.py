"""Noticing that the parent process has ended, whatever ended it.

The command takes the parent's id when it starts.  It does not notice a parent that
ends in the milliseconds before that.  (Linux's parent-death signal does not help: it
follows the *thread* that started this process, and trio starts processes from threads
that come and go.)
"""

from __future__ import annotations

import os

import trio

from .common import Stop, say

POLL_S = 0.25
"""The pause between two checks if the system has no pidfd."""


async def stop_with_parent(parent: int, stop: Stop) -> None:
    """Stop the command at once when ``parent`` has ended."""
    await wait_parent_gone(parent)
    say("the parent process has ended; stopping at once")
    await stop.end_at_once()


async def wait_parent_gone(parent: int) -> None:
    """Sleep until this process is not a child of ``parent`` any more."""
    if hasattr(os, "pidfd_open"):
        try:
            descriptor = os.pidfd_open(parent)
        except OSError:
            return  # it is gone already
        try:
            # Its id may have been given to another process before it was opened.
            if os.getppid() == parent:
                await trio.lowlevel.wait_readable(descriptor)
        finally:
            trio.lowlevel.notify_closing(descriptor)
            os.close(descriptor)
        return
    while os.getppid() == parent:  # noqa: ASYNC110  # there is nothing to be woken by
        await trio.sleep(POLL_S)

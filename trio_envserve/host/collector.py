"""When garbage is collected, in processes that are this project's own.

A full collection looks at each object that may be part of a cycle.  The interpreter
begins one in the middle of any turn, whenever a quarter more objects have come to stay,
and takes 0.3 µs for each: a server with 65,000 requests and 10,000 connections stands
still for 100 ms.  It finds hardly anything, because what the server forgets is freed
without it.  So full collections are left to a task here, which waits until few objects
are there.  Collections of young objects, which take 2 ms at most, go on as they are.

The ``serve`` command does this; an application that embeds a server decides for itself.
"""

from __future__ import annotations

import gc
from typing import Final, NoReturn

import trio

EVERY_S: Final = 60.0
"""The pause between two looks."""

FEW_OBJECTS: Final = 50_000
"""So many are collected in 15 ms, and not put off."""

AT_LATEST_S: Final = 3600.0
"""After so long garbage is collected, however much there is to look at."""

_NEVER: Final = 2**31 - 1


async def collect_seldom() -> NoReturn:
    """Collect garbage when few objects are there, until cancelled.

    What exists at the start is taken for lasting, and not looked at again.  The settings
    that were found are put back at the end.
    """
    found = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*found[:2], _NEVER)
    try:
        collected_s = trio.current_time()
        while True:
            await trio.sleep(EVERY_S)
            late = trio.current_time() >= collected_s + AT_LATEST_S
            # Counting takes 2 % of what collecting would.
            if late or len(gc.get_objects(generation=2)) <= FEW_OBJECTS:
                gc.collect()
                collected_s = trio.current_time()
    finally:
        gc.set_threshold(*found)
        gc.unfreeze()

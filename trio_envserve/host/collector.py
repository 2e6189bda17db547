"""When garbage is collected, in processes that are this project's own.

A full collection looks at each object that may be part of a cycle.  The interpreter
begins one in the middle of any turn, whenever a quarter more objects have come to stay,
and takes 0.3 µs for each: a server with 65,000 requests and 10,000 connections stands
still for 100 ms.  It finds hardly anything, because what the server forgets is freed
without it.  So full collections are left to a task here, which waits until few objects
are there.

Collections of young objects go on, and begin later.  Objects retained under keys come one by one
and go with the ticks, many at once.  With the interpreter's own threshold almost each of these
objects would be looked at twice before it goes, which takes 4 µs for a call.

The ``serve`` command does this; an application that embeds a server decides for itself.
"""

from __future__ import annotations

import gc
from typing import Final, NoReturn

import trio

YOUNG: Final = (10_000, 0)
"""Thresholds of the young generation: the surplus of new objects at which it is looked at, and that
the generation before is looked at every second time; some 3 ms at most."""

EVERY_S: Final = 60.0
"""The pause between two looks."""

FEW_OBJECTS: Final = 50_000
"""Number of objects whose collection takes at most 15 ms, and is not put off."""

AT_LATEST_S: Final = 3600.0
"""Time after which garbage is collected, however many objects there are, in seconds."""

_NEVER: Final = 2**31 - 1


async def collect_seldom() -> NoReturn:
    """Collect garbage when few objects are there, until cancelled.

    Objects that exist at the start are taken for lasting, and not looked at again.  The settings
    that were found are put back at the end.
    """
    found = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*YOUNG, _NEVER)
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

"""Decoding and encoding of values that may take long, for all that a worker sends and gets."""

from __future__ import annotations

from collections.abc import Callable

from .. import foreign
from ..core import values
from ..turns import Threads


async def worked(threads: Threads, work: Callable[..., foreign.CodeResult]) -> foreign.CodeResult:
    """The result of ``work``, which takes the options of :mod:`~trio_envserve.core.values`: at
    once, or in a thread, in pieces, if that takes long and the code of the value allows it."""
    ended = work(at_once=True)
    if foreign.is_exception(ended.error, values.TooMuchWork):
        ended = await threads.run(lambda pause: work(pause=pause))
        if foreign.is_exception(ended.error, values.NotHere):
            ended = work()
    return ended

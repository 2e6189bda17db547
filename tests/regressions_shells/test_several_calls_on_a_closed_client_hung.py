"""Calls of one turn of the loop are carried out by a task of the client's.  After its
block had ended there was none: of several calls on a closed client only the first
ended, and the others waited for ever.
"""

import trio

from trio_envserve import DidNotRun, open_client
from trio_envserve.net import MemoryNetwork


async def test_each_call_on_a_closed_client_ends(autojump_clock):
    async with open_client("memory:nobody", network=MemoryNetwork()) as client:
        pass
    ended = []

    async def call():
        ended.append((await client.outcome("late")).error)

    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(call)
    assert [type(error) for error in ended] == [DidNotRun] * 3

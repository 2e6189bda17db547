"""Large outcomes that nobody acknowledges stay with their workers."""

from __future__ import annotations

import pytest
import trio

from tests.proc import status_of
from tests.real.support import asked, open_raw, open_server_process
from trio_envserve import open_client
from trio_envserve.core import messages
from trio_envserve.core.limits import MIB

pytestmark = pytest.mark.slow

COUNT, SIZE_BYTES, KEPT_BYTES = 40, 6 * MIB, 32 * MIB


def most_bytes(pid: int) -> int:
    return int(status_of(pid, "VmHWM").split()[0]) * 1024


async def test_a13_what_ran_was_kept_beyond_the_bound_of_bytes(judge):
    """120 outcomes of 20 MB, received and not acknowledged, took 2.3 GiB of the server
    with a bound of 256 MiB.  Here 240 MiB, and a bound of 32."""
    async with (
        open_server_process(judge, workers=2, kept_bytes=KEPT_BYTES) as server,
        open_client(server.address) as client,
        open_raw(server.address) as raw,
    ):
        before_bytes = most_bytes(server.pid)
        for n in range(COUNT):
            raw.transmit(n, asked(f"k{n}", ["wait", "go"], value={"bytes": SIZE_BYTES}))
        await judge.wait_started(*(f"k{n}" for n in range(COUNT)))
        judge.put("go")
        stats = await client.stats()
        while stats.announced + stats.kept < COUNT:
            await trio.sleep(0.05)
            stats = await client.stats()
        here = stats.kept
        assert 0 < stats.kept_bytes <= KEPT_BYTES
        assert stats.announced_bytes >= (COUNT - here) * SIZE_BYTES
        for _ in range(COUNT):
            outcome, frames = await raw.next(messages.Outcome)
            assert (outcome.status, len(frames[1]) >= SIZE_BYTES) == (0, True)
            raw.finish(outcome.sequence)
        grown_bytes = most_bytes(server.pid) - before_bytes
    judge.assert_exactly_once(*(f"k{n}" for n in range(COUNT)))
    print(f"{COUNT * SIZE_BYTES >> 20} MiB of outcomes, the server grew by {grown_bytes >> 20} MiB")
    assert grown_bytes < 3 * KEPT_BYTES

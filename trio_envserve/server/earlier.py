"""The wait for earlier servers: workers start when no worker of an earlier server can run any more.

The processes of this machine have ended when their locks are free.  The hosts of earlier epochs
have no workers left when their leases are over, or when they say so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import trio

from ..core.errors import ServerStartError
from ..core.lease import EarlierEpochs
from ..core.router import Router
from ..core.router_inputs import PoolWaits
from ..core.terms import Epoch
from ..host.locks import ServerLocks
from .hosts import EpochRecords

Give = Callable[[PoolWaits], None]
"""Gives the router an input, and carries out its effects."""


async def processes_ended(
    locks: Sequence[ServerLocks], router: Router, lock_s: float, give: Give
) -> set[Epoch]:
    """Sleep until no process of an earlier server with this address or this journal is left;
    returns the epochs of those servers.  ServerStartError after ``lock_s``."""
    dead: set[Epoch] = set()
    began_s = trio.current_time()
    for each in locks:
        while (earlier := each.try_epochs(router.epoch)) is None:
            waited_s = trio.current_time() - began_s
            give(PoolWaits(each.wait_text(waited_s)))
            if waited_s >= lock_s:
                raise ServerStartError(f"{router.starting}; {each.find_workers()}")
            await trio.sleep(min(0.01 + waited_s / 10, 0.5))
        dead |= earlier
    return dead


async def hosts_ended(earlier: EarlierEpochs, records: EpochRecords, give: Give) -> None:
    """Sleep until the hosts of earlier epochs have no workers left, by the records of these."""
    while not earlier.have_ended(now_s := trio.current_time()):
        text = "waiting for the workers of hosts of an earlier server to end"
        give(PoolWaits(f"{text} ({records.until(earlier, now_s)})"))
        await trio.sleep(max(min(earlier.until_s - now_s, 0.5), 0.0))

"""The wait for earlier servers, under a virtual clock."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from tests.memory import virtual
from trio_envserve.core.errors import ServerStartError
from trio_envserve.core.lease import NO_LEASE_S, EarlierEpochs, EpochWait
from trio_envserve.core.router_inputs import PoolWaits
from trio_envserve.server.earlier import hosts_ended, processes_ended
from trio_envserve.server.hosts import EpochRecords

OWN, ONE, TWO = b"o" * 16, b"1" * 16, b"2" * 16
MEMBERSHIP = b"t" * 16
LONG_S = 100.0


class Locks:
    """Locks that processes of earlier epochs hold for so long."""

    def __init__(self, name: str, held_s: float, *epochs: bytes) -> None:
        self.tried_s: list[float] = []
        self._name = name
        self._free_s = trio.current_time() + held_s
        self._epochs = set(epochs)

    def try_epochs(self, epoch: bytes) -> set[bytes] | None:
        assert epoch == OWN
        self.tried_s.append(trio.current_time())
        return self._epochs if trio.current_time() >= self._free_s else None

    def wait_text(self, waited_s: float) -> str:
        return f"{self._name} is held ({waited_s:.0f} s)"

    def find_workers(self) -> str:
        return f"pid 7 holds {self._name}"


class OfRouter:
    """As much of a router as it takes, and what it was told."""

    epoch = OWN
    starting = "the server has not started"

    def __init__(self) -> None:
        self.told: list[str] = []
        self.told_s: list[float] = []

    def give(self, waits: PoolWaits) -> None:
        self.told.append(waits.why)
        self.told_s.append(trio.current_time())


async def wait_for_processes(router: OfRouter, *locks: Locks, lock_s: float = LONG_S) -> set[bytes]:
    waited: Any = processes_ended(locks, router, lock_s, router.give)  # type: ignore[arg-type]  # stand-ins
    found: set[bytes] = await waited
    return found


@virtual
async def test_locks_that_are_free_are_not_waited_for() -> None:
    router = OfRouter()
    assert await wait_for_processes(router, Locks("a", 0, ONE), Locks("b", 0, TWO)) == {ONE, TWO}
    assert await wait_for_processes(router) == set()
    assert router.told == []


@virtual
async def test_each_lock_is_waited_for_and_the_epochs_of_all_are_dead() -> None:
    router, began_s = OfRouter(), trio.current_time()
    first, second = Locks("a", 2, ONE), Locks("b", 20, TWO)
    assert await wait_for_processes(router, first, second) == {ONE, TWO}
    assert 20 <= trio.current_time() - began_s <= 20.5
    assert router.told[0] == "a is held (0 s)"
    assert router.told[-1] == "b is held (20 s)"
    # Often at first, twice a second at last.
    pauses_s = [b - a for a, b in zip(first.tried_s, first.tried_s[1:], strict=False)]
    assert pauses_s[0] == pytest.approx(0.01)
    assert pauses_s == sorted(pauses_s)
    assert second.tried_s[-1] - second.tried_s[-2] == pytest.approx(0.5)


@virtual
async def test_whoever_holds_a_lock_for_too_long_is_named() -> None:
    await trio.sleep(1000)
    router, began_s = OfRouter(), trio.current_time()
    text = "^the server has not started; pid 7 holds b$"
    with pytest.raises(ServerStartError, match=text):
        # The time is that of both together.
        await wait_for_processes(router, Locks("a", 6), Locks("b", 20), lock_s=10)
    assert 10 <= trio.current_time() - began_s <= 10.5
    held = Locks("a", 1)
    with pytest.raises(ServerStartError):
        await wait_for_processes(router, held, lock_s=0)
    assert len(held.tried_s) == 1


# -- hosts ------------------------------------------------------------------------------


async def wait_for_hosts(
    router: OfRouter, earlier: EarlierEpochs, over_s: float | None = None
) -> float:
    """How long that took.  ``over_s``: after so long hosts say that their memberships are over."""
    began_s, records = trio.current_time(), EpochRecords([Path("epochs.lock")])

    async def say() -> None:
        if over_s is not None:
            await trio.sleep(over_s)
            earlier.accounted_for([MEMBERSHIP])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(say)
        await hosts_ended(earlier, records, router.give)
        nursery.cancel_scope.cancel()
    assert earlier.have_ended(trio.current_time())
    return trio.current_time() - began_s


def lease(wait_s: float) -> EarlierEpochs:
    wait = EpochWait(ONE, wait_s, frozenset([MEMBERSHIP]))
    return EarlierEpochs([wait], trio.current_time())


@virtual
async def test_hosts_are_waited_for_until_their_leases_are_over_or_they_say_so() -> None:
    router, began_s = OfRouter(), trio.current_time()
    assert await wait_for_hosts(router, EarlierEpochs([], began_s)) == 0
    assert router.told == []
    assert await wait_for_hosts(router, lease(11.2)) == pytest.approx(11.2)
    text = "waiting for the workers of hosts of an earlier server to end"
    assert router.told[0] == f"{text} (11 s)"
    assert router.told[-1] == f"{text} (0 s)"
    assert router.told_s[0] == began_s
    assert await wait_for_hosts(router, lease(LONG_S), 3.1) == pytest.approx(3.5)


@virtual
async def test_hosts_that_had_no_lease_are_waited_for_until_they_have_come() -> None:
    router = OfRouter()
    assert await wait_for_hosts(router, lease(NO_LEASE_S), 699.9) == pytest.approx(700)
    assert "until each of them has joined" in router.told[0]
    assert "remove epochs.hosts and start the server again" in router.told[0]

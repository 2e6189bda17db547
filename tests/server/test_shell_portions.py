"""What was read at once does not hold the loop."""

import itertools

import pytest
import trio

from trio_envserve import WireLimits, open_server
from trio_envserve.core import messages
from trio_envserve.core.router import Router
from trio_envserve.core.router_effects import RouterEffect
from trio_envserve.core.router_inputs import ClientMessage, RouterInput
from trio_envserve.net import MemoryNetwork
from trio_envserve.server.portions import PORTION_HEADER_BYTES


async def test_long_headers_held_the_loop_for_half_a_second(monkeypatch: pytest.MonkeyPatch):
    """A statement of a window full of gaps takes 50 ms, and ten of them came in a turn."""
    network = MemoryNetwork()
    seen: list[str] = []
    take = Router.take

    def taken(self: Router, given: RouterInput) -> list[RouterEffect]:
        if isinstance(given, ClientMessage):
            seen.append("taken")
        return take(self, given)

    async def others() -> None:
        while True:
            seen.append("others")
            await trio.lowlevel.checkpoint()

    monkeypatch.setattr(Router, "take", taken)
    said = messages.encode(messages.Finish(bytes(16), list(range(10_000))))
    assert len(said) > PORTION_HEADER_BYTES
    with trio.fail_after(60):
        async with (
            open_server("arithmetic", workers=0, network=network, bind="memory:s") as server,
            network.open_dealer(server.address, limits=WireLimits()) as dealer,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(others)
            for _ in range(10):
                assert dealer.send_nowait([said])
            while seen.count("taken") < 10:
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
    # Tasks take their steps in any order: the last of a turn may be the first of the next.
    assert max(len(list(same)) for kind, same in itertools.groupby(seen) if kind == "taken") <= 2

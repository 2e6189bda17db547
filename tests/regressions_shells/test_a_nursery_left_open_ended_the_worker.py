"""An environment that leaves a nursery open in its task (an ``__aenter__`` without its
``__aexit__``, an async generator with one inside) makes trio itself complain, outside
of everything that catches what environments raise: the worker ended, with all
executions on it.
"""

import trio

from trio_envserve import RolloutFailed, open_client, open_server
from trio_envserve.net import MemoryNetwork

TRIO_NOTICES = tuple(map(int, trio.__version__.split(".")[:2])) >= (0, 31)
"""Earlier ones take a task that leaves its nursery open for one that is done."""


class Leaves:
    """Leaves a nursery open, or waits, as it is told."""

    def __init__(self) -> None:
        self.began = trio.Event()
        self.gate = trio.Event()
        self.ended = 0

    async def run_rollout(self, rollout):
        if rollout.input == "leave":
            nursery = await trio.open_nursery().__aenter__()
            nursery.start_soon(self._child)
        else:
            self.began.set()
            await self.gate.wait()
        return "done"

    async def _child(self):
        try:
            await trio.sleep_forever()
        finally:
            self.ended += 1


async def test_it_is_the_failure_of_that_rollout_only(autojump_clock):
    network = MemoryNetwork()
    environment = Leaves()
    outcomes = {}
    with trio.fail_after(600):
        async with (
            open_server(environment, bind="memory:s", workers=0, network=network) as server,
            open_client(server.address, network=network) as client,
            trio.open_nursery() as nursery,
        ):

            async def ask(what):
                outcomes[what] = await client.outcome(what)

            nursery.start_soon(ask, "wait")
            await environment.began.wait()
            await ask("leave")
            if TRIO_NOTICES:
                assert isinstance(outcomes["leave"].error, RolloutFailed)
                # What it held has ended: an execution leaves nothing running.
                assert environment.ended == 1
            environment.gate.set()
    assert outcomes["wait"].unwrap() == "done"

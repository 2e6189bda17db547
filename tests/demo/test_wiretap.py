"""A client whose socket is tapped."""

from __future__ import annotations

import json

import trio

from trio_envserve import open_client, open_server
from trio_envserve.lab.demo.wiretap import CallLogNetwork
from trio_envserve.lab.logs import EventLog
from trio_envserve.net import MemoryNetwork
from trio_envserve.testing.retransmit import RetransmittingNetwork


class Gate:
    """An environment whose rollouts wait."""

    def __init__(self) -> None:
        self.open = trio.Event()

    async def run_rollout(self, rollout):
        await self.open.wait()
        return rollout.input


def events(path, kind):
    found = [json.loads(text) for text in path.read_text().splitlines()]
    return [event for event in found if event["kind"] == kind]


async def test_every_transmission_and_every_outcome_is_written_down(tmp_path):
    path, environment, network = tmp_path / "log", Gate(), MemoryNetwork()
    log = EventLog(path)
    received: set[str] = set()
    tapped = CallLogNetwork(network, "c7", log, received)
    with trio.fail_after(60):
        async with (
            open_server(environment, workers=0, bind="memory:tapped", network=network) as server,
            open_client(
                server.address, network=RetransmittingNetwork(tapped, pauses_s=(0.01, 0.02))
            ) as client,
        ):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.run_rollout, {"request": "mine"})
                while len(events(path, "sent")) < 3:  # noqa: ASYNC110  # it is a file
                    await trio.sleep(0.01)
                environment.open.set()
    log.close()
    sent, (outcome,) = events(path, "sent"), events(path, "arrived")
    assert {event["request"] for event in (*sent, outcome)} == {"mine"}
    assert {event["what"]["id"] for event in (*sent, outcome)} == received
    assert len(received) == 1
    assert events(path, "linked")[0]["what"]["how"] == "connected"
    assert all(event["actor"] == "c7" for event in (*sent, outcome))

"""A client whose socket is tapped."""

from __future__ import annotations

import json

import trio

from trio_envserve import open_client, open_server
from trio_envserve.lab.demo.logs import CallerTap
from trio_envserve.lab.demo.wiretap import TappedNetwork
from trio_envserve.lab.logs import JsonLog
from trio_envserve.net import MemoryNetwork
from trio_envserve.testing.retransmit import RetransmittingNetwork


class Gate:
    """An environment whose rollouts wait."""

    def __init__(self) -> None:
        self.open = trio.Event()

    async def run_rollout(self, rollout):
        await self.open.wait()
        return rollout.input


def lines(path, event):
    found = [json.loads(text) for text in path.read_text().splitlines()]
    return [line for line in found if line["event"] == event]


async def test_every_transmission_and_every_outcome_is_written_down(tmp_path):
    path, environment, network = tmp_path / "log", Gate(), MemoryNetwork()
    log = JsonLog(path)
    received: set[tuple[bytes, int]] = set()
    tapped = TappedNetwork(network, CallerTap(7, log, received))
    with trio.fail_after(60):
        async with (
            open_server(environment, workers=0, bind="memory:tapped", network=network) as server,
            open_client(
                server.address, network=RetransmittingNetwork(tapped, pauses_s=(0.01, 0.02))
            ) as client,
        ):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.run_rollout, {"key": "mine"})
                while len(lines(path, "request")) < 3:  # noqa: ASYNC110  # it is a file
                    await trio.sleep(0.01)
                environment.open.set()
            while not lines(path, "pong"):  # noqa: ASYNC110  # it is a file
                await trio.sleep(0.01)
    log.close()
    requests, (outcome,) = lines(path, "request"), lines(path, "outcome")
    assert {line["key"] for line in requests} == {"mine"}
    assert {(line["session"], line["sequence"]) for line in (*requests, outcome)} == {
        (outcome["session"], 0)
    }
    assert received == {(bytes.fromhex(outcome["session"]), 0)}
    assert len(lines(path, "connected")) == 1
    probes = {line["probe"] for line in lines(path, "ping")}
    assert {line["probe"] for line in lines(path, "pong")} <= probes
    assert all(line["caller"] == 7 for line in (*requests, outcome))


async def test_the_router_side_is_the_wrapped_network_s(tmp_path):
    network, log = MemoryNetwork(), JsonLog(tmp_path / "log")
    tapped = TappedNetwork(network, CallerTap(0, log, set()))
    with trio.fail_after(60):
        async with (
            open_server(Gate(), workers=0, bind="memory:untapped", network=tapped) as server,
            open_client(server.address, network=network) as client,
        ):
            await client.wait_ready(30)
    log.close()
    assert not (tmp_path / "log").read_text()

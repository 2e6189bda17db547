"""Hosts that start no processes: a program with hundreds of them, over real sockets.

``python -m tests.cost.hosts ADDRESS COUNT``

Theory of operation
-------------------
The pure parts of hosts and of workers are the real ones, each host with a connection of its own
and one worker.  Guards, processes and environments are missing between them, so all that is
measured is the router's: a rollout lasts until it is cancelled.  When all hosts hold their leases
and their workers are ready there, a line is printed.  It ends with its standard input.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from itertools import cycle
from typing import final

import trio

from tests.rig.program import input_ends, say
from trio_envserve.core import error_records
from trio_envserve.core.heartbeat import Heartbeat
from trio_envserve.core.host import FromHost, Host, TellWorker
from trio_envserve.core.limits import WireLimits
from trio_envserve.core.router_effects import Kill, Spawn
from trio_envserve.core.terms import Status
from trio_envserve.core.worker import (
    BeatDue,
    CancelRun,
    EnvironmentReady,
    OutcomeMade,
    RouterMessage,
    ToRouter,
    WorkerCore,
    WorkerInput,
    frames_to_router,
    never_began,
)
from trio_envserve.host.joined import boot_s
from trio_envserve.net import DealerSocket, open_zmtp_network

BEAT_S = 1.0
READY = EnvironmentReady(1, "simulated", False, 1 << 20)  # as many as the router lets it


async def main(address: str, count: int) -> None:
    """Run until the end of standard input."""
    async with open_zmtp_network() as network, AsyncExitStack() as stack:
        hosts = []
        for number in range(count):
            opened = network.open_dealer(address, limits=WireLimits())
            hosts.append(SimulatedHost(f"h{number}", await stack.enter_async_context(opened)))
        nursery = await stack.enter_async_context(trio.open_nursery())
        for host in hosts:
            nursery.start_soon(host.listen)
        nursery.start_soon(_beat, hosts)
        while not all(host.is_ready for host in hosts):  # noqa: ASYNC110  # it sets no event
            await trio.sleep(0.1)
        say("joined")
        await input_ends()
        nursery.cancel_scope.cancel()


async def _beat(hosts: Sequence[SimulatedHost]) -> None:
    """One after the other, each once in a while."""
    for host in cycle(hosts):
        host.beat()
        await trio.sleep(BEAT_S / len(hosts))


@final
class SimulatedHost:
    """One host, with one worker."""

    def __init__(self, name: str, socket: DealerSocket) -> None:
        self._core = Host(name, 1, lambda: os.urandom(16))
        self._socket = socket
        self._workers: dict[bytes, WorkerCore] = {}
        self._core.connect()
        self._carry_out()

    @property
    def is_ready(self) -> bool:
        """Whether its worker was heard by the router."""
        return any(core._hello for core in self._workers.values())

    async def listen(self) -> None:
        """Take in what the router says, until cancelled."""
        while True:
            for frames in await self._socket.receive():
                self._core.message([bytes(frame) for frame in frames], boot_s())
            self._carry_out()

    def beat(self) -> None:
        """It is time for a beat, of the worker, too."""
        self._core.beat(boot_s())
        for worker in self._workers:
            self._core.worker_heartbeat(worker, Heartbeat())
            self._give(worker, BeatDue({}))
        self._carry_out()

    def _carry_out(self) -> None:
        self._core.flush()
        while self._core.out:
            out, self._core.out = self._core.out, []
            for effect in out:
                match effect:
                    case FromHost():
                        self._socket.send_nowait(effect.frames)
                    case Spawn(worker=worker):
                        self._workers[worker] = WorkerCore(effect.incarnation)
                        self._core.spawned(worker, 1)
                        self._give(worker, READY)
                    case TellWorker(worker=worker):
                        self._give(worker, RouterMessage(effect.frames))
                    case Kill(worker=worker):
                        del self._workers[worker]
                        self._core.exited(worker, "it was killed")
            self._core.flush()

    def _give(self, worker: bytes, *given: WorkerInput) -> None:
        """Give a worker an input, and all that follows from it."""
        core = self._workers[worker]
        said: list[ToRouter] = []
        inputs = [*given]
        while inputs:
            effects, inputs = [e for each in inputs for e in core.take(each)], []
            for effect in effects:
                match effect:
                    case ToRouter():
                        said.append(effect)
                    case CancelRun(number):
                        record = error_records.encode(never_began(core.running[number][0]))
                        inputs.append(OutcomeMade(number, Status.CANCELLED, record, 0.0))
        for frames in frames_to_router(said):
            self._core.worker_message(worker, [bytes(frame) for frame in frames])


if __name__ == "__main__":
    trio.run(main, sys.argv[1], int(sys.argv[2]))

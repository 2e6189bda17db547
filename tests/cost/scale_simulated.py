"""Hosts that start no processes: a program with hundreds of them, over real sockets.

``python -m tests.cost.scale_simulated '{"address": ..., "hosts": 200}'``

Theory of operation
-------------------
The pure parts of hosts and of workers are the real ones, each host with a connection of its
own.  Only what lies between them is missing: guards, processes, and environments.  A rollout
whose input is ``"hold"`` lasts until it is cancelled; any other one has ended at once.  When
all hosts hold their leases and their workers are ready there, the line ``{"event": "joined"}``
is printed.  It ends with its standard input.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AsyncExitStack
from itertools import cycle
from typing import Any, final

import cbor2
import trio

from trio_envserve.core import error_records
from trio_envserve.core.heartbeat import Heartbeat
from trio_envserve.core.host import Host
from trio_envserve.core.host_effects import KillWorker, StartWorker, TellWorker
from trio_envserve.core.host_effects import ToRouter as HostSays
from trio_envserve.core.limits import WireLimits
from trio_envserve.core.terms import Status
from trio_envserve.core.worker import WorkerCore, never_began
from trio_envserve.core.worker_effects import (
    CancelRun,
    Run,
    ToRouter,
    WorkerEffect,
    frames_to_router,
)
from trio_envserve.core.worker_inputs import (
    BeatDue,
    EnvironmentReady,
    OutcomeMade,
    RouterMessage,
    WorkerInput,
)
from trio_envserve.host.joined import boot_s
from trio_envserve.lab.orders import given_options, input_ends, say
from trio_envserve.net import DealerSocket, open_zmtp_network

BEAT_S = 1.0
HOLD = cbor2.dumps("hold")
DONE = cbor2.dumps(None)


def main() -> int:
    """Run until the end of standard input."""
    trio.run(_run, given_options("python -m tests.cost.scale"))
    return 0


async def _run(options: dict[str, Any]) -> None:
    async with open_zmtp_network() as network, AsyncExitStack() as stack:
        hosts = []
        for number in range(options["hosts"]):
            opened = network.open_dealer(options["address"], limits=WireLimits())
            socket = await stack.enter_async_context(opened)
            hosts.append(SimulatedHost(f"h{number}", socket))
        nursery = await stack.enter_async_context(trio.open_nursery())
        for host in hosts:
            nursery.start_soon(host.listen)
        nursery.start_soon(_beat, hosts)
        while not all(host.is_ready for host in hosts):  # noqa: ASYNC110  # it sets no event
            await trio.sleep(0.1)
        say("joined", pid=os.getpid())
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
        return any(core.acknowledged for core in self._workers.values())

    async def listen(self) -> None:
        """Take in what the router says, until cancelled."""
        while True:
            for frames in await self._socket.receive():
                self._core.message([bytes(frame) for frame in frames], boot_s())
            self._carry_out()

    def beat(self) -> None:
        """It is time for a beat, of the worker, too."""
        self._core.beat(boot_s())
        for worker, core in self._workers.items():
            self._core.felt(worker, Heartbeat())
            if not core.acknowledged:
                self._give(worker, EnvironmentReady(1, "simulated", False))
            self._give(worker, BeatDue({}))
        self._carry_out()

    def _carry_out(self) -> None:
        self._core.flush()
        while self._core.out:
            out, self._core.out = self._core.out, []
            for effect in out:
                match effect:
                    case HostSays():
                        self._socket.send_nowait(effect.frames)
                    case StartWorker():
                        core = WorkerCore(
                            effect.incarnation, header_bytes=WireLimits().header_bytes
                        )
                        self._workers[effect.worker] = core
                        self._core.spawned(effect.worker, 1)
                        self._give(effect.worker, EnvironmentReady(1, "simulated", False))
                    case TellWorker():
                        self._give(effect.worker, RouterMessage(effect.frames))
                    case KillWorker():
                        del self._workers[effect.worker]
                        self._core.exited(effect.worker, "it was killed")
            self._core.flush()

    def _give(self, worker: bytes, *given: WorkerInput) -> None:
        """Give a worker an input, and all that follows from it."""
        core = self._workers[worker]
        said: list[ToRouter] = []
        inputs = [*given]
        while inputs:
            effects, inputs = [e for each in inputs for e in core.take(each)], []
            for effect in effects:
                if isinstance(effect, ToRouter):
                    said.append(effect)
                else:
                    inputs += _runs(core, effect)
        for frames in frames_to_router(said):
            self._core.said(worker, [bytes(frame) for frame in frames])


def _runs(core: WorkerCore, effect: WorkerEffect) -> list[WorkerInput]:
    """The inputs that an execution comes to."""
    match effect:
        case Run() if HOLD not in bytes(effect.body):
            return [OutcomeMade(effect.number, Status.RESULT, DONE, 0.0)]
        case CancelRun():
            request, _ = core.running[effect.number]
            said = error_records.encode(never_began(request))
            return [OutcomeMade(effect.number, Status.CANCELLED, said, 0.0)]
        case _:
            return []


if __name__ == "__main__":
    raise SystemExit(main())

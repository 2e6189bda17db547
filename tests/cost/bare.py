"""Bare: the sockets, tasks and cancel scopes of this project, and nothing else.

``python -m tests.cost.bare router``
``python -m tests.cost.bare worker ADDRESS``
``python -m tests.cost.bare client ADDRESS``

Three trio programs over :mod:`trio_envserve.net`: a task for each request in flight
that sleeps until it is answered, a router that passes on, a worker with a task and a
cancel scope for each message.  No codec, no header to check, nothing remembered,
decided or repaired.  What ours takes more than this is its protocol; what this takes
more than the plain loop are trio and isolated executions.
The router's first line of output has its two addresses; router and worker end with
their standard input.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, NoReturn, final

import trio

from tests.cost.client import serve
from tests.cost.driver import answer
from trio_envserve.core.limits import WireLimits
from trio_envserve.lab.orders import input_ends
from trio_envserve.net import ConnectionEvent, DealerSocket, Frame, Message, Network, open_network

_HEADER = struct.Struct(">QQ24x")
"""The number of the request and the size of the wanted answer; as in ``plain``."""

_WIRE = WireLimits()


@final
class _Together:
    """Sends what is there at the end of a turn of the loop, all at once."""

    def __init__(self, send: Callable[[Sequence[Message]], bool]) -> None:
        self._send = send
        self._messages: list[Message] = []
        self._some = trio.Event()

    def put(self, message: Message) -> None:
        self._messages.append(message)
        self._some.set()

    async def run(self) -> None:
        while True:
            await self._some.wait()
            messages, self._messages, self._some = self._messages, [], trio.Event()
            self._send(messages)


async def router() -> None:
    """Forward between clients and the one worker."""
    async with (
        open_network() as network,
        network.open_router("tcp://127.0.0.1:0", limits=_WIRE) as front,
        network.open_router("tcp://127.0.0.1:0", limits=_WIRE) as back,
        trio.open_nursery() as nursery,
    ):
        known = trio.Event()
        to_worker = b""

        async def forward() -> None:
            await known.wait()
            while True:
                back.send_many_nowait(to_worker, await front.receive())

        async def give_back() -> None:
            nonlocal to_worker
            [[first, _]] = await back.receive()
            to_worker = bytes(first)
            known.set()
            while True:
                by_route: dict[bytes, list[Message]] = {}
                for _, route, *frames in await back.receive():
                    by_route.setdefault(bytes(route), []).append(frames)
                for route, messages in by_route.items():
                    front.send_many_nowait(route, messages)

        nursery.start_soon(forward)
        nursery.start_soon(give_back)
        answer({"front": front.address, "back": back.address})
        await input_ends()
        nursery.cancel_scope.cancel()


async def worker(address: str) -> None:
    """Answer each message, each in a task of its own, with what it asks for."""
    payloads: dict[int, bytes] = {}
    connected = trio.Event()

    def said(event: ConnectionEvent) -> None:
        if event is ConnectionEvent.CONNECTED:
            connected.set()

    async with (
        open_network() as network,
        network.open_dealer(address, limits=_WIRE, on_event=said) as socket,
        trio.open_nursery() as nursery,
    ):
        together = _Together(socket.send_many_nowait)
        nursery.start_soon(together.run)

        async def execute(route: Frame, header: Frame) -> None:
            with trio.CancelScope(shield=True):  # noqa: ASYNC100  # what it costs is asked
                _, wanted = _HEADER.unpack(header)
                payload = payloads.get(wanted)
                if payload is None:
                    payload = payloads[wanted] = bytes(wanted)
                together.put((route, header, payload))

        async def take_in(ward: trio.Nursery) -> None:
            while True:
                for route, header, _ in await socket.receive():
                    ward.start_soon(execute, route, header)

        nursery.start_soon(take_in, nursery)
        await connected.wait()
        socket.send_nowait([b"here I am"])  # so that the router has a route to it
        answer({"ready": True})
        await input_ends()
        nursery.cancel_scope.cancel()


@final
class _Caller:
    """One connection, any number of calls."""

    def __init__(self, socket: DealerSocket) -> None:
        self.socket = socket
        self.together = _Together(socket.send_many_nowait)
        self._waiting: dict[int, tuple[trio.Event, list[Frame]]] = {}

    async def run_rollout(self, asked: dict[str, Any]) -> dict[str, Any]:
        """As the real client's; only numbers and bytes are passed on."""
        call = asked["call"]
        event, box = self._waiting[call] = trio.Event(), []
        message = (_HEADER.pack(call, asked["response"]), asked["payload"])
        if len(self._waiting) > 1:
            self.together.put(message)
        else:
            self.socket.send_many_nowait([message])
        await event.wait()
        return {"call": call, "payload": box[0]}

    async def receive(self) -> None:
        while True:
            for header, payload in await self.socket.receive():
                event, box = self._waiting.pop(_HEADER.unpack(header)[0])
                box.append(payload)
                event.set()


def open_caller(network: Network) -> Callable[[str], AbstractAsyncContextManager[_Caller]]:
    """The function that opens connections for :func:`.client.serve`."""

    @asynccontextmanager
    async def opened(address: str) -> AsyncGenerator[_Caller, None]:
        async with (
            network.open_dealer(address, limits=_WIRE) as socket,
            trio.open_nursery() as nursery,
        ):
            caller = _Caller(socket)
            nursery.start_soon(caller.together.run)
            nursery.start_soon(caller.receive)
            yield caller
            nursery.cancel_scope.cancel()

    return opened


async def client(address: str) -> None:
    """Carry out loads, as the real client's program does."""
    async with open_network() as network:
        await serve(address, open_caller(network))


def main() -> NoReturn:
    """Run the program that the first argument names."""
    programs: dict[str, Any] = {"router": router, "worker": worker, "client": client}
    trio.run(programs[sys.argv[1]], *sys.argv[2:])
    sys.exit(0)


if __name__ == "__main__":
    main()

"""The benchmark's client of this project: a program of its own.

``python -m tests.cost.client ADDRESS [FILE]``

FILE has the keys for a server that needs some.

As many tasks as there are requests in flight, each making one call after the
other, or one ``run_many`` with so many in flight: what a user would write.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any, Protocol, TypeAlias, cast

import trio

from tests.cost.driver import Tally, answer
from trio_envserve.client import Client, open_client
from trio_envserve.lab.orders import obey_orders
from trio_envserve.net.keypairs import ClientCurve


class Caller(Protocol):
    """The part of a client that a load needs."""

    async def run_rollout(self, input: Any) -> Any:
        """See :meth:`trio_envserve.Client.run_rollout`."""
        ...


Open: TypeAlias = Callable[[str], AbstractAsyncContextManager[Caller]]
"""Opens a connection to an address, ready for calls."""


def main() -> None:
    """Carry out loads until standard input ends."""
    curve = ClientCurve.from_file(sys.argv[2]) if sys.argv[2:] else None
    trio.run(serve, sys.argv[1], partial(open_ready, curve=curve))


@asynccontextmanager
async def open_ready(
    address: str, curve: ClientCurve | None = None
) -> AsyncGenerator[Client, None]:
    """A client whose server is ready."""
    async with open_client(address, curve=curve) as client:
        await client.wait_ready()
        yield client


async def serve(address: str, open_one: Open = open_ready) -> None:
    """Connect, and carry out loads until standard input ends."""
    async with AsyncExitStack() as stack:
        clients: list[Caller] = []
        answer({"ready": True})
        send, receive = trio.open_memory_channel[dict[str, Any]](1)
        nursery = await stack.enter_async_context(trio.open_nursery())
        nursery.start_soon(_hand_in, send, nursery)
        async for load in receive:
            while len(clients) < load["clients"]:
                clients.append(await stack.enter_async_context(open_one(address)))
            answer(await carry_out(load, clients[: load["clients"]]))


async def carry_out(load: dict[str, Any], clients: list[Caller]) -> dict[str, Any]:
    """One load, to its last answer."""
    if load["together"]:
        return await _carry_out_together(load, cast(Client, clients[0]))
    tally = Tally(load)
    payload = bytes(load["request_bytes"])
    wanted = load["response"]

    async def keep_asking(client: Caller) -> None:
        while True:
            call, began_s = tally.begin()
            asked = {"call": call, "response": wanted, "payload": payload}
            if load["keyed"]:
                got = await cast(Client, client).run_rollout(asked, key=f"call-{call}")
            else:
                got = await client.run_rollout(asked)
            tally.wrong += got["call"] != call or not _is_right(got, wanted)
            tally.end(began_s)
            if not tally.more():
                return

    async with trio.open_nursery() as nursery:
        for index in range(load["in_flight"]):
            nursery.start_soon(keep_asking, clients[index % len(clients)])
    return tally.figures()


async def _carry_out_together(load: dict[str, Any], client: Client) -> dict[str, Any]:
    """The same by one ``run_many``, over one connection."""
    tally = Tally(load)
    payload, wanted = bytes(load["request_bytes"]), load["response"]
    begun: dict[int, tuple[int, float]] = {}

    def inputs() -> Iterator[dict[str, Any]]:
        for index in itertools.count():
            if index >= load["in_flight"] and not tally.more():
                return
            call, _ = begun[index] = tally.begin()
            yield {"call": call, "response": wanted, "payload": payload}

    async with client.run_many(inputs(), in_flight=load["in_flight"]) as outcomes:
        async for index, outcome in outcomes:
            call, began_s = begun.pop(index)
            got = outcome.unwrap()
            tally.wrong += got["call"] != call or not _is_right(got, wanted)
            tally.end(began_s)
    return tally.figures()


def _is_right(got: dict[str, Any], wanted: Any) -> bool:
    if isinstance(wanted, int):
        return len(got["payload"]) == wanted
    return len(got["token_ids"]) == len(got["logprobs"]) == 4000


async def _hand_in(send: trio.MemorySendChannel[dict[str, Any]], nursery: trio.Nursery) -> None:
    """The lines of standard input; when it ends, everything does, also in the
    middle of a load whose server is gone."""
    await obey_orders(send.send)
    nursery.cancel_scope.cancel()


if __name__ == "__main__":
    main()

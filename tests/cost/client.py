"""The client of this project: a program of its own.

``python -m tests.cost.client ADDRESS [FILE]``; FILE has the keys for a server that needs some.

As many tasks as there are requests in flight, each making one call after the other, or one
``run_many`` with so many in flight: as a user would write it.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Any

import trio

from tests.cost.load import TOKENS, Tally, answer
from tests.rig.program import obey_orders
from trio_envserve.client import Client, open_client
from trio_envserve.net.keypairs import ClientCurve


async def serve(address: str, file: str) -> None:
    """Connect, and carry out loads until standard input ends, even amid a load whose server is
    gone."""
    curve = ClientCurve.from_file(file) if file else None
    clients: list[Client] = []

    async with AsyncExitStack() as stack:

        async def obey(load: dict[str, Any]) -> None:
            while len(clients) < load["clients"]:
                client = await stack.enter_async_context(open_client(address, curve=curve))
                await client.wait_ready()
                clients.append(client)
            answer(await carry_out(load, clients[: load["clients"]]))

        answer({"ready": True})
        send, receive = trio.open_memory_channel[dict[str, Any]](1)
        nursery = await stack.enter_async_context(trio.open_nursery())

        async def hand_in() -> None:
            await obey_orders(send.send)
            nursery.cancel_scope.cancel()

        nursery.start_soon(hand_in)
        async for load in receive:
            await obey(load)


async def carry_out(load: dict[str, Any], clients: list[Client]) -> dict[str, Any]:
    """One load, to its last answer."""
    tally = Tally(load)
    payload, wanted = bytes(load["request_bytes"]), load["response"]
    model = {"model": load["model"], "model_name": "m"} if load["turns"] else {}

    def input_of(call: int) -> dict[str, Any]:
        asked = {"call": call, "response": wanted, "payload": payload}
        return {**asked, "turns": load["turns"]} if model else asked

    async def keep_asking(client: Client) -> None:
        while True:
            call, began_s = tally.begin()
            if load["keyed"]:
                got = await client.run_rollout(input_of(call), key=f"call-{call}")
            else:
                got = await client.run_rollout(input_of(call), **model)
            tally.end(began_s, _is_right(got, call, wanted))
            if not tally.more():
                return

    async def run_many(client: Client) -> None:
        begun: dict[int, tuple[int, float]] = {}

        def inputs() -> Iterator[dict[str, Any]]:
            for index in itertools.count():
                if index >= load["in_flight"] and not tally.more():
                    return
                begun[index] = tally.begin()
                yield input_of(begun[index][0])

        async with client.run_many(inputs(), in_flight=load["in_flight"]) as outcomes:
            async for index, outcome in outcomes:
                call, began_s = begun.pop(index)
                tally.end(began_s, _is_right(outcome.unwrap(), call, wanted))

    if load["together"]:
        await run_many(clients[0])
    else:
        async with trio.open_nursery() as nursery:
            for index in range(load["in_flight"]):
                nursery.start_soon(keep_asking, clients[index % len(clients)])
    return tally.figures()


def _is_right(got: dict[str, Any], call: int, wanted: Any) -> bool:
    if wanted == "any":
        return True
    if isinstance(wanted, int):
        return bool(got["call"] == call and len(got["payload"]) == wanted)
    return bool(got["call"] == call and len(got["token_ids"]) == len(got["logprobs"]) == TOKENS)


if __name__ == "__main__":
    trio.run(serve, sys.argv[1], "".join(sys.argv[2:]))

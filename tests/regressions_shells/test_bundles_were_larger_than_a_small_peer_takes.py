"""Small messages that go together were larger than the frames that a side with small
limits takes: with ``message_bytes`` of 16 KiB they were dropped by the sender or cost
the connection, were asked for again, put together again, and so on for ever.
"""

import pytest
import trio

from trio_envserve import ServerLimits, WireLimits, open_client, open_server

SMALL = WireLimits(message_bytes=2048, header_bytes=2048)
LIMITS = ServerLimits(window=100)
CALLS = 100


async def echo(rollout):
    return rollout.input


@pytest.mark.parametrize("small", ["server", "client", "both"])
async def test_many_small_calls_pass_a_small_limit(small):
    server_wire = None if small == "client" else SMALL
    client_wire = None if small == "server" else SMALL
    answers = {}
    with trio.fail_after(60):
        async with (
            open_server(echo, workers=0, wire=server_wire, limits=LIMITS) as server,
            open_client(server.address, wire=client_wire) as client,
            trio.open_nursery() as nursery,
        ):

            async def call(number):
                answers[number] = await client.run_rollout(f"{number:01000}")

            await client.wait_ready()
            for number in range(CALLS):
                nursery.start_soon(call, number)
    assert answers == {number: f"{number:01000}" for number in range(CALLS)}
    assert client.counters().connections == 1
    assert client.counters().retransmitted == 0

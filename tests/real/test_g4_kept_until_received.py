"""G4: an outcome stays replayable until its client has it; what is forgotten is refused."""

import signal
from typing import Any

import trio

from tests.real.support import (
    asked,
    open_client_process,
    open_server,
    serving_cut,
    serving_raw,
    until,
)
from trio_envserve import ClientLimits, OutcomeNotDecodable, WireLimits, open_client
from trio_envserve.testing.proxy import open_fault_proxy


async def test_g4_what_ends_while_the_connection_is_gone_is_there_when_it_is_back(judge):
    async with serving_cut(judge) as (_, proxy, calls):
        keys = [calls.start(f"k{n}", ["wait", "go"]) for n in range(10)]
        await judge.wait_started(*keys)
        proxy.stall()
        proxy.cut_all()
        judge.put("go")
        await judge.wait_ended(*keys)
        assert calls.outcomes == {}
        proxy.resume()
        await calls.values(*keys)
    judge.assert_exactly_once(*keys)


async def test_g4_a_half_open_connection_loses_nothing(judge):
    """The client's side stands, and what it sends disappears."""
    limits = ClientLimits(ping_s=0.2, reconnect_s=1.0, late_s=0.2)
    async with (
        open_server(judge) as server,
        open_fault_proxy(server.address) as proxy,
        open_client(proxy.address, limits=limits) as client,
        trio.open_nursery() as nursery,
    ):
        outcomes = []

        async def call():
            outcomes.append(await client.outcome({"key": "a", "do": [["wait", "go"]]}))

        nursery.start_soon(call)
        await judge.wait_started("a")
        assert proxy.half_open() == 1
        judge.put("go")
        await until(lambda: outcomes != [])
        assert outcomes[0].ok
    judge.assert_exactly_once("a")


async def test_g4_a_stopped_client_finds_its_outcomes_when_it_goes_on(judge):
    async with open_server(judge) as server:
        asked: list[Any] = [({"key": f"k{n}", "do": [["wait", "go"]]}, {}) for n in range(5)]
        keys = [call[0]["key"] for call in asked]
        async with open_client_process(judge, server.address, asked) as client:
            await judge.wait_started(*keys)
            client.signal(signal.SIGSTOP)
            judge.put("go")
            await judge.wait_ended(*keys)
            await until(lambda: server.stats().kept == 5)
            client.signal(signal.SIGCONT)
            said = [await client.line() for _ in keys]
            assert sorted(line["key"] for line in said) == keys
            assert [line["error"] for line in said] == [None] * 5
            assert await client.wait() == 0
        await until(lambda: server.stats().kept == 0)
    judge.assert_exactly_once(*keys)


async def test_g4_an_outcome_is_kept_past_the_bound_that_pauses_dispatching(judge):
    """At the bound nothing that has run is thrown away for what has not."""
    async with serving_raw(judge, kept_bytes=1, session_share=1.0, worker_capacity=3) as (_, raw):
        for n in range(3):
            raw.transmit(n, asked(f"k{n}", ["wait", "go"]))
        await judge.wait_started("k0", "k1", "k2")
        judge.put("go")
        for n in range(3):
            await raw.outcome(n)
        for n in range(3):
            raw.again(n)
            await raw.outcome(n)
    judge.assert_exactly_once("k0", "k1", "k2")


async def test_g4_what_cannot_be_decoded_is_in_the_caller_s_hands_as_bytes(judge):
    """Received it is, too: the server may forget it."""
    async with (
        open_server(judge) as server,
        open_client(server.address, wire=WireLimits(keys=100)) as client,
    ):
        given = {"key": "a", "value": {"keys": 400}}
        outcome = await client.outcome(given)
        assert type(outcome.error) is OutcomeNotDecodable
        assert len(outcome.error.raw) > 400
        await until(lambda: server.stats().kept == 0)
    judge.assert_exactly_once("a")

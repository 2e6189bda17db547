"""Cases through the fault proxy: what is lost with a connection, and comes back."""

from __future__ import annotations

import random

import trio

from ...core import messages
from ...testing.proxy import Direction, FaultProxy
from .bench import Bench
from .findings import case, check
from .forms import same_bytes
from .patient import PatientClient

ROLLOUTS = 100
AT_ONCE = 25
RUN_S = 0.15
"""How long each of them runs, so that faults find some that do."""

STORM_S = 15.0
"""In which all must have come to an end; far more than it takes."""

PAUSE_S = 0.15
"""Between faults."""

STALL_S = 0.3


@case("Transport", "G9", faults=True)
async def a_client_is_answered_on_its_new_connection_though_the_old_one_hangs(bench: Bench) -> None:
    """A client that is back is answered, though its old connection stands."""
    async with bench.proxied() as (proxy, old):
        asked, _ = await bench.running(old)
        proxy.stall()
        async with bench.next_connection(old) as new:
            await new.sync(1, [0, 1])
            await bench.let_end(asked, new, 0, "the outcome on the new connection")


@case("Transport", "G1", faults=True)
async def half_a_request_is_none(bench: Bench) -> None:
    """A connection cut in the middle of a request leaves nothing: it is missing, then runs once."""
    async with bench.proxied() as (proxy, peer):
        asked = bench.echo(b"x" * 50_000)
        proxy.drop_after(20_000, Direction.TO_SERVER)
        sent = peer.transmit(0, asked)
        while proxy.counters.cut == 0:  # noqa: ASYNC110  # bounded by the case
            await trio.sleep(0.01)
        async with bench.next_connection(peer) as back:
            await back.misses([0, 1], 1, [0, 1], "it was never seen")
            back.again(sent)
            await back.result(0)
        await bench.ran(asked, 1, "it ran once")


@case("Requests", "G4", faults=True)
async def an_outcome_lost_on_its_way_is_replayed(bench: Bench) -> None:
    """Cut between the sending of an outcome and its receipt, it is there after the reconnect."""
    async with bench.proxied() as (proxy, peer):
        asked, sent = await bench.running(peer)
        mark = asked["key"].encode()
        with trio.move_on_after(bench.patience_s):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(proxy.cut_before_receipt, lambda data: mark in data)
                await bench.open(asked)
        check(proxy.counters.withheld_bytes > 0, "an outcome on its way", "none came by")
        async with bench.next_connection(peer, through=proxy.address) as back:
            await back.sync(1, [0, 1])
            first = await back.outcome(0, "the outcome that was lost")
            back.again(sent)
            await back.replayed(0, first)
        await bench.ran(asked, 1, "it ran once")


@case("Sync", "G7", faults=True)
async def a_finish_lost_on_its_way_is_repaired_by_a_sync(bench: Bench) -> None:
    """The next statement repeats a finish that was lost with a cut connection."""
    async with bench.proxied() as (proxy, peer):
        asked, _ = await bench.running(peer)
        proxy.half_open()
        peer.finish(0)
        peer.send(messages.Cancel(peer.session, 0))
        async with bench.next_connection(peer, through=proxy.address) as back:
            await bench.runs_on(asked, "it runs: nobody told the server")
            await back.sync(1, [])
            await bench.is_cancelled(asked)


@case("Connections", "G9", faults=True)
async def a_half_open_connection_is_left_for_a_new_one(bench: Bench) -> None:
    """A client that hears nothing goes on over a new connection, with a new routing id."""
    async with bench.proxied() as (proxy, peer):
        asked, _ = await bench.running(peer)
        proxy.half_open()
        async with bench.next_connection(peer, through=proxy.address) as back:
            await back.misses([], 1, [0, 1], "it is known")
            await bench.let_end(asked, back, 0, "the outcome on the new connection")
        await bench.ran(asked, 1, "it ran once")


@case("A minimal client", "G2", faults=True)
async def a_stall_with_retransmissions_runs_nothing_twice(bench: Bench) -> None:
    """Transmissions that pile up while the network stands still are taken for duplicates."""
    async with bench.proxied() as (proxy, peer):
        asked = [bench.wait(seconds=RUN_S) for _ in range(10)]
        sent = [peer.transmit(n, one) for n, one in enumerate(asked)]
        await bench.counted(asked[-1], "it runs", started=1)
        proxy.stall()
        for _ in range(20):
            for one in sent:
                peer.again(one)
        for each in asked:
            await bench.counted(each, "it ends behind the stall", results=1)
        proxy.resume()
        for n in range(len(asked)):
            first = await peer.outcome(n)
            peer.again(sent[n])
            await peer.replayed(n, first, "the replay for a duplicate")
        for each in asked:
            await bench.ran(each, 1, "it ran once")


@case("A good client", "G2", faults=True)
async def many_rollouts_through_cuts_run_once_each(bench: Bench) -> None:
    """A hundred rollouts, sent again through cuts, stalls and half-open connections, run once."""
    asked = [bench.wait(seconds=RUN_S) for _ in range(ROLLOUTS)]
    async with bench.proxy(seed=1) as proxy:
        client = PatientClient(bench.network, proxy.address)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_storm, proxy, [one["key"].encode() for one in asked])
            with trio.move_on_after(STORM_S):
                await client.run(asked, at_once=AT_ONCE)
            nursery.cancel_scope.cancel()
        bench.end_later(client.session)
    answered = sum(map(bool, client.outcomes.values()))
    check(answered == ROLLOUTS, f"{ROLLOUTS} outcomes", f"{answered} after {STORM_S:g} s")
    for sequence, outcomes in client.outcomes.items():
        same = same_bytes(outcomes) and outcomes[0].message.status == 0
        check(same, "one result, the same bytes each time", [each.message for each in outcomes])
        key = asked[sequence]["key"].encode()
        check(key in outcomes[0].frames[1], "its own result", outcomes[0].message)
    for one in asked:
        counts = await bench.counts(one)
        check((counts.started, counts.results) == (1, 1), "each started once, and ended", counts)


async def _storm(proxy: FaultProxy, keys: list[bytes]) -> None:
    """One fault after the other, for as long as there is work."""
    rng = random.Random(1)
    while True:
        for fault in ("cut", "receipt", "half-open", "stall", "end", "to-server", "to-client"):
            await trio.sleep(PAUSE_S)
            match fault:
                case "cut":
                    proxy.cut_all()
                case "end":
                    proxy.cut_all(abrupt=False)
                case "receipt":
                    with trio.move_on_after(STALL_S):
                        await proxy.cut_before_receipt(lambda data: any(k in data for k in keys))
                case "half-open":
                    proxy.half_open()
                case "stall":
                    proxy.stall()
                    await trio.sleep(STALL_S)
                    proxy.resume()
                case "to-server":
                    proxy.drop_after(rng.randrange(3000), Direction.TO_SERVER)
                case "to-client":
                    proxy.drop_after(rng.randrange(3000), Direction.TO_CLIENT)

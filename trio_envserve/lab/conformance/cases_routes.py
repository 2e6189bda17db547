"""Cases about routes: what a client states as its identity, and connections left behind."""

from __future__ import annotations

from ...core import messages
from .bench import Bench
from .findings import case, check
from .peer import Peer
from .raw import taken_in


@case("Transport", "G10")
async def two_clients_with_one_routing_id_are_both_served(bench: Bench) -> None:
    """Two live clients that state the same routing id each get their own answers."""
    identity = b"twin-" + bench.key().encode()
    async with bench.raw(identity) as (one, _), bench.raw(identity) as (other, _):
        asked = [bench.wait(), bench.wait()]
        for peer, each in zip((one, other), asked, strict=True):
            await peer.hello()
            peer.transmit(0, each)
            await bench.counted(each, "it runs", started=1)
        for peer, each in zip((one, other), asked, strict=True):
            await bench.open(each)
            await peer.own_result(each, 0, "the outcome on the connection that asked")
        for peer, each in zip((one, other), asked, strict=True):
            await peer.barrier()
            check(not peer.received, "nothing that is the other one's", peer.received)
            await bench.ran(each, 1, "it ran once")


@case("Connections", "G10")
async def late_bytes_of_a_connection_that_was_replaced_are_only_late(bench: Bench) -> None:
    """The rest of a request, on a connection that its client has left, starts nothing again."""
    identity = b"late-" + bench.key().encode()
    asked = bench.echo(b"x" * 2000)
    async with bench.raw(identity) as (old, socket):
        await old.hello()
        sent = old.prepared(0, asked)
        data = socket.encoded(sent.frames)
        socket.send_bytes(data[:1000])
        async with bench.raw(identity) as (new, _):
            new.resume(old)
            await new.misses([0, 1], 1, [0, 1], "half a request is none")
            new.again(sent)
            await new.result(0, "the outcome on the new connection")
            socket.send_bytes(data[1000:])
            await taken_in(old)
            new.finish(0)
            await new.barrier()
            old.again(sent)
            await taken_in(old)
            check(not old.all(messages.Outcome), "no outcome on the old one", old.received)
            new.transmit(1, bench.echo())
            await new.result(1, "an outcome on the new connection")
            await bench.ran(asked, 1, "it ran once")


@case("Connections", "G6")
async def a_refusal_goes_to_who_asked(bench: Bench, old: Peer) -> None:
    """A request that is refused on an old connection is refused there, not on the newest."""
    asked = bench.echo()
    sent = old.transmit(0, asked)
    await old.result(0)
    async with bench.next_connection(old) as new:
        await new.sync(1, [])
        old.again(sent)
        await old.refused_for_good(0, "finished")
        await new.barrier()
        refused = new.all(messages.Refused)
        check(not refused, "no refusal on the newest connection", refused)
        await bench.ran(asked, 1, "it ran once")

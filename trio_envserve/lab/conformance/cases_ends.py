"""Cases about ends that come of themselves: leases, and the end of the server."""

from __future__ import annotations

import trio

from ...core import messages
from .bench import LOOK_S, Bench
from .findings import case, check
from .peer import Peer

LEASE_MOST_S = 10.0
"""A longer lease is not waited for."""


@case("A session", "G7")
async def the_work_of_a_silent_client_ends_with_its_lease(bench: Bench) -> None:
    """Work is cancelled after lease_s without a word, not before; a ping keeps it."""
    lease_s = bench.limit("lease_s", LEASE_MOST_S)
    bench.be_patient(bench.patience_s + 2 * lease_s)
    async with bench.client() as silent, bench.client() as heard:
        mine, theirs = bench.wait(), bench.wait()
        heard.transmit(0, theirs)
        await bench.counted(theirs, "it runs", started=1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_ping, heard, lease_s / 8)
            began_s = trio.current_time()
            silent.transmit(0, mine)
            await bench.counted(mine, "it runs", started=1)
            await bench.counted(mine, "it is cancelled after the lease", cancelled=1, running=0)
            lasted_s = trio.current_time() - began_s
            nursery.cancel_scope.cancel()
        check(lasted_s >= 0.9 * lease_s, f"a lease of {lease_s:g} s", f"{lasted_s:.2f} s")
        await bench.runs_on(theirs, "the work of the client that pings runs on")
        await bench.let_end(theirs, heard)
        silent.sync_nowait(1, [0, 1])
        await silent.unknown()
        await bench.ran(mine, 1, "it ran once")


async def _ping(peer: Peer, every_s: float) -> None:
    while True:
        peer.sync_nowait(1, [0, 1])
        await trio.sleep(every_s)


@case("A session", "G7")
async def a_nonce_whose_client_has_left_opens_nothing(bench: Bench, peer: Peer) -> None:
    """After a goodbye, by session or by nonce, a late hello with that nonce gets no-session."""
    for say_nonce in (False, True):
        nonce = bench.nonce()
        if say_nonce:
            peer.send(messages.Goodbye(nonce))
        else:
            await peer.hello(nonce)
            peer.goodbye()
            await _gone(bench, peer)
        error = await peer.hello_refused(nonce)
        check(error.code == "no-session", "the code 'no-session'", error)
    await peer.hello()


@case("When the session is unknown", "G1")
async def a_restarted_server_has_a_new_epoch(bench: Bench, peer: Peer) -> None:
    """After a kill and a restart old sessions are unknown, and gone once nothing of them runs."""
    asked, sent = await bench.running(peer)
    await bench.restart()
    async with bench.client() as fresh, bench.next_connection(peer) as back:
        check(fresh.epoch != peer.epoch, "another epoch", fresh.epoch.hex())
        check(fresh.session != peer.session, "another session", fresh.session.hex())
        back.again(sent)
        unknown = await back.unknown()
        check(unknown.gone is False, "not gone: only a sync names an epoch", unknown)
        check(unknown.epoch == fresh.epoch, "the new epoch in Unknown", unknown)
        with trio.move_on_after(bench.patience_s):
            while not unknown.gone:  # which a server need never come to say
                back.sync_nowait(1, [0, 1])
                unknown = await back.unknown()
                await trio.sleep(LOOK_S)
        before = await bench.counts(asked)
        await bench.open(asked)
        await bench.ran(asked, 1, "nothing runs again by itself")
        after = await bench.counts(asked)
        right = not unknown.gone or before == after
        check(right, f"nothing of it runs when it is said to be gone: {before}", after)
        fresh.transmit(0, other := bench.echo("new"))
        await fresh.own_result(other, 0, "the outcome of another request with sequence 0")


async def _gone(bench: Bench, peer: Peer) -> None:
    """Until an ended session is forgotten."""
    gone = False
    with trio.move_on_after(bench.patience_s):
        while not gone:
            peer.sync_nowait(0, [])
            gone = (await peer.unknown()).gone
            await trio.sleep(LOOK_S)
    check(gone, "gone, when nothing of it runs", "not gone")

"""Cases at the bounds of a server that are small, and known: queue and sessions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import trio

from ...core import messages
from .bench import Bench, skip_unless
from .findings import case, check
from .peer import Peer

AGAIN_S = 0.05
QUEUE_MOST = 4096
SESSIONS_MOST = 256


@case("Refusals", "G8")
async def a_full_queue_refuses_for_now(bench: Bench) -> None:
    """A request without room to wait is refused with a delay, and taken under its id later."""
    queue = int(bench.limit("queue", QUEUE_MOST))
    async with bench.client() as peer:
        held, asked = bench.wait(), bench.echo("at last")
        last = min(peer.window, 2 * queue + QUEUE_MOST) - 1
        for sequence in range(last):
            peer.transmit(sequence, held)
        sent = peer.transmit(last, asked)
        await peer.barrier()
        refused = {each.sequence: each for each, _ in peer.all(messages.Refused)}
        skip_unless(last in refused, f"{last + 1} requests, the window of one session, find room")
        wrong = [each for each in refused.values() if each.code != "queue-full"]
        check(not wrong, "the code 'queue-full'", wrong)
        check(refused[last].delay_s is not None, "for now: a delay", refused[last])
        await peer.misses(
            [last, last + 1], last + 1, [last, last + 1], "what was refused has not been seen"
        )
        with trio.move_on_after(bench.patience_s):
            while not any(each.sequence == last for each, _ in peer.all(messages.Outcome)):
                peer.again(sent)
                await peer.barrier()
                await trio.sleep(AGAIN_S)
        peer.received = [each for each in peer.received if type(each.message) is messages.Outcome]
        value = await peer.result(last, "its outcome, once there is room")
        check(value["value"] == "at last", "its own outcome", value)
        await bench.ran(asked, 1, "it ran once")


@case("A session", "G10")
async def a_connection_opens_so_many_sessions(bench: Bench) -> None:
    """Past connection_sessions a hello is told no-session, on this connection and no other."""
    most = int(bench.limit("connection_sessions", SESSIONS_MOST))
    async with bench.connection() as peer:
        for _ in range(most):
            await peer.hello()
            bench.end_later(peer.session)
        error = await peer.hello_refused(nonce := bench.nonce())
        check(error.code == "no-session", "the code 'no-session'", error)
        async with bench.client() as other:
            other.transmit(0, bench.echo())
            await other.result(0, "an outcome for a client on another connection")
        peer.transmit(0, bench.echo())
        await peer.result(0, "an outcome for a session that was opened before")
        peer.goodbye()
        await peer.hello(nonce)


@case("A session", "G8")
async def past_all_sessions_a_hello_is_told_so(bench: Bench) -> None:
    """Past sessions in all, all of them at work, a hello is told no-session."""
    most = int(bench.limit("sessions", SESSIONS_MOST))
    async with _at_work(bench) as (peers, stack):
        while True:
            peer = await stack.enter_async_context(bench.connection())
            answer = await peer.hello_once(bench.nonce())
            if isinstance(answer, messages.Error):
                break
            await _work(bench, peer)
            peers.append(peer)
            check(len(peers) < most, f"at most {most} sessions, one of them the bench's", peers)
        check(answer.code == "no-session", "the code 'no-session'", answer)
        await peers[0].sync(1, [0, 1])
        peers[-1].goodbye()
        await peer.hello(peer.nonce)
        peers.append(peer)


@case("A session", "G10")
async def an_idle_session_makes_room(bench: Bench) -> None:
    """Past sessions in all one without work is forgotten for a new one: it is gone, and
    settled, for nothing of it was unfinished."""
    most = int(bench.limit("sessions", SESSIONS_MOST))
    async with bench.client() as idle:
        idle.transmit(0, bench.echo())
        await idle.result(0)
        idle.finish(0)
        await idle.barrier()
        async with _at_work(bench) as (peers, stack):
            for _ in range(most - 1):  # one too many, with the bench's
                peers.append(await stack.enter_async_context(bench.client()))
                await _work(bench, peers[-1])
            idle.transmit(1, bench.echo("again"))
            unknown = await idle.unknown()
            check(not unknown.settled, "nothing is proven without an epoch", unknown)
            idle.sync_nowait(2, [1, 2])
            unknown = await idle.unknown()
            check(unknown.gone and unknown.settled, "gone, and settled", unknown)
        await idle.hello()
        idle.transmit(0, bench.echo("again"))
        value = await idle.result(0, "the outcome in a new session")
        check(value["value"] == "again", "its outcome", value)


@asynccontextmanager
async def _at_work(bench: Bench) -> AsyncIterator[tuple[list[Peer], AsyncExitStack]]:
    """Peers that are to be at work until the end, and where to open them."""
    peers: list[Peer] = []
    async with bench.at_work(peers), AsyncExitStack() as stack:
        try:
            yield peers, stack
        finally:
            for peer in peers:
                peer.goodbye()
            peers.clear()  # they are not pinged any more


async def _work(bench: Bench, peer: Peer) -> None:
    """Let its session be at work."""
    peer.transmit(0, bench.wait())
    await peer.barrier()

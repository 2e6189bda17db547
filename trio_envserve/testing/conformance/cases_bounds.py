"""Cases at the bounds of a server that are small, and known: queue and sessions."""

from __future__ import annotations

from contextlib import AsyncExitStack

import trio

from ...core import messages
from .bench import Bench, skip_unless
from .peer import Peer
from .verdicts import case, check

AGAIN_S = 0.05
QUEUE_MOST = 4096
SESSIONS_MOST = 256


@case("Refusals", "G8")
async def a_full_queue_refuses_for_now(bench: Bench) -> None:
    """What finds no room to wait is refused with a delay, and taken under the same id later."""
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
        synced = await peer.sync(last + 1, [last, last + 1])
        check(synced.missing == [last, last + 1], "what was refused has not been seen", synced)
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
    """Past sessions in all a hello is told no-session; those that are open are served."""
    most = int(bench.limit("sessions", SESSIONS_MOST))
    async with AsyncExitStack() as stack:
        peers: list[Peer] = []
        while True:
            peer = await stack.enter_async_context(bench.connection())
            answer = await peer.hello_once(bench.nonce())
            if isinstance(answer, messages.Error):
                break
            peers.append(peer)
            check(len(peers) < most, f"at most {most} sessions, one of them the bench's", peers)
        check(answer.code == "no-session", "the code 'no-session'", answer)
        peers[0].transmit(0, bench.echo())
        await peers[0].result(0, "an outcome for a session that was opened before")
        peers[-1].goodbye()
        await peer.hello(peer.nonce)

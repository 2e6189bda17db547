"""Cases about what repairs a loss: sync, finish, cancel, connections."""

from __future__ import annotations

import trio

from ...core import messages
from .bench import Bench, skip_unless
from .findings import case, check
from .peer import Peer

LARGEST_WINDOW = 100_000
"""A statement of more than a window is a header of that size."""


# -- sync -----------------------------------------------------------------------


@case("Sync", "wire")
async def a_sync_is_answered_with_its_probe(bench: Bench, peer: Peer) -> None:
    """A sync is the ping: Synced has its probe and the status record."""
    for _ in range(3):
        synced = await peer.sync(0, [])
        check(synced.session == peer.session, "its session", synced)
        check(synced.missing == [], "nothing is missing", synced)
        check("status" in synced.server, "a status record", synced.server)


@case("Sync", "G9")
async def what_was_never_seen_is_named(bench: Bench, peer: Peer) -> None:
    """Pending sequences that never arrived are missing, those that did are not."""
    running, kept, lost = bench.wait(), bench.echo(), bench.echo("lost")
    peer.transmit(1, running)
    peer.transmit(3, kept)
    await peer.result(3)
    await peer.misses([0, 1, 2, 3, 4, 6], 6, [0, 6], "missing: 0, 2, 4, 5")
    peer.transmit(4, lost)
    await peer.result(4, "the outcome of what was transmitted again")
    await peer.misses([0, 1, 2, 3, 5, 6], 6, [0, 6], "missing: 0, 2, 5")
    await bench.ran(lost, 1, "it ran once")
    await bench.let_end(running, peer, 1)


@case("Sync", "G2")
async def what_is_finished_is_not_missing(bench: Bench, peer: Peer) -> None:
    """A finished sequence that is pending again, against the rules, is neither missing nor run."""
    asked = bench.echo()
    sent = peer.transmit(0, asked)
    await peer.result(0)
    peer.finish(0)
    await peer.misses([], 1, [0, 1], "nothing: it was seen, and is finished")
    peer.again(sent)
    await peer.refused(0, "finished")
    await bench.ran(asked, 1, "it ran once")


@case("Sync", "G4")
async def outcomes_are_replayed_on_a_new_connection(bench: Bench, peer: Peer) -> None:
    """An outcome that came while the client was away is sent at its first sync, the same bytes."""
    seen, unseen = bench.echo("seen"), bench.wait()
    peer.transmit(0, seen)
    first = await peer.outcome(0)
    async with bench.next_connection(peer) as gone:
        await gone.sync(1, [0, 1])
        gone.transmit(1, unseen)
        await bench.counted(unseen, "it runs", started=1)
        peer.connection = gone.connection
    await bench.open(unseen)
    await bench.counted(unseen, "it ended", results=1)
    async with bench.next_connection(peer) as back:
        await back.misses([], 2, [0, 2], "both are known")
        await back.replayed(0, first, "the outcome of 0, replayed")
        await back.own_result(unseen, 1, "the outcome of 1, which came to nobody")
    await bench.ran(unseen, 1, "it ran once")


@case("Sync", "G9")
async def what_stays_pending_is_replayed_on_the_same_connection(bench: Bench, peer: Peer) -> None:
    """An outcome that the client goes on missing is sent again, without a new connection."""
    peer.transmit(0, bench.echo())
    first = await peer.outcome(0)
    for _ in range(3):
        await peer.sync(1, [0, 1])
    await peer.replayed(0, first, "the outcome, replayed after three statements")


@case("Sync", "G4")
async def what_a_sync_leaves_out_is_finished(bench: Bench, peer: Peer) -> None:
    """Everything below next that is not pending is finished: freed, or cancelled."""
    kept, freed, running = bench.echo("kept"), bench.echo("freed"), bench.wait()
    sent = [peer.transmit(n, one) for n, one in enumerate((freed, kept, running))]
    await peer.result(0)
    first = await peer.outcome(1)
    await bench.counted(running, "it runs", started=1)
    await peer.sync(3, [1, 2])
    peer.forget()
    await bench.is_cancelled(running)
    for n in (0, 2):
        peer.again(sent[n])
        await peer.refused(n, "finished")
    peer.again(sent[1])
    await peer.replayed(1, first, "the outcome of what is pending")


@case("Sync", "G2")
async def old_statements_do_no_harm(bench: Bench, peer: Peer) -> None:
    """A late sync that knows less than the last one finishes nothing and names nothing."""
    asked = [bench.wait() for _ in range(3)]
    for n, one in enumerate(asked):
        peer.transmit(n, one)
    for one in asked:
        await bench.counted(one, "it runs", started=1)
    await peer.sync(3, [0, 3])
    for next_sequence, pending in ((0, []), (1, [0, 1]), (2, [0, 2])):
        await peer.misses([], next_sequence, pending, "nothing is missing")
    for n, one in enumerate(asked):
        await bench.runs_on(one, f"{n} runs on")
        await bench.let_end(one, peer, n)


@case("Sync", "G4")
async def a_finish_is_of_its_sequences_only(bench: Bench, peer: Peer) -> None:
    """A finish of 1 and 3, also twice, leaves 0, 2 and 4 as they are."""
    asked = [bench.echo(n) for n in range(5)]
    sent = [peer.transmit(n, one) for n, one in enumerate(asked)]
    for n in range(5):
        await peer.result(n)
    peer.finish(1, 3)
    peer.finish(1, 3)
    await peer.misses([5, 7], 7, [0, 1, 2, 3, 4, 7], "missing: 5 and 6")
    peer.forget()
    for n in range(5):
        peer.again(sent[n])
        if n in (1, 3):
            await peer.refused(n, "finished")
        else:
            await peer.result(n, "the outcome of what was not finished")


@case("Sync", "G8")
async def more_than_a_window_of_pending_is_ignored(bench: Bench, peer: Peer) -> None:
    """A statement with more than a window pending changes nothing."""
    far = peer.window + 10
    asked, _ = await bench.running(peer, far)
    peer.sync_nowait(far + 1, [0, peer.window + 1])
    await peer.barrier()
    await bench.runs_on(asked, "what it left out runs on")
    await bench.let_end(asked, peer, far)


@case("Sync", "G8")
async def more_gaps_than_a_window_are_ignored(bench: Bench, peer: Peer) -> None:
    """A finish that would leave more gaps than a window can changes nothing."""
    skip_unless(peer.window <= LARGEST_WINDOW, f"the window is {peer.window}")
    asked, _ = await bench.running(peer)
    peer.finish(*range(0, 2 * peer.window + 8, 2))
    await peer.barrier()
    await bench.runs_on(asked, "what it names runs on")
    await bench.let_end(asked, peer)


# -- connections ----------------------------------------------------------------


@case("Connections", "G9")
async def answers_go_to_the_newest_connection(bench: Bench, old: Peer) -> None:
    """After a sync with a higher number outcomes come to the new connection, over its new route."""
    asked = [bench.wait() for _ in range(2)]
    old.transmit(0, asked[0])
    await bench.counted(asked[0], "it runs", started=1)
    async with bench.next_connection(old) as new:
        await new.sync(1, [0, 1])
        old.transmit(1, asked[1])  # a request carries no number, and moves nothing
        await bench.counted(asked[1], "it runs", started=1)
        for n in range(2):
            await bench.let_end(asked[n], new, n, "the outcome on the new connection")
        await old.nothing_of(messages.Outcome, "nothing on the old one")


@case("Connections", "G9")
async def an_old_connection_does_not_pull_answers_back(bench: Bench, old: Peer) -> None:
    """A late hello or sync of an older connection moves nothing."""
    async with bench.next_connection(old) as new:
        await new.sync(0, [])
        old.send(messages.Hello(1, old.nonce, 1, "conform", 1 << 20))
        old.sync_nowait(0, [])
        await old.barrier()
        asked = bench.echo()
        new.transmit(0, asked)
        await new.result(0, "the outcome on the newest connection")
        sent = old.transmit(1, other := bench.echo())
        await new.result(1, "the outcome on the newest connection, whoever transmitted")
        old.again(sent)
        await new.outcome(1, "the replay on the newest connection")
        await old.nothing_of(messages.Outcome, "nothing on the old one")
        await bench.ran(other, 1, "it ran once")


@case("Connections", "G9")
async def a_hello_moves_answers_too(bench: Bench, old: Peer) -> None:
    """The same nonce with a higher number is the client's next connection."""
    asked, _ = await bench.running(old)
    async with bench.connection() as new:
        new.connection = 2
        await new.hello(old.nonce)
        await bench.let_end(asked, new, 0, "the outcome on the connection that said hello last")


# -- cancel ---------------------------------------------------------------------


@case("Cancel, and a caller's limit", "G7")
async def a_cancel_stops_what_runs(bench: Bench, peer: Peer) -> None:
    """Cancelling reaches the environment's code, and Cancelled says that it had started."""
    asked, sent = await bench.running(peer)
    check(await peer.cancel(0) is True, "started is true: it ran", False)
    await bench.is_cancelled(asked)
    peer.again(sent)
    await peer.refused_for_good(0, "finished")
    await peer.nothing_of(messages.Outcome, "no outcome of what is finished")
    await bench.ran(asked, 1, "it ran once")


@case("Cancel, and a caller's limit", "G7")
async def a_cancel_may_overtake_its_request(bench: Bench, peer: Peer) -> None:
    """After a cancel that came first, the request does not run: started is false for good."""
    asked = bench.echo()
    check(await peer.cancel(0) is False, "started is false: it was never seen", True)
    peer.transmit(0, asked)
    await peer.refused_for_good(0, "finished")
    await peer.misses([], 1, [0, 1], "nothing is missing")
    await bench.ran(asked, 0, "it did not run")


@case("Cancel, and a caller's limit", "G7")
async def a_finish_may_overtake_its_request(bench: Bench, peer: Peer) -> None:
    """After a finish that came first, the request does not run."""
    asked = bench.echo()
    peer.finish(0)
    peer.transmit(0, asked)
    await peer.refused_for_good(0, "finished")
    await bench.ran(asked, 0, "it did not run")


@case("Cancel, and a caller's limit", "G9")
async def a_cancel_never_denies_a_run(bench: Bench, peer: Peer) -> None:
    """A request that ran is never said not to have run: completed, finished, or cancelled twice."""
    asked = bench.echo()
    for n in range(2):
        peer.transmit(n, asked)
        await peer.result(n)
    check(await peer.cancel(0) is True, "started is true: it is completed", False)
    check(await peer.cancel(0) is True, "started is true, the second time too", False)
    peer.finish(1)
    check(await peer.cancel(1) is True, "started is true: it ran before its finish", False)


@case("Cancel, and a caller's limit", "G7")
async def started_is_true_of_all_that_ran(bench: Bench, peer: Peer) -> None:
    """A request that was cancelled right behind it, and is said not to have started, never runs."""
    asked = [bench.wait(seconds=0.2) for _ in range(30)]
    for n, one in enumerate(asked):
        peer.transmit(n, one)
        peer.send(messages.Cancel(peer.session, n))
    denied = [one for n, one in enumerate(asked) if not await peer.cancelled(n)]
    await trio.sleep(bench.settle_s)
    for one in denied:
        counts = await bench.counts(one)
        check(counts.started == 0, "what never started did not run", counts)
    for one in asked:
        await bench.counted(one, "nothing goes on", running=0)
        counts = await bench.counts(one)
        check(counts.started <= 1, "each ran at most once", counts)


@case("Cancel, and a caller's limit", "G1", needs=("wait",))
async def what_ignores_its_cancel_is_not_started_again(bench: Bench, peer: Peer) -> None:
    """A cancelled request whose code goes on for a while is finished all the same."""
    asked, sent = await bench.running(peer, stubborn=True)
    check(await peer.cancel(0) is True, "started is true", False)
    peer.again(sent)
    await peer.refused_for_good(0, "finished")
    counts = await bench.counts(asked)
    check((counts.started, counts.running) == (1, 1), "one run, which goes on", counts)
    await bench.open(asked)
    await bench.counted(asked, "it ended", running=0)
    await peer.nothing_of(messages.Outcome, "no outcome of what is finished")

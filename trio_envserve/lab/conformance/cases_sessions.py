"""Cases about sessions: hello, welcome, goodbye, and sessions that are not known."""

from __future__ import annotations

import os

import trio

from ...core import messages
from ...core.limits import PROTOCOL_VERSION
from .bench import LOOK_S, Bench
from .findings import case, check
from .forms import value_of
from .peer import Peer

STATUSES = ("starting", "ready", "silent", "broken", "stopping")
STATUS = {"status", "reason", "ready", "workers", "environment", "rerun"}


@case("A session", "wire")
async def a_hello_gets_a_welcome(bench: Bench) -> None:
    """The welcome has the hello's nonce, a session, an epoch, the limits and the status record."""
    async with bench.connection() as peer:
        welcome = await peer.hello()
        check(welcome.version == PROTOCOL_VERSION, f"version {PROTOCOL_VERSION}", welcome)
        check(welcome.session != welcome.nonce, "a session id of the server's own", welcome)
        check(welcome.window >= 1, "a window", welcome)
        check(welcome.message_bytes >= 1024, "room for a message", welcome)
        check(set(welcome.server) >= STATUS, f"a status record: {sorted(STATUS)}", welcome.server)
        check(welcome.server["status"] in STATUSES, f"one of {STATUSES}", welcome.server)


@case("A session", "G2")
async def the_same_nonce_gets_the_same_session(bench: Bench) -> None:
    """A doubled hello, also over another connection, gets the session that is there."""
    async with bench.client() as peer, bench.connection() as other:
        first = peer.session
        peer.transmit(0, asked := bench.echo())
        await peer.result(0)
        await peer.hello(peer.nonce)
        check(peer.session == first, "the same session", peer.session.hex())
        other.connection = 2
        await other.hello(peer.nonce)
        check(other.session == first, "the same session over a new connection", other.session.hex())
        check(other.epoch == peer.epoch, "the same epoch", other.epoch.hex())
        await other.misses([], 1, [0, 1], "the session's requests are still known")
        await other.outcome(0, "its outcome, replayed on the new connection")
        await bench.ran(asked, 1, "it ran once")


@case("A session", "G2")
async def each_nonce_gets_a_session_of_its_own(bench: Bench, one: Peer, other: Peer) -> None:
    """Sessions have the same sequences and nothing to do with each other."""
    check(one.session != other.session, "two sessions", one.session.hex())
    mine, theirs = bench.wait(), bench.echo("theirs")
    one.transmit(0, mine)
    await bench.counted(mine, "it runs", started=1)
    other.transmit(0, theirs)
    value = await other.result(0)
    check(value["value"] == "theirs", "the result of its own request", value)
    other.finish(0, 1, 2, 3)
    check(await other.cancel(4) is False, "its own sequence 4 never ran", True)
    other.goodbye()
    await other.barrier()
    await bench.runs_on(mine, "the other session's request runs on")
    await bench.let_end(mine, one)


@case("A session", "wire")
async def any_name_is_taken(bench: Bench) -> None:
    """A client's name may be long, empty or odd."""
    async with bench.connection() as peer:
        for name in ("", "x" * 10_000, "\u00e9" * 200, "a\nb\x00\x1b[31m"):
            await peer.hello(name=name)
            bench.end_later(peer.session)


@case("A session", "G9")
async def an_outcome_larger_than_its_client_takes_is_an_error(bench: Bench) -> None:
    """A client that takes small frames only gets outcome-too-large, RAN_AND_FAILED."""
    async with bench.connection() as peer:
        await peer.hello(message_bytes=4096)
        asked = bench.echo("x" * 5000)
        peer.transmit(0, asked)
        outcome = await peer.outcome(0)
        record = value_of(outcome)
        told = (record.get("code"), record.get("verdict"))
        check(told == ("outcome-too-large", "RAN_AND_FAILED"), "outcome-too-large", record)
        small = bench.echo("x" * 100)
        peer.transmit(1, small)
        await peer.result(1)
        await bench.ran(asked, 1, "it ran once")


@case("A session", "G7")
async def goodbye_cancels_what_is_not_finished(bench: Bench, peer: Peer) -> None:
    """After a goodbye what runs is cancelled, and the session is not known."""
    asked = [bench.wait() for _ in range(3)]
    for sequence, one in enumerate(asked):
        peer.transmit(sequence, one)
    for one in asked:
        await bench.counted(one, "it runs", started=1)
    peer.goodbye()
    peer.transmit(3, late := bench.echo())
    await peer.unknown()
    for one in asked:
        await bench.is_cancelled(one)
    await bench.ran(late, 0, "nothing runs for a session that has ended")


@case("When the session is unknown", "G1", needs=("wait",))
async def an_ended_session_is_gone_when_nothing_of_it_runs(bench: Bench, peer: Peer) -> None:
    """Unknown says gone only when the last execution of the session has ended."""
    asked, _ = await bench.running(peer, stubborn=True)
    peer.goodbye()
    peer.sync_nowait(1, [0, 1])
    unknown = await peer.unknown()
    check(unknown.gone is False, "not gone: it still runs, and ignores its cancel", unknown)
    hello = messages.Hello(PROTOCOL_VERSION, peer.nonce, 1, "conform", 1 << 20)
    peer.send(hello)
    error, _ = await peer.next(messages.Error, "Error, for the nonce of an ending session")
    check(error.code == "no-session", "the code 'no-session'", error)
    await bench.runs_on(asked, "it still runs")
    await bench.open(asked)
    with trio.move_on_after(peer.patience_s):
        while not unknown.gone:
            await trio.sleep(LOOK_S)
            peer.sync_nowait(1, [0, 1])
            unknown = await peer.unknown()
    check(unknown.gone, "gone, once it has ended", unknown)
    counts = await bench.counts(asked)
    check(counts.running == 0, "nothing of it runs when it is said to be gone", counts)


@case("When the session is unknown", "G4")
async def an_unknown_session_is_told(bench: Bench, peer: Peer) -> None:
    """Request, finish, sync and cancel of a session that is not known get Unknown, not gone."""
    known, peer.session = peer.session, os.urandom(16)
    peer.epoch, epoch = os.urandom(16), peer.epoch
    asked = bench.echo()
    for say in (
        lambda: peer.transmit(0, asked),
        lambda: peer.finish(0),
        lambda: peer.sync_nowait(1, [0, 1]),
        lambda: peer.send(messages.Cancel(peer.session, 0)),
    ):
        say()
        unknown = await peer.unknown()
        check(unknown.epoch == epoch, "the server's own epoch", unknown)
        check(unknown.gone is False, "nothing is proven of a foreign epoch", unknown)
    peer.goodbye()
    peer.session, peer.epoch = known, epoch
    await peer.misses([0, 1], 1, [0, 1], "the known session is untouched")
    await bench.ran(asked, 0, "nothing runs for an unknown session")


@case("When the session is unknown", "G9")
async def a_session_of_this_epoch_that_is_not_there_is_gone(bench: Bench, peer: Peer) -> None:
    """A sync with the server's own epoch and a session that is forgotten is answered: gone."""
    peer.goodbye()
    unknown = None
    with trio.move_on_after(peer.patience_s):
        while unknown is None or not unknown.gone:
            peer.sync_nowait(0, [])
            unknown = await peer.unknown()
            await trio.sleep(0 if unknown.gone else LOOK_S)
    check(unknown is not None and unknown.gone, "gone", unknown)

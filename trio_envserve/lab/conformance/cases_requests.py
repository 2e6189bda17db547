"""Cases about requests: one outcome, duplicates, conflicts, deadlines, deaths."""

from __future__ import annotations

from typing import Any

import trio

from .bench import LOOK_S, Bench, skip_unless
from .findings import CaseFailed, case, check
from .forms import same_bytes, value_of
from .peer import Peer, Sent

DEATH_PATIENCE_S = 30.0
"""For what needs a new worker, which may be slow to start."""


@case("Requests", "G3")
async def a_request_gets_one_outcome(bench: Bench, peer: Peer) -> None:
    """A request runs once and is answered once, with its session and sequence."""
    asked = bench.echo({"a": 1})
    peer.transmit(0, asked)
    outcome = await peer.outcome(0)
    value = value_of(outcome)
    check(outcome.message.status == 0, "a result", value)
    check((value["key"], value["value"]) == (asked["key"], {"a": 1}), "its result", value)
    check(outcome.message.executions == 1, "one execution", outcome.message)
    await bench.ran(asked, 1, "it ran once")
    await peer.barrier()
    check(not peer.received, "nothing more", peer.received)


@case("Requests", "G1")
async def a_duplicate_of_a_running_request_is_coalesced(bench: Bench, peer: Peer) -> None:
    """Further transmissions of a running request start nothing, and get its one outcome."""
    asked, sent = await bench.running(peer)
    for _ in range(5):
        peer.again(sent)
    await peer.barrier()
    await bench.ran(asked, 1, "the duplicates start nothing")
    await bench.open(asked)
    first = await peer.outcome(0)
    await peer.barrier()
    more = [each for each in peer.received if each.frames != first.frames]
    check(not more, "no other outcome", more)
    await bench.ran(asked, 1, "it ran once")


@case("Requests", "G1")
async def many_transmissions_at_once_are_one_request(bench: Bench, peer: Peer) -> None:
    """A request that is there twenty times before it can have started runs once."""
    asked = bench.echo()
    sent = peer.transmit(0, asked)
    for _ in range(19):
        peer.again(sent)
    outcomes = [await peer.outcome(0)]
    await peer.barrier()
    outcomes += [each for each in peer.received if hasattr(each.message, "executions")]
    check(same_bytes(outcomes), "the same bytes each time", [e.message for e in outcomes])
    await bench.ran(asked, 1, "it ran once")


@case("Requests", "G3")
async def a_duplicate_of_a_completed_request_is_replayed(bench: Bench, peer: Peer) -> None:
    """The outcome is sent again, header and body byte for byte the same, and nothing runs."""
    asked = bench.echo(list(range(100)))
    sent = peer.transmit(0, asked)
    outcomes = [await peer.outcome(0)]
    for _ in range(3):
        peer.again(sent)
        outcomes.append(await peer.outcome(0, "the outcome, replayed"))
    check(same_bytes(outcomes), "the same bytes each time", [e.message for e in outcomes])
    await bench.ran(asked, 1, "it ran once")


@case("Requests", "G3", needs=("fail",))
async def an_error_is_replayed_like_a_result(bench: Bench, peer: Peer) -> None:
    """An error is an outcome: kept, replayed byte for byte, and not tried again."""
    asked = {"op": "fail", "key": bench.key()}
    sent = peer.transmit(0, asked)
    first = await peer.outcome(0)
    peer.again(sent)
    second = await peer.outcome(0, "the error, replayed")
    check(same_bytes([first, second]), "the same bytes", value_of(second))
    await bench.ran(asked, 1, "it ran once")


@case("Requests", "G2")
async def a_duplicate_of_a_finished_request_is_refused(bench: Bench, peer: Peer) -> None:
    """After the finish a late duplicate, whatever its digest, is refused as finished, for good."""
    asked = bench.echo()
    sent = peer.transmit(0, asked)
    await peer.result(0)
    peer.finish(0)
    for _ in range(2):
        peer.again(sent)
        await peer.refused_for_good(0, "finished")
    peer.transmit(0, asked, digest=b"other digest!!!!")
    await peer.refused_for_good(0, "finished")
    await bench.ran(asked, 1, "it ran once")


@case("Requests", "G6")
async def another_request_with_the_id_of_a_running_one_is_a_conflict(
    bench: Bench, peer: Peer
) -> None:
    """Another digest, or another length of body, is refused; the first one runs on."""
    asked, other = bench.wait(), bench.echo("another")
    peer.transmit(0, asked, digest=b"0123456789abcdef")
    await bench.counted(asked, "it runs", started=1)
    peer.transmit(0, other)
    await peer.refused_for_good(0, "conflict")
    peer.transmit(0, other, digest=b"0123456789abcdef")
    await peer.refused_for_good(0, "conflict")
    await bench.open(asked)
    await peer.own_result(asked, 0)
    await bench.ran(asked, 1, "the first ran once")
    await bench.ran(other, 0, "the other did not run")


@case("Requests", "G6")
async def another_request_with_the_id_of_a_completed_one_is_a_conflict(
    bench: Bench, peer: Peer
) -> None:
    """The first one's outcome is not taken for an answer to the other, and stays."""
    asked, other = bench.echo("first"), bench.echo("another")
    sent = peer.transmit(0, asked)
    first = await peer.outcome(0)
    peer.transmit(0, other)
    await peer.refused_for_good(0, "conflict")
    peer.again(sent)
    await peer.replayed(0, first, "the first one's outcome, still kept")
    await bench.ran(other, 0, "the other did not run")


@case("Requests", "G4")
async def outcomes_are_kept_beside_each_other(bench: Bench, peer: Peer) -> None:
    """Each of twenty outcomes is kept until its own finish, whatever becomes of the others."""
    asked = [bench.echo(n) for n in range(20)]
    sent = [peer.transmit(n, one) for n, one in enumerate(asked)]
    first = {n: await peer.outcome(n) for n in range(20)}
    peer.finish(*range(0, 20, 2))
    for n in range(20):
        peer.again(sent[n])
        if n % 2:
            await peer.replayed(n, first[n], "the outcome, still kept")
        else:
            await peer.refused(n, "finished")
    for one in asked:
        counts = await bench.counts(one)
        check(counts.started == 1, "each ran once", counts)


@case("Requests", "G3")
async def sequences_may_arrive_in_any_order(bench: Bench, peer: Peer) -> None:
    """The protocol is safe under reordering: 2, 0, 3, 1 all run, each once."""
    asked = {n: bench.echo(n) for n in (2, 0, 3, 1)}
    for n, one in asked.items():
        peer.transmit(n, one)
    for n, one in asked.items():
        value = await peer.result(n)
        check(value["value"] == n, f"the result of {n}", value)
        await bench.ran(one, 1, "it ran once")


# -- deadlines ------------------------------------------------------------------


DEADLINES_S = (0.3, 1.0, 5.0)
"""The first that a rollout starts before: on a busy machine that may take a while."""


async def started_before_its_deadline(bench: Bench, peer: Peer) -> tuple[int, dict[str, Any], Sent]:
    """A rollout that runs, and whose deadline will pass."""
    for sequence, deadline_s in enumerate(DEADLINES_S):
        asked = bench.wait()
        sent = peer.transmit(sequence, asked, deadline_s=deadline_s)
        with trio.move_on_after(deadline_s):
            while not (await bench.counts(asked)).started:  # noqa: ASYNC110  # a count is asked for
                await trio.sleep(LOOK_S)
        if (await bench.counts(asked)).started:
            return sequence, asked, sent
    raise CaseFailed(f"a start within {DEADLINES_S[-1]:g} s", "none")


@case("Requests", "G7")
async def a_deadline_stops_what_runs(bench: Bench, peer: Peer) -> None:
    """At its deadline a running request ends as an error, and its code is cancelled."""
    sequence, asked, sent = await started_before_its_deadline(bench, peer)
    record = await peer.error(sequence, "the deadline's error")
    told = (record["code"], record["verdict"])
    right = told in (("deadline", "RAN_AND_FAILED"), ("no-answer", "MAY_HAVE_RUN"))
    check(right, "the code 'deadline', RAN_AND_FAILED", record)
    await bench.is_cancelled(asked)
    peer.again(sent)
    await peer.error(sequence, "the same error, replayed")
    await bench.ran(asked, 1, "it ran once")


@case("Requests", "G9")
async def a_deadline_holds_while_the_client_is_away(bench: Bench, peer: Peer) -> None:
    """A deadline passes whether or not the client is there, which finds its outcome later."""
    async with bench.next_connection(peer) as gone:
        await gone.sync(0, [])
        sequence, asked, _ = await started_before_its_deadline(bench, gone)
        peer.connection = gone.connection
    await bench.counted(asked, "it was cancelled at its deadline", cancelled=1, running=0)
    async with bench.next_connection(peer) as back:
        await back.misses([], sequence + 1, [sequence, sequence + 1], "the request is known")
        record = await back.error(sequence, "the deadline's error, kept for the client")
        check(record["verdict"] != "DID_NOT_RUN", "that it ran", record)


@case("Requests", "G9")
async def an_outcome_wins_over_a_later_deadline(bench: Bench, peer: Peer) -> None:
    """A request that is completed before its deadline stays so when the deadline passes."""
    asked = bench.echo()
    sent = peer.transmit(0, asked, deadline_s=0.3)
    first = await peer.outcome(0)
    await trio.sleep(0.3 + bench.settle_s)
    peer.again(sent)
    await peer.replayed(0, first)


# -- deaths ---------------------------------------------------------------------


def be_patient(bench: Bench, peer: Peer) -> None:
    """Let a worker be replaced."""
    peer.patience_s = max(peer.patience_s, DEATH_PATIENCE_S)
    bench.be_patient(DEATH_PATIENCE_S)


@case("Requests", "G2", needs=("die",))
async def without_consent_a_death_ends_the_request(bench: Bench, peer: Peer) -> None:
    """A request whose worker died is not run again without consent: worker-lost, MAY_HAVE_RUN."""
    be_patient(bench, peer)
    asked = {"op": "die", "key": bench.key(), "times": 1}
    sent = peer.transmit(0, asked, rerun=False, allowance=5)
    record = await peer.error(0)
    told = (record["code"], record["verdict"])
    check(told == ("worker-lost", "MAY_HAVE_RUN"), "worker-lost, MAY_HAVE_RUN", record)
    peer.again(sent)
    await peer.error(0, "the same error, replayed")
    await bench.ran(asked, 1, "it ran once")


@case("Requests", "G2", needs=("die",))
async def with_consent_a_death_is_followed_by_another_run(bench: Bench, peer: Peer) -> None:
    """With consent and allowance it is run again after the death, and the outcome counts both."""
    be_patient(bench, peer)
    asked = {"op": "die", "key": bench.key(), "times": 1}
    peer.transmit(0, asked, rerun=True, allowance=3)
    outcome = await peer.outcome(0)
    skip_unless(
        outcome.message.status == 0 or outcome.message.executions > 1,
        "the server grants one execution only",
    )
    check(outcome.message.status == 0, "the second run's result", value_of(outcome))
    check(outcome.message.executions == 2, "two executions", outcome.message)
    await bench.ran(asked, 2, "it ran twice")


@case("Requests", "G2", needs=("die",))
async def the_allowance_caps_the_executions(bench: Bench, peer: Peer) -> None:
    """A request that kills each of its workers ends when its allowance is used up."""
    be_patient(bench, peer)
    asked = {"op": "die", "key": bench.key()}
    peer.transmit(0, asked, rerun=True, allowance=2)
    outcome = await peer.outcome(0)
    record = value_of(outcome)
    check(outcome.message.status == 1, "an error", record)
    check(record.get("code") == "worker-lost", "worker-lost", record)
    check(outcome.message.executions <= 2, "two executions at most", outcome.message)
    await bench.ran(asked, outcome.message.executions, "it ran as often as it says")

"""Cases about keys: who joins, what is replayed, what ends it, what may start anew.

A server whose status record does not say ``durable`` takes no keys, and is not judged.
"""

from __future__ import annotations

import secrets
from typing import Any, NamedTuple

import cbor2

from ...core import messages
from ...core.key_records import KeyAct, input_digest
from ...core.terms import Body
from .bench import Bench, skip_unless
from .findings import case, check
from .forms import Received, body_of, value_of
from .peer import Peer

NAMESPACE = b"conform"
ALLOWANCE = 4


class Caller(NamedTuple):
    """A peer that names keys, and the token by which it is told again."""

    peer: Peer
    token: bytes

    def ask(self, sequence: int, name: str, asked: Any, **other: Any) -> None:
        """Ask for this input under a key."""
        body = body_of(asked)
        digest = input_digest(body, other.get("rerun"))
        self.say(sequence, name, KeyAct.ASK, body, digest=digest, **other)

    def say(self, sequence: int, name: str, act: KeyAct, body: Body = b"", **other: Any) -> None:
        """Say something of a key."""
        message = messages.KeyedRequest(
            self.peer.session, sequence, bytes(32), None, ALLOWANCE, None, self.token, act,
            NAMESPACE, name.encode(), b"", None, True,
        )  # fmt: skip
        self.peer.send(message._replace(**other), body)

    async def command(
        self, sequence: int, name: str, act: KeyAct, tag: int | bytes = b""
    ) -> dict[str, Any]:
        """Cancel or forget a key, by default with a new id, and hear what it did."""
        self.say(sequence, name, act, tag=tag if isinstance(tag, int) or tag else new_id())
        record = await self.peer.result(sequence, f"the answer to {act.name.lower()}")
        right = isinstance(record, dict) and {"generation", "started"} <= set(record)
        check(right, "a map with generation and started", record)
        return dict(record)


def new_id() -> bytes:
    """Of a caller or a command."""
    return secrets.token_bytes(16)


def caller(peer: Peer) -> Caller:
    """A caller that nobody knows.  Skips the case if the server takes no keys."""
    skip_unless("durable" in peer.server, "the server takes no keys")
    return Caller(peer, new_id())


async def under_way(bench: Bench, *callers: Caller) -> tuple[str, dict[str, Any]]:
    """A new key, and what these have asked for under it, which runs by now."""
    key, asked = bench.key(), bench.wait()
    for each in callers:
        each.ask(0, key, asked)
    await bench.counted(asked, "it runs", started=1)
    return key, asked


def same_body(*outcomes: Received) -> bool:
    """Whether these are the outcome of one run."""
    return len({(each.message.status, each.frames[1]) for each in outcomes}) == 1


# -- what can be asked ------------------------------------------------------------


@case("What can be asked", "G6")
async def another_input_under_a_key_is_a_conflict(bench: Bench, one: Peer, two: Peer) -> None:
    """Another body, or another consent, is refused for good; the first ask runs on."""
    first, second, key = caller(one), caller(two), bench.key()
    asked, other = bench.wait(), bench.echo("another")
    first.ask(0, key, asked)
    await bench.counted(asked, "it runs", started=1)
    second.ask(0, key, other)
    await two.refused_for_good(0, "key-conflict")
    second.ask(1, key, asked, rerun=True)
    await two.refused_for_good(1, "key-conflict")
    await bench.let_end(asked, one)
    await bench.ran(asked, 1, "the first ran once")
    await bench.ran(other, 0, "the other did not run")


@case("What can be asked", "wire")
async def the_same_key_in_another_namespace_is_another_key(bench: Bench, peer: Peer) -> None:
    """An input that is asked for under one key in two namespaces runs twice."""
    me, asked, key = caller(peer), bench.echo(), bench.key()
    me.ask(0, key, asked)
    me.ask(1, key, asked, namespace=b"conform-2")
    runs = {(await peer.result(sequence))["run"] for sequence in (0, 1)}
    check(len(runs) == 2, "two runs", runs)


@case("What can be asked", "G8")
async def what_cannot_be_a_key_is_refused(bench: Bench, peer: Peer) -> None:
    """A key or a namespace that is empty, or far too long, is refused for good."""
    me, asked = caller(peer), bench.echo()
    wrong = ({"key": b""}, {"key": bytes(9999)}, {"namespace": b""}, {"namespace": bytes(9999)})
    for sequence, names in enumerate(wrong):
        me.ask(sequence, "a key", asked, **names)
        await peer.refused_for_good(sequence, "refused")
    await bench.ran(asked, 0, "it did not run")


@case("What can be asked", "G9")
async def what_nobody_asked_for_cannot_be_attached_to(bench: Bench, peer: Peer) -> None:
    """Attaching to a key of which nothing is known is refused for good."""
    caller(peer).say(0, bench.key(), KeyAct.ATTACH)
    await peer.refused_for_good(0, "unknown-key")


@case("What can be asked", "G3")
async def who_attaches_gets_the_outcome_without_the_input(
    bench: Bench, one: Peer, two: Peer
) -> None:
    """Attaching, while it runs or later, gets the body that the ask gets, and starts nothing."""
    first, second = caller(one), caller(two)
    key, asked = await under_way(bench, first)
    second.say(0, key, KeyAct.ATTACH)
    await two.barrier()
    await bench.open(asked)
    outcomes = [await one.outcome(0), await two.outcome(0)]
    second.say(1, key, KeyAct.ATTACH)
    outcomes.append(await two.outcome(1))
    check(same_body(*outcomes), "one body", [each.message for each in outcomes])
    await bench.ran(asked, 1, "it ran once")


# -- generations --------------------------------------------------------------------


@case("Generations", "G1")
async def two_that_ask_under_one_key_get_one_run(bench: Bench, one: Peer, two: Peer) -> None:
    """A second client that asks under the key starts nothing, and both get the outcome."""
    first, second = caller(one), caller(two)
    _, asked = await under_way(bench, first, second)
    await bench.ran(asked, 1, "the second starts nothing")
    await bench.open(asked)
    outcomes = [await one.outcome(0), await two.outcome(0)]
    check(same_body(*outcomes), "one body", [each.message for each in outcomes])
    check(outcomes[0].message.status == 0, "a result", outcomes[0].message)
    await bench.ran(asked, 1, "it ran once")


@case("Generations", "G4")
async def an_outcome_outlives_the_client_that_asked(bench: Bench) -> None:
    """After the first client's finish and goodbye another one is answered with the outcome."""
    key, asked = bench.key(), bench.echo("kept")
    async with bench.client() as one:
        caller(one).ask(0, key, asked)
        first = await one.outcome(0)
        one.finish(0)
        one.goodbye()
        await one.barrier()
    async with bench.client() as two:
        caller(two).ask(0, key, asked)
        second = await two.outcome(0, "the outcome, replayed")
        check(same_body(first, second), "the same body", second.message)
    await bench.ran(asked, 1, "it ran once")


@case("Generations", "G7")
async def work_goes_on_while_one_that_asked_waits(bench: Bench, one: Peer, two: Peer) -> None:
    """The first of two that leaves cancels nothing, and is told that it was started."""
    first, second = caller(one), caller(two)
    _, asked = await under_way(bench, first, second)
    await two.barrier()
    started = await one.cancel(0, messages.KeyedCancel)
    check(started, "started: it runs on", started)
    counts = await bench.counts(asked)
    check(not counts.cancelled, "no cancel", counts)
    await bench.let_end(asked, two)
    await bench.ran(asked, 1, "it ran once")


@case("Generations", "G7")
async def who_attaches_does_not_keep_work_running(bench: Bench, one: Peer, two: Peer) -> None:
    """When the last one that asked leaves, the work is cancelled, and who attached is told."""
    first, second = caller(one), caller(two)
    key, asked = await under_way(bench, first)
    second.say(0, key, KeyAct.ATTACH)
    await two.barrier()
    one.finish(0)
    record = await two.error(0, "that the work was cancelled")
    check(record["verdict"] == "MAY_HAVE_RUN", "MAY_HAVE_RUN", record)
    await bench.is_cancelled(asked)


@case("Generations", "G1")
async def nothing_starts_under_a_key_before_what_ran_has_ended(bench: Bench, peer: Peer) -> None:
    """After a cancel by key the next ask waits for the end of code that ignores its cancel."""
    me, key, asked = caller(peer), bench.key(), bench.wait(stubborn=True)
    me.ask(0, key, asked)
    await bench.counted(asked, "it runs", started=1)
    answer = await me.command(1, key, KeyAct.CANCEL)
    check(answer["started"] is True, "it was started", answer)
    await peer.error(0, "that it was cancelled")
    me.ask(2, key, asked)
    await peer.barrier()
    await bench.ran(asked, 1, "the next one waits")
    await bench.open(asked)
    await peer.outcome(2)
    await bench.counted(asked, "it ran, after the first", started=2, running=0)


# -- cancel and forget ----------------------------------------------------------------


@case("Cancel and forget", "G2")
async def what_was_forgotten_is_asked_for_anew(bench: Bench, peer: Peer) -> None:
    """After a forget the same ask runs again, and its outcome is another one."""
    me, key, asked = caller(peer), bench.key(), bench.echo()
    me.ask(0, key, asked)
    first = await peer.result(0)
    answer = await me.command(1, key, KeyAct.FORGET)
    check(isinstance(answer["generation"], int), "the generation that it closed", answer)
    me.say(2, key, KeyAct.ATTACH)
    await peer.refused_for_good(2, "unknown-key")
    me.ask(3, key, asked)
    second = await peer.result(3)
    check(first["run"] != second["run"], "another run", second)
    await bench.ran(asked, 2, "it ran again")


@case("Cancel and forget", "G4")
async def a_cancel_by_key_after_the_outcome_drops_nothing(bench: Bench, peer: Peer) -> None:
    """A cancel that comes after the outcome closes nothing and says so; the outcome stays."""
    me, key, asked = caller(peer), bench.key(), bench.echo()
    me.ask(0, key, asked)
    first = await peer.result(0)
    answer = await me.command(1, key, KeyAct.CANCEL)
    said = {"generation": None, "started": True, "finished": True}
    check(answer == said, f"{said}", answer)
    me.say(2, key, KeyAct.ATTACH)
    check(await peer.result(2) == first, "the same result", first)
    await bench.ran(asked, 1, "it ran once")


@case("Cancel and forget", "G7")
async def a_cancel_by_key_that_is_said_twice_hits_nothing_else(
    bench: Bench, one: Peer, two: Peer
) -> None:
    """The second copy, also from another client, is answered as the first, and ends nothing."""
    first, second, tag = caller(one), caller(two), new_id()
    key, asked = await under_way(bench, first)
    answer = await first.command(1, key, KeyAct.CANCEL, tag)
    await bench.is_cancelled(asked)
    first.ask(2, key, asked)
    await bench.counted(asked, "it runs anew", started=2, running=1)
    again = await second.command(0, key, KeyAct.CANCEL, tag)
    check(again == answer, f"the same answer, {answer}", again)
    await bench.let_end(asked, one, 2)
    await bench.counted(asked, "the second ran to its end", started=2, results=1)


@case("Cancel and forget", "G7")
async def a_cancel_of_a_generation_that_is_over_hits_nothing(bench: Bench, peer: Peer) -> None:
    """A cancel that names an earlier generation ends no later one."""
    me = caller(peer)
    key, asked = await under_way(bench, me)
    answer = await me.command(1, key, KeyAct.CANCEL)
    number = answer["generation"]
    check(isinstance(number, int), "the generation that it closed", answer)
    me.ask(2, key, asked)
    await bench.counted(asked, "it runs anew", started=2, running=1)
    answer = await me.command(3, key, KeyAct.CANCEL, number)
    check(answer == {"generation": None, "started": True}, "nothing was closed", answer)
    await bench.let_end(asked, peer, 2)


@case("Cancel and forget", "G7")
async def a_cancel_by_key_may_overtake_its_ask(bench: Bench, peer: Peer) -> None:
    """A cancel of a key of which nothing is known cancels the next ask, and only that."""
    me, key, asked = caller(peer), bench.key(), bench.echo()
    answer = await me.command(0, key, KeyAct.CANCEL)
    check(answer["generation"] is None, "no generation", answer)
    me.ask(1, key, asked)
    record = await peer.error(1, "that it was cancelled")
    check(record["verdict"] == "DID_NOT_RUN", "DID_NOT_RUN", record)
    await bench.ran(asked, 0, "it did not run")
    me.ask(2, key, asked)
    await peer.result(2)
    await bench.ran(asked, 1, "the next one ran")


@case("Cancel and forget", "G9")
async def a_cancel_of_a_request_with_a_key_never_denies_a_run(bench: Bench, peer: Peer) -> None:
    """Of a sequence that was never seen it says started, for others may have asked."""
    me = caller(peer)
    check(await peer.cancel(0, messages.KeyedCancel), "started", "started: false")
    asked = bench.echo()
    me.ask(0, bench.key(), asked)
    await peer.refused(0, "finished")
    await bench.ran(asked, 0, "it did not run")


# -- which keys there are ---------------------------------------------------------------


@case("Which keys there are", "wire")
async def keys_are_listed_without_a_session(bench: Bench) -> None:
    """AskKeys is answered without a session, page by page, with the keys of its namespace."""
    async with bench.client() as peer, bench.connection() as stranger:
        me, namespace = caller(peer), new_id()
        names = [bench.key() for _ in range(3)]
        for sequence, name in enumerate(names):
            me.ask(sequence, name, bench.echo(), namespace=namespace)
            await peer.result(sequence)
        found, first = [], 0
        while True:
            stranger.send(messages.AskKeys(first + 1, namespace, first))
            answer, frames = await stranger.next(messages.KnownKeys)
            check(answer.probe == first + 1, f"the probe {first + 1}", answer)
            page = cbor2.loads(frames[1])
            found += [each["key"].decode() for each in page["keys"]]
            if page["next"] is None:
                break
            check(page["next"] > first, f"a next page that begins after {first}", page["next"])
            first = page["next"]
        check(found == names, f"the keys {names}", found)


# -- issued again -----------------------------------------------------------------------


@case("Issued again", "G2")
async def what_may_have_run_is_started_by_proof_and_consent_only(bench: Bench, peer: Peer) -> None:
    """An ask that is issued again, of an unknown key, needs proof, consent and allowance."""
    me, key, asked = caller(peer), bench.key(), bench.echo()
    enough: dict[str, Any] = {"earlier": 1, "gone": True, "rerun": True}
    without = (("gone", False), ("rerun", False), ("earlier", ALLOWANCE))
    for sequence, (name, value) in enumerate(without):
        me.ask(sequence, key, asked, **{**enough, name: value})
        await peer.refused_for_good(sequence, "unknown-key")
    await bench.ran(asked, 0, "it did not run")
    me.ask(3, key, asked, **enough)
    await peer.result(3)
    await bench.ran(asked, 1, "with all three it ran")


@case("Issued again", "G4")
async def what_is_issued_again_joins_what_runs(bench: Bench, one: Peer, two: Peer) -> None:
    """Without proof and consent an ask that is issued again still joins, and is answered."""
    first, second = caller(one), caller(two)
    key, asked = await under_way(bench, first)
    second.ask(0, key, asked, earlier=1, gone=False)
    await two.barrier()
    await bench.open(asked)
    outcomes = [await one.outcome(0), await two.outcome(0)]
    check(same_body(*outcomes), "one body", [value_of(each) for each in outcomes])
    await bench.ran(asked, 1, "it ran once")

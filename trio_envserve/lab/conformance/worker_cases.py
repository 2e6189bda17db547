"""The cases about workers: the link between router and worker, from the router's side."""

from __future__ import annotations

import os

import cbor2

from ...core import messages
from ...core.limits import PROTOCOL_VERSION
from ...core.messages import (
    Announced,
    Beat,
    Declined,
    Dispatch,
    Fetch,
    Hello,
    Missing,
    Retire,
    Said,
    Stop,
    WorkerHello,
    WorkerOutcome,
)
from ...core.terms import ID_BYTES, Status, Verdict
from .findings import Case, case, check
from .worker_bench import CLIENT, Heard, WorkerBench, error_of

STARTED = "How it is started"
SAID = "What is said"
TOO_MANY = 65_537
"""Dispatches in one message: one more than a worker takes."""


async def _ends_as(b: WorkerBench, status: Status) -> Heard:
    """The outcome of dispatch 0, which must have this status."""
    heard = await b.outcome()
    assert isinstance(heard.message, WorkerOutcome)
    seen = error_of(heard) if heard.message.status else heard.message
    check(heard.message.status == status, f"status {status.value}, {status.name.lower()}", seen)
    return heard


async def _fails_as(b: WorkerBench, status: Status, verdict: Verdict, code: str = "") -> None:
    """The outcome of dispatch 0 has this status, and an error with this verdict and code."""
    info = error_of(await _ends_as(b, status))
    right = info.verdict is verdict and code in ("", info.code)
    check(right, f"{code}, {verdict.name}".removeprefix(", "), info)


@case(SAID, "wire")
async def a_hello_is_repeated_until_a_state_comes(b: WorkerBench) -> None:
    """The hello comes again with later beats, until a Statement answers it, and then no more."""
    hello = await b.one(WorkerHello, "a hello")
    check(hello.version == PROTOCOL_VERSION, f"version {PROTOCOL_VERSION}", hello)
    since = len(b.heard)
    await b.one(WorkerHello, "a second hello, as nobody has answered", since)
    b.state(0, 0)
    await b.quiet()
    await b.nothing_of(WorkerHello, "no hello after a Statement", len(b.heard))


@case(SAID, "wire")
async def beats_are_numbered_and_name_what_has_arrived(b: WorkerBench) -> None:
    """Beats are numbered 1, 2, 3, …, and seen are the spans of the dispatches that arrived."""
    b.dispatch(0)
    b.dispatch(3)
    await b.outcome(0)
    await b.outcome(3)
    await b.quiet()
    beats = b.all(Beat)
    check([beat.beat for beat in beats] == list(range(1, len(beats) + 1)), "1, 2, 3, …", beats)
    check(beats[-1].seen == [0, 1, 3, 4], "seen [0, 1, 3, 4]", beats[-1])


@case(STARTED, "G9")
async def signs_of_life_come_by_themselves(b: WorkerBench) -> None:
    """A line of JSON comes on the signs with each heartbeat_s, whether or not there is work."""
    await b.until(lambda: len(b.heartbeats) >= 3, "three signs of life")


@case(SAID, "G3")
async def a_dispatch_gets_one_outcome(b: WorkerBench) -> None:
    """A dispatch is run and gets one outcome, a result, with its ids and its client."""
    b.dispatch()
    await _ends_as(b, Status.RESULT)
    since = len(b.heard)
    await b.nothing_of(WorkerOutcome, "no second outcome", since)


@case(SAID, "G3")
async def dispatches_may_share_a_batch(b: WorkerBench) -> None:
    """The rows of a batch of dispatches are taken as if they had come one by one."""
    body = b.body_of()
    rows: list[Said] = [(Dispatch(b.session, n, n, CLIENT), body) for n in (0, 1, 3)]
    ((header, bodies),) = messages.in_batches([*rows, rows[0]])
    b.send(b.incarnation, header, bodies)
    for number in (0, 1, 3):
        await b.outcome(number)
    await b.quiet()
    check(len(b.all(WorkerOutcome)) == 3, "three outcomes", b.all(WorkerOutcome))
    check(b.all(Beat)[-1].seen == [0, 2, 3, 4], "seen [0, 2, 3, 4]", b.all(Beat)[-1])


@case(SAID, "G1")
async def a_number_seen_before_is_not_run_again(b: WorkerBench) -> None:
    """A dispatch that arrives three times is run once."""
    for _ in range(3):
        b.dispatch()
    await b.outcome()
    b.dispatch()
    await b.quiet()
    found = b.all(WorkerOutcome)
    check(len(found) == 1, "one outcome", found)


@case(SAID, "G5")
async def what_is_for_another_incarnation_is_ignored(b: WorkerBench) -> None:
    """A dispatch for another incarnation is not run, and has not been seen."""
    other = os.urandom(ID_BYTES)
    b.say(Dispatch(b.session, 0, 0, CLIENT), b"", incarnation=other)
    b.say(Retire(), incarnation=other)
    await b.quiet()
    check(b.all(Beat)[-1].seen == [], "nothing seen", b.all(Beat)[-1])
    check(not b.all(WorkerOutcome), "no outcome", b.all(WorkerOutcome))


@case(SAID, "G4")
async def a_lost_outcome_is_sent_again(b: WorkerBench) -> None:
    """An outcome that a Statement of a later beat still wants is sent again, byte for byte."""
    b.dispatch()
    first = await b.outcome()
    for _ in range(2):
        again = await b.missed()
        check(again.frames == first.frames, "the same frames again", again.message)


@case(SAID, "G8")
async def an_outcome_under_way_is_not_sent_again(b: WorkerBench) -> None:
    """A Statement of a beat from before the outcome was sent does not ask for it again."""
    beat = await b.later_beat()
    b.dispatch()
    await b.outcome()
    since = len(b.heard)
    b.state(beat, 1, [0, 1])
    await b.nothing_of(WorkerOutcome, "no outcome again", since)


@case(SAID, "G4")
async def an_outcome_is_dropped_when_the_router_has_it(b: WorkerBench) -> None:
    """An outcome that a Statement no longer names is dropped, and never sent again."""
    b.dispatch()
    await b.outcome()
    since = len(b.heard)
    b.state(await b.later_beat(), 1)
    b.state(await b.later_beat(), 1, [0, 1])
    await b.nothing_of(WorkerOutcome, "no outcome: it was dropped", since)


@case(SAID, "G4")
async def outcomes_are_kept_beside_each_other(b: WorkerBench) -> None:
    """Outcomes that are still wanted are kept, whatever becomes of others beside them."""
    for number in range(3):
        b.dispatch(number)
    first = [await b.outcome(number) for number in range(3)]
    since = len(b.heard)
    b.state(await b.later_beat(), 3, [0, 1, 2, 3])
    again = [await b.outcome(number, since) for number in (0, 2)]
    check([each.frames for each in again] == [first[0].frames, first[2].frames],
          "outcomes 0 and 2 as they were", [each.message for each in again])  # fmt: skip
    numbers = [each.number for each in b.all(WorkerOutcome, since)]
    check(1 not in numbers, "no outcome 1: the router has it", numbers)


@case(SAID, "G9")
async def what_never_arrived_is_asked_for(b: WorkerBench) -> None:
    """Live dispatches that never arrived are named in a Missing, and run when they come."""
    b.dispatch(1)
    await b.outcome(1)
    b.state(await b.later_beat(), 4, [0, 2, 3, 4])
    missing = await b.one(Missing, "a Missing of 0 and 3")
    check(missing.numbers == [0, 1, 3, 4], "a Missing of 0 and 3", missing)
    b.dispatch(0)
    b.dispatch(3)
    await b.outcome(0)
    await b.outcome(3)


@case(SAID, "G7")
async def what_is_cancelled_and_never_arrived_is_declined(b: WorkerBench) -> None:
    """A cancelled dispatch that never arrived is declined, counts as seen, and is not run."""
    b.state(await b.later_beat(), 2, [0, 2], [0, 2])
    declined = await b.one(Declined, "a Declined of 0 and 1")
    check(declined.numbers == [0, 2], "a Declined of 0 and 1", declined)
    b.dispatch(0)
    await b.quiet()
    check(b.all(Beat)[-1].seen == [0, 2], "0 and 1 seen", b.all(Beat)[-1])
    check(not b.all(WorkerOutcome), "no outcome: it was declined", b.all(WorkerOutcome))


@case(SAID, "G7")
async def a_stop_may_overtake_its_dispatch(b: WorkerBench) -> None:
    """A dispatch that was stopped before it arrived is not run: cancelled, DID_NOT_RUN."""
    b.say(Stop([0, 1]))
    b.dispatch()
    await _fails_as(b, Status.CANCELLED, Verdict.DID_NOT_RUN, "cancelled")


@case(SAID, "G7", needs=("long",))
async def a_stop_ends_what_runs(b: WorkerBench) -> None:
    """A Stop reaches the environment's code, and the outcome says MAY_HAVE_RUN."""
    b.dispatch(of="long")
    await b.nothing_of(WorkerOutcome, "an input that goes on until it is cancelled", 0)
    b.say(Stop([0, 1]))
    await _fails_as(b, Status.CANCELLED, Verdict.MAY_HAVE_RUN, "cancelled")


@case(SAID, "G7", needs=("long",))
async def a_lost_stop_is_repaired(b: WorkerBench) -> None:
    """A dispatch that a Statement names as cancelled is cancelled, though no Stop has come."""
    b.dispatch(of="long")
    await b.quiet()
    b.state(await b.later_beat(), 1, [0, 1], [0, 1])
    await _fails_as(b, Status.CANCELLED, Verdict.MAY_HAVE_RUN, "cancelled")


@case(SAID, "G7", needs=("long",))
async def what_nobody_wants_any_more_is_cancelled(b: WorkerBench) -> None:
    """An execution that is below next and not live is cancelled."""
    b.dispatch(of="long")
    await b.quiet()
    b.state(await b.later_beat(), 1)
    await _fails_as(b, Status.CANCELLED, Verdict.MAY_HAVE_RUN, "cancelled")


@case(SAID, "G1", needs=("long",))
async def executions_run_beside_each_other(b: WorkerBench) -> None:
    """A long execution does not keep others from being run."""
    b.dispatch(0, of="long")
    b.dispatch(1)
    await b.outcome(1)


@case(SAID, "G8")
async def malformed_messages_change_nothing(b: WorkerBench) -> None:
    """A message that is not for workers is ignored, and what comes after it is done."""
    token = b.incarnation
    b.send(b"")
    b.send(token)
    b.send(token, b"")
    b.send(token, b"\xff\x00 no header")
    b.send(token, messages.encode(Hello(PROTOCOL_VERSION, bytes(ID_BYTES), 1, "a client", 1000)))
    b.send(token, messages.encode(Dispatch(b.session, 7, 7, CLIENT)))  # it has no body
    b.send(token, cbor2.dumps([80, [0, 0], b.session, [1, 2, 3], [1, 2, 3], CLIENT]), b"")
    b.send(token, cbor2.dumps([80, [1, 1], b.session, [1, 2], [1, 2], CLIENT]), b"\xf6")
    b.send(token, messages.encode(Stop([5, 3])))
    b.send(token, messages.encode(Stop([0, 1])), b"a frame too many")
    b.dispatch()
    await _ends_as(b, Status.RESULT)
    await b.quiet()
    check(b.all(Beat)[-1].seen == [0, 1], "0 seen", b.all(Beat)[-1])


@case(SAID, "G10")
async def a_message_that_names_too_many_is_ignored(b: WorkerBench) -> None:
    """A Stop, or Statement, of more than 65,536 dispatches is malformed, and changes nothing."""
    b.say(Stop([0, TOO_MANY]))
    b.state(await b.later_beat(), 2**40, [0, 2**40], [0, 2**40])
    b.dispatch()
    await _ends_as(b, Status.RESULT)
    check(not b.all(Declined) and not b.all(Missing), "no Declined, no Missing",
          [*b.all(Declined), *b.all(Missing)])  # fmt: skip


@case(SAID, "G9")
async def an_unreadable_body_did_not_run(b: WorkerBench) -> None:
    """A body that cannot be read is an outcome like any other: an error, DID_NOT_RUN."""
    b.dispatch(body=b"\xff\xff")
    await _fails_as(b, Status.ERROR, Verdict.DID_NOT_RUN)


@case(SAID, "G9", needs=("failing",))
async def a_failed_rollout_is_an_error_record(b: WorkerBench) -> None:
    """A rollout that fails ends as status 1 with rollout-failed, RAN_AND_FAILED."""
    b.dispatch(of="failing")
    await _fails_as(b, Status.ERROR, Verdict.RAN_AND_FAILED, "rollout-failed")


@case(SAID, "G8")
async def a_large_outcome_is_announced_first(b: WorkerBench) -> None:
    """A large outcome is announced by its size, and sent when a Fetch asks for it."""
    b.dispatch()
    announced = await b.one(Announced, "an announcement: announce_bytes is 1")
    await b.nothing_of(WorkerOutcome, "no outcome before a Fetch", 0)
    b.say(Fetch([0, 1], []))
    body = (await b.outcome()).frames[-1]
    check(len(body) == announced.size_bytes, f"a body of {announced.size_bytes} bytes", len(body))
    check((announced.session, announced.sequence, announced.number) == (b.session, 0, 0),
          "the dispatch's ids in its announcement", announced)  # fmt: skip


@case(SAID, "G4")
async def a_lost_announcement_is_sent_again(b: WorkerBench) -> None:
    """Statement repairs an announcement as it does an outcome, until it is fetched; then that."""
    b.dispatch()
    await b.one(Announced, "an announcement: announce_bytes is 1")
    again = await b.missed()
    check(isinstance(again.message, Announced), "the announcement again", again.message)
    b.say(Fetch([0, 1], []))
    first = await b.outcome()
    again = await b.missed()
    check(again.frames == first.frames, "the outcome again, as it was", again.message)


@case(SAID, "G8")
async def what_is_to_wait_is_not_announced_again(b: WorkerBench) -> None:
    """After a Fetch that names it in later, an announcement is not repeated, and is kept."""
    b.dispatch()
    await b.one(Announced, "an announcement: announce_bytes is 1")
    b.say(Fetch([], [0, 1]))
    since = len(b.heard)
    b.state(await b.later_beat(), 1, [0, 1])
    await b.nothing_of(Announced, "no announcement again", since)
    b.say(Fetch([0, 1], []))
    await b.outcome()


@case(SAID, "G8")
async def retired_it_exits_with_status_0(b: WorkerBench) -> None:
    """After Retire the worker tears down and exits with status 0."""
    b.dispatch()
    await b.outcome()
    b.say(Retire())
    how = await b.ended("the end of its process")
    check(how == "it exited with status 0", "exit with status 0", how)


@case(STARTED, "G1")
async def it_does_not_outlive_its_server(b: WorkerBench) -> None:
    """When the signs and the link end, the worker exits, whatever it runs."""
    b.dispatch(of="long" if "long" in b.subject.inputs else "input")
    await b.quiet()
    b.hang_up()
    await b.ended("the end of its process")


UNANSWERED = frozenset((a_hello_is_repeated_until_a_state_comes,))
"""In all others the hello of the worker is answered before they begin."""

ANNOUNCING = frozenset(
    (
        a_large_outcome_is_announced_first,
        a_lost_announcement_is_sent_again,
        what_is_to_wait_is_not_announced_again,
    )
)
"""These tell the worker that every outcome is large."""

WORKER_CASES: tuple[Case, ...] = tuple(
    sorted(
        (each for each in list(globals().values()) if type(each) is Case),
        key=lambda each: (STARTED, SAID).index(each.section),
    )
)
"""Every case, in the order of the protocol document."""

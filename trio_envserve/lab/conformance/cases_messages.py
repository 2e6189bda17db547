"""Cases about the form of messages: transport, headers, bodies, versions."""

from __future__ import annotations

import datetime
import os
import struct
import uuid
from typing import Any

import cbor2

from ...core import messages
from ...core.limits import MIB, PROTOCOL_VERSION
from .bench import Bench, skip_unless
from .findings import case, check
from .forms import body_of, value_of
from .peer import Peer
from .raw import taken_in

LARGEST_FRAME = 32 * MIB
"""A server that takes larger frames is not sent one that is too large."""

S = b"\x11" * 16

MALFORMED: tuple[tuple[bytes, str], ...] = (
    (b"", "empty"),
    (b"\x05", "no array"),
    (b"\x80", "an array without a kind"),
    (b"\x81\x18\xff", "unknown kind 255"),
    (b"\x81\x61a", "a kind that is text"),
    (b"\x81\x05", "a field missing"),
    (b"\x83\x05\x07\x08", "a field too many"),
    (b"\x9f\x05\x07\xff", "an array of indefinite length"),
    (b"\x82\x05\x01\x00", "bytes after the array"),
    (b"\x82\x05\x20", "a probe of -1"),
    (b"\x82\x05\xf9\x3c\x00", "a probe of 1.0"),
    (b"\x82\x05\xf5", "a probe of true"),
    (b"\x82\x05\x1b" + b"\x80" + bytes(7), "a probe of 2^63"),
    (b"\x82\x05\xc2\x49\x01" + bytes(8), "a probe of 2^64, as a large integer"),
    (b"\x82\x06\x4f" + bytes(15), "a session id of 15 bytes"),
    (b"\x82\x06\x70" + b"a" * 16, "a session id that is text"),
    (b"\x83\x02\x50" + S + b"\x81\x00", "spans with an odd number of edges"),
    (b"\x83\x02\x50" + S + b"\x82\x03\x00", "spans that do not increase"),
    (b"\x83\x02\x50" + S + b"\x82\x03\x03", "an empty span"),
    (b"\x83\x02\x50" + S + b"\x84\x00\x01\x01\x02", "touching spans"),
    (b"\x86\x00\x01\x50" + S + b"\x01\x62\xc3\x28\x01", "text that is not UTF-8"),
    (cbor2.dumps([1, None, S, 0, S, 1, 2, None, None]), "consent of 1"),
    (
        cbor2.dumps([1, None, S, 0, S, None, 2, float("nan"), None]),
        "a deadline that is not a number",
    ),
    (cbor2.dumps([1, None, S, 0, S, None, 2, float("inf"), None]), "an infinite deadline"),
    (cbor2.dumps([1, None, S, 0, S, None, 2, -1, None]), "a negative deadline"),
    (b"\x82\x01" + b"\x81" * 16 + b"\x00", "nested too deep"),
    (b"\x83\x02\x50" + S, "it ends too early"),
    (cbor2.dumps([17, S, 0, 0, "w", 0.0, 1]), "a message that only servers send"),
    (cbor2.dumps([67, S, 0, 0, 0, 0.0]), "a message that only workers send"),
)
"""Headers that no version of the document allows a client, and why."""

HOSTILE: tuple[tuple[bytes, str], ...] = (
    (b"\x81" * 100_000 + b"\x00", "100,000 nested arrays"),
    (b"\xa1\x00" * 50_000 + b"\x00", "50,000 nested maps"),
    (b"\x9b" + b"\xff" * 8, "an array that claims 2^64 members"),
    (b"\xbb" + b"\xff" * 8, "a map that claims 2^64 members"),
    (b"\x5b" + b"\x7f" + b"\xff" * 7, "bytes that claim 2^63 of them"),
    (b"\x82\x05\xc2\x5a\x00\x01\x00\x00" + b"\xff" * 65536, "an integer of 524,288 bits"),
    (b"\xd8\x1c" * 20_000 + b"\x80", "20,000 tags"),
    (b"\x82\xd8\x1c\x05\xd8\x1d\x00", "a reference to itself"),
)
"""Headers made to cost the reader memory, stack or time."""


async def answered_with_error(peer: Peer, why: str) -> None:
    """The next message must be the refusal of a message as a whole."""
    error, _ = await peer.next(messages.Error, f"Error, for a header that is malformed: {why}")
    check(error.code == "malformed", f"the code 'malformed' for: {why}", error)
    check(error.version == PROTOCOL_VERSION, f"version {PROTOCOL_VERSION} in Error", error)


# -- transport ------------------------------------------------------------------


@case("Transport", "G8")
async def a_frame_too_large_costs_only_its_connection(bench: Bench, peer: Peer) -> None:
    """A frame above the server's message_bytes is not run, and ends no more than the connection."""
    skip_unless(
        peer.message_bytes <= LARGEST_FRAME,
        f"the server takes frames of {peer.message_bytes >> 20} MiB: none larger is sent",
    )
    asked = bench.echo(b"x" * peer.message_bytes)
    peer.transmit(0, asked)
    async with bench.next_connection(peer) as after:
        synced = await after.sync(1, [0, 1])
        refused = [each for each, _ in peer.all(messages.Refused)]
        check(
            synced.missing == [0, 1],
            "the request was never seen here", f"missing {synced.missing}, refusals {refused}",
        )  # fmt: skip
    await bench.ran(asked, 0, "a request that is too large does not run")


@case("Transport", "wire")
async def a_message_of_65_frames_changes_nothing(bench: Bench, peer: Peer) -> None:
    """A message of more than 64 frames changes nothing, and costs its connection at most."""
    asked, sent = await bench.running(peer)
    header = messages.encode(messages.Finish(peer.session, [0, 1]))
    for frames in ([header, *[b""] * 64], [*sent.frames, *[b""] * 63], [header, *[b""] * 5000]):
        async with bench.raw(b"many-" + bench.nonce()) as (raw, _):
            raw.send_frames(*frames)
            await taken_in(raw)
    await bench.runs_on(asked, "it runs on")
    await bench.let_end(asked, peer)


@case("Headers", "wire")
async def requests_may_share_a_batch(bench: Bench, peer: Peer) -> None:
    """The rows of a batch are taken as if they had come one by one."""
    asked = [bench.echo(n) for n in range(3)]
    bodies = [body_of(each) for each in asked]
    sizes, digests = [len(each) for each in bodies], [bytes([n]) * 16 for n in range(3)]
    header = [1, sizes, peer.session, [0, 1, 2], digests, None, [1, 1, 1], None, None]
    peer.send_frames(cbor2.dumps(header), b"".join(bodies))
    await peer.misses([], 3, [0, 3], "all three requests were seen before it")
    for n in range(3):
        check((await peer.result(n))["value"] == n, "an outcome of each", "another one")
    for each in asked:
        await bench.ran(each, 1, "each request of the batch runs once")


@case("Headers", "G6")
async def a_row_that_is_refused_harms_no_other(bench: Bench, peer: Peer) -> None:
    """Of a batch with a conflict, a repeated and a finished request the rest is run."""
    first, second = bench.echo("first"), bench.echo("second")
    one, over = peer.transmit(0, first, digest=S), peer.transmit(2, bench.echo(), digest=S)
    await peer.outcome(0)
    await peer.outcome(2)
    peer.finish(2)
    bodies = [one.frames[1], body_of(bench.echo()), over.frames[1], body_of(second)]
    sizes, digests = [len(each) for each in bodies], [S, bytes(16), S, bytes(16)]
    header = [1, sizes, peer.session, [0, 0, 2, 1], digests, None, 1, None, None]
    peer.send_frames(cbor2.dumps(header), b"".join(bytes(each) for each in bodies))
    check((await peer.result(1))["value"] == "second", "the outcome of the last", "another")
    refused, _ = await peer.next(messages.Refused, "the conflict is refused")
    check((refused.sequence, refused.code) == (0, "conflict"), "a conflict of 0", refused)
    await peer.outcome(0, "the kept outcome of the repeated one")
    await bench.ran(first, 1, "the repeated one runs once")


@case("Headers", "wire")
async def what_only_looks_like_a_batch_changes_nothing(bench: Bench, peer: Peer) -> None:
    """Columns of other lengths, sizes that are not those of the bodies, and a batch of none
    or of too many rows are malformed, and none of their rows is run."""
    asked = bench.echo()
    body = body_of(asked)
    sizes, both = [len(body)] * 2, bytes(body) * 2
    for header, blob, why in (
        ([1, [], peer.session, 0, S, None, 1, None, None], b"", "a batch of none"),
        ([1, [0] * 65, peer.session, [*range(65)], S, None, 1, None, None], b"", "65 rows"),
        ([1, sizes, peer.session, [0], S, None, 1, None, None], both, "a column of one"),
        ([1, sizes, peer.session, [0, 1, 2], S, None, 1, None, None], both, "a column of three"),
        ([1, sizes, peer.session, [0, -1], S, None, 1, None, None], both, "a wrong row"),
        ([1, sizes, peer.session, [0, 1], S, None, 1, None, None], body, "too few bytes"),
        ([1, sizes, peer.session, [0, 1], S, None, 1, None, None], both + b"x", "too many"),
        ([1, [1.0, 2], peer.session, [0, 1], S, None, 1, None, None], b"xxx", "sizes of floats"),
        ([1, 2, peer.session, 0, S, None, 1, None, None], body, "sizes that are a number"),
        ([2, None, peer.session, [0, 1]], b"", "a kind that has no batches"),
    ):
        peer.send_frames(cbor2.dumps(header), blob)
        await answered_with_error(peer, why)
    await peer.misses([0, 3], 3, [0, 3], "none of them was seen")
    await bench.ran(asked, 0, "nothing of that runs")


# -- headers --------------------------------------------------------------------


@case("Headers", "wire")
async def a_malformed_header_is_answered_with_an_error(bench: Bench, peer: Peer) -> None:
    """A header that is not of the document is answered with Error, malformed."""
    for header, why in MALFORMED:
        peer.send_frames(header)
        await answered_with_error(peer, why)


@case("Headers", "G8")
async def a_hostile_header_costs_nothing(bench: Bench, peer: Peer) -> None:
    """Deep nesting, claimed lengths and huge integers are refused as malformed."""
    for header, why in HOSTILE:
        peer.send_frames(header)
        await answered_with_error(peer, why)
    for size in (1, 7, 64, 1000):
        peer.send_frames(b"\xff" + os.urandom(size))
        await answered_with_error(peer, f"{size + 1} random bytes")


@case("Headers", "wire")
async def the_wrong_number_of_frames_is_malformed(bench: Bench, peer: Peer) -> None:
    """A request without a body, with two, or any other message with one, is malformed."""
    request = messages.encode(messages.Request(peer.session, 0, S, None, 1, None))
    finish = messages.encode(messages.Finish(peer.session, [0, 1]))
    asked = bench.echo()
    body = body_of(asked)
    for frames, why in (
        ((request,), "a request without a body"),
        ((request, body, body), "a request with two bodies"),
        ((finish, b""), "a finish with a body"),
        ((b"", finish), "an empty frame in front"),
        ((S, request, body), "an incarnation in front"),
    ):
        peer.send_frames(*frames)
        await answered_with_error(peer, why)
    await peer.misses([0, 1], 1, [0, 1], "sequence 0 was never seen")
    await bench.ran(asked, 0, "nothing of that runs")


@case("Headers", "G6")
async def malformed_messages_change_nothing(bench: Bench, peer: Peer) -> None:
    """A malformed message changes no entry: what runs goes on, what is kept stays."""
    runs, kept = bench.wait(), bench.echo("kept")
    peer.transmit(0, runs)
    first = peer.transmit(1, kept)
    before = await peer.outcome(1)
    session = peer.session
    for array in (
        [2, session, [0]], [2, session, [2, 0]], [2, session, [0, 2], 0], [2, session, {0: 2}],
        [3, session, peer.epoch, 9, 9, 2, [0]], [3, session, peer.epoch, 9, 9, -1, []],
        [3, session, b"", 9, 9, 2, []], [4, session], [4, session, -1], [4, session, 0, 1],
        [4, session, 0.0], [6, session, 1], [6, [session]], [7, session], [-2, session, [0, 2]],
        [2.0, session, [0, 2]], [True, None, session, 0, S, None, 1, None],
    ):  # fmt: skip
        peer.send_frames(cbor2.dumps(array))
        await answered_with_error(peer, repr(array[:1] + array[2:]))
    peer.again(first)
    again = await peer.outcome(1)
    check(again.frames == before.frames, "the kept outcome, unchanged", again)
    await bench.runs_on(runs, "the other one runs on")
    await bench.let_end(runs, peer)


@case("Headers", "wire")
async def integers_may_have_any_width(bench: Bench, peer: Peer) -> None:
    """Integers, floats and lengths in wider encodings than needed are taken."""
    probe = b"\x98\x02\x19\x00\x05\x1b" + (7).to_bytes(8, "big")
    peer.send_frames(probe)
    await peer.next(messages.Stats, "an answer to a wide AskStats", lambda each: each.probe == 7)
    asked = bench.echo("wide")
    body = body_of(asked)
    header = (
        b"\x9a\x00\x00\x00\x09\x18\x01\xf6\x59\x00\x10" + peer.session + b"\x1a\x00\x00\x00\x00"
        b"\x58\x10"
        + S
        + b"\xf6\x1b"
        + (1).to_bytes(8, "big")
        + b"\xfb"
        + struct.pack(">d", 60)
        + b"\xf6"
    )
    peer.send_frames(header, body)
    check((await peer.result(0))["value"] == "wide", "its outcome", "another one")
    narrow = cbor2.dumps([1, None, peer.session, 0, S, None, 1, 60, None])
    peer.send_frames(narrow, body)
    await peer.outcome(0, "the kept outcome, for the same request in another encoding")
    await bench.ran(asked, 1, "both are one request")


@case("Headers", "wire")
async def statistics_need_no_session(bench: Bench) -> None:
    """AskStats is answered without a session, with its probe and a record."""
    async with bench.connection() as peer:
        peer.send(messages.AskStats(2**62))
        stats, frames = await peer.next(messages.Stats)
        check(stats.probe == 2**62, "the same probe", stats)
        check(isinstance(cbor2.loads(frames[1]), dict), "a record", frames[1][:64].hex())


@case("Headers", "G5")
async def a_client_cannot_speak_as_a_worker(bench: Bench, peer: Peer) -> None:
    """Messages of workers, in the workers' frames, complete nothing on the clients' socket."""
    asked, _ = await bench.running(peer)
    forged = body_of("forged")
    for number in range(3):
        outcome = messages.WorkerOutcome(peer.session, 0, number, 0, 0.0)
        peer.send_frames(S, b"client", messages.encode(outcome), forged)
        await answered_with_error(peer, "a worker's outcome in four frames")
    peer.send_frames(S, messages.encode(messages.WorkerHello(PROTOCOL_VERSION, 1, "x", True, 256)))
    await answered_with_error(peer, "a worker's hello")
    check(not peer.all(messages.Outcome), "no outcome yet", peer.all(messages.Outcome))
    await bench.open(asked)
    check((await peer.result(0))["key"] == asked["key"], "its own outcome", "a forged one")


# -- bodies ---------------------------------------------------------------------


@case("Bodies", "wire")
async def values_come_back(bench: Bench) -> None:
    """Every kind of value reaches the environment and comes back equal."""
    value: dict[Any, Any] = {
        "null": None, "bool": True, "int": -(2**40), "large": 2**70, "float": 0.1,
        "text": "é\U0001f600", "bytes": b"\x00\xff", "list": [1, [2, []]],
        "map": {1: "one", b"2": 2, None: 3},
        "time": datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC),
        "day": datetime.date(2026, 1, 2), "span": datetime.timedelta(seconds=-1.5),
        "uuid": uuid.UUID(int=1), "set": {1, 2, "three"}, "complex": 1 + 2j,
    }  # fmt: skip
    async with bench.client() as peer:
        peer.transmit(0, bench.echo(value))
        back = (await peer.result(0))["value"]
        for name, one in value.items():
            check(back.get(name) == one, f"{name}: {one!r}", back.get(name))


@case("Bodies", "G9", needs=("fail",))
async def a_failed_rollout_is_an_error_record(bench: Bench, peer: Peer) -> None:
    """A rollout that fails ends as status 1 with rollout-failed, RAN_AND_FAILED."""
    asked = {"op": "fail", "key": bench.key()}
    peer.transmit(0, asked)
    outcome = await peer.outcome(0)
    record = value_of(outcome)
    check(outcome.message.status == 1, "status 1", outcome.message)
    told = (record.get("code"), record.get("verdict"))
    check(told == ("rollout-failed", "RAN_AND_FAILED"), "rollout-failed, RAN_AND_FAILED", record)
    check(asked["key"] in record.get("message", ""), "what the environment raised", record)
    await bench.ran(asked, 1, "it ran once")


@case("Bodies", "G9")
async def an_unreadable_body_did_not_run(bench: Bench, peer: Peer) -> None:
    """A body that no worker can read is an outcome like any other: DID_NOT_RUN."""
    for sequence, body in enumerate((b"", b"\xff\x00", body_of(1)[:-1], b"\x81" * 1000)):
        peer.transmit(sequence, None, body=body)
        record = await peer.error(sequence)
        check(record["verdict"] == "DID_NOT_RUN", "DID_NOT_RUN", record)


@case("Bodies", "wire", needs=("fail",))
async def a_group_has_an_item_for_each_member(bench: Bench, peer: Peer) -> None:
    """The outcome of a group has ok and value, or ok and error, for each member in order."""
    inputs = [bench.echo(0), {"op": "fail", "key": bench.key()}, bench.echo(2)]
    peer.transmit(0, inputs, body=body_of(inputs, kind="group"))
    items = await peer.result(0)
    check(isinstance(items, list) and len(items) == 3, "three items", items)
    good, bad = [items[0], items[2]], items[1]
    right = all(each["ok"] is True for each in good)
    check(right and [each["value"]["value"] for each in good] == [0, 2], "values", good)
    check(bad["ok"] is False, "the second failed", bad)
    wanted = {"type": str, "message": str, "traceback": str, "attempts": int}
    found = {name: type(bad["error"].get(name)) for name in wanted}
    check(found == wanted, f"member-error: {sorted(wanted)}", bad)


@case("Bodies", "G2", needs=("fail",))
async def retries_are_inside_one_execution(bench: Bench, peer: Peer) -> None:
    """A rollout that failed is repeated up to max_retries times, inside the one execution."""
    twice = {"op": "fail", "key": bench.key(), "times": 2}
    peer.transmit(0, twice, max_retries=5)
    outcome = await peer.outcome(0)
    check(outcome.message.status == 0, "the third attempt's result", value_of(outcome))
    check(outcome.message.executions == 1, "one execution", outcome.message)
    await bench.ran(twice, 3, "two attempts fail, the third does not")
    always = {"op": "fail", "key": bench.key()}
    peer.transmit(1, always, max_retries=1)
    await peer.error(1)
    await bench.ran(always, 2, "one attempt, and one retry")


@case("Bodies", "wire")
async def only_the_state_columns_asked_for_come_back(bench: Bench, peer: Peer) -> None:
    """The result's state has the columns that the request names, and no others."""
    asked = bench.echo()
    peer.transmit(0, asked, state_columns=["key"])
    peer.transmit(1, bench.echo())
    state = (await peer.result(0)).get("state")
    check(state == {"key": asked["key"]}, "the column 'key' alone", state)
    without = await peer.result(1)
    check(not without.get("state"), "no state where no column is asked for", without)


# -- versions -------------------------------------------------------------------


@case("Versions", "wire")
async def a_foreign_version_is_refused_politely(bench: Bench) -> None:
    """A hello of another version, whatever follows the version, gets Error, foreign-version."""
    async with bench.connection() as peer:
        nonce = os.urandom(16)
        for array in (
            [0, PROTOCOL_VERSION + 1, nonce, 1, "conform", 1 << 20], [0, 999],
            [0, 2, {"all": "new"}], [0, 0, nonce, 1, "conform", 1 << 20],
        ):  # fmt: skip
            peer.send_frames(cbor2.dumps(array))
            error, _ = await peer.next(messages.Error, f"Error, for {array!r}")
            check(error.code == "foreign-version", "the code 'foreign-version'", error)
            check(error.version == PROTOCOL_VERSION, "the version spoken there", error)
        await peer.nothing_of(messages.Welcome, "no session")
        await peer.hello()

"""All cases against a server, in the order of the protocol document.

A case is a coroutine function with a bench, and mostly a peer; its docstring is the promise.
"""

from __future__ import annotations

import datetime
import fnmatch
import os
import random
import secrets
import struct
import uuid
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, NamedTuple

import cbor2
import trio

from ...core import messages
from ...core.errors import ConfigError
from ...core.key_records import KeyAct, input_digest
from ...core.limits import MIB, PROTOCOL_VERSION
from ...core.terms import Body
from ...testing.proxy import Direction, FaultProxy
from .bench import LOOK_S, Bench, skip_unless
from .findings import Case, CaseFailed, case, check
from .peer import PatientClient, Peer, Received, Sent, body_of, same_bytes, taken_in, value_of

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


# == Cases about routes: what a client states as its identity, and connections left behind


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


# == Cases about sessions: hello, welcome, goodbye, and sessions that are not known

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


# == Cases about requests: one outcome, duplicates, conflicts, deadlines, deaths

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


# == Cases about what repairs a loss: sync, finish, cancel, connections

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


# == Cases about refusals, for now and for good, and the least client there is

LARGEST_WINDOW = 20_000
"""A larger window is not filled."""

AGAIN_S = 0.05


@case("Refusals", "G9")
async def an_allowance_of_nothing_is_refused(bench: Bench, peer: Peer) -> None:
    """A request that allows no execution is refused for good, and has not been seen."""
    asked = bench.echo()
    peer.transmit(0, asked, allowance=0)
    await peer.refused_for_good(0, "refused")
    await peer.misses([0, 1], 1, [0, 1], "it was never seen")
    await bench.ran(asked, 0, "it did not run")


@case("Refusals", "G2")
async def an_allowance_of_any_size_is_taken(bench: Bench, peer: Peer) -> None:
    """More executions may be allowed than the server grants."""
    peer.transmit(0, bench.echo(), allowance=2**62)
    await peer.result(0)


@case("Refusals", "G8")
async def a_full_window_refuses_for_now(bench: Bench, peer: Peer) -> None:
    """Past the window a request is refused with a delay, and taken under the same id later."""
    window = peer.window
    skip_unless(window <= LARGEST_WINDOW, f"the window is {window}; {LARGEST_WINDOW} is filled")
    held = bench.wait()
    peer.transmit(0, held)
    for sequence in range(1, window):
        peer.transmit(sequence, held)
    asked = bench.echo("at last")
    sent = peer.transmit(window, asked)
    refused, _ = await peer.next(
        messages.Refused, "a refusal of the request past the window",
        lambda each: each.sequence == window,
    )  # fmt: skip
    check(refused.code in ("window", "queue-full"), "the code 'window'", refused)
    check(refused.delay_s is not None, "for now: a delay", refused)
    peer.send(messages.Finish(peer.session, [0, window]))
    with trio.move_on_after(peer.patience_s):
        while not any(each.sequence == window for each, _ in peer.all(messages.Outcome)):
            peer.again(sent)
            await peer.barrier()
            await trio.sleep(AGAIN_S)
    value = await peer.result(window, "its outcome, once there is room")
    check(value["value"] == "at last", "its own outcome", value)
    await bench.ran(asked, 1, "it ran once")


@case("A minimal client", "G2")
async def a_client_that_only_repeats_itself_is_served(bench: Bench, peer: Peer) -> None:
    """Hello until welcome, the same request again and again, finish: that is enough."""
    asked = bench.wait(seconds=0.3)
    sent = peer.transmit(0, asked)
    peer.patience_s, patience_s = AGAIN_S, peer.patience_s
    outcome = None
    with trio.move_on_after(patience_s):
        while outcome is None:
            try:
                outcome = await peer.outcome(0)
            except CaseFailed:
                peer.again(sent)
    peer.patience_s = patience_s
    check(outcome is not None and outcome.message.status == 0, "its outcome", outcome)
    peer.finish(0)
    peer.again(sent)
    await peer.refused(0, "finished")
    await bench.ran(asked, 1, "it ran once")


# == Cases at the bounds of a server that are small, and known: queue and sessions

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


# == Cases about ends that come of themselves: leases, and the end of the server

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


# == Cases about keys: who joins, what is replayed, what ends it, what may start anew
#
# A server whose status record does not say ``durable`` takes no keys, and is not judged.

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


# == Cases through the fault proxy: what is lost with a connection, and comes back

ROLLOUTS = 100
AT_ONCE = 25
RUN_S = 0.15
"""How long each of them runs, so that faults find some that do."""

STORM_S = 15.0
"""In which all must have come to an end; far more than it takes."""

PAUSE_S = 0.15
"""Between faults."""

STALL_S = 0.3


@case("Transport", "G9", faults=True)
async def a_client_is_answered_on_its_new_connection_though_the_old_one_hangs(bench: Bench) -> None:
    """A client that is back is answered, though its old connection stands."""
    async with bench.proxied() as (proxy, old):
        asked, _ = await bench.running(old)
        proxy.stall()
        async with bench.next_connection(old) as new:
            await new.sync(1, [0, 1])
            await bench.let_end(asked, new, 0, "the outcome on the new connection")


@case("Transport", "G1", faults=True)
async def half_a_request_is_none(bench: Bench) -> None:
    """A connection cut in the middle of a request leaves nothing: it is missing, then runs once."""
    async with bench.proxied() as (proxy, peer):
        asked = bench.echo(b"x" * 50_000)
        proxy.drop_after(20_000, Direction.TO_SERVER)
        sent = peer.transmit(0, asked)
        while proxy.counters.cut == 0:  # noqa: ASYNC110  # bounded by the case
            await trio.sleep(0.01)
        async with bench.next_connection(peer) as back:
            await back.misses([0, 1], 1, [0, 1], "it was never seen")
            back.again(sent)
            await back.result(0)
        await bench.ran(asked, 1, "it ran once")


@case("Requests", "G4", faults=True)
async def an_outcome_lost_on_its_way_is_replayed(bench: Bench) -> None:
    """Cut between the sending of an outcome and its receipt, it is there after the reconnect."""
    async with bench.proxied() as (proxy, peer):
        asked, sent = await bench.running(peer)
        mark = asked["key"].encode()
        with trio.move_on_after(bench.patience_s):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(proxy.cut_before_receipt, lambda data: mark in data)
                await bench.open(asked)
        check(proxy.counters.withheld_bytes > 0, "an outcome on its way", "none came by")
        async with bench.next_connection(peer, through=proxy.address) as back:
            await back.sync(1, [0, 1])
            first = await back.outcome(0, "the outcome that was lost")
            back.again(sent)
            await back.replayed(0, first)
        await bench.ran(asked, 1, "it ran once")


@case("Sync", "G7", faults=True)
async def a_finish_lost_on_its_way_is_repaired_by_a_sync(bench: Bench) -> None:
    """The next statement repeats a finish that was lost with a cut connection."""
    async with bench.proxied() as (proxy, peer):
        asked, _ = await bench.running(peer)
        proxy.half_open()
        peer.finish(0)
        peer.send(messages.Cancel(peer.session, 0))
        async with bench.next_connection(peer, through=proxy.address) as back:
            await bench.runs_on(asked, "it runs: nobody told the server")
            await back.sync(1, [])
            await bench.is_cancelled(asked)


@case("Connections", "G9", faults=True)
async def a_half_open_connection_is_left_for_a_new_one(bench: Bench) -> None:
    """A client that hears nothing goes on over a new connection, with a new routing id."""
    async with bench.proxied() as (proxy, peer):
        asked, _ = await bench.running(peer)
        proxy.half_open()
        async with bench.next_connection(peer, through=proxy.address) as back:
            await back.misses([], 1, [0, 1], "it is known")
            await bench.let_end(asked, back, 0, "the outcome on the new connection")
        await bench.ran(asked, 1, "it ran once")


@case("A minimal client", "G2", faults=True)
async def a_stall_with_retransmissions_runs_nothing_twice(bench: Bench) -> None:
    """Transmissions that pile up while the network stands still are taken for duplicates."""
    async with bench.proxied() as (proxy, peer):
        asked = [bench.wait(seconds=RUN_S) for _ in range(10)]
        sent = [peer.transmit(n, one) for n, one in enumerate(asked)]
        await bench.counted(asked[-1], "it runs", started=1)
        proxy.stall()
        for _ in range(20):
            for one in sent:
                peer.again(one)
        for each in asked:
            await bench.counted(each, "it ends behind the stall", results=1)
        proxy.resume()
        for n in range(len(asked)):
            first = await peer.outcome(n)
            peer.again(sent[n])
            await peer.replayed(n, first, "the replay for a duplicate")
        for each in asked:
            await bench.ran(each, 1, "it ran once")


@case("A good client", "G2", faults=True)
async def many_rollouts_through_cuts_run_once_each(bench: Bench) -> None:
    """A hundred rollouts, sent again through cuts, stalls and half-open connections, run once."""
    asked = [bench.wait(seconds=RUN_S) for _ in range(ROLLOUTS)]
    async with bench.proxy(seed=1) as proxy:
        client = PatientClient(bench.network, proxy.address)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_storm, proxy, [one["key"].encode() for one in asked])
            with trio.move_on_after(STORM_S):
                await client.run(asked, at_once=AT_ONCE)
            nursery.cancel_scope.cancel()
        bench.end_later(client.session)
    answered = sum(map(bool, client.outcomes.values()))
    check(answered == ROLLOUTS, f"{ROLLOUTS} outcomes", f"{answered} after {STORM_S:g} s")
    for sequence, outcomes in client.outcomes.items():
        same = same_bytes(outcomes) and outcomes[0].message.status == 0
        check(same, "one result, the same bytes each time", [each.message for each in outcomes])
        key = asked[sequence]["key"].encode()
        check(key in outcomes[0].frames[1], "its own result", outcomes[0].message)
    for one in asked:
        counts = await bench.counts(one)
        check((counts.started, counts.results) == (1, 1), "each started once, and ended", counts)


async def _storm(proxy: FaultProxy, keys: list[bytes]) -> None:
    """One fault after the other, for as long as there is work."""
    rng = random.Random(1)
    while True:
        for fault in ("cut", "receipt", "half-open", "stall", "end", "to-server", "to-client"):
            await trio.sleep(PAUSE_S)
            match fault:
                case "cut":
                    proxy.cut_all()
                case "end":
                    proxy.cut_all(abrupt=False)
                case "receipt":
                    with trio.move_on_after(STALL_S):
                        await proxy.cut_before_receipt(lambda data: any(k in data for k in keys))
                case "half-open":
                    proxy.half_open()
                case "stall":
                    proxy.stall()
                    await trio.sleep(STALL_S)
                    proxy.resume()
                case "to-server":
                    proxy.drop_after(rng.randrange(3000), Direction.TO_SERVER)
                case "to-client":
                    proxy.drop_after(rng.randrange(3000), Direction.TO_CLIENT)


# == All cases, in the order of the protocol document

SECTIONS = (
    "Transport", "Headers", "Bodies", "Requests", "A session", "Sync", "Connections",
    "Cancel, and a caller's limit", "Refusals", "When the session is unknown",
    "A minimal client", "A good client", "What can be asked", "Generations",
    "Cancel and forget", "Which keys there are", "Issued again", "Versions",
)  # fmt: skip
"""The headings of ``docs/protocol.md`` from which there are cases, in its order."""


CASES = tuple(
    sorted(
        (each for each in list(globals().values()) if isinstance(each, Case)),
        key=lambda each: (each.faults, SECTIONS.index(each.section)),
    )
)
"""Every case; those through the fault proxy last."""


def select(
    patterns: Iterable[str] = (), *, faults: bool = True, among: Sequence[Case] = CASES
) -> Sequence[Case]:
    """The cases whose names match one of the patterns (as of file names; none:
    all), with or without those through the fault proxy.

    Raises :class:`ConfigError` for a pattern that no case matches.
    """
    names = [case.name for case in among]
    for pattern in patterns:
        if not fnmatch.filter(names, pattern):
            raise ConfigError(f"no case matches {pattern!r}; --list shows them")
    return [
        case
        for case in among
        if (faults or not case.faults)
        and (not patterns or any(fnmatch.fnmatchcase(case.name, each) for each in patterns))
    ]

"""All cases against a server, in the order of the protocol document.

Most are scripts in a table; a case that must be a program is a coroutine function whose
docstring is the promise, and which plays scripts between what they cannot say.
"""

from __future__ import annotations

import datetime
import fnmatch
import json
import os
import random
import struct
import uuid
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, final

import cbor2
import trio

from ...client import open_client
from ...core import messages
from ...core.errors import ConfigError
from ...core.key_records import KeyAct, input_digest
from ...core.limits import MIB, PROTOCOL_VERSION, ClientLimits
from ...core.ranges import Ranges
from ...core.terms import Body
from ...net import Message, Network
from ...testing.proxy import Direction, FaultProxy
from ...testing.retransmit import RetransmittingNetwork
from ...testing.wrapped import WrappedNetwork, messages_in
from .bench import Bench, skip_unless
from .findings import Case, CaseFailed, case, check
from .peer import (
    LOOK_S,
    ConformancePeer,
    FirstRequest,
    RawSocket,
    body_of,
    taken_in,
)
from .script import cases_of, numbers, play, steps_of

LARGEST_FRAME = 32 * MIB
"""A server that takes larger frames is not sent one that is too large."""

S = b"\x11" * 16

VECTORS: dict[str, Any] = json.loads(Path(__file__).with_name("vectors.json").read_bytes())
"""The test vectors of the protocol document."""

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


async def malformed(
    peer: ConformancePeer, why: str, *frames: bytes, code: str = "malformed"
) -> None:
    """Say what must be refused as a whole."""
    peer.send_frames(*frames)
    error, _ = await peer.next(messages.Error, f"Error, for a header that is malformed: {why}")
    check(error.code == code, f"the code {code!r} for: {why}", error)
    check(error.version == PROTOCOL_VERSION, f"version {PROTOCOL_VERSION} in Error", error)


# == Cases as scripts: a stage for a server, and the table

DEATH_PATIENCE_S = 30.0
"""For what needs a new worker, which may be slow to start."""

NAMESPACE = b"conform"
ALLOWANCE = 4


def skip_without_keys(peer: ConformancePeer) -> None:
    """Skip the case if the server takes no keys."""
    skip_unless("durable" in peer.server, "the server takes no keys")


def say_of_key(
    peer: ConformancePeer, sequence: int, name: str, act: KeyAct, body: Body = b"", **other: Any
) -> None:
    """Say something of a key."""
    message = messages.Request(
        peer.session, sequence, bytes(32), None, ALLOWANCE, None,
        namespace=NAMESPACE, key=name.encode(), act=act or None,
    )  # fmt: skip
    peer.send(message._replace(**other), body)


@final
class CaseStage:
    """Clients of a server, and what they have asked for.  The words of scripts are its methods."""

    def __init__(
        self, bench: Bench, peers: Sequence[ConformancePeer], stack: AsyncExitStack
    ) -> None:  # fmt: skip
        self.bench = bench
        self.connections = [[peer] for peer in peers]
        """By client, the oldest first."""
        self.who = 0
        """The client that speaks."""
        self.peer: ConformancePeer
        """The connection over which it speaks, if there is a client."""
        if peers:
            self.new()
        self.socket: RawSocket
        """That of the newest connection by hand."""
        self.another: dict[str, Any] = {}
        self._stack = stack
        """Where what a script opens is closed."""
        self._last = AsyncExitStack()
        self._proxy: FaultProxy | None = None
        self._name = bench.key()
        self._keyed: dict[str, Any] = {}
        """The input that is asked for under the script's key."""
        self._bodies: set[bytes] = set()
        """Those of the results under that key."""
        self._answers: dict[int, dict[str, Any]] = {}
        """By sequence: to commands about the key."""
        self._tags: dict[str, tuple[bytes, dict[str, Any]]] = {}

    def __getattr__(self, word: str) -> Any:
        """Other words are those of the connection."""
        return getattr(self.peer, word)

    async def play(self, script: str) -> None:
        """Do the steps of a script."""
        await play(self, steps_of(script))

    # -- clients and their connections ------------------------------------------------

    def client(self, n: int) -> None:
        """From now on this client speaks, over its newest connection."""
        self.who = n - 1
        self.new()

    async def proxy(self) -> None:
        """Put a fault proxy before the server: a new client comes through it, in the place of
        the one that speaks."""
        self._proxy = await self._stack.enter_async_context(self.bench.proxy())
        opened = self.bench.client(through=self._proxy.address)
        self.connections[self.who] = [await self._stack.enter_async_context(opened)]
        self.new()

    async def connect(self, how: str = "") -> None:
        """Open the next connection of the client, past the proxy if ``directly``; or ``by-hand``,
        with the routing id of all such of the case.  Nothing is said on it yet."""
        self._last = await self._stack.enter_async_context(AsyncExitStack())
        if how == "by-hand":
            opened = self.bench.raw(self._name.encode())
            peer, self.socket = await self._last.enter_async_context(opened)
        else:
            proxy = None if self._proxy is None or how == "directly" else self._proxy.address
            peer = await self._last.enter_async_context(self.bench.connection(through=proxy))
        peer.resume(self.connections[self.who][-1])
        self.connections[self.who].append(peer)
        self.new()

    async def hang_up(self) -> None:
        """End the connection that was opened last."""
        await self._last.aclose()

    def old(self) -> None:
        """Speak over the first connection."""
        self.peer = self.connections[self.who][0]

    def new(self) -> None:
        """Speak over the newest connection."""
        self.peer = self.connections[self.who][-1]

    def stall(self) -> None:
        """Nothing passes the proxy, from now on."""
        self.through.stall()

    def resume(self) -> None:
        """Let go on what was stalled."""
        self.through.resume()

    def half_open(self) -> None:
        """What comes over the connections that there are is lost, and nobody is told."""
        self.through.half_open()

    def cut_after(self, count: list[int]) -> None:
        """Cut the connection when so many further bytes of its client have passed."""
        self.through.drop_after(count[0], Direction.TO_SERVER)

    async def was_cut(self) -> None:
        """Wait for that."""
        while self.through.counters.cut == 0:  # noqa: ASYNC110  # bounded by the case
            await trio.sleep(LOOK_S)

    @property
    def through(self) -> FaultProxy:
        """The proxy."""
        assert self._proxy is not None
        return self._proxy

    async def hello(self, nonce: str = "new", **options: Any) -> None:
        """Say hello with a new nonce, or with the ``same``, and be welcome: to that session."""
        before = self.peer.session, self.peer.epoch
        self.bench.end_later(self.peer.session)
        await self.peer.hello(self.peer.nonce if nonce == "same" else b"", **options)
        same = before == (self.peer.session, self.peer.epoch)
        check(same or nonce != "same", "the same session, and epoch", self.peer.session.hex())

    def say_hello(self) -> None:
        """Say the hello of this connection again."""
        self.peer.say_hello()

    async def unknown(self, gone: str = "") -> None:
        """Unknown, which says of what ran that it is ``gone``, or not (``alive``)."""
        unknown = await self.peer.unknown()
        check(not gone or unknown.gone is (gone == "gone"), gone, unknown)

    def patient(self) -> None:
        """Let a worker be replaced."""
        self.peer.patience_s = max(self.peer.patience_s, DEATH_PATIENCE_S)
        self.bench.be_patient(DEATH_PATIENCE_S)

    # -- requests -----------------------------------------------------------------------

    def _ask(self, n: int, asked: dict[str, Any], *, digest: str = "", **options: Any) -> None:
        if digest:
            options["digest"] = digest.encode().ljust(16)
        self.peer.transmit(n, asked, **options)

    def echo(self, n: int, *, size: int = 0, **options: Any) -> None:
        """Ask for what is answered at once."""
        self._ask(n, self.bench.echo("x" * size or n), **options)

    def other(self, n: int, **options: Any) -> None:
        """Ask for something else under a sequence that was used."""
        self.another = self.another or self.bench.echo("another")
        self._ask(n, self.another, **options)

    async def run(self, n: int, *, stubborn: bool = False, **options: Any) -> None:
        """Ask for what runs until ``open``, and wait for its start."""
        self._ask(n, self.bench.wait(stubborn=stubborn), **options)
        await self.started(n)

    def wait(self, n: int, *, seconds: float) -> None:
        """Ask for what takes so long."""
        self._ask(n, self.bench.wait(seconds=seconds))

    async def pause(self, *, seconds: float) -> None:
        """Wait for so long, and a moment more."""
        await trio.sleep(seconds + self.bench.settle_s)

    def fail(self, n: int, *, times: int | None = None, **options: Any) -> None:
        """Ask for what fails."""
        self._ask(n, self.bench.input("fail", **_given(times=times)), **options)

    def die(self, n: int, *, times: int | None = None, **options: Any) -> None:
        """Ask for what kills its worker."""
        self._ask(n, self.bench.input("die", **_given(times=times)), **options)

    async def cancel(self, n: int, started: str) -> None:
        """Cancel it; it is told to have ``started``, or to be ``unseen``."""
        said, wanted = await self.peer.cancel(n), {"started": True, "unseen": None}[started]
        check(said is wanted, f"started is {wanted}", repr(said))

    # -- answers ------------------------------------------------------------------------

    async def result(self, n: int, *, anew: bool = False, **options: Any) -> None:
        """Its own result, the same bytes as before.  Results of the key are of one run, but
        for one that it has ``anew``."""
        await self.peer.result(n, **options)
        outcome = self.peer.asked[n].outcome
        if outcome is not None and not self.peer.asked[n].frames:
            right = (outcome.frames[1] not in self._bodies) == (anew or not self._bodies)
            check(right, "the outcome of the right run", outcome.message)
            self._bodies.add(outcome.frames[1])

    async def error(self, n: int, *wanted: str) -> None:
        """An error, the same bytes as before; that of a failure has what was raised."""
        record, asked = await self.peer.error(n, *wanted), self._input(n)
        if asked["op"] == "fail":
            check(asked["key"] in record["message"], "what the environment raised", record)

    async def refused(self, n: int, code: str) -> None:
        """A refusal for good."""
        await self.peer.refused_for_good(n, code)

    async def nothing(self, kind: str) -> None:
        """Nothing of this kind has come besides by the next answer."""
        await self.peer.nothing_of(getattr(messages, kind), f"no {kind}")

    async def no_other(self, n: int) -> None:
        """By the next answer nothing has come besides, but the same outcome again."""
        await self.peer.barrier()
        first = self.peer.asked[n].outcome
        more = [each for each in self.peer.received if first is None or each.frames != first.frames]
        check(not more, "nothing more", more)

    # -- statements -----------------------------------------------------------------------

    async def sync(self, *, next: int, pending: int | str = "", missing: int | str = "") -> None:
        """State what is held, and hear what is missing of that, with a status record."""
        spans, wanted = (Ranges(numbers(str(each))).flat() for each in (pending, missing))
        synced = await self.peer.sync(next, spans)
        check(synced.missing == wanted, f"missing: {missing or 'nothing'}", synced)
        right = synced.session == self.peer.session and "status" in synced.server
        check(right, "its session, and a status record", synced)

    def say_sync(self, *, next: int, pending: int | str = "") -> None:
        """State what is held."""
        self.peer.sync_nowait(next, Ranges(numbers(str(pending))).flat())

    # -- what runs --------------------------------------------------------------------------

    async def started(self, n: int, times: list[int] | None = None) -> None:
        """Wait for its start, and find it running."""
        count = times[0] if times else 1
        await self.bench.counted(self._input(n), "it runs", started=count, running=1)

    async def runs(self, n: int) -> None:
        """It was started once, and has not ended."""
        counts = await self.bench.counts(self._input(n))
        check(counts.started == counts.running == 1, f"{n} runs on", counts)

    async def cancelled(self, n: int) -> None:
        """Wait until it has been cancelled, and nothing of it runs."""
        await self.bench.counted(self._input(n), "it was cancelled", cancelled=1, running=0)

    async def ended(self, n: int, results: list[int] | None = None) -> None:
        """Wait until nothing of it runs, and it had so many results."""
        more = {} if results is None else {"results": results[0]}
        await self.bench.counted(self._input(n), "it ended", running=0, **more)

    async def ran(self, n: int, times: list[int]) -> None:
        """It ran so often, now and a moment later."""
        await self.bench.ran(self._input(n), times[0], f"starts of {n}")

    async def ran_other(self, times: list[int]) -> None:
        """What was asked for under a used name ran so often."""
        await self.bench.ran(self.another, times[0], "starts of the other one")

    async def open(self, n: int) -> None:
        """Let what runs come to its result."""
        await self.bench.open(self._input(n))

    def _input(self, n: int) -> dict[str, Any]:
        asked: dict[str, Any] = self.peer.asked[n].input
        return asked

    # -- the script's key ---------------------------------------------------------------------

    def ask(self, n: int, what: str = "", *, stubborn: bool = False, **other: Any) -> None:
        """Ask for an input (``echo``, ``wait``, or that of before) under the key; ``other`` asks
        for another one."""
        if what == "other":
            self.another = self.another or self.bench.echo("another")
        elif what:
            bench = self.bench
            self._keyed = bench.echo() if what == "echo" else bench.wait(stubborn=stubborn)
        asked = self.another if what == "other" else self._keyed
        for name in [each for each in other if each.endswith("_bytes")]:
            other[name.removesuffix("_bytes")] = bytes(other.pop(name))
        if isinstance(other.get("namespace"), str):
            other["namespace"] = other["namespace"].encode()
        body = body_of(asked)
        self._say(n, KeyAct.ASK, body, digest=input_digest(body, other.get("rerun")), **other)

    def attach(self, n: int) -> None:
        """Ask for the outcome of the key, without an input."""
        self._say(n, KeyAct.ATTACH)

    async def cancel_key(self, n: int, **said: Any) -> None:
        """Cancel by the key; see :meth:`_command`."""
        await self._command(n, KeyAct.CANCEL, **said)

    async def forget_key(self, n: int, **said: Any) -> None:
        """Forget the key; see :meth:`_command`."""
        await self._command(n, KeyAct.FORGET, **said)

    async def leave_key(self, n: int, **said: Any) -> None:
        """Leave the key by name; see :meth:`_command`."""
        await self._command(n, KeyAct.LEAVE, **said)

    def _say(self, n: int, act: KeyAct, body: Body = b"", **other: Any) -> None:
        skip_without_keys(self.peer)
        say_of_key(self.peer, n, self._name, act, body, **other)
        self.peer.asked[n] = FirstRequest(self._keyed, ())

    async def _command(
        self, n: int, act: KeyAct, *, tag: str = "", of: int | None = None, **said: Any
    ) -> None:
        """A command, whose answer must say this; ``some`` generation is any.

        ``tag`` names it, so that it can be said once more, with the same answer; ``of``: what it
        names is the generation of the answer to an earlier one.
        """
        named = self.bench.nonce() if of is None else self._answers[of]["generation"]
        named, before = self._tags.get(tag, (named, {}))
        self._say(n, act, tag=named)
        record = await self.peer.result(n, f"the answer to {act.name.lower()}")
        right = isinstance(record, dict) and {"generation", "started"} <= set(record)
        check(right, "a map with generation and started", record)
        self._answers[n] = record
        if tag:
            self._tags[tag] = named, record
            check(before in ({}, record), f"the same answer, {before}", record)
        for name, wanted in said.items():
            found = record.get(name, False)
            fits = type(found) is int if wanted == "some" else found == wanted
            check(fits, f"{name}: {wanted}", record)


def _given(**options: Any) -> dict[str, Any]:
    return {name: each for name, each in options.items() if each is not None}


SCRIPTS = """
== Headers

wire requests-may-share-a-batch
The rows of a batch are taken as if they had come one by one.
    hold; echo 0-2; together; sync next=3 pending=0-2; result 0-2

G6 a-row-that-is-refused-harms-no-other
Of a batch with a conflict, a repeated and a finished request the rest is run.
    echo 0,2 digest=one; result 0,2; finish 2
    hold; again 0; other 0 digest=two; again 2; echo 1; together; result 1
    refused 0 conflict; refused 2 finished; result 0; ran 0 1; ran-other 0

== Bodies

G9 a-failed-rollout-is-an-error-record needs=fail
A rollout that fails ends as status 1 with rollout-failed, RAN_AND_FAILED.
    fail 0; error 0 rollout-failed RAN_AND_FAILED; ran 0 1

G2 retries-are-inside-one-execution needs=fail
A rollout that failed is repeated up to max_retries times, inside the one execution.
    fail 0 times=2 max_retries=5; result 0 executions=1; ran 0 3
    fail 1 max_retries=1; error 1; ran 1 2

== Requests

G3 a-request-gets-one-outcome
A request runs once and is answered once, with its session and sequence.
    echo 0; result 0 executions=1; no-other 0

G1 a-duplicate-of-a-running-request-is-coalesced
Further transmissions of a running request start nothing, and get its one outcome.
    run 0; again 0 times=5; barrier; ran 0 1; open 0; result 0; no-other 0

G1 many-transmissions-at-once-are-one-request
A request that is there twenty times before it can have started runs once.
    echo 0; again 0 times=19; result 0; no-other 0

G3 a-duplicate-of-a-completed-request-is-replayed
The outcome is sent again, header and body byte for byte the same, and nothing runs.
    echo 0 size=300; result 0; again 0; result 0; again 0; result 0; again 0; result 0

G3 an-error-is-replayed-like-a-result needs=fail
An error is an outcome: kept, replayed byte for byte, and not tried again.
    fail 0; error 0; again 0; error 0

G2 a-duplicate-of-a-finished-request-is-refused
After the finish a late duplicate, whatever its digest, is refused as finished, for good.
    echo 0; result 0; finish 0; again 0; refused 0 finished; again 0; refused 0 finished
    other 0; refused 0 finished; ran-other 0

G6 another-request-with-the-id-of-a-running-one-is-a-conflict
Another digest, or another length of body, is refused; the first one runs on.
    run 0 digest=first; other 0; refused 0 conflict; other 0 digest=first; refused 0 conflict
    open 0; result 0; ran-other 0

G6 another-request-with-the-id-of-a-completed-one-is-a-conflict
The first one's outcome is not taken for an answer to the other, and stays.
    echo 0; result 0; other 0; refused 0 conflict; again 0; result 0; ran-other 0

G4 outcomes-are-kept-beside-each-other
Each of twenty outcomes is kept until its own finish, whatever becomes of the others.
    echo 0-19; result 0-19; finish 0-18/2; again 0-19; refused 0-18/2 finished; result 1-19/2

G3 sequences-may-arrive-in-any-order
The protocol is safe under reordering: 2, 0, 3, 1 all run, each once.
    echo 2,0,3,1; result 2,0,3,1

G2 without-consent-a-death-ends-the-request needs=die
A request whose worker died is not run again without consent: worker-lost, MAY_HAVE_RUN.
    patient; die 0 times=1 rerun=false allowance=5; error 0 worker-lost MAY_HAVE_RUN
    again 0; error 0; ran 0 1

G9 an-outcome-wins-over-a-later-deadline
A request that is completed before its deadline stays so when the deadline passes.
    echo 0 deadline_s=0.3; result 0; pause seconds=0.3; again 0; result 0

== A session

G2 the-same-nonce-gets-the-same-session
A doubled hello, also over another connection, gets the session that is there.
    echo 0; result 0; hello same; connect; hello same; sync next=1 pending=0; result 0

G2 each-nonce-gets-a-session-of-its-own
Sessions have the same sequences and nothing to do with each other.
    run 0; client 2; echo 0; result 0; finish 0-3; cancel 4 unseen; goodbye; barrier
    client 1; runs 0; open 0; result 0

G9 an-outcome-larger-than-its-client-takes-is-an-error
A client that takes small frames only gets outcome-too-large, RAN_AND_FAILED.
    hello message_bytes=4096; echo 0 size=5000; error 0 outcome-too-large RAN_AND_FAILED
    echo 1 size=100; result 1; ran 0 1

G7 goodbye-cancels-what-is-not-finished
After a goodbye what runs is cancelled, and the session is not known.
    run 0-2; goodbye; echo 3; unknown; cancelled 0-2; ran 3 0

== Sync

wire a-sync-is-answered-with-its-probe
A sync is the ping: Synced has its probe and the status record.
    sync next=0; sync next=0; sync next=0

G9 what-was-never-seen-is-named
Pending sequences that never arrived are missing, those that did are not.
    run 1; echo 3; result 3; sync next=6 pending=0-5 missing=0,2,4,5
    echo 4; result 4; sync next=6 pending=0-5 missing=0,2,5; open 1; result 1

G2 what-is-finished-is-not-missing
A finished sequence that is pending again, against the rules, is neither missing nor run.
    echo 0; result 0; finish 0; sync next=1 pending=0; again 0; refused 0 finished

G4 outcomes-are-replayed-on-a-new-connection
An outcome that came while the client was away is sent at its first sync, the same bytes.
    echo 0; result 0; connect; sync next=1 pending=0; run 1; hang-up; open 1; ended 1 1
    connect; sync next=2 pending=0-1; result 0; result 1

G9 what-stays-pending-is-replayed-on-the-same-connection
An outcome that the client goes on missing is sent again, without a new connection.
    echo 0; result 0; sync next=1 pending=0; sync next=1 pending=0; sync next=1 pending=0; result 0

G4 what-a-sync-leaves-out-is-finished
Everything below next that is not pending is finished: freed, or cancelled.
    echo 0,1; run 2; result 0,1; sync next=3 pending=1; forget; cancelled 2
    again 0,2; refused 0,2 finished; again 1; result 1

G2 old-statements-do-no-harm
A late sync that knows less than the last one finishes nothing and names nothing.
    run 0-2; sync next=3 pending=0-2
    sync next=0; sync next=1 pending=0; sync next=2 pending=0-1; runs 0-2; open 0-2; result 0-2

G4 a-finish-is-of-its-sequences-only
A finish of 1 and 3, also twice, leaves 0, 2 and 4 as they are.
    echo 0-4; result 0-4; finish 1,3; finish 1,3; sync next=7 pending=0,2,4-6 missing=5,6; forget
    again 0-4; refused 1,3 finished; result 0,2,4

== Connections

G6 a-refusal-goes-to-who-asked
A request that is refused on an old connection is refused there, not on the newest.
    echo 0; result 0; connect; sync next=1; old; again 0; refused 0 finished; new; nothing Refused

G9 answers-go-to-the-newest-connection
After a sync with a higher number outcomes come to the new connection, over its new route.
    run 0; connect; sync next=1 pending=0; old; run 1; new; open 0,1; result 0,1
    old; nothing Outcome

G9 an-old-connection-does-not-pull-answers-back
A late hello or sync of an older connection moves nothing.
    connect; sync next=0; old; say-hello; say-sync next=0; barrier; new; echo 0; result 0
    old; echo 1; new; result 1; old; again 1; new; result 1; old; nothing Outcome

G9 a-hello-moves-answers-too
The same nonce with a higher number is the client's next connection.
    run 0; connect; hello same; open 0; result 0

== Cancel, and a caller's limit

G7 a-cancel-stops-what-runs
Cancelling reaches the environment's code, and Cancelled says that it had started.
    run 0; cancel 0 started; cancelled 0; again 0; refused 0 finished; nothing Outcome

G7 a-cancel-may-overtake-its-request
After a cancel that came first, the request does not run: its answer says that it never came.
    cancel 0 unseen; echo 0; refused 0 finished; sync next=1 pending=0; ran 0 0

G7 a-finish-may-overtake-its-request
After a finish that came first, the request does not run.
    finish 0; echo 0; refused 0 finished; ran 0 0

G9 a-cancel-never-denies-a-run
A request that ran is never said not to have run: completed, finished, or cancelled twice.
    echo 0,1; result 0,1; cancel 0 started; cancel 0 started; finish 1; cancel 1 started

G1 what-ignores-its-cancel-is-not-started-again needs=wait
A cancelled request whose code goes on for a while is finished all the same.
    run 0 stubborn=true; cancel 0 started; again 0; refused 0 finished; runs 0
    open 0; ended 0; nothing Outcome

== Refusals

G9 an-allowance-of-nothing-is-refused
A request that allows no execution is refused for good, and has not been seen.
    echo 0 allowance=0; refused 0 refused; sync next=1 pending=0 missing=0; ran 0 0

G2 an-allowance-of-any-size-is-taken
More executions may be allowed than the server grants.
    echo 0 allowance=4611686018427387904; result 0

== When the session is unknown

G1 an-ended-session-is-gone-when-nothing-of-it-runs needs=wait
Unknown says gone only when the last execution of the session has ended.
    run 0 stubborn=true; goodbye; say-sync next=1 pending=0; unknown alive; no-session; runs 0
    open 0; gone; ended 0

G9 a-session-of-this-epoch-that-is-not-there-is-gone
A sync with the server's own epoch and a session that is forgotten is answered: gone.
    goodbye; gone

== What can be asked

G6 another-input-under-a-key-is-a-conflict
Another body, or another consent, is refused for good; the first ask runs on.
    ask 0 wait; started 0; client 2; ask 0 other; refused 0 key-conflict
    ask 1 rerun=true; refused 1 key-conflict; client 1; open 0; result 0; ran-other 0

wire the-same-key-in-another-namespace-is-another-key
An input that is asked for under one key in two namespaces runs twice.
    ask 0 echo; ask 1 namespace=conform-2; result 0; result 1 anew=true; ran 0 2

G8 what-cannot-be-a-key-is-refused
A key or a namespace that is empty, or far too long, is refused for good.
    ask 0 echo key_bytes=0; ask 1 key_bytes=9999; ask 2 namespace_bytes=0
    ask 3 namespace_bytes=9999; refused 0-3 refused; ran 0 0

G9 what-nobody-asked-for-cannot-be-attached-to
Attaching to a key of which nothing is known is refused for good.
    attach 0; refused 0 unknown-key

G3 who-attaches-gets-the-outcome-without-the-input
Attaching, while it runs or later, gets the body that the ask gets, and starts nothing.
    ask 0 wait; started 0; client 2; attach 0; barrier; open 0; result 0; attach 1; result 1
    client 1; result 0

== Generations

G1 two-that-ask-under-one-key-get-one-run
A second client that asks under the key starts nothing, and both get the outcome.
    ask 0 wait; client 2; ask 0; barrier; started 0; ran 0 1; open 0; result 0; client 1; result 0

G4 an-outcome-outlives-the-client-that-asked
After the first client's finish and goodbye another one is answered with the outcome.
    ask 0 echo; result 0; finish 0; goodbye; barrier; client 2; ask 0; result 0

G7 work-goes-on-while-one-that-asked-waits
The first of two that leaves cancels nothing, and is told that it was started.
    ask 0 wait; client 2; ask 0; barrier; started 0; client 1; cancel 0 started
    client 2; runs 0; open 0; result 0

G7 who-attaches-does-not-keep-work-running
When the last one that asked leaves, the work is cancelled, and who attached is told.
    ask 0 wait; started 0; client 2; attach 0; barrier; client 1; finish 0
    client 2; error 0 any MAY_HAVE_RUN; cancelled 0

G1 nothing-starts-under-a-key-before-what-ran-has-ended
After a cancel by key the next ask waits for the end of code that ignores its cancel.
    ask 0 wait stubborn=true; started 0; cancel-key 1 started=true; error 0; ask 2; barrier
    ran 0 1; open 0; result 2; ran 0 2; ended 0

== Leave

G7 a-caller-leaves-what-it-has-asked-in-another-session
When a caller leaves by name, its work of an earlier session is cancelled, if nobody else waits.
    ask 0 wait; started 0; hello; leave-key 0 generation=some started=true; cancelled 0

G7 who-leaves-takes-nothing-from-others
A leave ends nothing of another caller, and nothing that is asked in its own session.
    ask 0 wait; started 0; leave-key 1 generation=none started=true; client 2
    leave-key 0 generation=none started=true; client 1; runs 0; open 0; result 0

== Cancel and forget

G2 what-was-forgotten-is-asked-for-anew
After a forget the same ask runs again, and its outcome is another one.
    ask 0 echo; result 0; forget-key 1 generation=some; attach 2; refused 2 unknown-key
    ask 3; result 3 anew=true; ran 0 2

G4 a-cancel-by-key-after-the-outcome-drops-nothing
A cancel that comes after the outcome closes nothing and says so; the outcome stays.
    ask 0 echo; result 0; cancel-key 1 generation=none started=true finished=true
    attach 2; result 2

G7 a-cancel-by-key-that-is-said-twice-hits-nothing-else
The second copy, also from another client, is answered as the first, and ends nothing.
    ask 0 wait; started 0; cancel-key 1 tag=one; cancelled 0; ask 2; started 0 2
    client 2; cancel-key 0 tag=one; client 1; open 2; result 2; ended 2 1; ran 2 2

G7 a-cancel-of-a-generation-that-is-over-hits-nothing
A cancel that names an earlier generation ends no later one.
    ask 0 wait; started 0; cancel-key 1 generation=some; ask 2; started 0 2
    cancel-key 3 of=1 generation=none started=true finished=false; open 2; result 2; ran 2 2

G7 a-cancel-by-key-of-which-nothing-is-known-hits-nothing
A cancel of a key that nobody has asked for ends no ask that comes later.
    cancel-key 0 generation=none; ask 1 echo; result 1; ran 1 1

G9 a-cancel-may-overtake-its-ask
After a cancel that came first, the ask is not taken: its answer says that it never came.
    cancel 0 unseen; ask 0 echo; refused 0 finished; ran 0 0

== Issued again

G2 what-may-have-run-is-started-by-proof-and-consent-only
An ask that is issued again, of an unknown key, needs consent and allowance that is left.
    ask 0 echo earlier=1 rerun=false; refused 0 unknown-key
    ask 1 earlier=4 rerun=true; refused 1 unknown-key; ran 0 0
    ask 2 earlier=1 rerun=true; result 2; ran 0 1

G2 what-may-have-run-without-a-key-is-started-by-consent-only
A request that is issued again needs consent and allowance that is left, says the server.
    echo 0 earlier=1 rerun=false; refused 0 server-lost
    echo 1 earlier=4 allowance=4 rerun=true; refused 1 server-lost; ran 0,1 0
    echo 2 earlier=1 allowance=4 rerun=true; result 2; ran 2 1

G4 what-is-issued-again-joins-what-runs
Without allowance that is left an ask that is issued again still joins, and is answered.
    ask 0 wait; started 0; client 2; ask 0 earlier=4; barrier; open 0; result 0
    client 1; result 0

== Transport

G10 two-clients-with-one-routing-id-are-both-served
Two live clients that state the same routing id each get their own answers.
    connect by-hand; hello; run 0; client 2; connect by-hand; hello; run 0; client 1; open 0
    result 0; no-other 0; nothing Outcome; client 2; open 0; result 0; no-other 0; nothing Outcome

G9 a-client-is-answered-on-its-new-connection-though-the-old-one-hangs faults
A client that is back is answered, though its old connection stands.
    proxy; run 0; stall; connect directly; sync next=1 pending=0; open 0; result 0

G1 half-a-request-is-none faults
A connection cut in the middle of a request leaves nothing: it is missing, then runs once.
    proxy; cut-after 20000; echo 0 size=50000; was-cut; connect; sync next=1 pending=0 missing=0
    again 0; result 0

== A minimal client

G2 a-stall-with-retransmissions-runs-nothing-twice faults
Transmissions that pile up while the network stands still are taken for duplicates.
    proxy; wait 0-9 seconds=0.15; barrier; stall; again 0-9 times=20; ended 0-9 1; resume
    result 0-9; again 0-9; result 0-9

== Sync

G7 a-finish-lost-on-its-way-is-repaired-by-a-sync faults
The next statement repeats a finish that was lost with a cut connection.
    proxy; run 0; half-open; finish 0; connect; runs 0; sync next=1; cancelled 0

== Connections

G9 a-half-open-connection-is-left-for-a-new-one faults
A client that hears nothing goes on over a new connection, with a new routing id.
    proxy; run 0; half-open; connect; sync next=1 pending=0; open 0; result 0
"""


# == Cases that are programs


@case("Transport", "G8")
async def a_frame_too_large_costs_only_its_connection(stage: CaseStage) -> None:
    """A frame above the server's message_bytes is not run, and ends no more than the connection."""
    size = stage.peer.message_bytes
    skip_unless(
        size <= LARGEST_FRAME, f"the server takes frames of {size >> 20} MiB: none larger is sent"
    )
    stage.echo(0, size=size)
    await stage.play("connect; sync next=1 pending=0 missing=0; ran 0 0")


@case("Transport", "wire")
async def a_message_of_65_frames_changes_nothing(stage: CaseStage) -> None:
    """A message of more than 64 frames changes nothing, and costs its connection at most."""
    await stage.play("run 0")
    header = messages.encode(messages.Finish(stage.session, [0, 1]))
    for frames in (
        [header, *[b""] * 64],
        [*stage.asked[0].frames, *[b""] * 63],
        [header, *[b""] * 5000],
    ):
        async with stage.bench.raw(b"many-" + stage.bench.nonce()) as (raw, _):
            raw.send_frames(*frames)
            await taken_in(raw)
    await stage.play("runs 0; open 0; result 0")


@case("Headers", "wire")
async def what_only_looks_like_a_batch_changes_nothing(stage: CaseStage) -> None:
    """Columns of other lengths, sizes that are not those of the bodies, and a batch of none
    or of too many rows are malformed, and none of their rows is run."""
    peer = stage.peer
    body = bytes(peer.prepared(0, stage.bench.echo())[1])
    sizes, both = [len(body)] * 2, body * 2
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
        await malformed(peer, why, cbor2.dumps(header), blob)
    await stage.play("sync next=3 pending=0-2 missing=0-2; ran 0 0")


@case("Headers", "wire")
async def a_malformed_header_is_answered_with_an_error(stage: CaseStage) -> None:
    """A header that is not of the document is answered with Error, malformed."""
    for vector in VECTORS["malformed"]:
        code = vector.get("code", "malformed")
        await malformed(stage.peer, vector["why"], *malformed_frames(vector), code=code)
    outcome = messages.encode(messages.Outcome(stage.session, 0, 0, "w", None, 1))
    await malformed(stage.peer, "what only servers send", outcome, body_of("never"))


def malformed_frames(vector: dict[str, str]) -> tuple[bytes, ...]:
    """The frames of a malformed header, with a body where its kind has one: so that nothing else
    is wrong."""
    header = bytes.fromhex(vector["header"])
    kinds = [cbor2.dumps(messages.KINDS[each]) for each in messages.BATCHED]
    return (header, body_of("never")) if header[1:].startswith(tuple(kinds)) else (header,)


@case("Headers", "G8")
async def a_hostile_header_costs_nothing(stage: CaseStage) -> None:
    """Deep nesting, claimed lengths and huge integers are refused as malformed."""
    for header, why in HOSTILE:
        await malformed(stage.peer, why, header)
    for size in (1, 7, 64, 1000):
        await malformed(stage.peer, f"{size + 1} random bytes", b"\xff" + os.urandom(size))


@case("Headers", "wire")
async def the_wrong_number_of_frames_is_malformed(stage: CaseStage) -> None:
    """A request without a body, with two, or any other message with one, is malformed."""
    request, body = map(bytes, stage.peer.prepared(0, stage.bench.echo()))
    finish = messages.encode(messages.Finish(stage.session, [0, 1]))
    for frames, why in (
        ((request,), "a request without a body"),
        ((request, body, body), "a request with two bodies"),
        ((finish, b""), "a finish with a body"),
        ((b"", finish), "an empty frame in front"),
        ((S, request, body), "an incarnation in front"),
    ):
        await malformed(stage.peer, why, *frames)
    await stage.play("sync next=1 pending=0 missing=0; ran 0 0")


@case("Headers", "G6")
async def malformed_messages_change_nothing(stage: CaseStage) -> None:
    """A malformed message changes no entry: what runs goes on, what is kept stays."""
    await stage.play("run 0; echo 1; result 1")
    session = stage.session
    for array in (
        [2, session, [0]], [2, session, [2, 0]], [2, session, [0, 2], 0], [2, session, {0: 2}],
        [3, session, stage.epoch, 9, 9, 2, [0]], [3, session, stage.epoch, 9, 9, -1, []],
        [3, session, b"", 9, 9, 2, []], [4, session], [4, session, -1], [4, session, 0, 1],
        [4, session, 0.0], [6, session, 1], [6, [session]], [7, session], [-2, session, [0, 2]],
        [2.0, session, [0, 2]], [True, None, session, 0, S, None, 1, None],
    ):  # fmt: skip
        await malformed(stage.peer, repr(array[:1] + array[2:]), cbor2.dumps(array))
    await stage.play("again 1; result 1; runs 0; open 0; result 0")


@case("Headers", "wire")
async def integers_may_have_any_width(stage: CaseStage) -> None:
    """Integers, floats and lengths in wider encodings than needed are taken."""
    peer = stage.peer
    probe = b"\x98\x03\x19\x00\x05\x1b" + (7).to_bytes(8, "big") + b"\x78\x0astatistics"
    peer.send_frames(probe)
    await peer.next(messages.QueryAnswer, "an answer to a wide Query", lambda each: each.probe == 7)
    body = body_of(stage.bench.echo("wide"))
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


@case("Headers", "wire", clients=0)
async def statistics_need_no_session(stage: CaseStage) -> None:
    """A query for statistics is answered without a session, with its probe and a record."""
    async with stage.bench.connection() as peer:
        peer.send(messages.Query(2**62, "statistics"))
        stats, frames = await peer.next(messages.QueryAnswer)
        check(stats.probe == 2**62, "the same probe", stats)
        check(isinstance(cbor2.loads(frames[1]), dict), "a record", frames[1][:64].hex())


@case("Headers", "G5")
async def a_client_cannot_speak_as_a_worker(stage: CaseStage) -> None:
    """Messages of workers, in the workers' frames, complete nothing on the clients' socket."""
    await stage.play("run 0")
    forged = body_of("forged")
    for number in range(3):
        outcome = messages.WorkerOutcome(stage.session, 0, number, 0, 0.0)
        frames = S, b"client", messages.encode(outcome), forged
        await malformed(stage.peer, "a worker's outcome in four frames", *frames)
    hello = messages.encode(messages.WorkerHello(PROTOCOL_VERSION, 1, "x", True, 256))
    await malformed(stage.peer, "a worker's hello", S, hello)
    await stage.play("nothing Outcome; open 0; result 0")


@case("Bodies", "wire")
async def values_come_back(stage: CaseStage) -> None:
    """Every kind of value reaches the environment and comes back equal."""
    value: dict[Any, Any] = {
        "null": None, "bool": True, "int": -(2**40), "large": 2**70, "float": 0.1,
        "text": "é\U0001f600", "bytes": b"\x00\xff", "list": [1, [2, []]],
        "map": {1: "one", b"2": 2, None: 3},
        "time": datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC),
        "day": datetime.date(2026, 1, 2), "span": datetime.timedelta(seconds=-1.5),
        "uuid": uuid.UUID(int=1), "set": {1, 2, "three"}, "complex": 1 + 2j,
    }  # fmt: skip
    stage.peer.transmit(0, stage.bench.echo(value))
    back = (await stage.peer.result(0))["value"]
    for name, one in value.items():
        check(back.get(name) == one, f"{name}: {one!r}", back.get(name))


@case("Bodies", "G9")
async def an_unreadable_body_did_not_run(stage: CaseStage) -> None:
    """A body that no worker can read is an outcome like any other: DID_NOT_RUN."""
    for sequence, body in enumerate((b"", b"\xff\x00", body_of(1)[:-1], b"\x81" * 1000)):
        stage.peer.transmit(sequence, None, body=body)
        await stage.peer.error(sequence, "any", "DID_NOT_RUN")


@case("Bodies", "wire", needs=("fail",))
async def a_group_has_an_item_for_each_member(stage: CaseStage) -> None:
    """The outcome of a group has ok and value, or ok and error, for each member in order."""
    bench = stage.bench
    inputs = [bench.echo(0), bench.input("fail"), bench.echo(2)]
    stage.peer.transmit(0, inputs, body=body_of(inputs, kind="group"))
    items = await stage.peer.result(0)
    check(isinstance(items, list) and len(items) == 3, "three items", items)
    good, bad = [items[0], items[2]], items[1]
    right = all(each["ok"] is True for each in good)
    check(right and [each["value"]["value"] for each in good] == [0, 2], "values", good)
    check(bad["ok"] is False, "the second failed", bad)
    wanted = {"type": str, "message": str, "traceback": str, "attempts": int}
    found = {name: type(bad["error"].get(name)) for name in wanted}
    check(found == wanted, f"member-error: {sorted(wanted)}", bad)


@case("Bodies", "wire")
async def only_the_state_columns_asked_for_come_back(stage: CaseStage) -> None:
    """The result's state has the columns that the request names, and no others."""
    stage.echo(0, state_columns=["key"])
    stage.echo(1)
    state = (await stage.peer.result(0)).get("state")
    key = stage.asked[0].input["key"]
    check(state == {"key": key}, "the column 'key' alone", state)
    without = await stage.peer.result(1)
    check(not without.get("state"), "no state where no column is asked for", without)


@case("Versions", "wire", clients=0)
async def a_foreign_version_is_refused_politely(stage: CaseStage) -> None:
    """A hello of another version, whatever follows the version, gets Error, foreign-version."""
    async with stage.bench.connection() as peer:
        nonce = os.urandom(16)
        for array in (
            [0, PROTOCOL_VERSION + 1, nonce, 1, "conform", 1 << 20], [0, 999],
            [0, PROTOCOL_VERSION + 2, {"all": "new"}], [0, 0, nonce, 1, "conform", 1 << 20],
        ):  # fmt: skip
            peer.send_frames(cbor2.dumps(array))
            error, _ = await peer.next(messages.Error, f"Error, for {array!r}")
            check(error.code == "foreign-version", "the code 'foreign-version'", error)
            check(error.version == PROTOCOL_VERSION, "the version spoken there", error)
        await peer.nothing_of(messages.Welcome, "no session")
        await peer.hello()


@case("Connections", "G10")
async def late_bytes_of_a_connection_that_was_replaced_are_only_late(stage: CaseStage) -> None:
    """The rest of a request, on a connection that its client has left, starts nothing again."""
    await stage.play("connect by-hand; hello")
    old, socket = stage.peer, stage.socket
    data = socket.encoded(old.prepared(0, stage.bench.echo(b"x" * 2000)))
    socket.send_bytes(data[:1000])
    await stage.play("connect by-hand; sync next=1 pending=0 missing=0; again 0; result 0")
    socket.send_bytes(data[1000:])
    await taken_in(old)
    await stage.play("finish 0; barrier")
    old.again(0)
    await taken_in(old)
    check(not old.all(messages.Outcome), "no outcome on the old one", old.received)
    await stage.play("echo 1; result 1")


# == Cases about sessions: hello, welcome, goodbye, and sessions that are not known

STATUSES = ("starting", "ready", "silent", "broken", "stopping")
STATUS = {"status", "reason", "ready", "workers", "environment", "rerun"}


@case("A session", "wire", clients=0)
async def a_hello_gets_a_welcome(stage: CaseStage) -> None:
    """The welcome has the hello's nonce, a session, an epoch, the limits and the status record."""
    async with stage.bench.connection() as peer:
        welcome = await peer.hello()
        check(welcome.version == PROTOCOL_VERSION, f"version {PROTOCOL_VERSION}", welcome)
        check(welcome.session != welcome.nonce, "a session id of the server's own", welcome)
        check(welcome.window >= 1, "a window", welcome)
        check(welcome.message_bytes >= 1024, "room for a message", welcome)
        check(set(welcome.server) >= STATUS, f"a status record: {sorted(STATUS)}", welcome.server)
        check(welcome.server["status"] in STATUSES, f"one of {STATUSES}", welcome.server)


@case("A session", "wire")
async def any_name_is_taken(stage: CaseStage) -> None:
    """A client's name may be long, empty or odd."""
    for name in ("", "x" * 10_000, "\u00e9" * 200, "a\nb\x00\x1b[31m"):
        await stage.hello(name=name)


@case("When the session is unknown", "G4")
async def an_unknown_session_is_told(stage: CaseStage) -> None:
    """Request, finish, sync and cancel of a session that is not known get Unknown, not gone."""
    peer = stage.peer
    known, peer.session = peer.session, os.urandom(16)
    peer.epoch, epoch = os.urandom(16), peer.epoch
    asked = stage.bench.echo()
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
    await stage.play("sync next=1 pending=0 missing=0; ran 0 0")


# == Cases about requests: deadlines, deaths

DEADLINES_S = (0.3, 1.0, 5.0)
"""The first that a rollout starts before: on a busy machine that may take a while."""


async def started_before_its_deadline(stage: CaseStage) -> int:
    """The sequence of a rollout that runs, and whose deadline will pass."""
    bench = stage.bench
    for sequence, deadline_s in enumerate(DEADLINES_S):
        asked = bench.wait()
        stage.peer.transmit(sequence, asked, deadline_s=deadline_s)
        with trio.move_on_after(deadline_s):
            while not (await bench.counts(asked)).started:  # noqa: ASYNC110  # a count is asked for
                await trio.sleep(LOOK_S)
        if (await bench.counts(asked)).started:
            return sequence
    raise CaseFailed(f"a start within {DEADLINES_S[-1]:g} s", "none")


@case("Requests", "G7")
async def a_deadline_stops_what_runs(stage: CaseStage) -> None:
    """At its deadline a running request ends as an error, and its code is cancelled."""
    n = await started_before_its_deadline(stage)
    record = await stage.peer.error(n)
    told = (record["code"], record["verdict"])
    right = told in (("deadline", "RAN_AND_FAILED"), ("no-answer", "MAY_HAVE_RUN"))
    check(right, "the code 'deadline', RAN_AND_FAILED", record)
    await stage.play(f"cancelled {n}; again {n}; error {n}")


@case("Requests", "G9")
async def a_deadline_holds_while_the_client_is_away(stage: CaseStage) -> None:
    """A deadline passes whether or not the client is there, which finds its outcome later."""
    await stage.play("connect; sync next=0")
    n = await started_before_its_deadline(stage)
    await stage.play(f"hang-up; cancelled {n}; connect; sync next={n + 1} pending={n}")
    record = await stage.peer.error(n)
    check(record["verdict"] != "DID_NOT_RUN", "that it ran", record)


@case("Requests", "G2", needs=("die",))
async def with_consent_a_death_is_followed_by_another_run(stage: CaseStage) -> None:
    """With consent and allowance it is run again after the death, and the outcome counts both."""
    await stage.play("patient; die 0 times=1 rerun=true allowance=3")
    first = (await stage.peer.outcome(0)).message
    granted = first.status == 0 or first.executions > 1
    skip_unless(granted, "the server grants one execution only")
    await stage.play("again 0; result 0 executions=2; ran 0 2")


@case("Requests", "G2", needs=("die",))
async def the_allowance_caps_the_executions(stage: CaseStage) -> None:
    """A request that kills each of its workers ends when its allowance is used up."""
    await stage.play("patient; die 0 rerun=true allowance=3")
    executions = (await stage.peer.outcome(0)).message.executions
    check(executions <= 2, "two executions at most", executions)
    await stage.play(f"again 0; error 0 worker-lost; ran 0 {executions}")


# == Cases about what repairs a loss: sync, finish, cancel, connections

LARGEST_WINDOW = 20_000
"""A larger window is not filled, and no statement has more than it."""


@case("Sync", "G8")
async def more_than_a_window_of_pending_is_ignored(stage: CaseStage) -> None:
    """A statement with more than a window pending changes nothing."""
    far = stage.window + 10
    await stage.play(f"run {far}")
    stage.peer.sync_nowait(far + 1, [0, stage.window + 1])
    await stage.play(f"barrier; runs {far}; open {far}; result {far}")


@case("Sync", "G8")
async def more_gaps_than_a_window_are_ignored(stage: CaseStage) -> None:
    """A finish that would leave more gaps than a window can changes nothing."""
    window = stage.window
    skip_unless(window <= LARGEST_WINDOW, f"the window is {window}")
    await stage.play(f"run 0; finish 0-{2 * window + 6}/2; barrier; runs 0; open 0; result 0")


@case("Cancel, and a caller's limit", "G7")
async def started_is_true_of_all_that_ran(stage: CaseStage) -> None:
    """A request that was cancelled right behind it, and is said not to have started, never runs."""
    asked = range(30)
    for n in asked:
        stage.wait(n, seconds=0.2)
        stage.peer.send(messages.Cancel(stage.session, n))
    for n in [n for n in asked if await stage.peer.cancelled(n) is False]:
        await stage.play(f"ran {n} 0")
    await stage.play("ended 0-29")


# == Cases about refusals, for now and for good, and the least client there is

AGAIN_S = 0.05


async def taken_at_last(stage: CaseStage, n: int) -> None:
    """What was refused for now is asked for again, until it is taken, and has run once."""
    peer = stage.peer
    with trio.move_on_after(stage.bench.patience_s):
        while not any(each.sequence == n for each, _ in peer.all(messages.Outcome)):
            peer.again(n)
            await peer.barrier()
            await trio.sleep(AGAIN_S)
    peer.received = [each for each in peer.received if type(each.message) is messages.Outcome]
    await stage.play(f"result {n}; ran {n} 1")


@case("Refusals", "G8")
async def a_full_window_refuses_for_now(stage: CaseStage) -> None:
    """Past the window a request is refused with a delay, and taken under the same id later."""
    window = stage.window
    skip_unless(window <= LARGEST_WINDOW, f"the window is {window}; {LARGEST_WINDOW} is filled")
    held = stage.bench.held()
    for sequence in range(window):
        stage.peer.transmit(sequence, held)
    stage.echo(window)
    refused, _ = await stage.peer.next(
        messages.Refused, "a refusal of the request past the window",
        lambda each: each.sequence == window,
    )  # fmt: skip
    check(refused.code in ("window", "queue-full"), "the code 'window'", refused)
    check(refused.delay_s is not None, "for now: a delay", refused)
    stage.peer.send(messages.Finish(stage.session, [0, window]))
    await taken_at_last(stage, window)


@case("A minimal client", "G2")
async def a_client_that_only_repeats_itself_is_served(stage: CaseStage) -> None:
    """Hello until welcome, the same request again and again, finish: that is enough."""
    peer = stage.peer
    stage.wait(0, seconds=0.3)
    peer.patience_s, patience_s = AGAIN_S, peer.patience_s
    outcome = None
    with trio.move_on_after(patience_s):
        while outcome is None:
            try:
                outcome = await peer.outcome(0)
            except CaseFailed:
                peer.again(0)
    peer.patience_s = patience_s
    check(outcome is not None and outcome.message.status == 0, "its outcome", outcome)
    await stage.play("finish 0; again 0; refused 0 finished")


# == Cases at the bounds of a server that are small, and known: queue and sessions

QUEUE_MOST = 4096
SESSIONS_MOST = 256


@case("Refusals", "G8")
async def a_full_queue_refuses_for_now(stage: CaseStage) -> None:
    """A request without room to wait is refused with a delay, and taken under its id later."""
    queue, peer = int(stage.bench.limit("queue", QUEUE_MOST)), stage.peer
    held = stage.bench.held()
    last = min(peer.window, 2 * queue + QUEUE_MOST) - 1
    for sequence in range(last):
        peer.transmit(sequence, held)
    stage.echo(last)
    await peer.barrier()
    refused = {each.sequence: each for each, _ in peer.all(messages.Refused)}
    skip_unless(last in refused, f"{last + 1} requests, the window of one session, find room")
    wrong = [each for each in refused.values() if each.code != "queue-full"]
    check(not wrong, "the code 'queue-full'", wrong)
    check(refused[last].delay_s is not None, "for now: a delay", refused[last])
    await stage.sync(next=last + 1, pending=last, missing=last)  # what was refused was not seen
    await taken_at_last(stage, last)


@case("A session", "G10", clients=0)
async def a_connection_opens_so_many_sessions(stage: CaseStage) -> None:
    """Past connection_sessions a hello is told no-session, on this connection and no other."""
    bench = stage.bench
    most = int(bench.limit("connection_sessions", SESSIONS_MOST))
    async with bench.connection() as peer:
        for _ in range(most):
            await peer.hello()
            bench.end_later(peer.session)
        await peer.no_session(nonce := bench.nonce())
        async with bench.client() as other:
            other.transmit(0, bench.echo())
            await other.result(0, "an outcome for a client on another connection")
        peer.transmit(0, bench.echo())
        await peer.result(0, "an outcome for a session that was opened before")
        peer.goodbye()
        await peer.hello(nonce)


@case("A session", "G8", clients=0)
async def past_all_sessions_a_hello_is_told_so(stage: CaseStage) -> None:
    """Past sessions in all, all of them at work, a hello is told no-session."""
    bench = stage.bench
    most = int(bench.limit("sessions", SESSIONS_MOST))
    async with bench.at_work() as (peers, stack):
        while True:
            peer = await stack.enter_async_context(bench.connection())
            if not await peer.hello_once(nonce := bench.nonce()):
                break
            await _work(bench, peer)
            peers.append(peer)
            check(len(peers) < most, f"at most {most} sessions, one of them the bench's", peers)
        await peers[0].sync(1, [0, 1])
        peers[-1].goodbye()
        await peer.hello(nonce)
        peers.append(peer)


@case("A session", "G10")
async def an_idle_session_makes_room(stage: CaseStage) -> None:
    """Past sessions in all one without work is forgotten for a new one: it is gone, and
    settled, for nothing of it was unfinished."""
    bench, idle = stage.bench, stage.peer
    most = int(bench.limit("sessions", SESSIONS_MOST))
    await stage.play("echo 0; result 0; finish 0; barrier")
    async with bench.at_work() as (peers, stack):
        for _ in range(most - 1):  # one too many, with the bench's
            peers.append(await stack.enter_async_context(bench.client()))
            await _work(bench, peers[-1])
        stage.echo(1)
        unknown = await idle.unknown()
        check(not unknown.settled, "nothing is proven without an epoch", unknown)
        idle.sync_nowait(2, [1, 2])
        unknown = await idle.unknown()
        check(unknown.gone and unknown.settled, "gone, and settled", unknown)
    await stage.play("hello; echo 0; result 0")


async def _work(bench: Bench, peer: ConformancePeer) -> None:
    """Let its session be at work."""
    peer.transmit(0, bench.wait())
    await peer.barrier()


# == Cases about ends that come of themselves: leases, and the end of the server

LEASE_MOST_S = 10.0
"""A longer lease is not waited for."""


@case("A session", "G7", clients=2)
async def the_work_of_a_silent_client_ends_with_its_lease(stage: CaseStage) -> None:
    """Work is cancelled after lease_s without a word, not before; a ping keeps it."""
    bench = stage.bench
    lease_s = bench.limit("lease_s", LEASE_MOST_S)
    bench.be_patient(bench.patience_s + 2 * lease_s)
    await stage.play("client 2; run 0")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_ping, stage.peer, lease_s / 8)
        began_s = trio.current_time()
        await stage.play("client 1; run 0; cancelled 0")
        lasted_s = trio.current_time() - began_s
        nursery.cancel_scope.cancel()
    check(lasted_s >= 0.9 * lease_s, f"a lease of {lease_s:g} s", f"{lasted_s:.2f} s")
    await stage.play("client 2; runs 0; open 0; result 0")
    await stage.play("client 1; say-sync next=1 pending=0; unknown; ran 0 1")


async def _ping(peer: ConformancePeer, every_s: float) -> None:
    while True:
        peer.sync_nowait(1, [0, 1])
        await trio.sleep(every_s)


@case("A session", "G7")
async def a_nonce_whose_client_has_left_opens_nothing(stage: CaseStage) -> None:
    """After a goodbye, by session or by nonce, a late hello with that nonce gets no-session."""
    peer = stage.peer
    for say_nonce in (False, True):
        nonce = stage.bench.nonce()
        if say_nonce:
            peer.send(messages.Goodbye(nonce))
        else:
            await peer.hello(nonce)
            peer.goodbye()
            await peer.gone()
        await peer.no_session(nonce)
    await peer.hello()


@case("When the session is unknown", "G1")
async def a_restarted_server_has_a_new_epoch(stage: CaseStage) -> None:
    """After a kill and a restart old sessions are unknown, and gone once nothing of them runs."""
    bench, peer = stage.bench, stage.peer
    await stage.play("run 0")
    asked = peer.asked[0].input
    await bench.restart()
    await stage.play("connect")
    back = stage.peer
    async with bench.client() as fresh:
        check(fresh.epoch != peer.epoch, "another epoch", fresh.epoch.hex())
        check(fresh.session != peer.session, "another session", fresh.session.hex())
        back.again(0)
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
        after = await bench.counts(asked)
        right = not unknown.gone or before == after
        check(right, f"nothing of it runs when it is said to be gone: {before}", after)
        fresh.transmit(0, bench.echo("new"))
        await fresh.result(0, "the outcome of another request with sequence 0")


# == Cases about keys
#
# A server whose status record does not say ``durable`` takes no keys, and is not judged.


@case("Which keys there are", "wire")
async def keys_are_listed_without_a_session(stage: CaseStage) -> None:
    """A query for keys needs no session; pages have the keys of its namespace."""
    bench, peer = stage.bench, stage.peer
    skip_without_keys(peer)
    async with bench.connection() as stranger:
        namespace = bench.nonce()
        names = [bench.key() for _ in range(3)]
        for sequence, name in enumerate(names):
            body = body_of(bench.echo())
            about: dict[str, Any] = {"digest": input_digest(body, None), "namespace": namespace}
            say_of_key(peer, sequence, name, KeyAct.ASK, body, **about)
            await peer.result(sequence)
        found, first = [], 0
        while True:
            stranger.send(messages.Query(first + 1, "keys", first, namespace))
            answer, frames = await stranger.next(messages.QueryAnswer)
            check(answer.probe == first + 1, f"the probe {first + 1}", answer)
            page = cbor2.loads(frames[1])
            found += [each["key"].decode() for each in page["keys"]]
            if page["next"] is None:
                break
            check(page["next"] > first, f"a next page that begins after {first}", page["next"])
            first = page["next"]
        check(found == names, f"the keys {names}", found)


# == Cases through the fault proxy: what is lost with a connection, and comes back

ROLLOUTS = 100
AT_ONCE = 25
RUN_S = 0.15
"""How long each of them runs, so that faults find some that do."""

AGAIN_AFTER_S = (0.1, 0.17, 0.2, 0.25, 0.3, 0.4, 1.0)
"""When each request is sent again: while it runs, when its outcome is kept, and later."""

GOOD = ClientLimits(ping_s=0.2, hello_retry_s=0.1, reconnect_s=0.4, finish_flush_s=0.2)
"""Of a client that soon finds out what it has lost, and acknowledges late."""

STORM_S = 15.0
"""In which all must have come to an end; far more than it takes."""

PAUSE_S = 0.15
"""Between faults."""

STALL_S = 0.3


@case("Requests", "G4", faults=True)
async def an_outcome_lost_on_its_way_is_replayed(stage: CaseStage) -> None:
    """Cut between the sending of an outcome and its receipt, it is there after the reconnect."""
    await stage.play("proxy; run 0")
    mark = stage.asked[0].input["key"].encode()
    with trio.move_on_after(stage.bench.patience_s):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.through.cut_before_receipt, lambda data: mark in data)
            await stage.play("open 0")
    withheld = stage.through.counters.withheld_bytes
    check(withheld > 0, "an outcome on its way", "none came by")
    await stage.play("connect; sync next=1 pending=0; result 0; again 0; result 0")


@case("A good client", "G2", faults=True, clients=0)
async def many_rollouts_through_cuts_run_once_each(stage: CaseStage) -> None:
    """A hundred rollouts, sent again through cuts, stalls and half-open connections, run once."""
    bench = stage.bench
    asked = [bench.wait(seconds=RUN_S) for _ in range(ROLLOUTS)]
    tapped = OutcomeNetwork(bench.network)
    impatient = RetransmittingNetwork(tapped, pauses_s=AGAIN_AFTER_S)
    answers: dict[int, Any] = {}
    async with (
        bench.proxy(seed=1) as proxy,
        open_client(proxy.address, limits=GOOD, network=impatient) as client,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(_storm, proxy, [one["key"].encode() for one in asked])
        with trio.move_on_after(STORM_S):
            async with client.run_many(asked, in_flight=AT_ONCE) as outcomes:
                async for index, outcome in outcomes:
                    answers[index] = outcome.value if outcome.ok else outcome.error
        nursery.cancel_scope.cancel()
    count = len(answers)
    check(count == ROLLOUTS, f"{ROLLOUTS} outcomes", f"{count} after {STORM_S:g} s")
    for index, value in answers.items():
        right = isinstance(value, dict) and value.get("key") == asked[index]["key"]
        check(right, "the result of its own request", value)
    differ = [each for each in tapped.outcomes.values() if len(each) > 1]
    check(not differ, "the same bytes each time", differ)
    for one in asked:
        counts = await bench.counts(one)
        check((counts.started, counts.results) == (1, 1), "each started once, and ended", counts)


@final
class OutcomeNetwork(WrappedNetwork):
    """Wraps a network, and keeps the outcomes that come over it."""

    def __init__(self, network: Network) -> None:
        super().__init__(network)
        self.outcomes = defaultdict[tuple[bytes, int], set[bytes]](set)
        """By request: the different ones, header and body."""

    def received(self, frames: Message) -> None:
        """Keep outcomes."""
        for message, body in messages_in(frames):
            if isinstance(message, messages.Outcome):
                outcome = messages.encode(message) + bytes(body or b"")
                self.outcomes[message.session, message.sequence].add(outcome)


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
    "Leave", "Cancel and forget", "Which keys there are", "Issued again", "Versions",
)  # fmt: skip
"""The headings of ``docs/protocol.md`` from which there are cases, in its order."""


CASES = tuple(
    sorted(
        (
            *(each for each in list(globals().values()) if isinstance(each, Case)),
            *cases_of(SCRIPTS),
        ),
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

"""The server's spans, in one process with its client, its worker and the provider."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import pytest
import trio
from opentelemetry.trace import StatusCode

from tests.core.helpers import STRANGER, Pair, identifier
from tests.memory import ADDRESS, pair
from tests.spans import Kept, about, id_of, kept, parent_of, trace_of
from trio_envserve import Rollout, ServerLimits, open_client, open_server, tracing
from trio_envserve.core import messages
from trio_envserve.core.client import CallsCancelled
from trio_envserve.core.key_records import KeyAct, input_digest
from trio_envserve.core.limits import BATCH_BYTES
from trio_envserve.core.router_effects import ClosingOver
from trio_envserve.core.router_inputs import ClientMessage, Tick, WorkerMessage
from trio_envserve.net import MemoryNetwork
from trio_envserve.server import traces
from trio_envserve.server.traces import Traces

__all__ = ["kept"]

SPAN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def run(rollout: Rollout) -> dict[str, Any]:
    if rollout.input == "fail":
        raise ValueError("no")
    if rollout.input == "wait":
        await trio.sleep_forever()
    with rollout.span("think", depth=2):
        await rollout.ask([{"role": "user", "content": "?"}], reference="!")
    return {"reward": 1.0}


async def ask(*inputs: Any, **options: Any) -> None:
    async with pair(run) as (_, client):
        for each in inputs:
            await client.outcome(each, **options)


def chain(kept: Kept, *names: str) -> None:
    """Each is below the one before."""
    for above, below in itertools.pairwise(names):
        assert parent_of(kept.one(below)) == id_of(kept.one(above)), (above, below)


async def test_a_call_is_one_tree(kept: Kept, autojump_clock: object):
    with kept.tracer.start_as_current_span("training step"):
        await ask("x")
    chain(kept, "training step", "call", "rollout", "execution", "think", "chat oracle")
    assert len({trace_of(span) for span in kept.all}) == 1
    rollout, execution, chat = (
        about(kept.one(name)) for name in ("rollout", "execution", "chat oracle")
    )
    assert rollout["envserve.request"] == execution["envserve.request"]
    assert rollout["envserve.executions"] == 1
    assert execution["envserve.worker"] == "w0-1"
    assert chat["gen_ai.operation.name"] == "chat"
    assert about(kept.one("think")) == {"depth": 2}
    assert about(kept.one("call")) == {"envserve.worker": "w0-1", "envserve.executions": 1}


async def test_a_caller_without_a_tracer_says_where_its_spans_belong(
    kept: Kept, autojump_clock: object
):
    await ask("x", traceparent=f"{SPAN[:-1]}0")
    assert kept.all == []  # what its caller does not keep is kept nowhere
    await ask("x", traceparent=SPAN)
    assert kept.named("call") == []
    assert parent_of(kept.one("rollout")) == int(SPAN[36:52], 16)


async def test_a_rollout_that_fails_is_an_error_all_the_way_up(kept: Kept, autojump_clock: object):
    await ask("fail")
    for name in ("call", "rollout", "execution"):
        assert kept.one(name).status.status_code is StatusCode.ERROR


@pytest.mark.parametrize("key", [None, "one"])
async def test_a_rollout_that_is_cancelled_ends_its_spans(
    kept: Kept, autojump_clock: object, key: str | None
):
    async with pair(run, server=ServerLimits(stats_line_s=1e6)) as (_, client):
        with trio.move_on_after(3):
            await client.outcome("wait", key=key)
        await trio.sleep(5)
        for name in ("call", "rollout", "execution"):
            assert about(kept.one(name))["envserve.cancelled"] is True


async def test_those_who_join_a_key_have_a_rollout_each_and_share_the_execution(
    kept: Kept, autojump_clock: object
):
    async def slow(rollout: Rollout) -> float:
        await trio.sleep(5)
        return 1.0

    async with pair(slow) as (_, client), trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(partial(client.outcome, "x", key="one"))
            await trio.sleep(1)
    rollouts = {id_of(span) for span in kept.named("rollout")}
    assert len(rollouts) == 2
    assert parent_of(kept.one("execution")) in rollouts


async def test_a_server_that_ends_leaves_no_span_open(kept: Kept, autojump_clock: object):
    network = MemoryNetwork()
    async with (
        trio.open_nursery() as nursery,
        open_client(ADDRESS, network=network) as client,
    ):
        async with open_server(run, bind=ADDRESS, workers=0, network=network):
            nursery.start_soon(client.outcome, "wait")
            await trio.sleep(3)
        assert len(kept.named("rollout")) == len(kept.named("execution")) == 1
        nursery.cancel_scope.cancel()


# -- what goes by, on a router without a network -----------------------------------


class TracedPair(Pair):
    """A pair whose router has a :class:`Traces` before it, and a stranger who asks it."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.traces = Traces(self.router, self.router.take, "test")
        self.router.take = self.traces.take  # type: ignore[method-assign]  # as the shell does
        self.traces._take = type(self.router).take.__get__(self.router)
        self.theirs = self.stranger()

    def request(self, sequence: int = 0, parent: str | None = SPAN) -> messages.Request:
        """One of the stranger's, below a span."""
        return messages.Request(
            self.theirs, sequence, identifier(sequence), None, 1, None, None, parent
        )

    def together(self, *rows: tuple[messages.Message, bytes]) -> None:
        """These come from the stranger in one message."""
        (frames,) = messages.in_batches(list(rows))
        self.give(ClientMessage(STRANGER, frames, self.now_s))
        self.settle()

    def end_all(self) -> None:
        for run in self.runs:
            self.end(run)


def test_g6_a_request_that_comes_again_has_one_span(kept: Kept):
    pair = TracedPair()
    request = pair.request()
    pair.together((request, b"body"), (request, b"body"))
    for _ in range(3):
        pair.tell(request, b"body", route=STRANGER)
    assert len(pair.runs) == 1
    pair.end()
    pair.tell(request, b"body", route=STRANGER)
    pair.advance(3.0)
    assert [span.name for span in kept.all] == ["execution", "rollout"]
    assert not pair.traces._rollouts


def test_a_request_that_is_refused_for_now_has_no_span_until_it_enters(kept: Kept):
    pair = TracedPair(server={"worker_capacity": 1, "queue": 1})
    pair.tell(pair.request()._replace(session=identifier(77)), b"body", route=STRANGER)
    assert not pair.traces._rollouts  # nobody knows that session
    for each in map(pair.request, range(3)):
        pair.tell(each, b"body", route=STRANGER)
    assert isinstance(pair.mail[-1][1], messages.Refused)
    assert len(pair.traces._rollouts) == 2


def test_an_execution_whose_worker_dies_ends_as_lost_and_the_next_one_is_beside_it(kept: Kept):
    pair = TracedPair(workers=2, rerun=True)
    pair.submit(rerun=True, traceparent=SPAN)
    pair.die()
    pair.advance(2.0)
    pair.end()
    first, second = kept.named("execution")
    assert first.status.description == "worker lost: killed by a test"
    assert second.status.status_code is StatusCode.UNSET
    assert parent_of(first) == parent_of(second) == id_of(kept.one("rollout"))


def test_an_execution_that_ends_in_silence_ends_its_span(kept: Kept):
    """Its outcome is announced, and then not wanted."""
    pair = TracedPair()
    number = pair.submit(traceparent=SPAN)
    pair.lose = lambda message: isinstance(message, messages.Fetch)
    pair.end(payload=bytes(100_000))
    pair.give_client(CallsCancelled((number,), pair.now_s))
    pair.settle()
    pair.advance(3.0)
    for name in ("execution", "rollout"):
        assert about(kept.one(name))["envserve.cancelled"] is True
    assert not any(pair.traces._executions.values())


def test_g5_a_report_of_another_incarnation_ends_no_span(kept: Kept):
    """Nor does one of the right incarnation that is wrong."""
    pair = TracedPair()
    pair.submit(traceparent=SPAN)
    ((worker, what),) = pair.runs
    header = messages.encode(messages.WorkerOutcome(*what.request, what.number, 0, 1.0))
    pair.give(WorkerMessage((worker, identifier(5), b"", header, b""), pair.now_s))
    incarnation = pair.router.workforce.workers[worker].incarnation
    for frames in ((header[:-3], b""), (b"\x83", b""), (header[:-3],), ()):
        pair.give(WorkerMessage((worker, incarnation, b"", *frames), pair.now_s))
    assert kept.all == []
    pair.end()
    assert [span.name for span in kept.all] == ["execution", "rollout"]


def test_g10_rollouts_that_end_together_are_not_all_looked_at_in_one_turn(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(traces, "ENDED_AT_ONCE", 8)
    pair = TracedPair(server={"worker_capacity": 1})
    for request in map(pair.request, range(40)):
        pair.tell(request, b"body", route=STRANGER)
    pair.tell(messages.Goodbye(pair.theirs), route=STRANGER)
    ended = []
    for _ in range(8):
        before = len(kept.named("rollout"))
        pair.traces.take(Tick(pair.now_s))
        ended.append(len(kept.named("rollout")) - before)
    assert ended == [8, 8, 8, 8, 8, 0, 0, 0]
    assert all(about(span)["envserve.cancelled"] for span in kept.named("rollout"))


def test_g8_rollouts_that_come_and_go_between_two_ticks_do_not_collect(kept: Kept):
    pair = TracedPair(server={"worker_capacity": 1})
    for request in map(pair.request, range(100)):
        pair.tell(request, b"body", route=STRANGER)
        finished = [request.sequence, request.sequence + 1]
        pair.tell(messages.Finish(pair.theirs, finished), route=STRANGER)
        assert len(pair.traces._rollouts) <= 2
        assert len(pair.traces._in_turn) <= 2
    for _ in range(20):  # nor do those that were answered
        pair.submit(traceparent=SPAN)
        pair.end()
    assert len(pair.traces._rollouts) <= 2
    assert len(pair.traces._in_turn) <= 2


LONG = b"\x98\x07" + messages.encode(messages.WorkerOutcome(bytes(16), 0, 1, 0, 1.0))[1:]
"""It begins like a request: the length of its array is in the place of a kind."""


@pytest.mark.parametrize(
    "frames", [(), (b"\x81",), (b"\x82\x01\x01", b""), (b"\x88\x01", b"b"), (LONG, b"")]
)
def test_g10_what_is_malformed_has_no_span_and_does_no_harm(kept: Kept, frames: tuple[bytes, ...]):
    pair = TracedPair()
    pair.give(ClientMessage(STRANGER, frames, pair.now_s))
    pair.give(WorkerMessage((b"w0-1", b"x" * 16, b"", *frames), pair.now_s))
    assert kept.all == []
    assert pair.router.malformed


@pytest.mark.parametrize("name", ["rollout", "execution"])
@pytest.mark.parametrize("given", ["nothing", "a span that is not kept"])
def test_a_span_that_is_not_kept_changes_no_message(
    kept: Kept, monkeypatch: pytest.MonkeyPatch, name: str, given: str
):
    begin = tracing.begin

    def begun(which: str, *about: Any, **more: Any) -> tracing.Span | None:
        span = begin(which, *about, **more)
        if which == name and span is not None:
            span.is_kept = False
            return None if given == "nothing" else span
        return span

    monkeypatch.setattr(tracing, "begin", begun)
    pair = TracedPair()
    pair.submit(traceparent=SPAN)
    ((_, what),) = pair.runs
    assert what.traceparent is not None
    pair.end()
    assert kept.named(name) == []
    assert not any(pair.traces._executions.values())
    assert not pair.traces._rollouts


def test_one_that_is_kept_ends_beside_one_that_is_not(kept: Kept):
    pair = TracedPair()
    for traceparent in (SPAN, f"{SPAN[:-1]}0"):
        pair.submit(traceparent=traceparent)
    pair.advance(3.0)
    assert kept.all == []
    pair.end_all()
    assert [span.name for span in kept.all] == ["execution", "rollout"]
    assert pair.runs[1][1].traceparent == f"{SPAN[:-1]}0"


def test_requests_of_a_batch_that_have_no_span_go_on_as_they_were(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
):
    begin, begun = tracing.begin, 0

    def begin_two(name: str, *about: Any, **more: Any) -> tracing.Span | None:
        nonlocal begun
        if name == "rollout":
            begun += 1
            if begun == 2:
                return None
        return begin(name, *about, **more)

    monkeypatch.setattr(tracing, "begin", begin_two)
    pair = TracedPair(server={"worker_capacity": 8})
    parents = ((0, SPAN), (0, SPAN), (1, f"{SPAN[:-1]}0"), (2, SPAN), (3, None))
    pair.together(*((pair.request(number, parent), b"body") for number, parent in parents))
    assert begun == 3
    given = {run.request.sequence: run.traceparent for _, run in pair.runs}
    assert sorted(given) == [0, 1, 2, 3]
    assert given[1] == f"{SPAN[:-1]}0"
    pair.end_all()
    assert len(kept.named("rollout")) == 2


def test_questions_about_keys_that_come_with_a_request_go_on_as_they_were(kept: Kept):
    pair = TracedPair()
    digests = [input_digest(body, None) for body in (b"body", b"")]
    asked = messages.Request(
        pair.theirs, 0, digests[0], None, 1, None, None, SPAN, b"space", b"key"
    )
    attached = asked._replace(sequence=1, digest=digests[1], act=int(KeyAct.ATTACH))
    pair.together((asked, b"body"), (attached, b""))
    assert len(pair.traces._rollouts) == len(pair.runs) == 1
    assert not pair.router.malformed


def test_a_request_without_a_span_of_its_own_is_not_traced_where_nothing_is_kept(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(tracing, "begin", lambda *about, **more: None)
    pair = TracedPair()
    pair.submit()
    ((_, what),) = pair.runs
    assert what.traceparent is None
    pair.end()
    assert kept.all == []


def test_a_batch_that_no_client_of_ours_would_write_ended_a_server_with_traces(kept: Kept):
    """Its bodies are so large that each would go alone; the server takes them together."""
    pair = TracedPair(server={"worker_capacity": 3})
    requests: list[Any] = [*map(pair.request, range(3))]
    bodies: list[Any] = [b"x" * BATCH_BYTES] * 3
    frames: Any = messages._batch(messages.Request, requests, bodies)
    pair.give(ClientMessage(STRANGER, frames, pair.now_s))
    pair.settle()
    assert [run.request.sequence for _, run in pair.runs] == [0, 1, 2]
    pair.end_all()
    assert len(kept.named("rollout")) == len(kept.named("execution")) == 3


def test_what_is_open_at_the_end_is_ended_once(kept: Kept):
    pair = TracedPair()
    pair.submit(traceparent=SPAN)
    pair.traces._take = lambda given: [ClosingOver(())]
    pair.traces.take(Tick(pair.now_s))
    assert [span.status.description for span in kept.all] == 2 * ["the server has ended"]
    for each in (pair.traces._rollouts, pair.traces._in_turn, pair.traces._executions):
        assert not each


async def test_who_only_asks_about_a_key_has_no_rollout(kept: Kept, autojump_clock: object):
    network = MemoryNetwork()
    async with (
        pair(run, network=network) as (_, client),
        open_client(ADDRESS, network=network) as other,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(partial(client.outcome, "wait", key="one"))
        await trio.sleep(1)
        nursery.start_soon(other.attach, "one")
        await trio.sleep(1)
        await other.cancel_key("one")
        await trio.sleep(1)
    (rollout,) = kept.named("rollout")
    assert about(rollout)["envserve.cancelled"] is True
    assert "envserve.executions" in about(rollout)
    assert about(kept.one("execution"))["envserve.cancelled"] is True

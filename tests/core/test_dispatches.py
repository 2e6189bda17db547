"""The dispatches of a router, against real worker cores."""

from __future__ import annotations

from trio_envserve.core import messages
from trio_envserve.core.client_effects import ToServer
from trio_envserve.core.client_inputs import CallsCancelled
from trio_envserve.core.requests import RequestState
from trio_envserve.core.router_effects import ToWorker
from trio_envserve.core.router_inputs import ClientMessage
from trio_envserve.core.terms import Verdict

from .helpers import CLIENT, Pair

WORKER = b"w0-1"


def test_g9_a_lost_dispatch_is_sent_again_after_the_next_beat():
    pair = Pair()
    pair.lose = lambda message: isinstance(message, messages.Dispatch)
    pair.submit(b"precious")
    assert pair.runs == []
    pair.lose = lambda message: False
    pair.beat()
    assert [run.body for _, run in pair.runs] == [b"precious"]
    pair.beat()
    assert len(pair.runs) == 1


def test_what_is_cancelled_together_is_one_message_to_each_worker():
    pair = Pair(workers=2, server={"worker_capacity": 4})
    stops: list[tuple[bytes, list[int]]] = []
    for _ in range(6):
        pair.submit()
    pair.give_client(CallsCancelled((0, 1, 2, 3, 5), pair.now_s))
    for effect in pair.client_said():
        assert isinstance(effect, ToServer)
        pair.give(ClientMessage(CLIENT, (messages.encode(effect.message),), pair.now_s))
    for said in pair.said():
        if isinstance(said, ToWorker) and isinstance(said.message, messages.Stop):
            stops.append((said.worker, said.message.numbers))
    assert sorted(stops) == [(b"w0-1", [0, 2]), (b"w1-1", [0, 3])]


def test_a_dispatch_counts_as_an_execution_whether_or_not_the_worker_got_to_it():
    pair = Pair()
    pair.lose = lambda message: isinstance(message, messages.Dispatch)
    pair.submit()
    assert pair.session.state(0) is RequestState.RUNNING
    pair.die(WORKER)
    assert pair.failure().executions == 1
    assert pair.failure().verdict is Verdict.MAY_HAVE_RUN


def test_frames_to_a_worker_begin_with_its_incarnation():
    pair = Pair()
    pair.submit()
    dispatches = pair.router.dispatcher.dispatches
    dispatches.stop([pair.router.workforce.workers[WORKER].live[0]], pair.now_s)
    (effect,) = dispatches.out
    assert isinstance(effect, ToWorker)
    assert effect.frames[0] == pair.workers[WORKER].incarnation

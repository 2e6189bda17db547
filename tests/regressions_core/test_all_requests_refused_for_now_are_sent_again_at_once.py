"""5,000 calls met a server with room for 356.  Each of the others was sent again as soon
as its delay had passed, with its body, and refused again: 100,000 transmissions in ten
seconds, and the next calls were sent on top.

Refused ones are tried again a few at a time, ever fewer while that is refused too,
and what waits behind them stays here.
"""

from tests.core.helpers import Pair
from trio_envserve.core.call_table import BURST
from trio_envserve.core.messages import Request

ROOM, CALLS, SECONDS = 10, 300, 20


def transmissions(pair: Pair) -> int:
    return sum(isinstance(message, Request) for message in pair.sent)


def at_a_full_server() -> Pair:
    limits = {"queue": 2 * (ROOM - 1), "worker_capacity": 1, "retry_delay_s": 0.5}
    pair = Pair(server=limits)
    for _ in range(CALLS):  # as a client with many tasks does, before anything is heard
        pair.client.submit(b"body", pair.now_s)
    pair.settle()
    assert transmissions(pair) == CALLS
    assert len(pair.session.entries) == ROOM
    return pair


def test_ever_fewer_are_tried_while_all_are_refused():
    pair = at_a_full_server()
    pair.advance(SECONDS, step_s=0.25)
    tried = transmissions(pair) - CALLS
    assert tried < 2 * BURST + SECONDS / 0.25  # and not (CALLS - ROOM) * SECONDS / 0.5
    before = transmissions(pair)
    pair.advance(SECONDS, step_s=0.25)
    assert 0 < transmissions(pair) - before <= SECONDS / 0.25


def test_new_calls_wait_behind_them():
    pair = at_a_full_server()
    before = transmissions(pair)
    pair.submit()
    assert transmissions(pair) == before


def test_each_is_run_once_when_there_is_room():
    pair = at_a_full_server()
    pair.submit()
    pair.advance(SECONDS, step_s=0.25)
    ended = 0
    for _ in range(40 * CALLS):
        if ended == len(pair.runs):
            pair.advance(0.25, step_s=0.25)
        else:
            pair.end(pair.runs[ended])
            pair.client.received(pair.answers[ended].call, pair.now_s)
            ended += 1
    assert len(pair.runs) == len(pair.answers) == CALLS + 1
    assert not pair.client.calls.live

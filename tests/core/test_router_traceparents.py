"""A traceparent goes the way of its request, and decides nothing."""

from __future__ import annotations

import pytest

from trio_envserve.core import messages
from trio_envserve.core.client_inputs import CallKey
from trio_envserve.core.key_records import KeyAct, KeyName, input_digest

from .helpers import STRANGER, Pair, identifier

SPAN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
OTHER = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"
NAME = KeyName(b"default", b"key")


def keyed(body: bytes = b"body") -> CallKey:
    return CallKey(KeyAct.ASK, NAME, input_digest(body, None))


@pytest.mark.parametrize("key", [None, keyed()], ids=["without a key", "with a key"])
@pytest.mark.parametrize("span", [SPAN, None])
def test_the_span_of_a_caller_reaches_the_worker(key: CallKey | None, span: str | None):
    pair = Pair()
    pair.submit(key=key, traceparent=span)
    ((_, run),) = pair.runs
    assert run.traceparent == span


def test_g6_a_request_that_comes_again_with_another_span_is_the_same_request():
    pair = Pair()
    session = pair.stranger()
    for span in (SPAN, OTHER, None):
        request = messages.Request(session, 0, identifier(1), None, 1, None, None, span)
        pair.tell(request, b"body", route=STRANGER)
    ((_, run),) = pair.runs
    assert run.traceparent == SPAN, "the first one counts"
    assert pair.router.cache.counters.conflicts == 0


def test_g2_a_further_execution_is_below_the_same_span():
    pair = Pair(workers=2, rerun=True)
    pair.submit(traceparent=SPAN, rerun=True)
    pair.die()
    pair.advance(2.0)
    assert [run.traceparent for _, run in pair.runs] == [SPAN, SPAN]


def test_work_of_a_key_is_below_the_span_of_the_ask_that_opened_it():
    pair = Pair()
    pair.submit(key=keyed(), traceparent=SPAN)
    pair.submit(key=keyed(), traceparent=OTHER)
    ((_, run),) = pair.runs
    assert run.traceparent == SPAN


def test_a_dispatch_that_was_lost_is_sent_again_with_its_span():
    pair = Pair()
    pair.lose = lambda message: isinstance(message, messages.Dispatch)
    pair.submit(traceparent=SPAN)
    assert not pair.runs
    pair.lose = lambda message: False
    pair.beat()
    pair.beat()
    assert [run.traceparent for _, run in pair.runs] == [SPAN]

"""Who asks where an execution stands is told what its worker says, and costs little."""

from __future__ import annotations

from typing import Any

import cbor2
import pytest

from trio_envserve.core import messages, queries
from trio_envserve.core.router_effects import AskWorker, ToClient
from trio_envserve.core.router_inputs import StackTaken

from .helpers import STRANGER, Pair

OTHER = b"another stranger"


def ask(pair: Pair, number: int = 0, route: bytes = STRANGER, probe: int = 7) -> list[Any]:
    """What is done about a question."""
    return [*pair.question(messages.Query(probe, "stack", number), route)]


def taken(pair: Pair, text: str, number: int = 0) -> list[Any]:
    pair.give(StackTaken(b"w0-1", pair.now_s, number, text))
    return [each for each in pair.said() if isinstance(each, ToClient)]


def answer(effect: ToClient) -> tuple[bytes, int, dict[str, Any]]:
    header, body = effect.frames
    told = messages.decode(bytes(header), most_bytes=100)
    assert isinstance(told, messages.QueryAnswer)
    return effect.route, told.probe, cbor2.loads(bytes(body))


@pytest.fixture
def pair() -> Pair:
    pair = Pair.asked()
    return pair


def test_a_worker_is_asked_and_all_who_wait_are_told(pair: Pair):
    request = str(pair.runs[0][1].request)
    assert ask(pair) == [AskWorker(b"w0-1", 0, request)]
    assert ask(pair, route=OTHER, probe=8) == []
    told = {"state": "told", "worker": "w0-1", "text": "here"}
    assert [answer(each) for each in taken(pair, "here")] == [
        (STRANGER, 7, told), (OTHER, 8, told),
    ]  # fmt: skip
    assert taken(pair, "said unasked") == []


def test_what_does_not_run_has_no_stack(pair: Pair):
    [effect] = ask(pair, 1)
    assert answer(effect)[2] == {"state": "over"}
    pair.end()
    [effect] = ask(pair, 0)
    assert answer(effect)[2] == {"state": "over"}


def test_g10_a_stack_of_any_text_fits_into_a_frame_that_any_peer_takes(pair: Pair):
    ask(pair)
    [effect] = taken(pair, "\ud800" + "ü" * 40_000)
    assert len(effect.frames[1]) < 32 * 1024
    assert answer(effect)[2]["text"].startswith("?ü")


def test_g10_few_questions_are_remembered():
    pair = Pair(server={"worker_capacity": 50})
    pair.submit_many(queries.EXECUTIONS_MOST + 1)
    for number in range(queries.EXECUTIONS_MOST):
        assert isinstance(ask(pair, number)[0], AskWorker)
    last = queries.EXECUTIONS_MOST
    assert answer(ask(pair, last)[0])[2] == {"state": "busy"}
    for number in range(queries.ROUTES_MOST - 1):
        assert ask(pair, 0, b"route %d" % number) == []
    assert answer(ask(pair, 0, b"one more")[0])[2] == {"state": "busy"}
    pair.advance(queries.ANSWER_S)
    assert isinstance(ask(pair, last)[0], AskWorker)

"""How long model calls waited for their endpoint: for a permit, for another try."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from tests.connections import held_port
from tests.endpoint import Endpoint, Reply, Status
from tests.models.helpers import HELLO, NO_PAUSE, opened, scripted, served
from trio_envserve.models import ModelError, patience
from trio_envserve.models.interface import AskingRollout
from trio_envserve.models.waits import EndpointWaits


@dataclasses.dataclass(eq=False)
class Call:
    since_s: float
    sent_s: float | None = None


def ended(*calls: tuple[float, float, float | None], now_s: float = 100.0) -> float:
    """The waits of calls that began, ended, and had sent their last request then."""
    waits = EndpointWaits()
    for since_s, end_s, sent_s in calls:
        call = Call(since_s)
        waits.begin(call)
        call.sent_s = sent_s
        waits.end(call, end_s)
    assert waits.waited_s(now_s) == waits.over_s
    return waits.over_s


@pytest.mark.parametrize(
    ("calls", "waited_s"),
    [
        ([], 0.0),
        ([(1.0, 9.0, 1.0)], 0.0),  # answered at once: the engine's time is no wait
        ([(1.0, 9.0, 4.0)], 3.0),  # for a permit, or until the try that was answered
        ([(1.0, 9.0, None)], 8.0),  # never answered
        ([(1.0, 9.0, 4.0), (10.0, 12.0, 11.0)], 4.0),
        ([(1.0, 5.0, None), (2.0, 9.0, 8.0)], 7.0),  # two at once
        ([(1.0, 5.0, None), (2.0, 4.0, 3.0)], 4.0),
    ],
)
def test_waits_of_calls_that_have_ended(calls: list[Any], waited_s: float):
    assert ended(*calls) == waited_s


def test_wait_that_goes_on_keeps_what_it_had_when_a_later_one_ends():
    """The end of the later one moved the count past what the earlier one had waited."""
    waits, first, second = EndpointWaits(), Call(0.0), Call(50.0)
    waits.begin(first)
    waits.begin(second)
    waits.end(second, 60.0)
    assert waits.waited_s(60.0) == 60.0
    waits.end(first, 100.0)
    assert waits.over_s == 100.0


def test_call_that_waits_now_counts_and_one_whose_request_is_out_does_not_yet():
    above = EndpointWaits()
    waits = EndpointWaits(above)
    call = Call(1.0)
    waits.begin(call)
    assert (waits.waited_s(5.0), waits.over_s) == (4.0, 0.0)
    call.sent_s = 5.0
    assert waits.waited_s(50.0) == 4.0
    call.sent_s = None  # the request has failed: it was a wait, too
    assert waits.waited_s(50.0) == above.waited_s(50.0) == 49.0
    waits.end(call, 51.0)
    assert (waits.over_s, above.over_s) == (50.0, 50.0)


@given(st.lists(st.tuples(*[st.integers(0, 50)] * 3), max_size=8))
def test_waits_never_come_to_more_than_the_time_that_has_passed(numbers: list[tuple[int, ...]]):
    spans = sorted(tuple(sorted(each)) for each in numbers)
    calls = [(float(since), float(end), float(sent)) for since, sent, end in spans]
    waited_s = ended(*calls)
    assert 0 <= waited_s <= sum(sent - since for since, _, sent in calls)
    assert waited_s <= max((sent for _, _, sent in calls), default=0.0)


# -- at an endpoint ---------------------------------------------------------------------


def asker() -> AskingRollout:
    return AskingRollout("r1", "r1", 0, 1, lambda text: None)


async def ask(model: Any, who: AskingRollout) -> Any:
    return await model.complete_for(who, HELLO, name="m", sampling_args={})


async def test_answer_at_once_is_no_wait_however_long_it_takes():
    who = asker()
    async with served(scripted(Reply("x", delay_s=0.05))) as model:
        await ask(model, who)
    assert who.endpoint_waits.over_s == 0.0


async def test_tries_that_failed_and_the_pauses_after_them_are_waits(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(patience, "pause_s", lambda *args: 0.02)
    who = asker()
    answers = [Status(503, headers=NO_PAUSE)] * 2
    began_s = trio.current_time()
    async with served(scripted(*answers, Reply("x", delay_s=0.1))) as model:
        answer = await ask(model, who)
        took_s = trio.current_time() - began_s
    assert answer.requests == 3
    assert 0.04 <= who.endpoint_waits.over_s <= took_s - 0.1


async def test_call_that_fails_was_a_wait_from_its_begin(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(patience, "pause_s", lambda *args: 0.01)
    who = asker()
    with held_port() as port:
        async with opened(url=f"http://127.0.0.1:{port}/v1", retries=2) as model:
            await model._open()
            began_s = trio.current_time()
            with pytest.raises(ModelError):
                await ask(model, who)
            took_s = trio.current_time() - began_s
    assert 0.02 <= who.endpoint_waits.over_s <= took_s


async def test_wait_for_a_permit_is_one_and_also_if_it_is_cancelled(
    monkeypatch: pytest.MonkeyPatch,
):
    first, second, third = asker(), asker(), asker()
    over = trio.Event()

    async def held(client: Any, *args: Any) -> Any:
        await over.wait()
        return patience.EndpointFailure("was ended", again=False)

    async with served(Endpoint(lambda ask: Reply("x")), concurrency=1) as model:
        await model._open()
        monkeypatch.setattr(model, "_ask", held)
        async with trio.open_nursery() as nursery:

            async def asked(who: AskingRollout) -> None:
                with pytest.raises(ModelError):
                    await ask(model, who)

            nursery.start_soon(asked, first)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(asked, second)
            await trio.testing.wait_all_tasks_blocked()
            with trio.move_on_after(0.02):
                await ask(model, third)
            now_s = trio.current_time()
            assert first.endpoint_waits.waited_s(now_s) == 0.0
            assert second.endpoint_waits.waited_s(now_s) >= third.endpoint_waits.over_s > 0.0
            over.set()
    assert third.endpoint_waits.waited_s(now_s + 1000.0) == third.endpoint_waits.over_s

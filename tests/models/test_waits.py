"""How long model calls waited for their endpoint: for a permit, for another try."""

from __future__ import annotations

import dataclasses
from functools import partial
from operator import itemgetter
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import example, given
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


@given(st.lists(st.tuples(*[st.integers(0, 20)] * 3, st.booleans()), max_size=6))
@example([(0, 2, 8, True), (3, 3, 4, False)])  # which ends while the first is answered
def test_waits_are_all_seconds_in_which_a_call_waited_for_its_last_request(plan: list[Any]):
    """Of a call that was never answered, also those after that.  Once the end of a later one moved
    the count past what an earlier one had waited."""
    waits, waited, events = EndpointWaits(), set[int](), []
    for *moments, is_answered in plan:
        since, sent, end = sorted(moments)
        call = Call(since)
        events += [(since, 0, partial(waits.begin, call)), (end, 2, partial(waits.end, call, end))]
        if is_answered:
            events.append((sent, 1, partial(setattr, call, "sent_s", sent)))
        waited.update(range(since, sent if is_answered else end))
    for *_, happens in sorted(events, key=itemgetter(0, 1)):
        happens()
    assert waits.waited_s(100.0) == waits.over_s == len(waited)


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

"""Many calls by one task: what is taken, what is left, and whose turn it is."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from tests.client.conftest import patient_pair
from tests.memory import Probe, echo, pair, virtual
from trio_envserve import ConfigError, Rollout, RolloutFailed, ServerLimits
from trio_envserve.client import Outcome, shell

LARGE = [[number / 3, f"{number}"] * 60 for number in range(200)]


@asynccontextmanager
async def another_task() -> AsyncIterator[list[int]]:
    """A task that wants as many turns as it can have, and their number."""
    had = [0]

    async def count() -> None:
        while True:
            await trio.lowlevel.checkpoint()
            had[0] += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(count)
        yield had
        nursery.cancel_scope.cancel()


async def large(rollout: Rollout) -> Any:
    return LARGE


async def after(rollout: Any) -> Any:
    """Takes as long as its input says."""
    await trio.sleep(rollout.input)
    return rollout.input


@virtual
async def test_each_outcome_goes_to_one_of_those_who_iterate() -> None:
    taken: list[tuple[int, int]] = []

    async def take(who: int, outcomes: Any) -> None:
        async for index, outcome in outcomes:
            assert outcome.unwrap() == index
            taken.append((who, index))
            await trio.sleep(who)

    async with pair(echo) as (_, client), client.run_many(range(60)) as outcomes:
        async with trio.open_nursery() as nursery:
            for who in (1, 2, 3):
                nursery.start_soon(take, who, outcomes)
    assert sorted(index for _, index in taken) == [*range(60)]
    assert {who for who, _ in taken} == {1, 2, 3}


@virtual
async def test_iterating_over_no_inputs_ends() -> None:
    async with pair(echo) as (_, client), client.run_many([]) as outcomes:
        with trio.fail_after(5):
            assert [each async for each in outcomes] == []


@virtual
async def test_the_end_is_told_even_if_the_last_taker_asks_no_more() -> None:
    """It waited for ever."""
    got = []
    over = []
    async with pair(after) as (_, client), client.run_many([1, 2]) as outcomes:

        async def take_one() -> None:
            try:
                got.append((await anext(outcomes))[0])
            except StopAsyncIteration:
                over.append(len(got))

        with trio.fail_after(5):
            async with trio.open_nursery() as nursery:
                for _ in range(3):
                    nursery.start_soon(take_one)
    assert got == [0, 1]
    assert over == [2]


@virtual
async def test_outcomes_end_with_the_block() -> None:
    """Whoever asked for one waited for ever."""
    async with pair(after) as (_, client):
        async with client.run_many([1, object(), 1000]) as outcomes:
            await trio.sleep(5)
        with trio.fail_after(5):
            assert [each async for each in outcomes] == []


@virtual
async def test_the_end_of_the_block_is_told_to_tasks_that_wait_for_an_outcome() -> None:
    """It waited for ever."""
    over = trio.Event()

    async def wait(outcomes: Any) -> None:
        assert [each async for each in outcomes] == []
        over.set()

    async with pair(after) as (_, client), trio.open_nursery() as nursery:
        async with client.run_many([1000]) as outcomes:
            nursery.start_soon(wait, outcomes)
            await trio.sleep(5)
        with trio.fail_after(5):
            await over.wait()


async def test_large_inputs_are_waited_for_no_longer_than_the_block(eager: None) -> None:
    """They have tasks of their own, which end with the block."""
    async with patient_pair() as client:
        async with client.run_many([LARGE] * 3) as outcomes:
            await anext(outcomes)
        assert [each async for each in outcomes] == []


@virtual
async def test_outcome_that_came_as_the_block_ended_was_given_after_it() -> None:
    decoded = trio.Event()

    async def decode() -> Outcome:
        await decoded.wait()
        return Outcome(value=1)

    async with pair(echo) as (_, client):
        async with shell.open_many(client, [], in_flight=1) as outcomes:
            outcomes._start(0, decode)
            await trio.testing.wait_all_tasks_blocked()
            decoded.set()
        assert [each async for each in outcomes] == []
        assert [outcome.value for _, outcome in outcomes.arrived()] == [1]


@virtual
async def test_what_had_arrived_when_the_block_ended_is_there_after_it() -> None:
    async with pair(after) as (server, client):
        async with client.run_many([3, 1, 2, 1000, 2000]) as outcomes:
            assert (await anext(outcomes))[0] == 1
            with pytest.raises(RuntimeError, match=r"after the block"):
                outcomes.arrived()
            await trio.sleep(10)
        assert [(index, each.unwrap()) for index, each in outcomes.arrived()] == [(2, 2), (0, 3)]
        assert len(outcomes.arrived()) == 2
        assert [each async for each in outcomes] == []
        await trio.sleep(10)
        assert (server.stats().kept, server.stats().running) == (0, 0)


@virtual
async def test_an_error_that_had_arrived_could_not_be_read_a_turn_after_the_block() -> None:
    async def fails(rollout: Any) -> Any:
        raise LookupError("no such riddle")

    async with pair(fails) as (_, client):
        async with client.run_many([1]) as outcomes:
            await trio.sleep(10)
        await trio.sleep(10)
        [(_, outcome)] = outcomes.arrived()
        assert isinstance(outcome.error, RolloutFailed)
        assert outcome.executions == 1


async def test_what_had_arrived_is_there_though_it_is_large(eager: None) -> None:
    async with patient_pair(large) as client:
        async with client.run_many(range(20)) as outcomes:
            await anext(outcomes)
            while not (outcomes._ready and outcomes._ended):
                await trio.sleep(0.01)
        arrived = outcomes.arrived()
        assert len({index for index, _ in arrived}) == len(arrived) >= 2
        assert all(outcome.unwrap() == LARGE for _, outcome in arrived)


@virtual
async def test_others_have_turns_beside_one_who_takes_what_is_there() -> None:
    async with pair(echo) as (_, client), client.run_many(range(300)) as outcomes:
        await trio.sleep(5)
        async with another_task() as turns_of_others:
            for _ in range(4 * shell.AT_ONCE):
                await anext(outcomes)
            assert turns_of_others[0] >= 2


@virtual
async def test_others_have_turns_beside_calls_that_end_at_once() -> None:
    count = 100 * shell.AT_ONCE
    async with pair(echo) as (_, client), another_task() as turns_of_others:
        async with client.run_many([object()] * count, in_flight=2 * count) as outcomes:
            taken = [index async for index, _ in outcomes]
        assert turns_of_others[0] >= 100
    assert len(taken) == count


@virtual
async def test_others_have_turns_while_many_calls_are_made() -> None:
    seen = []

    async with pair(echo) as (_, client), another_task() as turns_of_others:

        def inputs() -> Iterator[object]:
            for _ in range(10 * shell.AT_ONCE):
                seen.append(turns_of_others[0])
                yield object()

        async with client.run_many(inputs()) as outcomes:
            await anext(outcomes)
            while len(seen) < 10 * shell.AT_ONCE:
                await trio.lowlevel.checkpoint()
    assert max(seen) - min(seen) >= 8


@virtual
async def test_g4_a_taker_that_is_cancelled_loses_no_outcome() -> None:
    taken = []
    async with pair(after) as (_, client), client.run_many([3, 1, 2, 4]) as outcomes:
        with pytest.raises(StopAsyncIteration):  # in the middle of it
            while True:
                with trio.move_on_after(0.3):
                    taken.append((await anext(outcomes))[0])
    assert taken == [1, 2, 0, 3]


@virtual
async def test_g4_who_is_cancelled_beforehand_takes_no_outcome() -> None:
    async with pair(echo) as (_, client), client.run_many(range(3)) as outcomes:
        await trio.sleep(5)
        with trio.CancelScope() as scope:
            scope.cancel()
            await anext(outcomes)
        assert scope.cancelled_caught
        assert {index async for index, _ in outcomes} == {0, 1, 2}


@virtual
async def test_g4_an_outcome_is_kept_until_it_is_taken() -> None:
    async with pair(echo) as (server, client):
        async with client.run_many(range(10)) as outcomes:
            await anext(outcomes)
            await trio.sleep(5)
            assert server.stats().kept == 9
        await trio.sleep(5)
        assert server.stats().kept == 0  # nobody takes what was left


@virtual
async def test_g2_of_many_calls_only_those_refused_for_now_are_sent_again() -> None:
    probe = Probe()
    async with pair(probe, server=ServerLimits(queue=3, worker_capacity=1)) as (server, client):
        async with client.run_many([[n, 0.1] for n in range(20)], in_flight=20) as outcomes:
            got = {index: outcome.unwrap() async for index, outcome in outcomes}
        assert server.stats().cache.refused_for_now
        assert client.counters().reissued == 0
    assert sorted(got) == sorted(probe.started) == [*range(20)]


@virtual
async def test_an_exception_of_the_inputs_comes_out_as_it_is_and_cancels_the_rest() -> None:
    ended = []

    async def environment(rollout: Any) -> None:
        try:
            await trio.sleep_forever()
        finally:
            ended.append(rollout.input)

    def inputs() -> Iterator[int]:
        yield from (1, 2)
        raise KeyError("mine")

    async with pair(environment) as (_, client):
        with pytest.raises(KeyError, match="mine"):
            async with client.run_many(inputs()) as outcomes:
                await anext(outcomes)
        await trio.sleep(5)
    assert sorted(ended) in ([], [1], [1, 2])  # what was dispatched by then is cancelled


async def test_large_inputs_and_outcomes_hold_up_nobody(eager: None) -> None:
    inputs = [LARGE, *range(20), LARGE]
    order = []
    async with patient_pair() as client, client.run_many(inputs) as outcomes:
        async for index, outcome in outcomes:
            assert outcome.unwrap() == inputs[index]
            order.append(index)
    assert sorted(order) == [*range(22)]
    assert {order.index(0), order.index(21)} == {20, 21}


async def test_large_outcomes_are_decoded_as_they_are_taken(
    eager: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that had come were decoded at once, and nothing counted what they took."""
    decode = shell.Client._outcome_large
    begun = taken = 0

    async def counted(*args: Any) -> Any:
        nonlocal begun
        begun += 1
        return await decode(*args)

    monkeypatch.setattr(shell.Client, "_outcome_large", counted)
    async with patient_pair(large) as client, client.run_many(range(8)) as outcomes:
        assert isinstance(outcomes, shell.Outcomes)
        while len(outcomes._ended) < 8:
            await trio.sleep(0.01)
        async for _, outcome in outcomes:
            assert outcome.unwrap() == LARGE
            taken += 1
            assert begun <= taken + shell.DECODED_AHEAD
    assert (begun, taken) == (8, 8)


@virtual
async def test_outcomes_end_when_the_client_is_closed() -> None:
    """Whoever iterates is told so for each call, and does not wait."""
    verdicts = []

    async def take(outcomes: Any) -> None:
        async for _, outcome in outcomes:
            verdicts.append(outcome.error.verdict)

    async with trio.open_nursery() as nursery:
        async with pair(after) as (_, client):
            async with client.run_many([1000] * 5) as outcomes:
                nursery.start_soon(take, outcomes)
                await trio.sleep(5)
                client._driver.close()
                await trio.sleep(5)
    assert len(verdicts) == 5


# -- how much is in flight -------------------------------------------------------


@virtual
async def test_run_many_is_bounded_in_flight() -> None:
    most = 0
    now = 0

    async def run(rollout: Rollout) -> int:
        nonlocal most, now
        now += 1
        most = max(most, now)
        await trio.sleep(1)
        now -= 1
        return int(rollout.input)

    async with pair(run) as (_, client):
        async with client.run_many(range(50), in_flight=7) as outcomes:
            got = {index: outcome.unwrap() async for index, outcome in outcomes}
    assert got == {i: i for i in range(50)}
    assert most == 7


@virtual
async def test_run_many_runs_no_more_than_its_consumer_takes() -> None:
    """Its places were given away before the outcome was taken: behind a slow
    consumer all inputs ran, and their outcomes piled up."""
    probe = Probe()
    drawn = 0

    def inputs() -> Iterator[Any]:
        nonlocal drawn
        for drawn in range(1, 51):
            yield [drawn, 1]

    async with pair(probe) as (server, client):
        async with client.run_many(inputs(), in_flight=3) as outcomes:
            for taken in range(1, 6):
                await anext(aiter(outcomes))
                await trio.sleep(10)
                assert len(probe.started) <= taken + 3
                assert drawn <= taken + 4  # one more is drawn, and waits for a place
        assert not server.stats().running


@virtual
async def test_an_exception_in_the_block_cancels_what_is_left_and_comes_out_as_it_is() -> None:
    probe = Probe()
    async with pair(probe) as (_, client):
        with pytest.raises(KeyError, match="mine"):
            async with client.run_many([["a", "wait"]]):
                await trio.sleep(5)
                raise KeyError("mine")
        await trio.sleep(5)
        assert probe.ended == [("a", "cancelled")]


@pytest.mark.parametrize("in_flight", [0, -1, "many", 1.5, True, None])
def test_a_wrong_number_of_calls_is_refused(in_flight: object) -> None:
    shell.check_in_flight(1)
    with pytest.raises(ConfigError, match="in_flight"):
        shell.check_in_flight(in_flight)

"""G8: memory is bounded; at a bound new work waits or is refused for now."""

from tests.real.support import asked, open_calls, open_raw, open_server, serving, serving_raw, until
from trio_envserve import OutcomeTooLarge, TooLarge, WireLimits
from trio_envserve.core import messages


async def test_g8_a_client_at_its_window_waits_and_loses_nothing(judge):
    async with serving(judge, window=4) as (server, calls):
        keys = [calls.start(f"k{n}", ["wait", "go"]) for n in range(20)]
        await until(lambda: len(judge.records("start")) == 4)
        await calls.client.stats()  # whatever was sent by now has arrived
        assert server.stats().running + server.stats().waiting == 4
        judge.put("go")
        await calls.values(*keys)
    judge.assert_exactly_once(*keys)


async def test_g8_a_full_queue_refuses_for_now_and_every_call_is_answered(judge):
    async with serving(judge, worker_capacity=1, queue=2, session_share=1.0) as (server, calls):
        keys = [calls.start(f"k{n}", ["wait", "go"]) for n in range(10)]
        await until(lambda: server.stats().cache.refused_for_now >= 7)
        assert server.stats().waiting <= 2
        judge.put("go")
        await calls.values(*keys)
    judge.assert_exactly_once(*keys)


async def test_g8_kept_outcomes_pause_dispatching_for_their_client_only(judge):
    """One that acknowledges nothing stops neither the server nor other clients."""
    async with (
        open_server(judge, kept_outcomes=4, worker_capacity=1) as server,
        open_raw(server.address) as raw,
        open_calls(server.address) as calls,
    ):
        for sequence in range(6):
            raw.transmit(sequence, asked(f"r{sequence}"))
        await raw.next(messages.Outcome)
        await raw.next(messages.Outcome)
        for n in range(10):
            await calls.value(calls.start(f"k{n}"))
        assert server.stats().waiting == 4
        assert len([key for key in range(6) if judge.starts(f"r{key}")]) == 2
        for sequence in range(6):
            raw.finish(sequence)
            if sequence < 4:
                await raw.next(messages.Outcome)
    judge.assert_exactly_once(*(f"r{n}" for n in range(6)), *(f"k{n}" for n in range(10)))


async def test_g8_kept_bytes_are_bounded_with_huge_outcomes(judge):
    size_bytes = 1_000_000
    limits = {"kept_bytes": 2_500_000, "session_share": 1.0, "worker_capacity": 1}
    async with serving_raw(judge, **limits) as (server, raw):
        for sequence in range(5):
            raw.transmit(sequence, asked(f"k{sequence}", value={"bytes": size_bytes}))
        for _ in range(2):
            _, frames = await raw.next(messages.Outcome)
            assert len(frames[1]) > size_bytes
        # There is no room for the third: its worker has announced it, and holds it.
        await until(lambda: server.stats().announced == 1)
        await raw.sync(5, [0, 5])
        assert judge.starts("k3") == 0
        assert 2 * size_bytes < server.stats().kept_bytes < 2.1 * size_bytes
        raw.finish(0)
        await raw.next(messages.Outcome)
        await judge.wait_started("k3")
        raw.finish(1)
        await judge.wait_started("k4")
        raw.finish(2, 3, 4)
        await until(lambda: server.stats().kept_bytes == 0)
    judge.assert_at_most(1)


async def test_g8_a_worker_has_no_more_executions_than_its_capacity(judge):
    async with serving(judge, workers=2, worker_capacity=3) as (server, calls):
        keys = [calls.start(f"k{n}", ["wait", "go"]) for n in range(10)]
        await until(lambda: len(judge.records("start")) == 6)
        await calls.client.stats()  # whatever was sent by now has arrived
        assert server.stats().waiting == 4
        running = [record["pid"] for record in judge.records("start")]
        assert sorted(map(running.count, set(running))) == [3, 3]
        judge.put("go")
        await calls.values(*keys)
    judge.assert_exactly_once(*keys)


async def test_g8_huge_payloads_pass_and_larger_ones_are_refused_with_the_truth(judge):
    wire = WireLimits(message_bytes=4_000_000)
    async with serving(judge, wire=wire) as (_, calls):
        value = await calls.value(calls.start("large", value="x" * 3_900_000))
        assert len(value["value"]) == 3_900_000
        await calls.error(calls.start("outcome", value={"bytes": 4_100_000}), OutcomeTooLarge)
        await calls.error(calls.start("request", value="x" * 4_100_000), TooLarge)
        await calls.value(calls.start("after"))
    judge.assert_at_most(1)
    assert judge.starts("request") == 0

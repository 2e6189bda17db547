"""G6: the same id with another payload is refused; the first is not disturbed."""

from tests.real.support import asked, serving_raw


async def test_g6_another_payload_under_a_known_id_is_refused_in_each_state_of_the_first(
    judge,
):
    async with serving_raw(judge, worker_capacity=1) as (_, raw):
        raw.transmit(0, asked("running", ["wait", "go"]))
        await judge.wait_started("running")
        raw.transmit(1, asked("waiting"))
        for sequence in (0, 1):
            raw.transmit(sequence, asked("other"))
            await raw.refused_for_good(sequence, "conflict")
        judge.put("go")
        await raw.outcome(0)
        await raw.outcome(1)
        raw.transmit(0, asked("other"))
        await raw.refused_for_good(0, "conflict")
        raw.transmit(0, asked("running", ["wait", "go"]))
        await raw.outcome(0)
        raw.finish(0)
        raw.transmit(0, asked("other"))
        await raw.refused_for_good(0, "finished")
    judge.assert_exactly_once("running", "waiting")
    assert judge.starts("other") == 0

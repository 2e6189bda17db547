"""G6: the same id with another payload is refused; the first is not disturbed."""

from tests.real.support import asked, serving_raw
from trio_envserve.core import messages


async def test_g6_another_payload_under_a_known_id_is_a_conflict(judge):
    async with serving_raw(judge) as (_, raw):
        raw.transmit(0, asked("first", ["wait", "go"]))
        await judge.wait_started("first")  # running
        raw.transmit(0, asked("other"))
        refused, _ = await raw.next(messages.Refused)
        assert (refused.code, refused.delay_s) == ("conflict", None)
        judge.put("go")
        _, outcome = await raw.next(messages.Outcome)  # completed
        raw.transmit(0, asked("other"))
        refused, _ = await raw.next(messages.Refused)
        assert refused.code == "conflict"
        raw.transmit(0, asked("first", ["wait", "go"]))
        assert await raw.next(messages.Outcome) == (outcome_of(outcome), outcome)
    judge.assert_exactly_once("first")
    assert judge.starts("other") == 0


def outcome_of(frames):
    return messages.decode(frames[0], most_bytes=1 << 20)


async def test_g6_a_waiting_request_is_not_replaced(judge):
    async with serving_raw(judge, worker_capacity=1) as (_, raw):
        raw.transmit(0, asked("busy", ["wait", "go"]))
        await judge.wait_started("busy")
        raw.transmit(1, asked("first"))
        raw.transmit(1, asked("other"))
        refused, _ = await raw.next(messages.Refused)
        assert (refused.sequence, refused.code) == (1, "conflict")
        judge.put("go")
        await raw.next(messages.Outcome)
        await raw.next(messages.Outcome)
    judge.assert_exactly_once("busy", "first")
    assert judge.starts("other") == 0


async def test_g6_a_finished_id_stays_finished_whatever_the_payload(judge):
    async with serving_raw(judge) as (_, raw):
        raw.transmit(0, asked("first"))
        await raw.next(messages.Outcome)
        raw.finish(0)
        raw.transmit(0, asked("other"))
        refused, _ = await raw.next(messages.Refused)
        assert refused.code == "finished"
    judge.assert_exactly_once("first")
    assert judge.starts("other") == 0

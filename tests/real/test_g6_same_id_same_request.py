"""G6: the same id with another payload is refused; the first is not disturbed."""

import trio

from tests.real.support import PATIENCE_S, open_raw, open_server
from trio_envserve.core import messages


async def test_g6_another_payload_under_a_known_id_is_a_conflict(judge):
    with trio.fail_after(PATIENCE_S):
        async with open_server(judge) as server, open_raw(server.address) as raw:
            await raw.hello()
            raw.request(0, "first", ["wait", "go"])
            await judge.wait_started("first")  # running
            raw.request(0, "other", digest=b"o" * 16)
            refused, _ = await raw.next(messages.Refused)
            assert (refused.code, refused.delay_s) == ("conflict", None)
            judge.put("go")
            _, outcome = await raw.next(messages.Outcome)  # completed
            raw.request(0, "other", digest=b"o" * 16)
            refused, _ = await raw.next(messages.Refused)
            assert refused.code == "conflict"
            raw.request(0, "first", ["wait", "go"])
            assert await raw.next(messages.Outcome) == (outcome_of(outcome), outcome)
    judge.assert_exactly_once("first")
    assert judge.starts("other") == 0


def outcome_of(frames):
    return messages.decode(frames[0], most_bytes=1 << 20)


async def test_g6_a_waiting_request_is_not_replaced(judge):
    with trio.fail_after(PATIENCE_S):
        async with (
            open_server(judge, worker_capacity=1) as server,
            open_raw(server.address) as raw,
        ):
            await raw.hello()
            raw.request(0, "busy", ["wait", "go"])
            await judge.wait_started("busy")
            raw.request(1, "first")
            raw.request(1, "other", digest=b"o" * 16)
            refused, _ = await raw.next(messages.Refused)
            assert (refused.sequence, refused.code) == (1, "conflict")
            judge.put("go")
            await raw.next(messages.Outcome)
            await raw.next(messages.Outcome)
    judge.assert_exactly_once("busy", "first")
    assert judge.starts("other") == 0


async def test_g6_a_finished_id_stays_finished_whatever_the_payload(judge):
    with trio.fail_after(PATIENCE_S):
        async with open_server(judge) as server, open_raw(server.address) as raw:
            await raw.hello()
            raw.request(0, "first")
            await raw.next(messages.Outcome)
            raw.finish(0)
            raw.request(0, "other", digest=b"o" * 16)
            refused, _ = await raw.next(messages.Refused)
            assert refused.code == "finished"
    judge.assert_exactly_once("first")
    assert judge.starts("other") == 0

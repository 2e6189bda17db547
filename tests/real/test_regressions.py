"""What once went wrong with real processes.  Each test was red first."""

import pytest
import trio

from tests.real.support import PATIENCE_S, open_calls, open_server, until


async def test_a_server_whose_block_is_cancelled_from_outside_closes(judge):
    """Its tasks were cancelled with the block, and the closing waited for them for ever."""
    with trio.fail_after(PATIENCE_S):
        with trio.CancelScope() as scope:
            async with open_server(judge) as server, open_calls(server.address) as calls:
                calls.start("a", ["wait", "never"])
                await judge.wait_started("a")
                scope.cancel()
    assert scope.cancelled_caught
    assert judge.ends("a") == ["Cancelled"]


async def test_a_rerun_does_not_wait_for_a_long_rollout_while_a_worker_is_idle(judge):
    """The worker reserved for a suspect stayed the one that was least busy when the
    other had just died, with an hour to go, though its replacement idled."""
    with trio.fail_after(PATIENCE_S):
        async with open_server(judge, workers=2) as server, open_calls(server.address) as calls:
            await until(lambda: server.status().ready == 2)
            calls.start("long", ["wait", "go"])
            await judge.wait_started("long")
            await calls.value(calls.start("short", ["die once", "died"], rerun=True))
            assert judge.ends("long") == []
            judge.put("go")
            await calls.value("long")
    judge.assert_at_most(2)


@pytest.mark.parametrize("workers", [1, 0])
async def test_a_server_closed_right_after_it_was_opened_does_not_wait_for_a_kill(judge, workers):
    """The kill of a worker came before its start, and was lost; the next one came
    when the worker "did not exit when told to"."""
    with trio.fail_after(PATIENCE_S):
        for _ in range(8):  # trio runs tasks in random order; about half of the orders went wrong
            async with open_server(judge, workers=workers, stop_s=PATIENCE_S + 1):
                pass

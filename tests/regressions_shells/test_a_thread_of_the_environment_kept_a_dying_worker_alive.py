"""A worker whose loop had failed, or whose streams the environment had closed, ended
by an exception, and then Python waited for the environment's threads.  The heart, a
thread itself, went on beating: the server saw a healthy process, and its callers
waited for ever.
"""

import logging

import pytest
import trio

from tests.real.support import PATIENCE_S, open_calls, open_server
from tests.regressions_shells.support import ODD
from trio_envserve import WorkerLost

pytestmark = pytest.mark.real


async def test_the_end_of_its_loop_is_the_end_of_the_process(judge):
    with trio.fail_after(PATIENCE_S):
        async with (
            open_server(judge, environment=ODD) as server,
            open_calls(server.address) as calls,
        ):
            calls.start("a", ["leave a thread"], ["crash the loop"], ["wait", "never"])
            error = await calls.error("a", WorkerLost)
            assert "it exited with status 1" in str(error)
            await calls.value(calls.start("b"))  # by another one
    assert judge.pids("a") != judge.pids("b")


async def test_closed_streams_do_not_keep_it_from_ending(judge, caplog):
    caplog.set_level(logging.INFO, logger="trio_envserve.server")
    with trio.fail_after(PATIENCE_S):
        async with (
            open_server(judge, environment=ODD, stop_s=PATIENCE_S) as server,
            open_calls(server.address) as calls,
        ):
            await calls.value(calls.start("a", ["leave a thread"], ["close streams"]))
    assert "worker w0-1 has ended: it exited with status 0" in caplog.messages

"""A worker's process: what it is to its server, and how it ends."""

from __future__ import annotations

import gc
import logging
import signal
import sys

import pytest
import trio

from tests.real.environments import NOISE
from tests.real.odd import open_odd_server
from tests.real.support import PATIENCE_S, open_calls
from tests.real.support import open_server as open_real_server
from trio_envserve import Rollout, ServerStartError, WorkerLost, open_client, open_server
from trio_envserve.net import MemoryNetwork

# -- a thread of the environment -------------------------------------------------
# A worker whose loop had failed, or whose streams the environment had closed, ended
# by an exception, and then Python waited for the environment's threads.  The heart, a
# thread itself, went on beating: the server saw a healthy process, and its callers
# waited for ever.


@pytest.mark.real
async def test_threads_of_an_environment_keep_no_worker_from_ending(judge, caplog):
    caplog.set_level(logging.INFO, logger="trio_envserve.server")
    with trio.fail_after(PATIENCE_S):
        async with (
            open_real_server(judge, stop_s=PATIENCE_S) as server,
            open_calls(server.address) as calls,
        ):
            calls.start("a", ["leave a thread"], ["crash the loop"], ["wait", "never"])
            error = await calls.error("a", WorkerLost)
            assert "it exited with status 1" in str(error)
            # By another one, which is told to end.
            await calls.value(calls.start("b", ["leave a thread"], ["close streams"]))
    assert judge.pids("a") != judge.pids("b")
    assert "worker w0-2 has ended: it exited with status 0" in caplog.messages


# -- garbage ---------------------------------------------------------------------


LASTING: list[object] = [[]]
"""A container that is made as the environment is imported."""


async def collected(rollout: Rollout) -> dict[str, float]:
    return {"reward": sum(each is LASTING for each in gc.get_objects())}


@pytest.mark.real
async def test_collections_of_a_worker_pass_over_what_was_imported():
    with trio.fail_after(PATIENCE_S):
        async with (
            open_server(f"{__name__}:collected", workers=1) as server,
            open_client(server.address) as client,
        ):
            result = await client.run_rollout({})
    assert result["reward"] == 0


# -- what an environment prints --------------------------------------------------
# Workers had the server's standard output for their own.  What an environment
# printed came between, or into, the lines of ``trio-envserve eval --json``, which
# others parse.


@pytest.mark.real
async def test_prints_of_an_environment_go_to_standard_error(judge):
    with trio.fail_after(PATIENCE_S):
        async with open_odd_server(judge) as server, open_calls(server.address) as calls:
            await calls.value(calls.start("a", ["print"]))
            server.signal(signal.SIGKILL)
            printed: list[object] = []
            await server.listen(printed.append)
    assert printed == []
    assert server.last_words().count(NOISE) == 2


# -- a factory that exits --------------------------------------------------------
# Environments that miss something at their start often call ``sys.exit`` with the
# reason.  With ``workers=0`` that ended the trainer's own program, and in a worker
# the reason was lost.


def exits():
    sys.exit("no API key")


async def test_factory_that_exits_is_told_by_its_server(autojump_clock):
    async with open_server(exits, bind="memory:s", workers=0, network=MemoryNetwork()) as server:
        with trio.fail_after(600), pytest.raises(ServerStartError, match="SystemExit: no API key"):
            await server.wait_ready()

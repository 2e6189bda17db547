"""G5: a worker that is not the current incarnation can change nothing."""

import os
import signal
from functools import partial
from typing import Any, cast

import trio

from tests.real.support import (
    PATIENCE_S,
    info_of,
    open_calls,
    open_raw,
    open_server,
    until,
    worker_of,
)
from trio_envserve import WorkerLost
from trio_envserve.core import messages, values
from trio_envserve.core.limits import PROTOCOL_VERSION


def back_address(server):
    """Where the workers connect to.  Nobody else is told, so it is looked up."""
    return server._workers._back_address


def has_fenced(server, count):
    return server.stats()["fenced"] >= count


def forged_outcome(raw, incarnation, session, number=0):
    header = messages.WorkerOutcome(session, 0, number, 0, 0.1)
    forged = values.encode({"key": "a", "forged": True})
    frames = (incarnation, b"raw", messages.encode(header), forged)
    assert raw.socket.send_nowait(frames)


async def test_g5_an_earlier_incarnation_changes_nothing(judge):
    """It speaks under its worker's old name, with the right dispatch number."""
    with trio.fail_after(PATIENCE_S):
        async with (
            open_server(judge) as server,
            open_raw(server.address) as raw,
            open_calls(server.address) as calls,
        ):
            calls.start("first", ["die"], rerun=False)
            error = await calls.error("first", WorkerLost)
            dead = bytes.fromhex(info_of(error).incarnation)
            await raw.hello()
            raw.request(0, "a", ["wait", "go"])
            await judge.wait_started("a")
            fenced = server.stats()["fenced"]
            for name in (b"w0-1", b"w0-3", b"w7-1", b"stranger"):
                async with open_raw(back_address(server), identity=name) as ghost:
                    await ghost.insist(
                        dead, messages.WorkerHello(PROTOCOL_VERSION, 1, "ghost", True)
                    )
                    await ghost.insist(dead, messages.Beat(1, [0, 1], {}))
                    forged_outcome(ghost, dead, raw.session)
                    await ghost.socket.flush()
                    fenced += 3
                    await until(partial(has_fenced, server, fenced))
            assert server.status()["environment"] != "ghost"
            assert server.status()["rerun"] is False
            judge.put("go")
            _, frames = await raw.next(messages.Outcome)
            assert "forged" not in cast(Any, values.decode(frames[1]))
    judge.assert_at_most(1)
    assert judge.starts("a") == 1


async def test_g5_a_worker_continued_after_its_replacement_was_decided_changes_nothing(judge):
    """Stopped, killed while stopped: whatever is continued is dead already."""
    with trio.fail_after(PATIENCE_S):
        async with (
            open_server(judge, silence_report_s=0.5, silence_kill_s=3.0) as server,
            open_calls(server.address) as calls,
        ):
            calls.start("a", ["wait", "go"], rerun=False)
            await judge.wait_started("a")
            [pid] = judge.pids("a")
            os.kill(pid, signal.SIGSTOP)
            judge.put("go")
            await calls.error("a", WorkerLost)
            await until(lambda: worker_of(server)["phase"] == "ready")
            assert worker_of(server)["pid"] != pid
    judge.assert_at_most(1)
    assert judge.ends("a") == []

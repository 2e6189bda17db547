"""The siege itself: what ships passes, and a server with a fault does not."""

from __future__ import annotations

import argparse
import shlex
import signal
import sys
import time
from pathlib import Path

import pytest
import trio

from tests.attack.enemy import burn
from tests.attack.run import Siege, VictimLost, make_plan
from tests.cli.commands import Finished, check_nothing_left, forked
from tests.rig.rig import EVENTS, Rig
from trio_envserve.core.errors import ServerStartError
from trio_envserve.lab.processes import Process, program

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(sys.platform != "linux", reason="measures by /proc"),
]

HARMLESS = (
    "--seconds", "10", "--only", "bad-batches", "--only", "random-bytes", "--only",
    "http-strange-keys", "--only", "verifiers-messages", "--unjudged", "rate",
)  # fmt: skip


async def siege(folder: Path, *arguments: str) -> Finished:
    with trio.fail_after(900):
        async with forked(folder, *arguments, module="tests.attack") as running:
            done = await running.wait()
    done.check_no_traceback()
    return done


@pytest.mark.slow
@pytest.mark.parametrize("host", [(), ("--remote-host",)], ids=["here", "on a host"])
async def test_short_siege_passes(tmp_path, host):
    """In a folder whose path is too long for one of a unix socket, as it once had to be."""
    tmp_path = tmp_path / ("long" * 25)
    tmp_path.mkdir()
    # These two findings are the machine's as well, so no test judges them.
    more = ("--unjudged", "turns", "--only", "server-silence", "--only", "server-bombs")
    done = await siege(tmp_path, *HARMLESS, *more, *host)
    await check_nothing_left(tmp_path)
    figures = done.last
    assert done.code == 0, done.err
    assert figures["rate"]["besieged"] > 0
    assert figures["attacked"]["bad-batches"]["sent"] > 1
    assert figures["attacked"]["http-strange-keys"]["sent"] > 10
    assert figures["attacked"]["verifiers-messages"]["sent"] > 1
    assert figures["attacked"]["server-bombs"]["begun"] >= 1  # by clients without a session
    assert figures["told"] > 10
    assert set(figures["turns"]) == {"server", "worker", "client"}
    assert ("small/host" in figures["memory"]) is bool(host)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "bad", "words"),
    [
        ("die", "survived", "broken on purpose"),
        ("block", "turns", "of processor time"),
        ("grow", "memory", "small/server grew"),
        ("leave", "stopped", "the server was asked to stop, and ended with code 3"),
        ("freeze", "newcomers", "was not served"),
        ("freeze", "rate", "stood still"),
    ],
)  # fmt: skip
async def test_server_with_a_fault_turns_it_red(tmp_path, fault, bad, words):
    broken = ["--server-command", shlex.join(program("tests.rig.broken_server", fault))]
    judged = [each for each in HARMLESS if each not in ("--unjudged", "rate")]
    done = await siege(tmp_path, *judged, *broken)
    assert done.code == 1
    assert bad in done.last["bad"], done.err
    assert any(words in problem for problem in done.last["problems"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("only", "fault", "bad"),
    [
        ("held-server", "wrong", {"G3", "held"}),
        ("held-server", "twice", {"G1", "G2"}),
        ("server-silence", "deaf", {"recovered"}),
    ],
)
async def test_server_that_answers_wrongly_turns_it_red(tmp_path, only, fault, bad):
    broken = ["--server-command", shlex.join(program("tests.rig.broken_server", fault))]
    done = await siege(tmp_path, "--seconds", "10", "--only", only, *broken)
    assert done.code == 1
    assert bad <= set(done.last["bad"]), done.err


@pytest.mark.slow
async def test_interrupted_siege_leaves_nothing(tmp_path):
    async with forked(tmp_path, "--keep", "kept", module="tests.attack") as running:
        await running.said("small, round 0")
        running.signal(signal.SIGINT)
        done = await running.wait()
    done.check_no_traceback()
    assert (done.code, done.last["ok"]) == (130, False)
    await check_nothing_left(tmp_path)


@pytest.mark.parametrize(
    "arguments", [("--seconds", "1"), ("--only", "nonsense"), ("--minutes", "0")]
)
async def test_wrong_usage_is_refused(tmp_path, arguments):
    assert (await siege(tmp_path, *arguments)).code == 2


async def test_folder_with_a_log_is_not_written_to(tmp_path):
    (tmp_path / EVENTS).write_text("mine\n")
    done = await siege(tmp_path, "--keep", str(tmp_path))
    assert done.code == 2
    assert "logs of an earlier run" in done.err
    assert (tmp_path / EVENTS).read_text() == "mine\n"


# -- programs that do not start, or do not answer -------------------------------------------


def siege_in(folder: Path) -> Siege:
    return Siege(Rig(folder, "tests.attack"), argparse.Namespace(), make_plan(0, 10.0))


async def test_server_that_does_not_start_is_blamed_on_nobody_before_there_is_a_victim(tmp_path):
    """A client that had ended was said to be lost, or the siege broke off: its log was closed."""
    attacks = siege_in(tmp_path)
    with pytest.raises(ServerStartError, match="the server said nothing"):
        async with attacks._blaming("client"):
            raise ServerStartError("the server said nothing")
    assert "harmed" not in (tmp_path / EVENTS).read_text()


async def test_victim_that_hangs_is_written_down_and_killed(tmp_path):
    """Two errors at once were a group, which nobody caught."""
    attacks = siege_in(tmp_path)
    sleeps = Process([sys.executable, "-c", "import time; time.sleep(600)"], "client")
    with trio.fail_after(60), pytest.raises(VictimLost):
        async with attacks._started("client", sleeps, victim=True):
            async with attacks._blaming("client"), trio.open_nursery():
                raise ServerStartError("the client said nothing")
    assert sleeps.status == -signal.SIGKILL
    assert '"how": "hung"' in (tmp_path / EVENTS).read_text()


def test_as_much_is_burnt_as_was_asked_for():
    burnt_s = 0.0
    for _ in range(60):  # a busy machine may have less to give in this second
        began_s = time.thread_time()
        burn(0.3, 1.0)
        burnt_s = time.thread_time() - began_s
        assert burnt_s < 0.6
        if burnt_s > 0.1:
            break
    assert burnt_s > 0.1

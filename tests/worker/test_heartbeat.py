"""The heartbeat of a worker: what it sends."""

from __future__ import annotations

import os
import resource
import socket
import sys
import threading

import pytest
import trio

from tests.real.environments import MIB
from tests.real.support import PATIENCE_S, open_calls, open_server, pid_of, until, worker_of
from trio_envserve.core.heartbeat import Heartbeat, HeartbeatLines, StackQuestion
from trio_envserve.worker.heartbeat import HeartbeatThread

LONG = Heartbeat(1.0, 2, "a stack" * 2_000)


def test_a_heartbeat_that_was_sent_in_part_does_not_spoil_the_next(monkeypatch: pytest.MonkeyPatch):
    """A server that was stopped for a while found one line made of two."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        heartbeat = HeartbeatThread(theirs, os.getppid(), heartbeat_s=1.0, blocked_report_s=1.0)
        monkeypatch.setattr(HeartbeatThread, "_heartbeat", lambda _: LONG)
        received = b""
        for _ in range(20):
            for _ in range(3):  # until nothing fits
                heartbeat._send_heartbeat()
            received += ours.recv(1 << 20)
    lines = received.split(b"\n")[:-1]
    assert len(lines) > 2
    assert set(lines) == {LONG.to_line()[:-1]}


def test_a_stack_that_changes_while_it_is_read_does_not_end_the_heartbeat(
    monkeypatch: pytest.MonkeyPatch,
):
    """Python 3.11 gave a list in the place of the next frame of a thread that went on.  The
    error ended the thread: a worker whose loop was late fell silent, and was killed."""
    ours, theirs = socket.socketpair()
    monkeypatch.setattr(sys, "_current_frames", lambda: {threading.get_ident(): []})
    with ours, theirs:
        late = HeartbeatThread(theirs, os.getppid(), heartbeat_s=1.0, blocked_report_s=0.0)
        late._send_heartbeat()
        [heard] = HeartbeatLines().feed(ours.recv(1 << 20))
    assert heard.where.startswith("the stack changed while it was read: AttributeError")


async def test_questions_that_came_together_are_all_answered():
    """Five of six lines of ``status --slow`` were empty: only the last question was answered."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        heartbeat = HeartbeatThread(theirs, os.getppid(), heartbeat_s=1.0, blocked_report_s=1.0)
        heartbeat.touch(1.0)
        ours.sendall(b"".join(StackQuestion(each, f"ab#{each}").to_line() for each in range(6)))
        assert heartbeat._server_listens()
        for _ in range(7):
            heartbeat._send_heartbeat()
        heard = HeartbeatLines().feed(ours.recv(1 << 20))
    assert [each.asked for each in heard] == [*range(6), None]


# -- a worker without descriptors ------------------------------------------------
# A worker that ran out of descriptors could not read its memory from /proc, and the
# way around that needed a module that was still to be imported, from a file.  That
# ended the heartbeat thread: a worker in good order fell silent, and was killed.


@pytest.mark.real
async def test_worker_without_descriptors_sends_heartbeats(judge):
    with trio.fail_after(PATIENCE_S):
        async with (
            open_server(judge) as server,
            open_calls(server.address) as calls,
        ):
            await calls.client.wait_ready()
            await until(lambda: worker_of(server).memory_bytes > 0)
            before, pid = worker_of(server), pid_of(server)
            _, most = resource.prlimit(pid, resource.RLIMIT_NOFILE)
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (100, most))

            calls.start("a", ["starve"], ["swell", 64], ["wait", "go"], ["feed"])
            # Told by its heart alone, and only by a beat after the last descriptor.
            await until(lambda: worker_of(server).memory_bytes > before.memory_bytes + 48 * MIB)
            judge.put("go")
            await calls.value("a")
            assert pid_of(server) == pid

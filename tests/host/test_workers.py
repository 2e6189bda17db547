"""Workers that cannot be started, that do not get ready, and that end while nobody waits."""

from __future__ import annotations

import errno
import os
import resource
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from tests.real.support import PATIENCE_S, open_calls, until
from tests.real.support import open_server as open_real_server
from trio_envserve import ServerLimits, ServerStartError, WireLimits, open_client, open_server
from trio_envserve.core.router_effects import Spawn
from trio_envserve.host.processes import start_process
from trio_envserve.host.workers import (
    HEADER_BYTES_AT_ONCE,
    MESSAGES_AT_ONCE,
    ProcessWorkers,
    _portion,
)
from trio_envserve.net import Frame, open_stream

pytestmark = pytest.mark.real

QUICK = {"restart_pause_s": 0.02, "restart_pause_max_s": 0.1, "tick_s": 0.02}


@contextmanager
def descriptors_left(count: int) -> Iterator[None]:
    """This process can open so many files more."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = []
    for _ in range(count + 1):
        free.append(os.open(os.devnull, os.O_RDONLY))
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(free), before[1]))
    for descriptor in free:
        os.close(descriptor)
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def opened() -> int:
    return len(os.listdir("/proc/self/fd"))


async def test_without_descriptors_a_start_fails_in_one_way_and_leaves_none_open():
    before = opened()
    ends = set()
    for count in range(20):
        try:
            with descriptors_left(count):
                process = start_process(environ={}, command=["true"])
        except OSError as error:
            ends.add(error.errno)
        else:
            ends.add(0)
            await process.aclose()
        assert opened() == before
    assert ends == {0, errno.EMFILE}


async def test_a_worker_that_cannot_be_started_is_explained_and_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    start: Any = subprocess.Popen
    exhausted = True

    def popen(*args: Any, **options: Any) -> Any:
        if exhausted:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return start(*args, **options)

    monkeypatch.setattr(subprocess, "Popen", popen)
    with trio.fail_after(120):
        async with (
            open_server("arithmetic", limits=ServerLimits(**QUICK)) as server,  # type: ignore[arg-type]
            open_client(server.address) as client,
            trio.open_nursery() as nursery,
        ):
            results: list[Any] = []

            async def call() -> None:
                results.append(await client.run_rollout({"index": 0}))

            nursery.start_soon(call)
            while server.status().status.value != "broken":
                await trio.sleep(0.01)
            reason = server.status().reason
            exhausted = False
    assert "worker w0-1 did not get ready: it could not be started: Too many open files" in reason
    assert "raise that limit (ulimit -n)" in reason
    assert "worker w0-1 died: it could not be started" in caplog.text
    assert len(results) == 1  # it waited, and ran


async def test_arguments_may_be_larger_than_any_message():
    """More than 8 MiB of them ended each worker, with words about a closed channel."""
    args = {"seed": "x" * 9_000_000}
    wire = WireLimits(message_bytes=2_000_000)
    said = ""
    with trio.fail_after(120):
        async with (
            open_server("arithmetic", args=args, wire=wire) as server,
            open_client(server.address) as client,
        ):  # fmt: skip
            try:
                await server.wait_ready()
            except ServerStartError as error:
                said = str(error)
            assert said == ""
            assert await client.run_rollout({"index": 0})


async def test_a_process_is_reaped_though_whoever_ends_it_is_cancelled():
    process = start_process(environ={}, command=["sleep", "1000"])
    with trio.CancelScope() as scope:
        scope.cancel()
        await process.aclose()
    reaped = False
    try:
        os.waitpid(process._guard.pid, os.WNOHANG)  # noqa: ASYNC222  # does not wait
    except ChildProcessError:
        reaped = True
    assert reaped


async def test_leased_worker_starts_only_when_a_deadline_is_set():
    ends: list[str] = []
    workers = ProcessWorkers(
        None, {}, ServerLimits(), WireLimits(), [], "tcp://127.0.0.1:1", [], {}, ["true"],
        leased=True,
    )  # fmt: skip
    with trio.fail_after(PATIENCE_S):
        for boot_s in (None, 1e9, None):
            workers.set_deadline(boot_s)
            spawn = Spawn(0, b"w0-1", b"i" * 16)
            ends.append(await workers.live(spawn, print, print, print))
    refused = "it could not be started: Operation not permitted"
    assert ends == [refused, "it exited with status 0", refused]


SAYS = """
import os, signal, socket, subprocess
link = socket.socket(fileno=int(os.environ["TRIO_ENVSERVE_LINK_FD"]))
link.sendall(b"".join(b"\\0\\x08%08d" % n for n in range(100_000)))
"""
"""It says 100,000 messages of one frame, which are more than a socket holds."""
LEAVES = "subprocess.Popen(['sleep', '1000'], pass_fds=[link.fileno()], start_new_session=True)"


@pytest.mark.parametrize(
    "end", ["", "os.kill(os.getpid(), signal.SIGKILL)", "os.kill(os.getppid(), signal.SIGKILL)"],
    ids=["it exits", "it is killed", "its guard is killed"],
)  # fmt: skip
@pytest.mark.parametrize("leaves", ["", LEAVES], ids=["alone", "with a child that has its link"])
async def test_g1_all_that_a_process_had_said_is_heard_before_it_is_said_to_be_dead(
    end: str, leaves: str
):
    heard: list[bytes] = []

    def on_messages(batch: list[list[Frame]]) -> None:
        heard.extend(bytes(frames[1]) for frames in batch)

    code = "\n".join((SAYS, leaves, end))
    workers = ProcessWorkers(
        None, {}, ServerLimits(), WireLimits(), [], "tcp://127.0.0.1:1", [], {},
        [sys.executable, "-c", code],
    )  # fmt: skip
    with trio.fail_after(PATIENCE_S):
        await workers.live(Spawn(0, b"w0-1", b"i" * 16), lambda pid: None, on_messages, print)
    assert heard == [b"%08d" % n for n in range(100_000)]


@pytest.mark.parametrize("workers", [1, 0])
async def test_a_server_closed_right_after_it_was_opened_does_not_wait_for_a_kill(judge, workers):
    """The kill of a worker came before its start, and was lost; the next one came
    when the worker "did not exit when told to"."""
    with trio.fail_after(PATIENCE_S):
        for _ in range(8):  # trio runs tasks in random order; about half of the orders went wrong
            async with open_real_server(judge, workers=workers, stop_s=PATIENCE_S + 1):
                pass


# -- why a worker died before it was ready ---------------------------------------
# A worker that dies while it is being set up (killed for its memory, a crash in a
# library) has no traceback to send.  The pool was "broken" then, and that was all: the
# way in which the process had ended was in the server's log only.


async def test_worker_that_dies_while_it_is_set_up_is_told_by_server_and_client(judge):
    with trio.fail_after(PATIENCE_S):
        async with (
            open_real_server(judge, args={"setup": [["die", "SIGSEGV"]]}) as server,
            open_calls(server.address) as calls,
        ):
            with pytest.raises(ServerStartError, match=r"did not get ready.* ended by SIGSEGV"):
                await server.wait_ready()
            await until(lambda: "ended by SIGSEGV" in calls.client.health().reason)


# -- failures that servers of this kind are known for ----------------------------


HANG = """
import pathlib, time
here = pathlib.Path(__file__).parent
(here / "hangs").touch()
began_s = time.monotonic()
while not (here / "go on").exists():
    time.sleep(0.05)
    if time.monotonic() - began_s > 30:
        (here / "gave up").touch()
        break
"""
"""Python imports ``sitecustomize`` before anything else.  It gives up, so that a test of
a server that hangs with it ends."""


async def test_failure_15_worker_that_hangs_before_it_reads_its_configuration(tmp_path: Path):
    """A worker hangs before it has read its configuration, which is larger than a socket
    holds: the server, which writes it, hangs with its worker, and times nothing out.

    Here writing to a worker is waited for by that worker's own task.
    """
    (tmp_path / "sitecustomize.py").write_text(HANG)
    async with (
        open_server(
            "arithmetic",
            args={"seed": "x" * 1_000_000},
            worker_environ=[{"PYTHONPATH": str(tmp_path)}],
        ) as server,
        open_client(server.address) as client,
    ):
        with trio.fail_after(120):
            while not (tmp_path / "hangs").exists():  # noqa: ASYNC110  # there is no event
                await trio.sleep(0.01)
            stats = await client.stats()
            assert not (tmp_path / "gave up").exists(), "the server hung with its worker"
            assert stats.status.value == "starting"
            (tmp_path / "go on").touch()
            await client.wait_ready()


# -- turns ---------------------------------------------------------------------------
# A rollout flooded the server with the longest beats that a worker may send, of 20,000 numbers: 64
# of them held its loop for 0.2 s, and each call of everybody took a second.


NAME, LIFE = b"w0-1", b"i" * 16


@pytest.mark.parametrize(
    ("frames", "heard"),
    [
        ([NAME, LIFE, bytes(60_000)], 3),
        ([NAME, LIFE, bytes(HEADER_BYTES_AT_ONCE * 9)], 1),
        ([NAME, LIFE, bytes(50)], MESSAGES_AT_ONCE),
        (
            [NAME, LIFE, b"client", bytes(50), bytes(1 << 20)],
            MESSAGES_AT_ONCE,
        ),  # the body is opaque
    ],
    ids=["long headers", "one that is too long", "short headers", "large bodies"],
)
def test_long_headers_of_a_worker_held_the_loop_of_the_server(frames: list[bytes], heard: int):
    messages = deque[list[Frame]]([[*frames]] * 100)
    assert len(_portion(messages)) == heard
    assert len(messages) == 100 - heard


@given(st.lists(st.lists(st.integers(0, 1 << 17).map(bytes), min_size=1, max_size=5)))
def test_all_messages_are_heard_in_their_order(messages: list[list[bytes]]):
    heard: list[list[Frame]] = []
    waiting = deque[list[Frame]](list(each) for each in messages)
    while waiting:
        portion = _portion(waiting)
        assert portion
        heard += portion
    assert heard == messages


@pytest.mark.parametrize(
    ("frames", "count", "is_killed"),
    [
        ((b"i" * 16, bytes(1_000)), 9_000, False), ((b"i" * 16, bytes(1_000)), 20_000, True),
        ((b"i" * 16, bytes(200_000)), 400, True), ((b"i" * 16, b"h", bytes(4 << 20)), 64, False),
    ],
    ids=["few", "many", "large", "dispatches with large bodies"],
)  # fmt: skip
async def test_g8_answers_to_a_worker_that_floods_and_reads_nothing_were_kept_without_a_bound(
    frames: tuple[bytes, ...], count: int, is_killed: bool, monkeypatch: pytest.MonkeyPatch
):
    ours, theirs = socket.socketpair()
    killed: list[bytes] = []
    workers: Any = ProcessWorkers.__new__(ProcessWorkers)
    monkeypatch.setattr(ProcessWorkers, "kill", lambda _, worker: killed.append(worker))
    with theirs:
        async with open_stream(ours, limits=WireLimits()) as stream:
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
            workers._streams = {b"w": stream}
            for _ in range(count):
                if not killed:
                    workers.send_many_nowait(b"w", [frames])
    assert bool(killed) == is_killed

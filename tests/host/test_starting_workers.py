"""Processes that cannot be started, and those that are ended while nobody waits."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import trio

from trio_envserve import ServerLimits, ServerStartError, WireLimits, open_client, open_server
from trio_envserve.host.processes import start_process

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
                process = start_process(environ={}, lock=None, command=["true"])
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
    process = start_process(environ={}, lock=None, command=["sleep", "1000"])
    with trio.CancelScope() as scope:
        scope.cancel()
        await process.aclose()
    reaped = False
    try:
        os.waitpid(process.pid, os.WNOHANG)  # noqa: ASYNC222  # does not wait
    except ChildProcessError:
        reaped = True
    assert reaped

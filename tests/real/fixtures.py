"""A test with real processes has a stage of its own, and must leave nothing behind."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import zmq

from tests.cli.commands import forking
from tests.proc import below
from tests.real.judge import Judge

TOKEN = "ENVSERVE_TEST_TOKEN"
PROC = Path("/proc")


@pytest.fixture(scope="session")
def pyzmq_warm() -> None:
    """The first large message makes pyzmq start what it keeps until the end."""
    with zmq.Context() as context, context.socket(zmq.PAIR) as a, context.socket(zmq.PAIR) as b:
        a.bind("inproc://warm")
        b.connect("inproc://warm")
        a.send(bytes(1_000_000), copy=False)
        b.recv()


@pytest.fixture
def judge(tmp_path: Path, nothing_left: None) -> Judge:
    """The stage of this test, and its judge."""
    directory = tmp_path / "stage"
    directory.mkdir()
    return Judge(directory)


@pytest.fixture
def nothing_left(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, pyzmq_warm: None
) -> Iterator[None]:
    """No process, descriptor or thread of a test outlives it.

    Its processes are known by a variable that all of them inherit, and those that are forks by
    whom they are below.
    """
    forking()
    token = uuid.uuid4().hex
    monkeypatch.setenv(TOKEN, token)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))  # where the locks are
    there, before, running = {*below(os.getpid())}, descriptors(), Counter(own_threads())
    yield
    left = wait_empty(lambda: processes(token, there))
    for pid in left:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert not left, f"processes left: {left}"
    gc.collect()
    opened = wait_empty(lambda: dict(descriptors() - before))
    assert not opened, f"descriptors left: {opened}"
    threads = wait_empty(lambda: dict(Counter(own_threads()) - running))
    assert not threads, f"threads left: {threads}"


def wait_empty(find):
    """What is found still after some patience; usually nothing, at once."""
    until_s = time.monotonic() + 60.0
    while (found := find()) and time.monotonic() < until_s:
        time.sleep(0.02)
    return found


def processes(token: str, before: set[int]) -> dict[int, str]:
    """The living processes that have inherited the token or have come below this one, and what
    they are."""
    found = {}
    wanted = f"{TOKEN}={token}".encode()
    forks = {*below(os.getpid())} - before
    for directory in PROC.glob("[0-9]*"):
        # A process may end while it is looked at; those of others are unreadable.
        with suppress(OSError):
            inherited = (directory / "environ").read_bytes().split(b"\0")
            if wanted in inherited or int(directory.name) in forks:
                command = (directory / "cmdline").read_bytes().replace(b"\0", b" ")
                found[int(directory.name)] = command.decode(errors="replace")[:200]
    return found


def descriptors() -> Counter[str]:
    """What this process has open, by kind; regular files by name."""
    kinds: Counter[str] = Counter()
    for entry in (PROC / "self" / "fd").glob("*"):
        with suppress(OSError):
            target = os.readlink(entry)
            kinds[target.partition(":[")[0]] += 1
    return kinds


def own_threads() -> list[str]:
    """Threads that are neither pytest's, nor pyzmq's, nor in trio's cache of idle ones."""
    return [
        thread.name
        for thread in threading.enumerate()
        if thread is not threading.main_thread()
        and not thread.name.startswith("Trio thread")
        and type(thread).__name__ != "GarbageCollectorThread"
    ]

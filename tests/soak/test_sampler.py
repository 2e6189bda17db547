"""The sampler, on real processes."""

import os
import signal
import socket
import subprocess
import sys

import pytest

from tests.soak.processes import READY, python
from trio_envserve.lab.soak import sampler
from trio_envserve.lab.soak.sampler import (
    OfHost,
    Sampler,
    children_in,
    files_in,
    look_at,
    processes_in,
    resident,
    rss_kib,
)

needs_proc = pytest.mark.skipif(not sampler.has_proc(), reason="reads /proc")

HOLDS = (
    "import threading; files = [open('/dev/null') for _ in range(7)]; "
    "event = threading.Event(); "
    "[threading.Thread(target=event.wait, daemon=True).start() for _ in range(3)]; "
    "memory = bytearray(20 * 1024 * 1024); "
)


@needs_proc
@pytest.mark.real
def test_it_sees_what_processes_hold(tmp_path):
    with python(tmp_path) as bare, python(tmp_path, HOLDS) as full:
        before, after = look_at(bare.pid), look_at(full.pid)
        assert before is not None
        assert after is not None
        assert (before.parent, after.parent) == (os.getpid(), os.getpid())
        assert after.descriptors == before.descriptors + 7
        assert (before.threads, after.threads) == (1, 4)
        assert after.rss_kib - before.rss_kib > 19 * 1024
        assert set(processes_in(tmp_path)) == {bare.pid, full.pid}
        assert children_in(tmp_path, os.getpid()) == sorted([bare.pid, full.pid])
        held = resident(bare.pid, full.pid)
        assert held["client"] - held["router"] > 19 * 1024
    assert list(processes_in(tmp_path)) == []
    assert look_at(full.pid) is None


@needs_proc
@pytest.mark.real
def test_a_sample_adds_up_each_kind(tmp_path):
    with (
        python(tmp_path) as server,
        python(tmp_path, process_group=0) as worker,
        python(tmp_path, process_group=worker.pid),
        python(tmp_path, HOLDS, process_group=0),
        python(tmp_path.parent),
    ):
        found = Sampler(tmp_path).sample({server.pid: "server"})
        kinds = found["kinds"]
        assert set(kinds) == {"soak", "server", "worker", "guard"}
        assert {kind: record["processes"] for kind, record in kinds.items()} == {
            "soak": 1, "server": 1, "worker": 2, "guard": 1,
        }  # fmt: skip
        assert kinds["worker"]["threads"] == 5
        assert kinds["worker"]["descriptors"] == 2 * kinds["server"]["descriptors"] + 7
        assert kinds["worker"]["rss_kib"] - kinds["server"]["rss_kib"] > 19 * 1024
        assert kinds["soak"]["rss_kib"] > 0


@needs_proc
@pytest.mark.real
def test_it_finds_what_a_dead_parent_left_behind(tmp_path):
    program = (
        "import subprocess, sys; child = subprocess.Popen([sys.executable, '-c', "
        "'import signal; signal.pause()']); print(child.pid, flush=True); "
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", program + READY], cwd=tmp_path, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )  # fmt: skip
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    for stream in (parent.stdin, parent.stdout):
        assert stream is not None
        stream.close()
    try:
        assert list(processes_in(tmp_path)) == [child]
        assert children_in(tmp_path, parent.pid) == []
    finally:
        os.kill(child, signal.SIGKILL)


@needs_proc
@pytest.mark.real
def test_a_process_that_is_dead_and_not_reaped_holds_nothing(tmp_path):
    with python(tmp_path) as process:
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert look_at(process.pid) is None
        assert set(Sampler(tmp_path).sample({})["kinds"]) == {"soak"}


@needs_proc
def test_of_nobody_there_is_no_memory():
    with pytest.raises(OSError, match="smaps_rollup"):
        rss_kib(2**22 + 1)


def test_it_counts_sockets_and_locks(tmp_path, monkeypatch):
    assert files_in(tmp_path) == {"sockets": 0, "locks": 0}
    runtime = tmp_path / "trio_envserve-1"
    runtime.mkdir()
    for name in ("a.server", "a.epochs", "b.server"):
        (runtime / name).touch()
    (tmp_path / "log.jsonl").touch()
    monkeypatch.chdir(tmp_path)  # a path of a socket must be short
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind("s")
        assert files_in(tmp_path) == {"sockets": 1, "locks": 3}


def test_without_proc_only_files_are_looked_at(tmp_path, monkeypatch):
    monkeypatch.setattr(sampler, "PROC", tmp_path / "none")
    assert sampler.has_proc() is False
    assert Sampler(tmp_path).sample({}) == {"kinds": {}, "sockets": 0, "locks": 0}
    assert resident(os.getpid(), os.getpid()) == {}
    assert look_at(os.getpid()) is None


@needs_proc
@pytest.mark.real
def test_it_tells_the_keeper_and_the_guard_of_a_host_from_its_workers(tmp_path):
    """The keeper leads a group, and the guard is in it; each worker leads its own."""
    program = (
        "import os, subprocess, sys\n"
        "depth = int(sys.argv[1])\n"
        "def start(**g): subprocess.Popen([sys.executable, __file__, str(depth + 1)], **g)\n"
        "if depth == 0: start(process_group=0)\n"
        "if depth == 1: start()\n"
        "if depth == 2: start(process_group=0); start(process_group=0)\n"
        "if depth == 3: os.write(1, b'up\\n')\n"
        "sys.stdin.read()\n"
    )
    (tmp_path / "tree.py").write_text(program)
    host = subprocess.Popen(
        [sys.executable, "tree.py", "0"], cwd=tmp_path, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, process_group=0,
    )  # fmt: skip
    assert host.stdin is not None
    assert host.stdout is not None
    try:
        assert [host.stdout.readline() for _ in range(2)] == [b"up\n", b"up\n"]
        (keeper,), (guard,), workers = OfHost.at(tmp_path, host.pid)
        parents = {held.pid: held.parent for held in map(look_at, processes_in(tmp_path)) if held}
        assert (parents[keeper], parents[guard]) == (host.pid, keeper)
        assert [parents[worker] for worker in workers] == [guard, guard]
    finally:
        host.stdin.close()
        host.stdout.read()  # to the end of all of them
        host.stdout.close()
        host.wait()

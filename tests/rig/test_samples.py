"""Samples of real processes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.rig import samples
from tests.rig.samples import Pool, files_in, look_at, processes_in, sample

needs_proc = pytest.mark.skipif(not samples.has_proc(), reason="reads /proc")

READY = "print('ready', flush=True); import sys; sys.stdin.read()"
HOLDS = (
    "import threading; files = [open('/dev/null') for _ in range(7)]; "
    "event = threading.Event(); "
    "[threading.Thread(target=event.wait, daemon=True).start() for _ in range(3)]; "
    "memory = bytearray(20 * 1024 * 1024); "
)


@contextmanager
def python(folder: Path, code: str = "", **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-c", code + READY], cwd=folder, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, **options,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def pids_in(folder: Path) -> set[int]:
    return {held.pid for held in processes_in(folder)}


@needs_proc
@pytest.mark.real
def test_process_is_seen_with_its_descriptors_threads_and_memory(tmp_path: Path) -> None:
    with python(tmp_path) as bare, python(tmp_path, HOLDS) as full:
        before, after = look_at(bare.pid), look_at(full.pid)
        assert before is not None
        assert after is not None
        assert (before.parent, after.parent) == (os.getpid(), os.getpid())
        assert after.descriptors == before.descriptors + 7
        assert (before.threads, after.threads) == (1, 4)
        assert after.rss_kib - before.rss_kib > 19 * 1024
        assert pids_in(tmp_path) == {bare.pid, full.pid}
        assert Pool.at(tmp_path, os.getpid()).guards == sorted([bare.pid, full.pid])
        full.kill()
        os.waitid(os.P_PID, full.pid, os.WEXITED | os.WNOWAIT)
        assert look_at(full.pid) is None  # dead, and not reaped
    assert processes_in(tmp_path) == []


@needs_proc
@pytest.mark.real
def test_sample_adds_up_each_kind(tmp_path: Path) -> None:
    with (
        python(tmp_path) as server,
        python(tmp_path, process_group=0) as worker,
        python(tmp_path, process_group=worker.pid),
        python(tmp_path, HOLDS, process_group=0),
        python(tmp_path.parent),
    ):
        kinds = sample(tmp_path, {server.pid: "server"})["kinds"]
        assert {kind: record["processes"] for kind, record in kinds.items()} == {
            "rig": 1, "server": 1, "worker": 2, "child": 1,
        }  # fmt: skip
        assert kinds["worker"]["threads"] == 5
        assert kinds["worker"]["descriptors"] == 2 * kinds["server"]["descriptors"] + 7
        assert kinds["worker"]["rss_kib"] - kinds["server"]["rss_kib"] > 19 * 1024
        assert kinds["rig"]["rss_kib"] > 0


def test_sockets_and_locks_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


@needs_proc
@pytest.mark.real
@pytest.mark.parametrize("fuse", [False, True])
def test_guard_and_fuse_are_told_from_their_worker(tmp_path: Path, fuse: bool) -> None:
    """The guard leads a group, and the fuse is in it; the worker leads its own."""
    groups = [{"process_group": 0}, *([{}] if fuse else []), {"process_group": 0}]
    (tmp_path / "tree.py").write_text(
        "import os, subprocess, sys\n"
        f"groups, depth = {groups}, int(sys.argv[1])\n"
        "if groups[depth:]:\n"
        "    subprocess.Popen([sys.executable, __file__, str(depth + 1)], **groups[depth])\n"
        "else:\n"
        "    os.write(1, b'up\\n')\n"
        "sys.stdin.read()\n"
    )
    host = subprocess.Popen(
        [sys.executable, "tree.py", "0"], cwd=tmp_path, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, process_group=0,
    )  # fmt: skip
    assert host.stdin is not None
    assert host.stdout is not None
    try:
        assert host.stdout.readline() == b"up\n"
        (guard,), fuses, (worker,) = Pool.at(tmp_path, host.pid)
        parents = {held.pid: held.parent for held in processes_in(tmp_path)}
        assert parents[guard] == host.pid
        assert [parents[each] for each in (*fuses, worker)] == [guard, *fuses]
        assert len(fuses) == fuse
    finally:
        host.stdin.close()
        host.stdout.read()  # to the end of all of them
        host.stdout.close()
        host.wait()

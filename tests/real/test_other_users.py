"""What another user of the machine finds of a server: its front, and nothing else."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.proc import status_of
from tests.real.support import ROOT, open_calls, open_server, until

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")

STRANGER = """
import json, os, socket, sys
import cbor2, zmq
os.setgroups([]); os.setgid(65534); os.setuid(65534)
asked = json.loads(sys.argv[1])
told = {"opened": [], "sent": 0, "answers": 0}
for pid in asked["pids"]:  # the descriptors themselves
    for number in range(64):
        try:
            os.close(os.open(f"/proc/{pid}/fd/{number}", os.O_RDWR))
            told["opened"].append([pid, number])
        except OSError:
            pass
for path in asked["paths"]:
    try:
        with socket.socket(socket.AF_UNIX) as one:
            one.connect(path)
        told["opened"].append(path)
    except OSError:
        pass
sockets = []
if asked["address"].startswith("tcp:"):
    context = zmq.Context()
    for worker in asked["workers"]:
        one = context.socket(zmq.DEALER)
        one.set(zmq.ROUTING_ID, worker.encode())
        one.set(zmq.LINGER, 2000)
        one.connect(asked["address"])
        sockets.append(one)
payload = cbor2.dumps({"key": "forged", "random": "forged"})
while sockets and told["sent"] < 3000:
    for one in sockets:
        for token in map(bytes.fromhex, asked["incarnations"]):
            number = told["sent"] // 4
            session = bytes.fromhex(asked["session"])
            head = cbor2.dumps([67, session, number, number, 0, 0.1])
            for frames in ([token, b"", head, payload], [head, payload], [token, head]):
                one.send_multipart(frames)
                told["sent"] += 1
            if one.poll(0):
                one.recv_multipart()
                told["answers"] += 1
for one in sockets:
    one.close()
print(json.dumps(told))
"""


def listening(pids: list[int]) -> list[str]:
    """Where these processes take connections."""
    inodes = set()
    for pid in pids:
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            try:
                kind, _, inode = os.readlink(entry).rstrip("]").partition(":[")
            except OSError:
                continue
            if kind == "socket":
                inodes.add(inode)
    found = []
    for table in ("tcp", "tcp6", "udp", "udp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[9] in inodes and (fields[3] == "0A" or table.startswith("udp")):
                found.append(f"{table}:{int(fields[1].rpartition(':')[2], 16)}")
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[6] in inodes and int(fields[3], 16) & 0x10000:
            found.append(f"unix:{fields[7] if len(fields) > 7 else '(no name)'}")
    return found


@pytest.mark.parametrize("scheme", ["tcp", "ipc"])
async def test_another_user_finds_the_front_only_and_forges_nothing(judge, scheme):
    """Any user of the machine could connect as a worker and answer its dispatches."""
    path = judge.directory / "front"
    bind = "tcp://127.0.0.1:0" if scheme == "tcp" else f"ipc://{path}"
    values: list[Any] = []
    judge.directory.chmod(stat.S_IRWXU)
    async with open_server(judge, workers=2, bind=bind) as server:
        async with open_calls(server.address) as calls:
            await until(lambda: server.status().ready == 2)
            await calls.value(calls.start("first"))
            lives = list(server._router.pool.lives.values())
            workers = [life.pid for life in lives if life.pid]
            pids = [*workers, *(int(status_of(pid, "PPid")) for pid in workers)]
            assert len(pids) >= 4
            front = f"tcp:{server.address.rpartition(':')[2]}" if scheme == "tcp" else (
                f"unix:{path}"
            )  # fmt: skip
            assert listening([os.getpid(), *pids]) == [front]
            asked = {
                "pids": [os.getpid(), *pids], "paths": [str(path)], "address": server.address,
                "workers": [life.id.decode() for life in lives],
                "incarnations": [life.incarnation.hex() for life in lives],
                "session": next(iter(server._router.sessions.known)).hex(),
            }  # fmt: skip
            async with trio.open_nursery() as nursery:
                told = await nursery.start(be_a_stranger, asked)
                while not told:
                    keys = [calls.start(f"{len(values)}-{index}") for index in range(20)]
                    values += [await calls.value(key) for key in keys]
            [said] = told
        assert server.stats().fenced == 0
    assert said["opened"] == []
    assert (said["sent"] > 0) == (scheme == "tcp")
    assert values
    assert [value for value in values if value["random"] == "forged"] == []
    judge.assert_at_most(1)


async def be_a_stranger(
    asked: dict[str, Any], task_status: trio.TaskStatus[list[Any]] = trio.TASK_STATUS_IGNORED
) -> None:
    told: list[Any] = []
    task_status.started(told)
    done = await trio.run_process(
        [sys.executable, "-c", STRANGER, json.dumps(asked)],
        capture_stdout=True, cwd=ROOT, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    told.append(json.loads(done.stdout))

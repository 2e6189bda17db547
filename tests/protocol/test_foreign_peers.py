"""Dealers of others complete, replay and cancel rollouts over ZMTP spoken by trio."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import cbor2
import pytest
import trio

from trio_envserve import open_server
from trio_envserve.envs.recorder import read_run_log

pytestmark = pytest.mark.real

FOREIGN = Path(__file__).parent / "foreign"
HELLO, REQUEST, FINISH, SYNC, CANCEL = 0, 1, 2, 3, 4
WELCOME, OUTCOME, CANCELLED = 16, 17, 21


def command(name: str) -> list[str]:
    """How to start a peer; skips the test where it is not installed."""
    if name == "pyzmq":
        return [sys.executable, str(FOREIGN / "dealer.py")]
    node = shutil.which("node")
    if (
        node is None
        or subprocess.run(
            [node, "-e", "require('zeromq')"], capture_output=True, check=False
        ).returncode
    ):
        pytest.skip("node or its package zeromq is not installed")
    return [node, str(FOREIGN / "dealer.js")]


class Peer:
    """A client in another language, told what to send."""

    def __init__(self, process: trio.Process) -> None:
        self._process = process
        self._lines = b""
        self._messages: list[list[bytes]] = []

    async def send(self, *frames: bytes) -> None:
        assert self._process.stdin is not None
        line = " ".join(["-", *(frame.hex() for frame in frames)])
        await self._process.stdin.send_all(line.encode() + b"\n")

    async def ask(self, wanted: int, *frames: bytes) -> list[Any]:
        """Send, and take the next message; it must be of that kind.  Its header, and
        its body if there is one."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        line = " ".join(frame.hex() for frame in frames)
        await self._process.stdin.send_all(line.encode() + b"\n")
        while b"\n" not in self._lines:
            data = await self._process.stdout.receive_some()
            assert data, "the peer has ended"
            self._lines += data
        line_, _, self._lines = self._lines.partition(b"\n")
        header, *body = [bytes.fromhex(word.decode()) for word in line_.split()]
        message = cbor2.loads(header)
        assert message[0] == wanted, message
        return [message, *body]


@asynccontextmanager
async def open_peer(name: str, address: str) -> AsyncIterator[Peer]:
    process = await trio.lowlevel.open_process(
        [*command(name), address], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        yield Peer(process)
    finally:
        process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()


def body_of(index: int, **more: Any) -> bytes:
    return cbor2.dumps(
        {
            "kind": "rollout", "input": {"index": index, **more}, "sampling_args": {},
            "max_retries": 0, "model": {"endpoint": "oracle", "name": ""}, "state_columns": [],
        }
    )  # fmt: skip


@pytest.mark.parametrize("transport", ["tcp", "ipc"])
@pytest.mark.parametrize("name", ["pyzmq", "zeromq.js"])
async def test_a_foreign_dealer_completes_replays_and_cancels(
    name: str, transport: str, tmp_path: Path, folder: str
):
    command(name)
    log = tmp_path / "runs"
    bind = "tcp://127.0.0.1:0" if transport == "tcp" else f"ipc://{folder}/s"
    with trio.fail_after(120):
        async with open_server(
            "arithmetic", args={"log_path": str(log)}, workers=0, bind=bind, transport="zmtp"
        ) as server:
            await server.wait_ready()
            async with open_peer(name, server.address) as peer:
                hello = cbor2.dumps([HELLO, 2, os.urandom(16), 1, name, 1 << 28, bytes(16)])
                welcome, *_ = await peer.ask(WELCOME, hello)
                session, epoch = welcome[3], welcome[4]

                def request(sequence: int, body: bytes) -> tuple[bytes, bytes]:
                    digest = hashlib.blake2b(body, digest_size=16).digest()
                    header = [REQUEST, None, session, sequence, digest, None, 2, None, None]
                    return cbor2.dumps(header), body

                first = await peer.ask(OUTCOME, *request(0, body_of(1)))
                assert first[0][4] == 0
                assert cbor2.loads(first[1])["reward"] == 1.0
                again = await peer.ask(OUTCOME, *request(0, body_of(1)))
                assert again == first
                await peer.send(*request(1, body_of(2, key="long", duration_s=100)))
                while server.stats().running == 0:
                    await trio.sleep(0.01)
                cancelled, *_ = await peer.ask(CANCELLED, cbor2.dumps([CANCEL, session, 1]))
                assert cancelled[2] == 1
                while server.stats().running:
                    await trio.sleep(0.01)
                # large ones go both ways, too
                large = await peer.ask(OUTCOME, *request(2, body_of(3, padding=bytes(200_000))))
                assert large[0][4] == 0
                await peer.send(cbor2.dumps([FINISH, session, [0, 3]]))
                await peer.ask(18, cbor2.dumps([SYNC, session, epoch, 1, 1, 3, []]))
                assert server.stats().kept == 0
    events = [line["event"] for line in read_run_log(log)]
    assert events.count("start") == 3

"""The door and the unchanged client of verifiers 0.4, under an interpreter of its own.

See tests/envs/test_verifiers.py for that interpreter; without it these are skipped.
TRIO_ENVSERVE_VERIFIERS_CLIENT is the path of another one for the client alone, which may
have a newer release of the library.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.connections import accepted
from tests.endpoint import Ask, Endpoint, Reply, serve
from tests.envs.test_verifiers import PYTHON, said, taskset
from trio_envserve import Server, open_server
from trio_envserve.doors.verifiers import VerifiersDoor, open_verifiers_door

__all__ = ["taskset"]

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.usefixtures("taskset")]

PROGRAM = Path(__file__).with_name("library_client.py")

CLIENT = os.environ.get("TRIO_ENVSERVE_VERIFIERS_CLIENT", PYTHON)

RUNS = int(os.environ.get("TRIO_ENVSERVE_VERIFIERS_RUNS", "200"))
"""Each is an episode in a process of its own, which takes a second of processor time."""

HANG_S = 3600
"""Far more than anything here takes; only a hang takes longer."""


class Client:
    """The program with the library's client, while it runs."""

    def __init__(self, process: trio.Process) -> None:
        self.process = process
        self._lines = self._read()

    async def _read(self) -> AsyncIterator[dict[str, Any]]:
        assert self.process.stdout is not None
        rest = b""
        async for chunk in self.process.stdout:
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                yield json.loads(line)

    async def hear(self, count: int = 1) -> list[dict[str, Any]]:
        """What it says next."""
        return [await anext(self._lines) for _ in range(count)]

    async def go_on(self) -> None:
        assert self.process.stdin is not None
        await self.process.stdin.send_all(b"\n")


@asynccontextmanager
async def asking(
    verb: str, endpoint: Endpoint, count: int, folder: Path, *, workers: int = 1
) -> AsyncIterator[tuple[Client, VerifiersDoor, Server]]:
    """A server, its door, and a client that does this.  With one worker the client comes
    before it is ready."""
    with trio.fail_after(HANG_S):
        async with (
            serve(endpoint) as url,
            open_server(
                "verifiers:envserve_sums", workers=workers, worker_python=PYTHON,
                bind="tcp://127.0.0.1:0",
            ) as server,
            open_verifiers_door(server, bind="tcp://127.0.0.1:0") as door,
            trio.open_nursery() as nursery,
        ):  # fmt: skip
            while workers > 1 and server.status().ready < workers:
                await trio.sleep(0.05)
            command = [CLIENT, str(PROGRAM), verb, door.address, url, str(count)]
            start = partial(
                trio.run_process, command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": str(folder)},
            )  # fmt: skip
            process = await nursery.start(start)
            yield Client(process), door, server


def right(ask: Ask) -> Reply:
    return Reply(said(ask.messages[-1]["content"], 0))


class Held:
    """An endpoint that answers when it is told to."""

    def __init__(self) -> None:
        self.go = trio.Event()
        self.endpoint = Endpoint(lambda ask: Reply(right(ask).text, until=self.go))

    async def all_wait(self, count: int) -> None:
        while self.endpoint.waiting < count:
            await trio.sleep(0.05)


def cut(address: str) -> None:
    """Cut the connections that clients have to this address, and no others."""

    def look(sock: socket.socket) -> None:
        host, port = sock.getsockname()
        if f"tcp://{host}:{port}" == address:
            sock.shutdown(socket.SHUT_RDWR)

    assert accepted(address, look)


async def test_what_prime_rl_does_with_a_server_that_it_did_not_start(tmp_path: Path):
    held = Held()
    held.go.set()
    async with asking("prime-rl", held.endpoint, 3, tmp_path) as (client, _, _):
        good = {"ok": True, "same": True, "reward": 0.75, "turns": 1}
        assert await client.hear(3) == [good] * 3
        assert held.endpoint.asks[0].body["cache_salt"] == "0"
        held.go = trio.Event()
        await held.all_wait(3)
        await client.go_on()
        assert await client.hear() == [{"cancelled": 3}]
        while held.endpoint.waiting:  # the cancels close their requests
            await trio.sleep(0.05)
        assert sum(ask.closed for ask in held.endpoint.asks) == 3
        await client.go_on()


async def test_runs_end_with_their_rewards_and_deltas(tmp_path: Path):
    endpoint = Endpoint(right)
    async with asking("runs", endpoint, RUNS, tmp_path, workers=2) as (client, _, _):
        ended = await client.hear(RUNS)
    assert {(each["ok"], each["reward"]) for each in ended} == {(True, 0.75)}
    assert min(each["deltas"] for each in ended) > 1
    assert len(endpoint.asks) == RUNS


async def test_the_runs_of_a_killed_worker_fail_and_the_others_go_on(tmp_path: Path):
    held = Held()
    async with asking("runs", held.endpoint, 6, tmp_path, workers=2) as (client, _, server):
        await held.all_wait(6)
        first, second = server.stats().per_worker
        assert first.pid is not None
        os.kill(first.pid, signal.SIGKILL)
        lost = await client.hear(first.pending)
        assert all("(it may have run) [worker-lost]" in each["error"] for each in lost)
        held.go.set()
        others = await client.hear(second.pending)
        assert {each["ok"] for each in others} == {True}


async def test_all_connections_are_cut_and_every_run_ends(tmp_path: Path):
    held = Held()
    async with asking("runs", held.endpoint, 6, tmp_path) as (client, door, _):
        await held.all_wait(6)
        cut(door.address)
        held.go.set()
        ended = await client.hear(6)
    assert {(each["ok"], each["reward"]) for each in ended} == {(True, 0.75)}
    assert len(held.endpoint.asks) == 6

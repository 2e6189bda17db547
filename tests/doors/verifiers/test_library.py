"""The door and the unchanged client of verifiers 0.4, under an interpreter of its own.

See tests/envs/test_verifiers.py for that interpreter; without it these are skipped.
TRIO_ENVSERVE_VERIFIERS_CLIENT is the path of another one for the client alone, which may
have a newer release of the library.  What is shown here in numbers and seconds,
tests/doors/verifiers/test_door.py shows without the library, and without a clock.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import trio

from tests.doors.verifiers.door import asking as asking_raw
from tests.endpoint import Ask, Endpoint, Reply, serve
from tests.envs.test_verifiers import PYTHON, TASKSET, said, taskset
from tests.proc import children
from trio_envserve import Server, open_server
from trio_envserve.doors.verifiers import open_verifiers_door
from trio_envserve.testing.proxy import FaultProxy, open_fault_proxy

__all__ = ["taskset"]

pytestmark = [pytest.mark.real, pytest.mark.slow]

PROGRAM = Path(__file__).with_name("library_client.py")

CLIENT = os.environ.get("TRIO_ENVSERVE_VERIFIERS_CLIENT", PYTHON)

RUNS = int(os.environ.get("TRIO_ENVSERVE_VERIFIERS_RUNS", "200"))
"""Each is an episode in a process of its own, which takes a second of processor time."""

TASKS = 20
"""Of the taskset; runs take them in turn."""

FEW = RUNS // 10

HANG_S = 3600
"""Far more than anything here takes; only a hang takes longer."""

STARTED = """
    async def setup(self, trace: vf.Trace, runtime: vf.Runtime) -> None:
        with open(__file__ + ".starts", "a") as log:
            print(self.data.idx, file=log)

"""


@pytest.fixture
def starts(taskset: None, tmp_path: Path) -> Path:
    """A taskset whose right answers get a reward of 1.0, and which writes down what it
    starts: the file of that."""
    source = tmp_path / "envserve_sums.py"
    first = "    @vf.reward(weight=0.5)\n"
    source.write_text(TASKSET.replace(first, STARTED + first.replace("0.5", "0.75")))
    return tmp_path / "envserve_sums.py.starts"


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


class Asked(NamedTuple):
    """A client that asks, and whom."""

    client: Client
    server: Server
    proxy: FaultProxy
    """Between the client and the door."""


@asynccontextmanager
async def asking(
    verb: str, endpoint: Endpoint, count: int, starts: Path, *, workers: int = 1
) -> AsyncIterator[Asked]:
    """A server, its door, and a client that does this.  With one worker the client comes
    before it is ready."""
    with trio.fail_after(HANG_S):
        async with AsyncExitStack() as stack:
            enter = stack.enter_async_context
            url = await enter(serve(endpoint))
            opening = open_server(
                "verifiers:envserve_sums", workers=workers, worker_python=PYTHON,
                bind="tcp://127.0.0.1:0",
            )  # fmt: skip
            server = await enter(opening)
            door = await enter(open_verifiers_door(server, bind="tcp://127.0.0.1:0"))
            proxy = await enter(open_fault_proxy(door.address))
            nursery = await enter(trio.open_nursery())
            while workers > 1 and server.status().ready < workers:
                await trio.sleep(0.05)
            program = running(CLIENT, verb, proxy.address, url, count, starts)
            yield Asked(Client(await nursery.start(program)), server, proxy)


def running(
    python: str, verb: str, address: str, url: str, count: int, starts: Path, *, check: bool = True
) -> Any:
    """The program with the library, for a nursery to start."""
    return partial(
        trio.run_process, [python, str(PROGRAM), verb, address, url, str(count)], check=check,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(starts.parent)},
    )  # fmt: skip


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


def started(starts: Path) -> list[int]:
    """The numbers of the tasks whose runs were started."""
    return [int(line) for line in starts.read_text().split()]


def good(ended: list[dict[str, Any]]) -> list[int]:
    """The numbers of runs that ended well."""
    assert {(each["ok"], each["reward"], *each["why"]) for each in ended} == {(True, 1.0)}
    assert min(each["deltas"] for each in ended) > 1
    return sorted(each["number"] for each in ended)


async def test_what_prime_rl_does_with_a_server_that_it_did_not_start(starts: Path):
    held = Held()
    held.go.set()
    async with asking("prime-rl", held.endpoint, 3, starts) as (client, _, _):
        right_one = {"ok": True, "same": True, "reward": 1.0, "turns": 1}
        assert await client.hear(3) == [right_one] * 3
        assert held.endpoint.asks[0].body["cache_salt"] == "0"
        held.go = trio.Event()
        await held.all_wait(3)
        await client.go_on()
        assert await client.hear() == [{"cancelled": 3}]
        while held.endpoint.waiting:  # the cancels close their requests
            await trio.sleep(0.05)
        assert sum(ask.closed for ask in held.endpoint.asks) == 3
        await client.go_on()


async def test_runs_end_with_their_rewards_and_deltas_though_connections_are_cut(starts: Path):
    held = Held()
    async with asking("runs", held.endpoint, RUNS - 1, starts, workers=2) as (client, _, proxy):
        await held.all_wait(FEW)
        assert proxy.cut_all() == 1
        held.go.set()
        assert good(await client.hear(RUNS)) == list(range(RUNS))
    assert Counter(started(starts)) == Counter(number % TASKS for number in range(RUNS))


async def test_the_runs_of_a_killed_worker_fail_and_the_others_go_on(starts: Path):
    held = Held()
    async with asking("runs", held.endpoint, 6, starts, workers=2) as (client, server, _):
        await held.all_wait(6)
        first, second = server.stats().per_worker
        assert first.pid is not None
        os.kill(first.pid, signal.SIGKILL)
        lost = await client.hear(first.pending)
        assert all("(it may have run) [worker-lost]" in each["error"] for each in lost)
        held.go.set()
        others = await client.hear(second.pending)
        assert len(lost) + len(others) == 6
        assert len(good(others)) == len(others) > 0
        assert good(await client.hear()) == [6]  # the next one
    assert sorted(started(starts)) == list(range(7))


# -- what the library's own server does --------------------------------------------------

SILENCE_S = 10.0
"""For the claim that nothing comes: no answer of this server's own would take so long."""


async def test_the_library_s_own_server_leaves_the_callers_of_a_killed_worker_waiting(
    starts: Path, folder: str
):
    held = Held()
    address = f"ipc://{folder}/own"
    with trio.fail_after(HANG_S):
        async with serve(held.endpoint) as url, trio.open_nursery() as nursery:
            own = await nursery.start(
                running(PYTHON, "serve", address, url, 2, starts, check=False)
            )
            asks = await nursery.start(
                running(PYTHON, "runs", address, url, 4, starts, check=False)
            )
            await held.all_wait(4)
            first, second = workers_of(own.pid)
            os.kill(first, signal.SIGKILL)
            held.go.set()
            client = Client(asks)
            assert [each["ok"] for each in await client.hear(2)] == [True, True]
            async with asking_raw(address) as peer:
                peer.say(b"h", b"health", b"\x80")
                assert (await peer.reply(b"h"))["success"] is True
            with trio.move_on_after(SILENCE_S) as silence:
                await client.hear()
            assert silence.cancelled_caught
            assert workers_of(own.pid) == [second]  # nobody replaces it
            for pid in (asks.pid, own.pid, second):  # they do not end when they are asked to
                os.kill(pid, signal.SIGKILL)


def workers_of(pid: int) -> list[int]:
    """The worker processes of the library's server."""
    return [
        child
        for child in children(pid)
        if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()
    ]

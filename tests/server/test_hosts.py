"""Workers that a host of another process owns: hosts and routers are killed and come back, and
strangers say what they like at the address for hosts."""

from __future__ import annotations

import inspect
import os
import random
import resource
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import cbor2
import pytest
import trio
import trio.lowlevel

from tests.connections import held_port
from tests.core.test_host_pool import broken_ones, first_hello
from tests.real.environments import Actor, Steps
from tests.real.judge import Judge
from tests.real.support import (
    ACTOR,
    ANY_PORT,
    PATIENCE_S,
    QUICK,
    Calls,
    host_process,
    open_calls,
    open_server_process,
    until,
)
from trio_envserve import (
    Client,
    ClientCurve,
    KeyPair,
    ServerCurve,
    ServerLimits,
    WireLimits,
    WorkerLost,
    open_client,
    open_host,
    open_server,
)
from trio_envserve.core.host import FromHost, Host
from trio_envserve.core.host_messages import HostWelcome, decode, encode
from trio_envserve.core.lease import EpochWait
from trio_envserve.core.stack_frames import authors_line
from trio_envserve.host.joined import boot_s
from trio_envserve.host.locks import ServerLocks
from trio_envserve.lab.processes import Process
from trio_envserve.net import DealerSocket, open_zmtp_network
from trio_envserve.server import curve as curve_module
from trio_envserve.server.hosts import EpochRecords
from trio_envserve.server.shell import Server

from .helpers import SERVER, key_folder, write_client


@asynccontextmanager
async def open_router(judge: Judge, **options: Any) -> AsyncIterator[Server]:
    """A server in this process, whose workers are those of its hosts."""
    async with open_server(
        ACTOR, args={"directory": str(judge.directory)}, workers=0,
        limits=ServerLimits(**{**QUICK, "start_s": PATIENCE_S}),
        **{"hosts_bind": ANY_PORT, **options},
    ) as server:  # fmt: skip
        yield server


def router_process(
    judge: Judge, bind: str, hosts: str, *, fence_s: float = 1000.0, journal: bool = True
) -> AbstractAsyncContextManager[Process]:
    """The same in a process of its own."""
    told = {"hosts_bind": hosts, "fence_s": fence_s}
    return open_server_process(
        judge, bind=bind, journal=journal, hosts=told, worker_capacity=20, start_s=PATIENCE_S
    )


@asynccontextmanager
async def addresses() -> AsyncIterator[tuple[str, str]]:
    """Where clients and hosts find a router, and the next one after it."""
    with held_port() as clients, held_port() as hosts:
        yield f"tcp://127.0.0.1:{clients}", f"tcp://127.0.0.1:{hosts}"


async def kill(process: Process) -> None:
    process.signal(signal.SIGKILL)
    await process.wait()


def start_keyed(calls: Calls, key: str, gate: str = "gate") -> None:
    """A call under a key, which waits for a gate."""
    asked = {"key": key, "do": [["wait", gate]], "value": None}
    calls._nursery.start_soon(calls._run, key, asked, {"key": key, "rerun": False})


# -- a question -------------------------------------------------------------------------


def line_of(function: Any, code: str) -> str:
    """The place of a line of a function, as a stack has it."""
    lines, first = inspect.getsourcelines(function)
    (number,) = [number for number, line in enumerate(lines, first) if code in line]
    return f'File "{inspect.getsourcefile(function)}", line {number}, in {function.__name__}'


@pytest.mark.real
async def test_the_line_at_which_a_rollout_on_a_host_stands_is_told(judge: Judge):
    places = {
        "waits": line_of(Actor._wait, "await trio.sleep"),
        "blocks": line_of(Steps.block, "time.sleep"),
    }
    with trio.fail_after(PATIENCE_S):
        async with (
            open_router(judge) as server,
            open_calls(server.address) as calls,
            host_process(server.hosts_address),
        ):
            calls.start("waits", ["wait", "go"])
            await judge.wait_started("waits")
            assert await told_line(calls.client, 0, places["waits"]) == places["waits"]
            calls.start("blocks", ["block", "go"])  # the loop of its worker
            await judge.wait_started("blocks")
            assert await told_line(calls.client, 1, places["blocks"]) == places["blocks"]
            judge.put("go")
            await calls.values("waits", "blocks")


async def told_line(client: Client, index: int, place: str) -> str:
    """The line at which the code of a rollout stands once it has come to a place."""
    row = (await client.list_running()).running[index]
    line = ""
    while line != place:
        line = authors_line(await client.stack(row.number, timeout_s=PATIENCE_S) or "")
    return line


# -- a host is killed -------------------------------------------------------------------


@pytest.mark.real
@pytest.mark.slow
async def test_what_ran_on_a_host_that_was_killed_runs_again_only_with_consent(judge):
    with trio.fail_after(PATIENCE_S):
        async with open_router(judge, fence_s=5.0) as server, open_calls(server.address) as calls:
            async with host_process(server.hosts_address, "a", 2) as host:
                calls.start("again", ["wait", "go"], rerun=True)
                calls.start("once", ["wait", "go"], rerun=False)
                await judge.wait_started("again", "once")
                await kill(host)
            judge.put("go")
            async with host_process(server.hosts_address, "b", 2):
                await calls.value("again")
                await calls.error("once", WorkerLost)
            assert judge.starts("once") == 1
            judge.assert_at_most(2)


@pytest.mark.real
@pytest.mark.slow
async def test_the_next_host_of_a_name_need_not_wait_for_the_lease(judge):
    with trio.fail_after(PATIENCE_S):
        # The lease would take longer than this test may.
        async with (
            open_router(judge, fence_s=1000.0) as server,
            open_calls(server.address) as calls,
        ):
            async with host_process(server.hosts_address) as host:
                calls.start("again", ["wait", "go"], rerun=True)
                await judge.wait_started("again")
                await kill(host)
            judge.put("go")
            async with host_process(server.hosts_address):
                await calls.value("again")
            judge.assert_at_most(2)


# -- a router is killed -----------------------------------------------------------------


@pytest.mark.real
@pytest.mark.slow
async def test_what_the_journal_does_not_know_is_stopped_before_it_runs_again(judge: Judge):
    """A call without a key, and with consent, is lost with its router."""
    with trio.fail_after(PATIENCE_S):
        async with addresses() as (bind, hosts), host_process(hosts, "a", 2):
            async with router_process(judge, bind, hosts) as first, open_calls(bind) as calls:
                start_keyed(calls, "keyed")
                calls.start("plain", ["wait", "gate"], rerun=True)
                await judge.wait_started("keyed", "plain")
                await kill(first)
                async with router_process(judge, bind, hosts):
                    await judge.wait_started("plain", times=2)
                    judge.put("gate")
                    await calls.value("plain")
                    await calls.value("keyed")
    judge.assert_one_at_a_time()
    assert [judge.starts(key) for key in ("keyed", "plain")] == [1, 2]


@pytest.mark.real
@pytest.mark.slow
async def test_routers_that_are_killed_one_after_the_other_start_nothing_twice(judge: Judge):
    keys = [f"k{number}" for number in range(6)]
    with trio.fail_after(PATIENCE_S):
        async with AsyncExitStack() as stack:
            bind, hosts = await stack.enter_async_context(addresses())
            for name in "ab":
                await stack.enter_async_context(host_process(hosts, name, 2))
            current = await stack.enter_async_context(router_process(judge, bind, hosts))
            calls = await stack.enter_async_context(open_calls(bind))
            for number, key in enumerate(keys):
                start_keyed(calls, key, f"gate{number}")
                await judge.wait_started(key)
                await kill(current)
                current = await stack.enter_async_context(router_process(judge, bind, hosts))
            for number, key in enumerate(keys):
                judge.put(f"gate{number}")
                await calls.value(key)
    judge.assert_exactly_once(*keys)


@pytest.mark.real
@pytest.mark.slow
async def test_without_a_journal_a_host_ends_its_workers_first(judge: Judge):
    with trio.fail_after(PATIENCE_S):
        async with addresses() as (bind, hosts), host_process(hosts, "a", 2):
            async with (
                router_process(judge, bind, hosts, journal=False) as first,
                open_calls(bind) as calls,
            ):
                calls.start("plain", ["wait", "gate"], rerun=True)
                await judge.wait_started("plain")
                await kill(first)
                async with router_process(judge, bind, hosts, journal=False):
                    await judge.wait_started("plain", times=2)
                    judge.put("gate")
                    await calls.value("plain")
    judge.assert_at_most(2)


@pytest.mark.real
async def test_hosts_of_a_router_without_a_journal_waited_for_the_whole_lease(judge):
    """The next router answered nobody for so long; the hosts had only to end their workers."""
    lease_s = 10 * PATIENCE_S
    with trio.fail_after(PATIENCE_S):
        async with addresses() as (bind, hosts):
            async with router_process(judge, bind, hosts, fence_s=lease_s, journal=False) as first:
                async with open_host(hosts, workers=1) as host:
                    async with open_client(bind) as client:
                        await client.wait_ready()
                    await kill(first)
                    async with open_router(
                        judge, bind=bind, hosts_bind=hosts, fence_s=lease_s
                    ) as server:
                        await server.wait_ready()
                        assert host.is_joined


@pytest.mark.usefixtures("nothing_left")
async def test_a_server_waits_for_the_hosts_of_the_one_before():
    # A path of a socket may have some hundred characters.
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, trio.fail_after(PATIENCE_S):
        address = f"ipc://{folder}/s"
        locks = ServerLocks.of_address(address)
        records = EpochRecords([locks.epochs.path])
        records.write([EpochWait(b"e" * 16, 1000.0)])
        locks.close()
        async with open_server("arithmetic", bind=address, workers=0) as server:
            await until(lambda: "hosts of an earlier server" in server.status().reason)
            assert not server.status().ready
            assert "(1000 s)" in server.status().reason
        # It has not waited to the end: so the next one has to.
        assert records.read() == [EpochWait(b"e" * 16, 1000.0)]


# -- hosts without processes ------------------------------------------------------------


@asynccontextmanager
async def open_simulated(
    address: str, count: int, pause_s: float = 0.1
) -> AsyncIterator[list[Host]]:
    """Hosts that join over connections of their own, and start no process."""

    def send(host: Host, socket: DealerSocket) -> None:
        out, host.out = host.out, []
        for effect in out:
            if isinstance(effect, FromHost):
                socket.send_nowait(effect.frames)

    async def serve(host: Host, socket: DealerSocket) -> None:
        host.connect()
        send(host, socket)
        while True:
            for frames in await socket.receive():
                host.message([bytes(frame) for frame in frames], boot_s())
            host.beat(boot_s())
            send(host, socket)
            await trio.sleep(pause_s)

    async with open_zmtp_network() as network, AsyncExitStack() as stack:
        sockets = [
            await stack.enter_async_context(network.open_dealer(address, limits=WireLimits()))
            for _ in range(count)
        ]
        async with trio.open_nursery() as nursery:
            hosts = [Host(f"h{number}", 1, lambda: os.urandom(16)) for number in range(count)]
            for host, socket in zip(hosts, sockets, strict=True):
                nursery.start_soon(serve, host, socket)  # noqa: ASYNC113
            yield hosts
            nursery.cancel_scope.cancel()


# -- bad input at the address for hosts ---------------------------------------------------

NODE, TRAINER, OTHER = (KeyPair.new() for _ in range(3))
JOINS = 1000


@asynccontextmanager
async def open_plain(**options: Any) -> AsyncIterator[Server]:
    limits = ServerLimits(reap_s=0.1, stop_s=0.1)  # no host here has processes to wait for
    async with open_server(
        "arithmetic", workers=0, hosts_bind=ANY_PORT, limits=limits, **options
    ) as server:
        yield server


@asynccontextmanager
async def open_stranger(server: Server) -> AsyncIterator[Any]:
    """A connection to the address for hosts."""
    async with (
        open_zmtp_network() as network,
        network.open_dealer(server.hosts_address, limits=WireLimits()) as socket,
    ):
        yield socket


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """Both ends of each connection are in this process."""
    before, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 4 * JOINS
    if most != resource.RLIM_INFINITY and most < wanted:
        pytest.skip(f"this process may have {most} descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before, wanted), most))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (before, most))


@pytest.mark.real
@pytest.mark.slow
async def test_a_thousand_hosts_join_at_once(many_descriptors: None):
    with trio.fail_after(PATIENCE_S):
        async with (
            open_plain() as server,
            open_simulated(server.hosts_address, JOINS, pause_s=2.0) as hosts,
        ):
            await until(lambda: all(host.lease.holds(boot_s()) for host in hosts))
            assert not server.stats().past_hosts, "one was refused"
            assert len(server.stats().hosts) == JOINS


@pytest.mark.real
async def test_hostile_messages_end_nobody_elses_session(caplog: pytest.LogCaptureFixture):
    luck = random.Random(7)
    with trio.fail_after(PATIENCE_S):
        async with (
            open_plain() as server,
            open_simulated(server.hosts_address, 1) as (host,),
            open_stranger(server) as socket,
        ):
            await until(lambda: host.lease.holds(boot_s()))
            membership = host.lease.membership
            for array in luck.sample(broken_ones(b"z" * 16), 500):
                data = bytearray(cbor2.dumps(array))
                if luck.random() < 0.3:
                    data[luck.randrange(len(data))] ^= 1 << luck.randrange(8)
                while not socket.send_nowait((bytes(data), *[b"x"] * luck.choice((0, 0, 1, 40)))):
                    await trio.lowlevel.checkpoint()
            socket.send_nowait((encode(first_hello("after", b"a" * 16)),))
            is_welcome = False
            while not is_welcome:
                for frames in await socket.receive():
                    answer, _ = decode([bytes(frame) for frame in frames], most_bytes=1 << 20)
                    is_welcome |= isinstance(answer, HostWelcome) and answer.membership == b"a" * 16
            renewed_s = host.lease.deadline_s
            await until(lambda: host.lease.deadline_s != renewed_s)
            assert host.lease.membership == membership
            assert {"h0", "after"} <= {each.host for each in server.stats().hosts}
            assert server.stats().malformed > 300
    lines = [each for each in caplog.messages if each.startswith("host 0")]
    assert 1 <= len(lines) < 100, "a line for each would fill the log"


# -- keys -------------------------------------------------------------------------------


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    folder = key_folder(tmp_path / "keys")
    write_client(folder, "node", NODE, '["work"]')
    write_client(folder, "trainer", TRAINER)
    return folder


@pytest.mark.real
@pytest.mark.slow
async def test_a_key_that_is_revoked_while_its_host_runs_work(judge, keys: Path, monkeypatch):
    """The host is told, its workers are dead with the lease, and the call ends then."""
    monkeypatch.setattr(curve_module, "RELOAD_S", 0.05)
    with trio.fail_after(PATIENCE_S):
        async with (
            open_router(judge, curve=ServerCurve.from_folder(keys), fence_s=2.0) as server,
            open_client(server.address, curve=ClientCurve(SERVER.public, TRAINER)) as client,
            trio.open_nursery() as nursery,
            open_host(
                server.hosts_address, ACTOR, args={"directory": str(judge.directory)},
                name="node", curve=ClientCurve(SERVER.public, NODE),
            ) as host,
        ):  # fmt: skip
            calls = Calls(client, nursery)
            calls.start("k", ["wait", "go"], rerun=False)
            await judge.wait_started("k")
            (keys / "clients" / "node.toml").unlink()
            await until(lambda: "the key node was revoked" in host.trouble)
            await until(lambda: not host.workers)
            error = await calls.error("k", WorkerLost)
            assert "node" in str(error)
            await until(lambda: not server.stats().hosts)
    assert judge.starts("k") == 1

"""Workers that a host of another process owns."""

from __future__ import annotations

import os
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
import trio

from tests.real.support import (
    ACTOR,
    ANY_PORT,
    PATIENCE_S,
    QUICK,
    open_calls,
    open_process,
    until,
)
from trio_envserve import (
    ClientCurve,
    ClientRight,
    ConfigError,
    KeyPair,
    ServerCurve,
    ServerLimits,
    ServerStartError,
    WireLimits,
    WorkerLost,
    open_client,
    open_host,
    open_server,
)
from trio_envserve.core.earlier_epochs import EpochWait
from trio_envserve.core.host import Host
from trio_envserve.core.host_effects import ToRouter
from trio_envserve.core.lease import NO_LEASE_S, LeaseTerms
from trio_envserve.host.joined import boot_s
from trio_envserve.host.locks import AddressLocks
from trio_envserve.lab.processes import Process
from trio_envserve.net import DealerSocket, open_zmtp_network
from trio_envserve.server.hosts import EpochRecords
from trio_envserve.server.shell import Server

T1, T2 = b"1" * 16, b"2" * 16

HOST = """
import sys, trio
from trio_envserve import ServerLimits
from trio_envserve.host.opening import open_host
from tests.real.support import ACTOR, QUICK

async def main():
    address, directory, name, workers = sys.argv[1:]
    async with open_host(
        address, ACTOR, args={"directory": directory}, name=name, workers=int(workers),
        limits=ServerLimits(**QUICK),
    ):
        await trio.to_thread.run_sync(sys.stdin.read)

trio.run(main)
"""


def free_port() -> int:
    """One that was free just now."""
    with socket.create_server(("127.0.0.1", 0)) as made:
        return int(made.getsockname()[1])


@asynccontextmanager
async def open_router(judge, **options) -> AsyncIterator[Server]:
    async with open_server(
        ACTOR, args={"directory": str(judge.directory)}, workers=0,
        limits=ServerLimits(**{**QUICK, "start_s": PATIENCE_S}),
        **{"hosts_bind": ANY_PORT, **options},
    ) as server:  # fmt: skip
        yield server


def host_process(hosts: str, judge, name: str, workers: int = 2) -> Process:
    """A host in a process of its own, until its input ends."""
    command = [sys.executable, "-c", HOST, hosts, str(judge.directory), name, str(workers)]
    return Process(command, f"host {name}", end_s=PATIENCE_S)


@pytest.mark.real
@pytest.mark.slow
async def test_a_hundred_rollouts_run_on_a_host_and_none_twice(judge):
    with trio.fail_after(PATIENCE_S):
        async with (
            open_router(judge) as server,
            host_process(server.hosts_address, judge, "a"),
            open_calls(server.address) as calls,
        ):
            keys = [calls.start(f"k{number}") for number in range(100)]
            for key in keys:
                await calls.value(key)
            judge.assert_exactly_once(*keys)


@pytest.mark.real
@pytest.mark.slow
async def test_what_ran_on_a_host_that_was_killed_runs_again_only_with_consent(judge):
    with trio.fail_after(PATIENCE_S):
        async with open_router(judge, fence_s=5.0) as server, open_calls(server.address) as calls:
            async with host_process(server.hosts_address, judge, "a") as host:
                calls.start("again", ["wait", "go"], rerun=True)
                calls.start("once", ["wait", "go"], rerun=False)
                await judge.wait_started("again", "once")
                host.signal(signal.SIGKILL)
                await host.wait()
            judge.put("go")
            async with host_process(server.hosts_address, judge, "b"):
                await calls.value("again")
                await calls.error("once", WorkerLost)
            assert judge.starts("once") == 1
            judge.assert_at_most(2)


@pytest.mark.real
@pytest.mark.slow
async def test_the_next_host_of_a_name_need_not_wait_for_the_lease(judge):
    with trio.fail_after(PATIENCE_S):
        # The lease would take longer than this test may.
        async with open_router(judge, fence_s=1000.0) as server:
            async with open_calls(server.address) as calls:
                async with host_process(server.hosts_address, judge, "a", 1) as host:
                    calls.start("again", ["wait", "go"], rerun=True)
                    await judge.wait_started("again")
                    host.signal(signal.SIGKILL)
                    await host.wait()
                judge.put("go")
                async with host_process(server.hosts_address, judge, "a", 1):
                    await calls.value("again")
                judge.assert_at_most(2)


@pytest.mark.real
@pytest.mark.slow
async def test_only_a_key_with_the_role_work_joins(judge):
    own, worker, trainer = KeyPair.new(), KeyPair.new(), KeyPair.new()
    curve = ServerCurve(
        own,
        {"worker": ClientRight(worker.public, ("work",)), "client": ClientRight(trainer.public)},
    )
    with trio.fail_after(PATIENCE_S):
        async with (
            open_router(judge, curve=curve) as server,
            open_client(server.address, curve=server.curve) as client,
            open_host(
                server.hosts_address,
                ACTOR,
                args={"directory": str(judge.directory)},
                name="no",
                curve=ClientCurve(own.public, trainer),
            ) as refused,
        ):
            async with open_host(
                server.hosts_address,
                ACTOR,
                args={"directory": str(judge.directory)},
                name="yes",
                curve=ClientCurve(own.public, worker),
            ) as host:
                await host.wait_joined()
                await client.run_rollout({"key": "a", "do": [], "value": 1})
                await host.leave()
            assert not refused.is_joined


@asynccontextmanager
async def open_simulated(
    address: str, count: int, pause_s: float = 0.1
) -> AsyncIterator[list[Host]]:
    """Hosts that join over connections of their own, and start no process."""

    def send(host: Host, socket: DealerSocket) -> None:
        out, host.out = host.out, []
        for effect in out:
            if isinstance(effect, ToRouter):
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


@pytest.mark.real
async def test_two_hundred_hosts_join_at_once():
    with trio.fail_after(PATIENCE_S):
        async with open_server("arithmetic", workers=0, hosts_bind=ANY_PORT) as server:
            async with open_simulated(server.hosts_address, 200) as hosts:
                await until(lambda: all(host.lease.holds(boot_s()) for host in hosts))
                assert not server.stats().past_hosts, "one was refused"
                assert len(server.stats().hosts) == 200


@pytest.mark.real
async def test_an_id_is_in_use_until_the_lease_has_ended():
    with trio.fail_after(PATIENCE_S):
        async with open_server("arithmetic", workers=0, hosts_bind=ANY_PORT) as server:
            async with open_simulated(server.hosts_address, 1):
                await until(lambda: bool(server.stats().hosts))
            # It is gone without a word, and nothing shows that its workers are dead.
            async with open_simulated(server.hosts_address, 1) as (again,):
                await until(lambda: again.refusal is not None)
                assert again.refusal == ("in-use", "another host is here as h0")


def test_a_later_server_reads_how_long_the_hosts_of_earlier_ones_may_have_workers(tmp_path):
    locks = [tmp_path / "address.epochs", tmp_path / "epochs.lock"]
    records = EpochRecords(locks)
    assert records.read() == []
    records.write([EpochWait(b"e" * 16, 31.5)])
    # Of a server with the same journal, at another address.
    assert EpochRecords([tmp_path / "other.epochs", locks[1]]).read() == [
        EpochWait(b"e" * 16, 31.5)
    ]
    records.clear()
    assert EpochRecords(locks).read() == []


def test_a_later_server_reads_which_hosts_may_have_workers(tmp_path):
    locks = [tmp_path / "address.epochs", tmp_path / "epochs.lock"]
    one, both = (EpochWait(b"e" * 16, 31.5, frozenset(ids)) for ids in ([b"t" * 16], [T1, T2]))
    EpochRecords(locks).write([both])
    assert EpochRecords(locks).read() == [both]
    EpochRecords(locks[:1]).write([one])  # it was killed before it wrote the other file
    (found,) = EpochRecords(locks).read()
    assert found.tenures == frozenset((b"t" * 16, T1, T2))
    EpochRecords(locks[:1]).write([EpochWait(b"e" * 16, 40.0)])
    assert EpochRecords(locks).read() == [EpochWait(b"e" * 16, 40.0)]


@pytest.mark.usefixtures("nothing_left")
async def test_a_server_waits_for_the_hosts_of_the_one_before():
    # A path of a socket may have some hundred characters.
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, trio.fail_after(PATIENCE_S):
        address = f"ipc://{folder}/s"
        locks = AddressLocks(address)
        EpochRecords([locks.epochs.path]).write([EpochWait(b"e" * 16, 1000.0)])
        locks.close()
        async with open_server("arithmetic", bind=address, workers=0) as server:
            await until(lambda: "hosts of an earlier server" in server.status().reason)
            assert not server.status().ready
            assert "(1000 s)" in server.status().reason
        # It has not waited to the end: so the next one has to.
        assert EpochRecords([locks.epochs.path]).read() == [EpochWait(b"e" * 16, 1000.0)]


@pytest.mark.usefixtures("nothing_left")
async def test_a_server_says_who_can_end_the_wait_for_hosts_that_had_no_lease():
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, trio.fail_after(PATIENCE_S):
        address = f"ipc://{folder}/s"
        locks = AddressLocks(address)
        EpochRecords([locks.epochs.path]).write(
            [EpochWait(b"e" * 16, LeaseTerms(NO_LEASE_S).wait_s)]
        )
        locks.close()
        async with open_server("arithmetic", bind=address, workers=0) as server:
            await until(lambda: "they had no lease" in server.status().reason)
            assert str(locks.epochs.path.with_suffix(".hosts")) in server.status().reason


@pytest.mark.real
async def test_a_router_without_a_lease_loses_no_host_by_silence():
    with trio.fail_after(PATIENCE_S):
        limits = ServerLimits(reap_s=0.1, stop_s=0.1)
        async with open_server(
            "arithmetic", workers=0, hosts_bind=ANY_PORT, fence_s=None, limits=limits
        ) as server:
            async with open_simulated(server.hosts_address, 1) as (host,):
                await until(lambda: host.lease.holds(boot_s()))
                assert host.lease.holds(boot_s() + 3600 * 24 * 365)
            (here,) = server.stats().hosts
            assert here.lost_s > 3600 * 24 * 365


@pytest.mark.real
async def test_hosts_of_a_router_without_a_journal_waited_for_the_whole_lease(judge, tmp_path):
    """The next router answered nobody for so long; the hosts had only to end their workers."""
    options: dict[str, Any] = {
        "fence_s": 10 * PATIENCE_S, "bind": f"tcp://127.0.0.1:{free_port()}",
        "hosts_bind": f"tcp://127.0.0.1:{free_port()}",
    }  # fmt: skip
    serving = {
        "environment": ACTOR, "args": {"directory": str(judge.directory)}, "workers": 0,
        "limits": {**QUICK, "start_s": PATIENCE_S}, **options,
    }  # fmt: skip
    with trio.fail_after(PATIENCE_S):
        async with open_process(judge, "server_main", serving) as router:
            async with open_host(options["hosts_bind"], workers=1) as host:
                async with open_client(options["bind"]) as client:
                    await client.wait_ready()
                router.signal(signal.SIGKILL)
                await router.wait()
                async with open_router(judge, **options) as server:
                    await server.wait_ready()
                    assert host.is_joined


@pytest.mark.parametrize("text", ["nonsense", "00 1.0\n", "xy 1.0\n"])
def test_a_record_that_cannot_be_read_proves_nothing(tmp_path, text):
    (tmp_path / "a.hosts").write_text(text)
    with pytest.raises(ServerStartError):
        EpochRecords([tmp_path / "a.epochs"]).read()


async def test_a_lease_that_cannot_hold_is_refused():
    with pytest.raises(ConfigError, match="fence_s"):
        async with open_server(hosts_bind=ANY_PORT, workers=0, fence_s=0.0):
            raise AssertionError("it was opened")


async def test_what_hosts_do_is_not_recorded(tmp_path):
    with pytest.raises(ConfigError, match="give record or hosts_bind"):
        async with open_server(hosts_bind=ANY_PORT, workers=0, record=tmp_path / "a.rec"):
            raise AssertionError("it was opened")


async def test_a_host_needs_workers():
    with pytest.raises(ConfigError, match="workers"):
        async with open_host("tcp://127.0.0.1:1", "arithmetic", workers=0):
            raise AssertionError("it was opened")

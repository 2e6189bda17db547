"""Bad input at the address for hosts."""

from __future__ import annotations

import random
import resource
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import cbor2
import pytest
import trio
import trio.lowlevel

from tests.core.test_host_pool import broken_ones, first_hello
from tests.real.support import ACTOR, ANY_PORT, PATIENCE_S, Calls, until
from trio_envserve import (
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
from trio_envserve.core.host_messages import HostWelcome, decode, encode
from trio_envserve.host.joined import boot_s
from trio_envserve.net import open_zmtp_network
from trio_envserve.server import curve as curve_module
from trio_envserve.server.shell import Server

from .helpers import SERVER, key_folder, write_client
from .test_hosts import open_router, open_simulated

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
            tenure = host.lease.tenure
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
                    is_welcome |= isinstance(answer, HostWelcome) and answer.tenure == b"a" * 16
            renewed_s = host.lease.deadline_s
            await until(lambda: host.lease.deadline_s != renewed_s)
            assert host.lease.tenure == tenure
            assert {"h0", "after"} <= {each.host for each in server.stats().hosts}
    lines = [each for each in caplog.messages if "sent a malformed message" in each]
    assert 1 <= len(lines) < 100, "a line for each would fill the log"


# -- keys -------------------------------------------------------------------------------


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    folder = key_folder(tmp_path / "keys")
    write_client(folder, "node", NODE, '["work"]')
    write_client(folder, "trainer", TRAINER)
    return folder


@pytest.mark.real
async def test_a_host_under_the_name_of_another_keys_is_refused_in_words(keys: Path):
    write_client(keys, "other", OTHER, '["work"]')
    node, other = ClientCurve(SERVER.public, NODE), ClientCurve(SERVER.public, OTHER)
    with trio.fail_after(PATIENCE_S):
        async with open_plain(curve=ServerCurve.from_folder(keys)) as server:
            address = server.hosts_address
            async with open_host(address, "arithmetic", name="node", curve=node) as host:
                await until(lambda: host.is_joined)
            async with open_host(address, "arithmetic", name="node", curve=other) as host:
                await until(lambda: "the name node belongs to the key node" in host.trouble)
                assert not host.is_joined
            async with open_host(address, "arithmetic", name="node", curve=node) as host:
                await until(lambda: host.is_joined)


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

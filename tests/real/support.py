"""What the tests with real processes share: servers and clients as processes,
calls in the background, and a client that does as it likes.

Each that is opened here may stay for :data:`PATIENCE_S`."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import trio

from tests.cli.commands import open_forked
from tests.connections import own_host
from tests.proc import is_alive, status_of
from tests.real.judge import Judge
from trio_envserve import (
    CallError,
    Client,
    ClientLimits,
    ErrorInfo,
    Outcome,
    Server,
    ServerLimits,
    WorkerRange,
    WorkerStats,
    open_client,
)
from trio_envserve import open_server as open_real_server
from trio_envserve.core.limits import WireLimits
from trio_envserve.lab.conformance.peer import ConformancePeer, open_peer
from trio_envserve.lab.processes import ROOT as ROOT
from trio_envserve.lab.processes import Process, program
from trio_envserve.lab.processes import until as until
from trio_envserve.net import open_zmq_network
from trio_envserve.testing.proxy import FaultProxy, open_fault_proxy

ACTOR = "tests.real.environments:Actor"
ANY_PORT = f"tcp://{own_host()}:0"
PATIENCE_S = 180.0
"""A test that takes so long hangs.  No test waits for this."""

SOON_S = 30.0
"""What takes milliseconds and has not come so soon does not come."""

E = TypeVar("E", bound=CallError)

QUICK: dict[str, Any] = {
    "tick_s": 0.02, "beat_s": 0.2, "heartbeat_s": 0.1, "retry_delay_s": 0.05,
    "restart_pause_s": 0.02, "restart_pause_max_s": 0.1, "reap_settle_s": 0.05,
}  # fmt: skip
"""Timers of a server that repair quickly.  None of them decides about a life."""

QUICK_CLIENT: dict[str, Any] = {"ping_s": 0.1, "idle_ping_s": 0.1, "hello_retry_s": 0.1}

WIRE = WireLimits(reconnect_max_s=0.1)


@asynccontextmanager
async def open_server(
    judge: Judge, *, environment: str = ACTOR, workers: int | WorkerRange = 1,
    args: dict[str, Any] | None = None, wire: WireLimits | None = None,
    bind: str = ANY_PORT, worker_environ: Sequence[Mapping[str, str]] = (),
    hosted: bool = False, **limits: Any,
) -> AsyncIterator[Server]:  # fmt: skip
    """A server in this process, its workers in theirs (``workers=0``: here, too), or those of
    hosts that join, which start as slowly as they like."""
    if hosted:
        workers, limits = 0, {"start_s": PATIENCE_S, **limits}
    with trio.fail_after(PATIENCE_S):
        async with open_real_server(
            environment, args={"directory": str(judge.directory), **(args or {})},
            workers=workers, limits=ServerLimits(**{**QUICK, **limits}), wire=wire, bind=bind,
            worker_environ=worker_environ, hosts_bind=ANY_PORT if hosted else None,
        ) as server:  # fmt: skip
            yield server
            assert not server.stats().differences


async def honest_s(judge: Judge) -> float:
    """A limit that an honest worker keeps, from its start on, however slow this machine is;
    one that is to be killed is waited for as long."""
    began_s = trio.current_time()
    async with open_server(judge) as server:
        await server.wait_ready()
    return 3.0 + 4 * (trio.current_time() - began_s)


class Calls:
    def __init__(self, client: Client, nursery: trio.Nursery) -> None:
        self.client = client
        self.outcomes: dict[str, Outcome] = {}
        self._nursery = nursery
        self._scopes: dict[str, trio.CancelScope] = {}
        self._changed = trio.lowlevel.ParkingLot()

    def start(self, key: str, *do: list[Any], value: Any = None, **options: Any) -> str:
        """Ask for a rollout that does these steps; returns the key."""
        self._nursery.start_soon(self._run, key, asked(key, *do, value=value), options)
        return key

    async def _run(self, key: str, what: dict[str, Any], options: dict[str, Any]) -> None:
        with trio.CancelScope() as self._scopes[key]:
            self.outcomes[key] = await self.client.outcome(what, **options)
        self._changed.unpark_all()

    def cancel(self, key: str) -> None:
        self._scopes[key].cancel()

    async def outcome(self, key: str) -> Outcome:
        while key not in self.outcomes:
            await self._changed.park()
        return self.outcomes[key]

    async def error(self, key: str, kind: type[E]) -> E:
        """The error of a call that must end with one of this kind, exactly."""
        error = (await self.outcome(key)).error
        assert type(error) is kind, error
        return error

    async def failure(self, key: str) -> CallError:
        """The error of a call that must end with one, of whatever kind."""
        error = (await self.outcome(key)).error
        assert error is not None
        return error

    async def value(self, key: str) -> Any:
        """The value of a call that must have one, and whose it is."""
        value = (await self.outcome(key)).unwrap()
        assert value["key"] == key
        return value

    async def values(self, *keys: str) -> None:
        for key in keys:
            await self.value(key)


@asynccontextmanager
async def open_calls(address: str, **limits: Any) -> AsyncIterator[Calls]:
    """A client in this process, and a nursery for its calls."""
    opened = open_client(address, limits=ClientLimits(**{**QUICK_CLIENT, **limits}), wire=WIRE)
    async with opened as client, trio.open_nursery() as nursery:
        yield Calls(client, nursery)
        nursery.cancel_scope.cancel()


def info_of(error: CallError) -> ErrorInfo:
    """What came over the wire about an error that did not begin at the client."""
    assert error.info is not None
    return error.info


def worker_of(server: Server) -> WorkerStats:
    """What a server in this process says of its first worker, which may not be there yet; for
    waiting, not for judging."""
    return next(iter(server.stats().per_worker), WorkerStats())


def pid_of(server: Server) -> int:
    pid = worker_of(server).pid
    assert pid is not None
    return pid


# -- processes ------------------------------------------------------------------


@asynccontextmanager
async def open_process(
    judge: Judge, module: str, options: dict[str, Any], ready: str = ""
) -> AsyncIterator[Process]:
    """A process that runs ``module``; killed at the end, if it is there yet."""
    log = judge.directory / f"{module}-{len(list(judge.directory.glob('*.txt')))}.txt"
    command = program(module, options)
    process = Process(
        command, module, ready=ready, cwd=ROOT, log=log, end_s=0.0, opening=open_forked
    )
    with trio.fail_after(PATIENCE_S):
        try:
            async with process:
                yield process
        except BaseException:
            # Shown by pytest with the failure, whatever it is.
            print(f"--- {module}, exit status {process.status}:\n{process.last_words()}")
            raise


@asynccontextmanager
async def open_server_process(
    judge: Judge, *, environment: str = ACTOR, bind: str = ANY_PORT, workers: int = 1,
    args: dict[str, Any] | None = None, journal: bool = False,
    hosts: Mapping[str, Any] | None = None, **limits: Any,
) -> AsyncIterator[Process]:  # fmt: skip
    """A server in a process of its own, bound; ``journal``: the one of this test; ``hosts``: what
    one without workers of its own is told of hosts."""
    options = {
        "environment": environment, "args": {"directory": str(judge.directory), **(args or {})},
        "bind": bind, "workers": workers, "limits": {**QUICK, **limits}, "level": "INFO",
        "journal": str(judge.directory / "journal") if journal else None,
        **({"workers": 0, **hosts} if hosts else {}),
    }  # fmt: skip
    async with open_process(judge, "tests.rig.server", options, "serving") as process:
        yield process


def host_process(address: str, name: str = "a", workers: int = 1) -> Process:
    """A host in a process of its own, until its input ends."""
    options = {"address": address, "name": name, "workers": workers, "limits": QUICK}
    command = program("tests.real.host_main", options)
    return Process(command, f"host {name}", cwd=ROOT, end_s=PATIENCE_S, opening=open_forked)


@asynccontextmanager
async def open_client_process(
    judge: Judge, address: str, calls: Iterable[tuple[dict[str, Any], dict[str, Any]]],
    **limits: Any,
) -> AsyncIterator[Process]:  # fmt: skip
    """A client in a process of its own that makes these calls."""
    options = {"address": address, "calls": list(calls), "limits": {**QUICK_CLIENT, **limits}}
    async with open_process(judge, "tests.real.client_main", options) as process:
        yield process


def is_doomed(pid: int) -> bool:
    """Whether a process is not alive, or has been killed and will not execute one more
    instruction: the system may take a moment to end it."""
    try:
        pending = int(status_of(pid, "SigPnd"), 16) | int(status_of(pid, "ShdPnd"), 16)
    except OSError:
        return True
    return not is_alive(pid) or bool(pending & 1 << signal.SIGKILL - 1)


async def wait_gone(*pids: int) -> None:
    await until(lambda: not any(map(is_alive, pids)))


async def assert_gone(*pids: int, soon_s: float = SOON_S) -> None:
    """They end; and if they do not, that is what the test says."""
    with trio.move_on_after(soon_s):
        await wait_gone(*pids)
    left = [pid for pid in pids if is_alive(pid)]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left == []


# -- a server, and who asks it -----------------------------------------------------


def asked(key: str, *do: list[Any], value: Any = None) -> dict[str, Any]:
    return {"key": key, "do": list(do), "value": value}


@asynccontextmanager
async def open_raw(address: str) -> AsyncIterator[ConformancePeer]:
    """A client that does as it likes, with a session."""
    async with (
        open_zmq_network() as network,
        open_peer(network, address, patience_s=PATIENCE_S) as raw,
    ):
        await raw.hello()
        yield raw


@asynccontextmanager
async def serving(
    judge: Judge, *, client: Mapping[str, Any] | None = None, **options: Any
) -> AsyncIterator[tuple[Server, Calls]]:
    async with open_server(judge, **options) as server:
        async with open_calls(server.address, **(client or {})) as calls:
            yield server, calls


@asynccontextmanager
async def serving_cut(
    judge: Judge, **options: Any
) -> AsyncIterator[tuple[Server, FaultProxy, Calls]]:
    async with open_server(judge, **options) as server:
        async with open_fault_proxy(server.address) as proxy, open_calls(proxy.address) as calls:
            yield server, proxy, calls


@asynccontextmanager
async def serving_raw(
    judge: Judge, **options: Any
) -> AsyncIterator[tuple[Server, ConformancePeer]]:
    async with open_server(judge, **options) as server, open_raw(server.address) as raw:
        yield server, raw


@asynccontextmanager
async def serving_process(
    judge: Judge, *, client: Mapping[str, Any] | None = None, **options: Any
) -> AsyncIterator[tuple[Process, Calls]]:
    async with open_server_process(judge, **options) as server:
        async with open_calls(server.address, **(client or {})) as calls:
            yield server, calls

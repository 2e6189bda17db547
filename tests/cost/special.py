"""The special cases: memory, idling, many at once, a journal, recovery, starting.

Theory of operation
-------------------
Each returns one figure for each of its measures.  Clients that hold on to much, or that are
many, are raw ones (:class:`~trio_envserve.lab.conformance.peer.ConformancePeer`): they take little
of the machine.  The many requests are made by one, which cancels half of them, every second one,
and then the other half.  What the server's process spends is read from /proc; its ticks and the
questions for statistics meanwhile are a part of it.
"""

from __future__ import annotations

import os
import signal
import statistics
import sys
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, final

import trio

from tests.cost.load import Load
from tests.cost.run import Figures, Run, Setup, share_of_core, spent
from tests.proc import cpu_s, resident_bytes
from trio_envserve.client import Client, open_client
from trio_envserve.core import messages, values
from trio_envserve.core.errors import EnvServeError
from trio_envserve.core.journal import Completed, Opened, Record, Started
from trio_envserve.core.limits import ClientLimits
from trio_envserve.core.ranges import Ranges
from trio_envserve.core.terms import ID_BYTES, Status
from trio_envserve.lab.conformance.peer import ConformancePeer, open_peer, open_raw_peer
from trio_envserve.lab.processes import ANY_PORT, Process, program
from trio_envserve.net import open_network
from trio_envserve.server.journal.opening import open_folder, unlock
from trio_envserve.testing.proxy import open_fault_proxy

FEW = Load(50)
AT_ONCE = 20
"""Clients that join at one time."""
SETTLE_S = 0.5
"""For what is let go of late."""


async def session_done(run: Run) -> Figures:
    """Router's costs of a request after 1,000 and after 100,000 others of the session."""
    first, costs_us = run.judge.next_call, []
    async with run.rig(Setup()) as rig:
        for done in (1000, run.size.done):
            while run.judge.next_call - first < done:
                await rig.run(Load(256), 0.25)
            costs_us.append((await rig.run(Load(256), run.size.window_s))["router_us"])
    if None in costs_us:
        return {}
    early_us, late_us = costs_us
    return {"early_us": early_us, "late_us": late_us, "late_over_early": late_us / early_us}


# -- memory and idling ------------------------------------------------------------------

OUTCOME_BYTES = 10_000


async def memory_kept(run: Run) -> Figures:
    """Growth of the server by outcomes that nobody acknowledges, over their bytes."""
    async with run.served(Setup()) as server:
        address = server.said["address"]
        await _keep(run, address, 200, forgotten=True)
        await trio.sleep(SETTLE_S)  # not to wait: for what is let go of late
        before = resident_bytes(server.pid)
        half = run.size.outcomes // 2  # two sessions: the share of one is half of what is kept
        kept = sum([await _keep(run, address, half) for _ in range(2)])
        await trio.sleep(SETTLE_S)
        grown = resident_bytes(server.pid) - before
    return {"of_their_bytes": grown / kept, "outcomes_mb": kept / 1e6}


async def _keep(run: Run, address: str, count: int, *, forgotten: bool = False) -> int:
    """Ask, take the outcomes and never say so; the number of their bytes.  The connection is
    closed; the session stays for its lease, unless it is to be forgotten."""
    size = 0
    async with _open_client(address) as peer:
        for start in range(0, count, 100):
            some = range(start, min(start + 100, count))
            for sequence in some:
                call = run.judge.next_call + sequence - start
                peer.transmit(sequence, {"call": call, "response": OUTCOME_BYTES})
            for sequence in some:
                size += len((await peer.outcome(sequence)).frames[1])
            run.judge.took(len(some), len(some))
        if forgotten:
            peer.goodbye()
            await peer.barrier()
    return size


@asynccontextmanager
async def _open_client(address: str) -> AsyncGenerator[ConformancePeer, None]:
    """A raw client, with a session."""
    async with open_network() as network, open_peer(network, address, patience_s=120.0) as peer:
        await peer.hello()
        yield peer


async def idle_pending(run: Run) -> Figures:
    """Share of a core that the server takes while long rollouts are pending."""
    async with run.served(Setup()) as server, _open_client(server.said["address"]) as peer:
        crowd = Crowd(peer)
        asked = await crowd.ask(run.judge.next_call, run.size.pending)
        await trio.sleep(SETTLE_S)
        share = await share_of_core(server.pid, run.size.idle_s)
        await crowd.cancel(asked, left=0)
    run.judge.cancelled(len(asked))
    return {} if share is None else {"core_percent": 100 * share}


async def idle_clients(run: Run, times: int = 1) -> Figures:
    """Costs of clients that ask nothing: share of a core that the server takes for all, its
    memory for each, and the p99 of calls beside them over that without them."""
    count = times * run.size.clients
    async with run.rig(Setup()) as rig, trio.open_nursery() as nursery:
        assert rig.router is not None
        alone_ms = (await rig.run(FEW, run.size.window_s))["p99_ms"]
        address, before = rig.router.said["address"], resident_bytes(rig.router.pid)
        first = run.judge.next_call
        for start in range(first, first + count, AT_ONCE):
            async with trio.open_nursery() as joining:
                for call in range(start, min(start + AT_ONCE, first + count)):
                    joining.start_soon(nursery.start, _live, address, call)
        run.judge.took(count, count)
        await trio.sleep(2 * run.size.idle_s)  # until they say as little as they ever will
        share = await share_of_core(rig.router.pid, run.size.idle_s)
        grown = resident_bytes(rig.router.pid) - before
        beside_ms = (await rig.run(FEW, run.size.window_s))["p99_ms"]
        nursery.cancel_scope.cancel()
    found = {"bytes_each": grown / count, "p99_over_alone": beside_ms / alone_ms}
    return found if share is None else {"core_percent": 100 * share, **found}


async def _live(address: str, call: int, task_status: trio.TaskStatus[None]) -> None:
    """A client: it has one rollout, and then states that nothing is pending, as often as clients
    do that ask nothing.  A raw one: thousands of real ones would take more than the router."""
    limits = ClientLimits()
    async with open_raw_peer(address, patience_s=60.0, identity=b"") as (peer, _):
        await peer.hello()
        peer.transmit(0, {"call": call, "response": 1})
        await peer.outcome(0)
        task_status.started()
        pause_s = limits.ping_s
        while True:
            await trio.sleep(pause_s)
            pause_s = min(2 * pause_s, limits.idle_ping_s)
            await peer.sync(1, [])
            peer.forget()


# -- many at once -------------------------------------------------------------------------

PAYLOAD_BYTES = 200
SYNCS = 10
"""Statements that are timed together."""
WARM = 200
"""Requests before memory is first looked at."""
BATCH = 1000
"""Requests that are submitted before other tasks have a turn."""


async def many_waiting(run: Run) -> Figures:
    """Costs of many requests that wait for a worker."""
    return await _many(run, capacity=1)


async def many_running(run: Run) -> Figures:
    """Costs of many requests that run."""
    return await _many(run, capacity=run.size.requests)


async def many_hosts(run: Run) -> Figures:
    """Costs of many requests that run on many hosts, and of these."""
    hosts = run.size.hosts
    return await _many(run, capacity=-(-run.size.requests // hosts), hosts=hosts)


async def _many(run: Run, *, capacity: int, hosts: int = 0) -> Figures:
    count, judge, found = run.size.requests, run.judge, {}
    async with _open_large(run, count, capacity, hosts) as server, AsyncExitStack() as stack:
        if hosts:
            alone_bytes = resident_bytes(server.pid)
            joining = program("tests.cost.hosts", server.said["hosts"], str(hosts))
            joined = await stack.enter_async_context(Process(joining, "hosts"))
            await joined.line()
            found["bytes_each_host"] = (resident_bytes(server.pid) - alone_bytes) / hosts
        crowd = Crowd(await stack.enter_async_context(_open_client(server.said["address"])))
        await crowd.cancel(await crowd.ask(judge.next_call, min(WARM, count)), left=0)
        judge.cancelled(min(WARM, count))
        await trio.sleep(SETTLE_S)
        empty_bytes, began_s = resident_bytes(server.pid), time.monotonic()
        asked = await crowd.ask(judge.next_call, count, running=capacity > 1)
        if hosts:
            found["starts_per_s"] = count / (time.monotonic() - began_s)
        await trio.sleep(SETTLE_S)
        found["bytes_each"] = (resident_bytes(server.pid) - empty_bytes) / count
        looks = [cpu_s(server.pid)]
        await crowd.cancel(asked[1::2], left=len(asked[::2]))
        looks.append(cpu_s(server.pid))
        await crowd.state(asked[::2], SYNCS)
        looks.append(cpu_s(server.pid))
        await crowd.cancel(asked[::2], left=0)
        looks.append(cpu_s(server.pid))
        judge.cancelled(count)
    cancel_s, sync_s = spent(looks[0::2], looks[1::2]), spent(looks[1:2], looks[2:3])
    if cancel_s is None or sync_s is None:
        return {}
    return {**found, "sync_ms": 1e3 * sync_s / SYNCS, "cancel_us": 1e6 * cancel_s / count}


@asynccontextmanager
async def _open_large(
    run: Run, count: int, capacity: int, hosts: int
) -> AsyncGenerator[Process, None]:
    """A server that takes so many requests of one client, by limits beyond what options of the
    command say.  One worker may take a while to cancel all of them; it is not to be killed for
    that."""
    limits = {
        "window": 2 * count, "queue": 2 * count, "kept_outcomes": 4 * count, "session_share": 1.0,
        "worker_capacity": capacity, "cancel_grace_s": 300.0, "cancel_kill_s": 300.0,
    }  # fmt: skip
    options = {
        "environment": "tests.cost.environment:Echo", "args": {"log": str(run.folder)},
        "limits": limits, "wire": {"header_bytes": 40 * count}, "workers": 0 if hosts else 1,
        "hosts_bind": ANY_PORT if hosts else None,
    }  # fmt: skip
    command = program("tests.rig.server", options)
    async with Process(command, "server", ready="serving") as server:
        if not hosts:
            await server.event("ready")
        yield server


@final
class Crowd:
    """Many requests of one client, none of which ends by itself."""

    def __init__(self, peer: ConformancePeer) -> None:
        self._peer = peer
        self._next = self._probe = 0

    async def ask(self, first: int, count: int, *, running: bool = False) -> range:
        """Make requests that would take an hour, numbered from ``first``, and wait until all
        are at the server, or ``running``; their sequences."""
        asked = {"response": 1, "sleep_s": 3600, "payload": bytes(PAYLOAD_BYTES)}
        sequences = range(self._next, self._next + count)
        for call, sequence in enumerate(sequences, first):
            self._peer.transmit(sequence, {"call": call, **asked})
            if not (sequence + 1) % BATCH:
                await self._peer.barrier()
        self._next += count
        await self._until(lambda waits, runs: runs + (not running) * waits == count)
        return sequences

    async def cancel(self, sequences: Sequence[int], *, left: int) -> None:
        """Cancel requests, and wait until the server has stopped them."""
        self._peer.finish(*sequences)
        await self._until(lambda waits, runs: waits + runs == left)

    async def state(self, pending: Sequence[int], times: int) -> None:
        """State what is held so many times, and wait for the server's answers."""
        for _ in range(times):
            self._peer.sync_nowait(self._next, Ranges(pending).flat())
        await self._peer.barrier()

    async def _until(self, condition: Callable[[int, int], bool]) -> None:
        """Wait until it is true of the numbers of requests that wait and that run."""
        while True:
            self._probe += 1
            self._peer.send(messages.Query(self._probe, "statistics"))
            _, (_, body) = await self._peer.next(messages.QueryAnswer)
            stats: Any = values.decode(body)
            if self._peer.all(messages.Outcome):
                raise EnvServeError("a rollout of an hour has ended")
            if condition(stats["waiting"], stats["running"]):
                return
            await trio.sleep(0.05)


# -- a journal ------------------------------------------------------------------------------

FSYNCS, STARTS, GROUP, BODY_BYTES = 50, 3, 20_000, 200


async def journal_restart(run: Run) -> Figures:
    """The slowest of several starts on the journal of a server that was killed, its memory
    beyond that of one with an empty journal, and what the disk takes for a sync."""
    folder, keys = run.new_folder(), run.size.journal_keys
    async with run.served(Setup(options=("--journal", "NEW"))) as server:
        base_bytes = resident_bytes(server.pid)
    await trio.to_thread.run_sync(_write, folder, keys)
    found = dict.fromkeys(("ready_s", "server_cpu_s", "bytes_each"), 0.0)
    for _ in range(STARTS):
        began_s = time.monotonic()
        async with run.served(Setup(options=("--journal", str(folder)))) as server:
            for name, value in (
                ("ready_s", time.monotonic() - began_s),
                ("server_cpu_s", cpu_s(server.pid) or 0.0),
                ("bytes_each", (resident_bytes(server.pid) - base_bytes) / keys),
            ):
                found[name] = max(found[name], value)
            await server.kill()
    return {**found, "fsync_ms": await trio.to_thread.run_sync(_fsync_ms, run.folder)}


def _write(folder: Path, keys: int) -> None:
    """A journal with so many outcomes."""
    store, _, locks = open_folder(folder, 600.0)
    header = messages.encode(messages.Outcome(bytes(ID_BYTES), 0, Status.RESULT, "", None, 1))
    body = bytes(BODY_BYTES)
    for first in range(0, keys, GROUP):
        group: list[Record] = []
        for number in range(first, min(first + GROUP, keys)):
            digest = number.to_bytes(32, "little")
            key = b"run/%d/0" % number
            group += [
                Opened(number, b"bench", key, digest, None, 4, 0, bytes(ID_BYTES), body),
                Started(number),
                Completed(number, (header, body)),
            ]
        store.commit(group, 1.0)
    store.close()
    unlock(locks)


def _fsync_ms(folder: Path) -> float:
    """Time of the disk for a sync of a little that was written."""
    took_ms: list[float] = []
    fd = os.open(folder / "sync", os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        for _ in range(FSYNCS):
            os.write(fd, bytes(4096))
            began_s = time.perf_counter()
            os.fdatasync(fd)
            took_ms.append(1000 * (time.perf_counter() - began_s))
    finally:
        os.close(fd)
    return statistics.median(took_ms)


# -- recovery -------------------------------------------------------------------------------


async def _call(client: Client, run: Run, *, consent: bool = False, **asked: Any) -> Any:
    """One judged call."""
    answered = False
    try:
        got = await client.run_rollout(
            {"call": run.judge.next_call, "response": 1, **asked}, rerun=consent or None
        )
        answered = got["call"] == run.judge.next_call
        return got
    finally:
        run.judge.took(1, answered, consent=consent)


async def recovery_worker(run: Run) -> Figures:
    """From a worker's kill to its replacement's first answer, and how much of that is beyond
    what a worker takes to start."""
    async with run.server(Setup()) as server:
        began_s = time.monotonic()
        await server.event("ready")
        start_s = time.monotonic() - began_s
        async with open_client(server.said["address"]) as client:
            await client.wait_ready()
            pid = (await _call(client, run, response="pid"))["pid"]
            killed_s = time.monotonic()
            os.kill(pid, signal.SIGKILL)
            await _call(client, run, consent=True)
            seconds = time.monotonic() - killed_s
    return {"seconds": seconds, "start_s": start_s, "beyond_start_s": seconds - start_s}


async def recovery_cut(run: Run) -> Figures:
    """From a cut connection to the answer that was on its way."""
    async with (
        run.served(Setup()) as server,
        open_fault_proxy(server.said["address"]) as proxy,
        open_client(proxy.address) as client,
    ):
        await client.wait_ready()
        await _call(client, run)
        async with trio.open_nursery() as nursery:
            # It ends while there is no connection.
            nursery.start_soon(partial(_call, client, run, sleep_s=0.06))
            await trio.sleep(0.05)
            cut_s = time.monotonic()
            proxy.cut_all()
        return {"seconds": time.monotonic() - cut_s}


async def recovery_restart(run: Run) -> Figures:
    """From the moment that a restarted server listens to the first answer, of a call that was
    pending all the time."""
    listens_s = answered_s = 0.0
    async with run.served(Setup()) as server, open_client(server.said["address"]) as client:
        await client.wait_ready()
        await _call(client, run)

        async def pending() -> None:
            nonlocal answered_s
            await _call(client, run, consent=True, sleep_s=0.2)
            answered_s = time.monotonic()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(pending)
            await trio.sleep(0.05)
            await server.kill()
            await server.start()
            listens_s = time.monotonic()
    return {"seconds": answered_s - listens_s - 0.2}


# -- starting -------------------------------------------------------------------------------

_HEAVY = ("numpy", "hypothesis", "rich", "click")
_IMPORT = (
    "import time, sys; began = time.perf_counter(); import trio_envserve; "
    "[getattr(trio_envserve, name) for name in trio_envserve.__all__]; "
    "print(time.perf_counter() - began, "
    f"sum(name in sys.modules for name in {_HEAVY!r}))"
)


async def start(run: Run) -> Figures:
    """How long the import of everything public takes, how many heavy modules it brings, and how
    long a worker of the default environment takes to be ready; with compiled modules, as pip
    leaves them."""
    environ = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(run.new_folder())}
    words = ("serve", "arithmetic", "--json", "--exit-with-parent", "--bind", ANY_PORT)
    command = program("trio_envserve", *words)
    found: Figures = {}
    for _ in range(2):  # the first one compiles
        done = await trio.run_process(
            [sys.executable, "-c", _IMPORT], capture_stdout=True, env={**os.environ, **environ}
        )
        found["import_s"], found["heavy_modules"] = map(float, done.stdout.split())
        async with Process(command, "server", ready="serving", environ=environ) as server:
            began_s = time.monotonic()
            await server.event("ready")
            found["worker_ready_s"] = time.monotonic() - began_s
    return found

"""The special cases of memory, idling, recovery and starting.

Those of many are in :mod:`.special_many`; :mod:`.special_calls` and :mod:`.special_journal`
have two kinds of calls, or two servers, beside each other.

Each returns one figure for each of its measures and is run once a round.  Only
this project takes part: the plain loop keeps nothing and recovers from nothing.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any, TypeAlias

import trio

from tests.cost.cases import Figures, Load, Size
from tests.cost.judge import Judge
from tests.cost.measure import module, share_of_core
from tests.cost.pairs import Meter
from tests.cost.rigs import bench_server, open_server_program, serve_command
from tests.cost.special_calls import (
    curve_64,
    event_readers,
    http_rollouts,
    keyed_calls,
    visible_calls,
)
from tests.cost.special_journal import journal_beside, journal_calls, journal_restart
from tests.cost.special_many import idle_clients, many_running, many_waiting
from trio_envserve.client import Client, open_client
from trio_envserve.core import messages, values
from trio_envserve.core.limits import PROTOCOL_VERSION, WireLimits
from trio_envserve.core.terms import ID_BYTES
from trio_envserve.envs.request import RolloutRequest
from trio_envserve.lab.proc import resident_bytes
from trio_envserve.lab.programs import open_program
from trio_envserve.net import DealerSocket, open_network
from trio_envserve.testing.proxy import open_fault_proxy

OUTCOME_BYTES = 10_000
WAIT_S = 600.0
"""Only a hang takes longer."""


async def session_done(judge: Judge, size: Size) -> Figures:
    """The router's costs of a request after 1,000 and after 100,000 others in the
    same session: the second over the first."""
    windows: list[float] = []
    async with (
        open_server_program(bench_server(judge, 1)) as (server, address),
        open_program(module("client", address)) as client,
    ):
        await client.line()
        meter, first = Meter(judge, client, [server.pid]), judge.next_call
        for done in (1000, size.done):
            while judge.next_call - first < done:
                await meter.figures(Load(256), 0.25)
            took_us = await meter.cost_us(Load(256), size.window_s)
            if took_us is None:
                return {}
            windows.append(took_us)
    early_us, late_us = windows
    return {"early_us": early_us, "late_us": late_us, "late_over_early": late_us / early_us}


async def memory_kept(judge: Judge, size: Size) -> Figures:
    """How much the server grows by outcomes that nobody acknowledges, as a
    multiple of their bytes."""
    async with open_server_program(bench_server(judge, 1)) as (server, address):
        async with open_network() as network:
            warm = await _keep(network, address, judge, 200, forgotten=True)
            await trio.sleep(0.5)  # not to wait: for what is let go of late
            before = resident_bytes(server.pid)
            kept = 0
            for part in _halves(size.outcomes):
                kept += await _keep(network, address, judge, part)
            await trio.sleep(0.5)
            grown = resident_bytes(server.pid) - before
    assert warm
    return {"of_their_bytes": grown / kept, "outcomes_mb": kept / 1e6}


def _halves(count: int) -> tuple[int, int]:
    """Two sessions: the share of one is half of what is kept in all."""
    return count // 2, count - count // 2


async def _keep(
    network: Any, address: str, judge: Judge, count: int, *, forgotten: bool = False
) -> int:
    """Ask, take the outcomes and never say so; how many bytes they were.  The
    connection is closed; the session stays for its lease, unless it is to be
    ``forgotten``."""
    wire = WireLimits()
    opened = network.open_dealer(address, limits=wire)
    async with opened as socket:
        session = await _session(socket)
        size = 0
        for start in range(0, count, 100):
            some = range(start, min(start + 100, count))
            first = judge.next_call
            for sequence in some:
                asked = {"call": first + sequence - start, "response": OUTCOME_BYTES}
                request = RolloutRequest(
                    kind="rollout",
                    input=asked,
                    endpoint="oracle",
                    model_name="",
                )
                encoded = values.encode(request.to_body(), root="", limits=wire)
                header = messages.Request(session, sequence, bytes(ID_BYTES), None, 1, None)
                socket.send_nowait((messages.encode(header), encoded))
            got = 0
            while got < len(some):
                for frames in await socket.receive():
                    for message, body in _read(frames):
                        if isinstance(message, messages.Outcome):
                            size += len(body or b"")
                            got += 1
            judge.load({"asked": len(some), "answered": got, "wrong": 0})
        if forgotten:
            socket.send_nowait((messages.encode(messages.Goodbye(session)),))
            await socket.flush()
    return size


async def _session(socket: DealerSocket) -> bytes:
    nonce = bytes(ID_BYTES - 8) + time.monotonic_ns().to_bytes(8, "big")
    while True:
        hello = messages.Hello(PROTOCOL_VERSION, nonce, 1, "keeper", 1 << 28)
        socket.send_nowait((messages.encode(hello),))
        with trio.move_on_after(0.5):
            while True:
                for frames in await socket.receive():
                    message, _ = _read(frames)[0]
                    if isinstance(message, messages.Welcome):
                        return message.session


def _read(frames: Sequence[Any]) -> Sequence[messages.Said]:
    return messages.read(frames, most_bytes=WireLimits().header_bytes)


async def idle_pending(judge: Judge, size: Size) -> Figures:
    """How much of a core the server needs while long rollouts are pending."""
    async with AsyncExitStack() as stack:
        server, address = await stack.enter_async_context(
            open_server_program(bench_server(judge, 1))
        )
        client = await stack.enter_async_context(open_client(address))
        await client.wait_ready()
        async with trio.open_nursery() as nursery:
            for number in range(size.pending):
                asked = {"call": judge.next_call + number, "response": 1, "sleep_s": 3600}
                nursery.start_soon(client.run_rollout, asked)
            judge.next_call += size.pending
            stats = await client.stats()
            while stats.waiting + stats.running < size.pending:
                await trio.sleep(0.05)
                stats = await client.stats()
            await trio.sleep(0.5)
            share = await share_of_core(server.pid, size.idle_s)
            nursery.cancel_scope.cancel()
    return {} if share is None else {"core_percent": 100 * share}


# -- recovery -----------------------------------------------------------------


async def _call(client: Client, judge: Judge, *, consent: bool = False, **asked: Any) -> Any:
    """One judged call."""
    answered = False
    try:
        got = await client.run_rollout(
            {"call": judge.next_call, "response": 1, **asked}, rerun=consent or None
        )
        answered = got["call"] == judge.next_call
        return got
    finally:
        judge.call(answered=answered, consent=consent)


async def recovery_worker(judge: Judge, size: Size) -> Figures:
    """From a worker's kill to its replacement's first answer, and how much of that
    is beyond what a worker takes to start."""
    del size
    async with open_program(bench_server(judge, 1), terminate=True) as server:
        address = (await server.event("serving"))["address"]
        began_s = time.monotonic()
        await server.event("ready")
        start_s = time.monotonic() - began_s
        async with open_client(address) as client:
            await client.wait_ready()
            pid = (await _call(client, judge, response="pid"))["pid"]
            killed_s = time.monotonic()
            os.kill(pid, signal.SIGKILL)
            await _call(client, judge, consent=True)
            seconds = time.monotonic() - killed_s
    return {"seconds": seconds, "start_s": start_s, "beyond_start_s": seconds - start_s}


async def recovery_cut(judge: Judge, size: Size) -> Figures:
    """From a cut connection to the answer that was on its way."""
    del size
    async with AsyncExitStack() as stack:
        _, address = await stack.enter_async_context(open_server_program(bench_server(judge, 1)))
        proxy = await stack.enter_async_context(open_fault_proxy(address))
        client = await stack.enter_async_context(open_client(proxy.address))
        await client.wait_ready()
        await _call(client, judge)
        cut_s = 0.0

        async def cut() -> None:
            nonlocal cut_s
            await trio.sleep(0.05)
            cut_s = time.monotonic()
            proxy.cut_all()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(cut)
            await _call(client, judge, sleep_s=0.06)  # it ends while there is no connection
        seconds = time.monotonic() - cut_s
    return {"seconds": seconds}


async def recovery_restart(judge: Judge, size: Size) -> Figures:
    """From the moment that a restarted server listens to the first answer, of a
    call that was pending all the time."""
    del size
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(
            open_program(bench_server(judge, 1), terminate=True)
        )
        address = (await first.event("serving"))["address"]
        await first.event("ready")
        client = await stack.enter_async_context(open_client(address))
        await client.wait_ready()
        await _call(client, judge)
        listens_s = answered_s = 0.0

        async def pending() -> None:
            nonlocal answered_s
            await _call(client, judge, consent=True, sleep_s=0.2)
            answered_s = time.monotonic()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(pending)
            await trio.sleep(0.05)
            await first.kill()
            second = await stack.enter_async_context(
                open_program(bench_server(judge, 1, bind=address), terminate=True)
            )
            await second.event("serving")
            listens_s = time.monotonic()
    return {"seconds": answered_s - listens_s - 0.2}


# -- starting -----------------------------------------------------------------

_HEAVY = ("numpy", "hypothesis", "rich", "click")
_IMPORT = (
    "import time, sys; began = time.perf_counter(); import trio_envserve; "
    "[getattr(trio_envserve, name) for name in trio_envserve.__all__]; "
    "print(time.perf_counter() - began, "
    f"sum(name in sys.modules for name in {_HEAVY!r}))"
)


async def start(judge: Judge, size: Size) -> Figures:
    """How long the import of everything public takes, how many heavy modules it
    brings, and how long a worker of the default environment takes to be ready; with
    compiled modules, as pip leaves them."""
    del judge, size
    with tempfile.TemporaryDirectory(prefix="trio-envserve-bench-") as folder:
        environ = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": folder}
        await _start(environ)  # compiles
        return await _start(environ)


async def _start(environ: dict[str, str]) -> Figures:
    done = await trio.run_process(
        [sys.executable, "-c", _IMPORT], capture_stdout=True, env={**os.environ, **environ}
    )
    import_s, heavy = done.stdout.split()
    command = serve_command("arithmetic", 1, "--bind", "tcp://127.0.0.1:0")
    async with open_program(command, environ, terminate=True) as server:
        await server.event("serving")
        began_s = time.monotonic()
        await server.event("ready")
        ready_s = time.monotonic() - began_s
    return {
        "import_s": float(import_s), "heavy_modules": float(heavy), "worker_ready_s": ready_s,
    }  # fmt: skip


Special: TypeAlias = Callable[[Judge, Size], Awaitable[Figures]]

SPECIAL: dict[str, Special] = {
    "session-done": session_done,
    "keyed-calls": keyed_calls,
    "curve-64": curve_64,
    "journal-calls": journal_calls,
    "journal-beside": journal_beside,
    "journal-restart": journal_restart,
    "http-rollouts": http_rollouts,
    "visible-calls": visible_calls,
    "event-readers": event_readers,
    "memory-kept": memory_kept,
    "idle-pending": idle_pending,
    "idle-clients": idle_clients,
    "many-waiting": many_waiting,
    "many-running": many_running,
    "recovery-worker": recovery_worker,
    "recovery-cut": recovery_cut,
    "recovery-restart": recovery_restart,
    "start": start,
}


async def run_special(name: str, judge: Judge, size: Size) -> Figures:
    """One round of a special case."""
    with trio.fail_after(WAIT_S):
        return await SPECIAL[name](judge, size)

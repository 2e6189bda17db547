"""The contenders, each set up: client, router and workers as processes.

A :class:`Rig` carries out loads and says what they cost whom.  Several rigs
stand side by side, idle while another one runs.  Servers and workers of all of them have
the allocator's settings that ours have.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, final

from tests.cost.cases import BARE, OURS, PLAIN, Load
from tests.cost.judge import Judge
from tests.cost.measure import module, spent
from tests.cost.peer import Peer
from trio_envserve.host.allocator import ENVIRON
from trio_envserve.lab.proc import children, cpu_s
from trio_envserve.lab.programs import Program, open_program

SPEC = "tests.cost.environment:BenchEnvironment"


@final
class Rig:
    """One contender, ready.  Made by the functions below."""

    def __init__(
        self, name: str, client: Program, router: Program, workers: Callable[[], list[int]],
        judge: Judge | None = None,
    ) -> None:  # fmt: skip
        self.name = name
        self.router = router
        self.judge = judge
        self._client = client
        self._workers = workers

    async def run(self, load: Load, seconds: float) -> dict[str, Any]:
        """Carry out a load; its figures.  Times of processors are microseconds for
        each request, and None where they cannot be known."""
        first = self.judge.next_call if self.judge else 0
        pids = {
            "client_us": [self._client.pid],
            "router_us": [self.router.pid],
            "worker_us": self._workers(),
        }
        before = {who: [cpu_s(pid) for pid in some] for who, some in pids.items()}
        figures = await self._client.ask(load.record(seconds, first))
        for who, some in pids.items():
            took_s = spent(before[who], [cpu_s(pid) for pid in some])
            known = took_s is not None and some and figures["answered"]
            figures[who] = 1e6 * (took_s or 0.0) / figures["answered"] if known else None
        figures["per_s"] = figures["answered"] / figures["seconds"]
        if load.carried_bytes:
            figures["mb_per_s"] = figures["per_s"] * load.carried_bytes / 1e6
        if self.judge:
            self.judge.load(figures)
        return figures


def serve_command(environment: str, workers: int, *options: str) -> list[str]:
    """The command that serves, as its users start it."""
    return [
        sys.executable, "-m", "trio_envserve", "serve", environment, "--workers", str(workers),
        "--log-level", "WARNING", "--exit-with-parent", "--json", *options,
    ]  # fmt: skip


def bench_server(judge: Judge, workers: int, bind: str = "tcp://127.0.0.1:0") -> list[str]:
    """The command that serves the benchmark's environment, with default settings."""
    return serve_command(SPEC, workers, "--bind", bind, "--arg", f"log={judge.folder}")


@asynccontextmanager
async def open_server_program(command: list[str]) -> AsyncGenerator[tuple[Program, str], None]:
    """A server of ours, ready, and its address."""
    async with open_program(command, terminate=True) as server:
        address = (await server.event("serving"))["address"]
        await server.event("ready")
        yield server, address


@asynccontextmanager
async def open_ours(judge: Judge, workers: int) -> AsyncGenerator[Rig, None]:
    """This project: the command with default settings, all guarantees on."""
    async with open_server_program(bench_server(judge, workers)) as (server, address):
        async with open_program(module("client", address)) as client:
            await client.line()
            yield Rig(OURS, client, server, lambda: children(server.pid), judge)


@asynccontextmanager
async def open_plain(workers: int, style: str = PLAIN) -> AsyncGenerator[Rig, None]:
    """The plain loop, or with ``style`` "frames" the tuned one, or "bare"."""
    name, *how = ("bare",) if style == BARE else ("plain", style)
    async with AsyncExitStack() as stack:
        router = await stack.enter_async_context(
            open_program(module(f"{name}", "router", *how), ENVIRON)
        )
        said = await router.line()
        pids = []
        for _ in range(workers):
            command = module(f"{name}", "worker", said["back"])
            worker = await stack.enter_async_context(open_program(command, ENVIRON))
            await worker.line()
            pids.append(worker.pid)
        client = await stack.enter_async_context(
            open_program(module(f"{name}", "client", said["front"]))
        )
        await client.line()
        yield Rig(style, client, router, lambda: pids)


_PEER_PROGRAMS = Path(__file__).with_name("peer_programs")


@asynccontextmanager
async def open_peer(peer: Peer, python: str, workers: int) -> AsyncGenerator[Rig, None]:
    """A peer, by a Python that has it installed."""
    here = {"PYTHONPATH": str(_PEER_PROGRAMS), "PYTHONSAFEPATH": "1"}
    command = [python, str(_PEER_PROGRAMS / peer.program)]
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(
            open_program([*command, "server", str(workers)], {**here, **ENVIRON})
        )
        address = (await server.line())["address"]
        client = await stack.enter_async_context(open_program([*command, "client", address], here))
        await client.line()
        yield Rig(peer.name, client, server, lambda: children(server.pid))

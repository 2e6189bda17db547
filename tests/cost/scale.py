"""How much one router carries, measured from outside.

``python -m tests.cost.scale`` prints the figures, and exits with 0 only if nobody
was refused, nothing was lost, and the marks are reached.

Theory of operation
-------------------
The router is a process of its own; so are its hosts (:mod:`.simulated`: they have no
processes, so that all that is measured is the router's) and the crowd of clients
(:mod:`.crowd`).  First a few clients call, then the same ones beside the crowd, then again
alone: so a machine that others use is seen as such.  Then those few clients have very many
rollouts in flight at once, which are all cancelled together.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import trio

from tests.cost.measure import module
from tests.rig.samples import Held, look_at
from trio_envserve.client import Client, open_client
from trio_envserve.lab.demo.process import DemoServer
from trio_envserve.lab.proc import cpu_s
from trio_envserve.lab.programs import Program, open_program
from trio_envserve.lab.remote_host import with_host
from trio_envserve.lab.standing import open_standing
from trio_envserve.net import open_zmtp_network

CROWD_TIMES = 3.0
"""The p99 beside the crowd is at most so many times that without it."""
CANCEL_S = 10.0
"""All that is in flight is cancelled within this time."""
POLL_S = 0.2
"""The pause between questions of whether all run, or none.  With hundreds of hosts the router
takes milliseconds for an answer."""
BEGIN_S = 300.0
"""So long a program may take until all of its hosts or clients are in."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How much there is of each."""

    hosts: int = 200
    clients: int = 5_000
    few: int = 50
    """Of the clients, those whose calls are measured."""
    calls: int = 3_000
    """Those that are measured, one after the other."""
    in_flight: int = 100_000


def limits(options: Options) -> dict[str, Any]:
    """The limits of the router that are not the defaults."""
    most = max(options.in_flight, 1000)
    return {
        "queue": 2 * most, "kept_outcomes": 2 * most,
        "worker_capacity": -(-most // options.hosts),
    }  # fmt: skip


async def run(options: Options, directory: Path) -> dict[str, Any]:
    """All of it; the figures, and the problems in words."""
    serving = with_host(
        {"environment": "arithmetic", "limits": limits(options), "log_directory": str(directory)}
    )
    found: dict[str, Any] = {}
    problems: list[str] = []
    async with AsyncExitStack() as stack:
        server = DemoServer(serving, directory)
        await stack.enter_async_context(open_standing(server))
        found["alone"] = _held(server.pid)
        joining = {"address": server.hosts_address, "hosts": options.hosts}
        hosts, _ = await _begun(stack, "scale_simulated", joining, "the hosts")
        found["with hosts"] = _held(server.pid)
        network = await stack.enter_async_context(open_zmtp_network())
        clients = [
            await stack.enter_async_context(open_client(server.address, network=network))
            for _ in range(options.few)
        ]
        found["p99 ms"] = [await _p99_ms(clients, options.calls)]
        async with AsyncExitStack() as crowd:
            before = _held(server.pid)
            asking: dict[str, Any] = {
                "address": server.address,
                "clients": options.clients - options.few,
            }
            began_s = time.monotonic()
            _, said = await _begun(crowd, "scale_crowd", asking, "the crowd")
            found["the crowd came in s"] = round(time.monotonic() - began_s, 1)
            found["with clients"] = _held(server.pid)
            found["of each client"] = _each(before, _held(server.pid), asking["clients"])
            found["p99 ms"].append(await _p99_ms(clients, options.calls))
            if said["right"] != asking["clients"]:
                problems.append(f"{said['right']} of {asking['clients']} clients were served")
            stats = await clients[0].stats()
            found["sessions"], found["hosts"] = stats.sessions, len(stats.hosts)
        found["of each host"] = _each(found["alone"], found["with hosts"], options.hosts)
        found["p99 ms"].append(await _p99_ms(clients, options.calls))
        if found["hosts"] != options.hosts or stats.past_hosts:
            problems.append(f"{found['hosts']} hosts of {options.hosts} are in")
        pids = {"router": server.pid, "hosts": hosts.pid, "clients": os.getpid()}
        found["in flight"] = await _fly(clients, options.in_flight, pids)
    alone_ms = statistics.fmean((found["p99 ms"][0], found["p99 ms"][2]))
    found["p99 beside the crowd, times"] = round(found["p99 ms"][1] / alone_ms, 2)
    if found["p99 beside the crowd, times"] > CROWD_TIMES:
        problems.append(f"the p99 beside the crowd is more than {CROWD_TIMES:g} times that without")
    if found["in flight"]["cancelled in s"] > CANCEL_S:
        problems.append(f"cancelling took more than {CANCEL_S:g} s")
    if found["in flight"]["ended otherwise"]:
        problems.append(f"{found['in flight']['ended otherwise']} calls were not cancelled")
    return {**found, "problems": problems}


async def _begun(
    stack: AsyncExitStack, name: str, options: dict[str, Any], what: str
) -> tuple[Program, dict[str, Any]]:
    """A program that has said that it has begun."""
    started = await stack.enter_async_context(open_program(module(name, options), what=what))
    return started, await started.line(BEGIN_S)


def _held(pid: int) -> dict[str, int]:
    held = look_at(pid)
    assert isinstance(held, Held)
    return {"rss_kib": held.rss_kib, "descriptors": held.descriptors}


def _cpu_s(pids: Mapping[str, int]) -> dict[str, float]:
    """The processor time that each of these processes has taken."""
    return {name: cpu_s(pid) or 0.0 for name, pid in pids.items()}


def _between(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    return {name: round(after[name] - before[name], 1) for name in before}


def _each(before: dict[str, int], after: dict[str, int], count: int) -> dict[str, float]:
    """The cost of each of them."""
    return {name: round((after[name] - before[name]) / max(count, 1), 2) for name in before}


async def _p99_ms(clients: Sequence[Client], calls: int) -> float:
    took_s = []
    for number in range(calls):
        began_s = time.perf_counter()
        (await clients[number % len(clients)].outcome({})).unwrap()
        took_s.append(time.perf_counter() - began_s)
    return round(1000 * statistics.quantiles(took_s, n=100)[98], 3)


async def _fly(clients: Sequence[Client], count: int, pids: Mapping[str, int]) -> dict[str, Any]:
    """Very many rollouts at once, and then none."""
    router = pids["router"]
    before = _held(router)
    otherwise = 0

    async def call(client: Client, most: int) -> None:
        nonlocal otherwise
        async with client.run_many(["hold"] * most, in_flight=most) as outcomes:
            async for _ in outcomes:
                otherwise += 1

    async def wait_running(wanted: int) -> None:
        while (await watching.stats()).running != wanted:  # noqa: ASYNC110  # another process
            await trio.sleep(POLL_S)

    watching, *calling = clients
    began_s, began_cpu_s = time.monotonic(), _cpu_s(pids)
    async with trio.open_nursery() as nursery:
        for number, client in enumerate(calling):
            nursery.start_soon(call, client, len(range(number, count, len(calling))))
        await wait_running(count)
        started_s = time.monotonic() - began_s
        after, started_cpu_s = _held(router), _cpu_s(pids)
        began_s = time.monotonic()
        nursery.cancel_scope.cancel()
    await wait_running(0)
    return {
        "rollouts": count, "started in s": round(started_s, 1),
        "starts a second": round(count / started_s),
        "bytes of each": round(1024 * (after["rss_kib"] - before["rss_kib"]) / count),
        "rss_kib": after["rss_kib"], "cancelled in s": round(time.monotonic() - began_s, 1),
        "ended otherwise": otherwise,
        "processor time in s": {
            "starting": _between(began_cpu_s, started_cpu_s),
            "cancelling": _between(started_cpu_s, _cpu_s(pids)),
        },
    }  # fmt: skip


def main(words: Sequence[str]) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.cost.scale")
    for field in dataclasses.fields(Options):
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=int, default=field.default)
    options = Options(**vars(parser.parse_args(words)))
    with tempfile.TemporaryDirectory() as folder:
        found = trio.run(run, options, Path(folder))
    print(json.dumps(found, indent=1))
    return int(bool(found["problems"]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

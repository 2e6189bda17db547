"""The cost of a request by function: server, worker and client under a profiler.

``python -m tests.cost.profile server LOG FILE``
``python -m tests.cost.profile client ADDRESS FILE``

The same programs as in the benchmark, each under cProfile, which makes small functions
look more expensive than they are: what it says is where to look.  Figures are of one
request, and of processor time: waiting is not in them, nor is what other threads
(libzmq's) do.
"""

from __future__ import annotations

import cProfile
import pstats
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import trio

from tests.cost import client
from tests.cost.cases import Load
from tests.cost.driver import answer
from tests.cost.judge import Judge
from tests.cost.measure import module
from tests.cost.rigs import SPEC
from trio_envserve.lab.orders import input_ends
from trio_envserve.lab.programs import open_program
from trio_envserve.server import open_server

PROGRAMS = ("server", "worker", "client")
TOP = 15


class Line(NamedTuple):
    """One function: its own time and calls, for one request."""

    function: str
    own_us: float
    with_callees_us: float
    calls: float


async def profile(load: Load, seconds: float = 3.0) -> dict[str, list[Line]]:
    """The functions that take most, by program."""
    with tempfile.TemporaryDirectory(prefix="trio-envserve-bench-") as name:
        folder = Path(name)
        judge = Judge(folder)
        files = {program: folder / f"{program}.prof" for program in PROGRAMS}
        command = module("profile", "server", name, str(files["server"]))
        async with open_program(command) as server:
            address = (await server.line())["address"]
            asking = module("profile", "client", address, str(files["client"]))
            async with open_program(asking) as program:
                await program.line()
                figures = await program.ask(load.record(seconds, judge.next_call))
                judge.load(figures)
        return {each: lines(files[each], int(figures["answered"])) for each in PROGRAMS}


def lines(file: Path, requests: int) -> list[Line]:
    """The functions that take most of a profile, the most expensive first."""
    stats: dict[Any, Any] = pstats.Stats(str(file)).stats  # type: ignore[attr-defined]  # its types leave it out
    found = []
    for (path, number, function), (_, calls, own_s, all_s, _) in stats.items():
        where = f"{Path(path).name}:{number} {function}" if number else function
        found.append(Line(where, 1e6 * own_s / requests, 1e6 * all_s / requests, calls / requests))
    found.sort(key=lambda line: -line.own_us)
    return found[:TOP]


async def _serve(log: str, file: str) -> None:
    args = {"log": log, "profile": str(Path(file).with_name("worker.prof"))}
    async with open_server(SPEC, args=args) as server:
        await server.wait_ready()
        answer({"address": server.address})
        await input_ends()


def main() -> None:
    """Run one of the programs under the profiler."""
    role, *arguments, file = sys.argv[1:]
    profiler = cProfile.Profile(time.thread_time, builtins=False)
    programs: dict[str, Callable[[], None]] = {
        "server": lambda: trio.run(_serve, arguments[0], file),
        "client": lambda: trio.run(client.serve, arguments[0]),
    }
    profiler.runcall(programs[role])
    profiler.dump_stats(file)


if __name__ == "__main__":
    main()

"""Three hosts of one router: one is cut off, one in one direction only, one falls asleep.

``python -m trio_envserve.lab.apart.run`` asks for 3,000 rollouts, cuts for 60 s each, and
exits with 0 only if the judge finds nothing.  As root the hosts have network namespaces,
else there are relays (``--relays``).

Theory of operation
-------------------
The router is this process; each host is the command ``join`` with workers of its own.  The
faults begin one after the other and overlap, so that for a time no host is right.  One that
falls asleep has all of its processes stopped (SIGSTOP): guard and workers, too, and reads
the clocks of a machine that has slept (:mod:`.asleep`, where there is a C compiler).  The clock
of its lease goes on meanwhile, as CLOCK_BOOTTIME does while a machine sleeps, and so does the
timer of its guard.  With ``--boottime stands`` they do not: then the judge must find that what
it ran before runs on beside what was started again.  A half of the calls consents to further
executions.

A fault lasts at least as long as is asked for, and until the router has lost the host.

Nothing is decided here: :mod:`.judge` reads what the executions have written.
"""

from __future__ import annotations

import argparse
import dataclasses
import random
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import trio

from ...client import Client, open_client
from ...server import Server, open_server
from ..remote_host import RemoteHost
from ..standing import open_standing
from .asleep import Asleep, Boottime, SleepingMachine, may_build
from .judge import Judged, Told, judge
from .wires import DOWN, UP, Wire, may_have_namespaces, open_wires

ENVIRONMENT = "trio_envserve.lab.apart.environment:Apart"
ASLEEP = "asleep"
NAMES = ("cut", "half-cut", ASLEEP)
WORKERS = 2


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How much is asked, and how long the faults last."""

    rollouts: int = 3_000
    cut_s: float = 60.0
    fence_s: float = 5.0
    first_s: float = 3.0
    """Before the first fault."""
    at_once: int = 60
    """So many rollouts are asked for at one time."""
    longest_s: float = 8.0
    """A rollout sleeps so long at most; most of them less."""
    seed: int = 0
    namespaces: bool = False
    shimmed: bool = False
    """Whether the host that falls asleep reads the clocks of a machine that has slept."""
    boottime: Boottime = Boottime.GOES_ON
    harmed: Sequence[str] = NAMES
    """The hosts to which something happens, one after the other."""


@dataclasses.dataclass(slots=True)
class Seen:
    """The states of the hosts, as the router tells them while it runs."""

    lost: set[str] = dataclasses.field(default_factory=set)
    """Hosts that the router has lost."""
    back: set[str] = dataclasses.field(default_factory=set)
    """Those of them that have joined again."""

    async def has_lost(self, name: str) -> None:
        """Sleep until the router has lost this host, however slow the machine is."""
        while name not in self.lost:  # noqa: ASYNC110  # what is looked at sets no event
            await trio.sleep(0.2)

    async def all_are_back(self) -> None:
        """Sleep until each host that was lost is taken in again."""
        while not self.lost <= self.back:  # noqa: ASYNC110  # what is looked at sets no event
            await trio.sleep(0.2)


async def run(options: Options, directory: Path) -> tuple[Judged, Seen]:
    """All of it; what the judge found."""
    told: dict[str, Told] = {}
    seen = Seen()
    bind = "tcp://0.0.0.0:0" if options.namespaces else "tcp://127.0.0.1:0"
    async with open_server(
        ENVIRONMENT, args={"directory": str(directory)}, workers=0, hosts_bind=bind,
        fence_s=options.fence_s,
    ) as server:  # fmt: skip
        at = server.hosts_address
        async with (
            open_wires(at, len(NAMES), namespaces=options.namespaces) as wires,
            AsyncExitStack() as stack,
        ):
            machine = await _machine(options, directory / ASLEEP)
            pids = []
            for name, wire in zip(NAMES, wires, strict=True):
                own = directory / name  # as on another machine, no other host has its locks
                own.mkdir(mode=0o700, exist_ok=True)
                host = RemoteHost(
                    wire.address, WORKERS, own, name=name, within=wire.words,
                    environ=machine.environ if machine and name == ASLEEP else None,
                )  # fmt: skip
                await stack.enter_async_context(open_standing(host))
                pids.append(host.pid)
            await _all_here(server)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_look, server, seen)
                async with open_client(server.address) as client, trio.open_nursery() as work:
                    work.start_soon(_ask, client, options, told)
                    for name in options.harmed:
                        number = NAMES.index(name)
                        sleep = Asleep(pids[number], machine)
                        work.start_soon(_harm, options, name, wires[number], sleep, seen)
                await seen.all_are_back()
                nursery.cancel_scope.cancel()
    return judge(directory, told, options.rollouts, lost=seen.lost), seen


async def _ask(client: Client, options: Options, told: dict[str, Told]) -> None:
    luck = random.Random(options.seed)
    places = trio.Semaphore(options.at_once)

    async def one(number: int, seconds: float) -> None:
        key, rerun = f"k{number}", number % 2 == 0
        asked = {"key": key, "seconds": seconds}
        outcome = await client.outcome(asked, rerun=rerun)
        error = outcome.error
        told[key] = Told(None if error is None else error.verdict, str(error or ""), rerun)
        places.release()

    async with trio.open_nursery() as nursery:
        for number in range(options.rollouts):
            await places.acquire()
            seconds = luck.choice((0.05, 0.2, 1.0, options.longest_s)) * luck.uniform(0.5, 1.0)
            nursery.start_soon(one, number, seconds)


async def _all_here(server: Server) -> None:
    """Sleep until all hosts have joined: a fault that comes earlier harms nobody."""

    def ready() -> int:
        return sum(host.ready == WORKERS for host in server.stats().hosts)

    while ready() < len(NAMES):  # noqa: ASYNC110  # what is looked at sets no event
        await trio.sleep(0.1)


async def _look(server: Server, seen: Seen) -> None:
    while True:
        stats = server.stats()
        seen.lost |= {past.host for past in stats.past_hosts if past.state == "lost"}
        seen.back |= seen.lost & {host.host for host in stats.hosts if host.state == "ready"}
        await trio.sleep(0.2)


async def _machine(options: Options, folder: Path) -> SleepingMachine | None:
    """The clocks of the one that falls asleep; None: those of this one."""
    if not options.shimmed:
        return None
    return await trio.to_thread.run_sync(SleepingMachine, folder, options.boottime)


async def _harm(options: Options, name: str, wire: Wire, sleep: Asleep, seen: Seen) -> None:
    await trio.sleep(options.first_s + options.harmed.index(name) * options.cut_s / len(NAMES))
    if name == ASLEEP:
        with sleep:
            await trio.sleep(options.cut_s)
            await seen.has_lost(name)
        return
    for direction in (UP, DOWN) if name == "cut" else (DOWN,):
        wire.cut(direction)
    await trio.sleep(options.cut_s)
    await seen.has_lost(name)
    wire.mend()


def main(words: Sequence[str]) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="python -m trio_envserve.lab.apart.run")
    usual = Options()
    parser.add_argument("--rollouts", type=int, default=usual.rollouts)
    parser.add_argument("--cut-s", type=float, default=usual.cut_s)
    parser.add_argument("--fence-s", type=float, default=usual.fence_s)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--relays", action="store_true", help="no network namespaces")
    parser.add_argument("--boottime", type=Boottime, default=usual.boottime, help="goes, stands")
    given = parser.parse_args(words)
    options = Options(
        rollouts=given.rollouts, cut_s=given.cut_s, fence_s=given.fence_s, seed=given.seed,
        namespaces=may_have_namespaces() and not given.relays, shimmed=may_build(),
        boottime=given.boottime,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        judged, seen = trio.run(run, options, Path(folder))
    for problem in judged.problems:
        print(problem)
    print(
        f"{'namespaces' if options.namespaces else 'relays'}, "
        f"{'clocks that slept' if options.shimmed else 'no C compiler'}: {options.rollouts} asked, "
        f"{judged.values} values, {judged.may_have_run} may have run, {judged.starts} starts, "
        f"{judged.again} of them again by consent; lost: {', '.join(sorted(seen.lost)) or 'none'}; "
        f"back: {', '.join(sorted(seen.back)) or 'none'}; {len(judged.problems)} problems"
    )
    return int(bool(judged.problems) or seen.lost != set(NAMES))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

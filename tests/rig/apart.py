"""Three hosts of one router: one is cut off, one in one direction only, one falls asleep.

``python -m tests.rig.apart`` asks for 3,000 rollouts, cuts for 60 s each, and exits with 0 only if
there is no problem.  As root the hosts have network namespaces, else there are relays
(``--relays``).

The faults begin one after the other and overlap, so that for a time no host is right.  One that
falls asleep has all of its processes stopped, guard and workers too, and reads the clocks of a
machine that has slept (:mod:`.asleep`, where there is a C compiler).  The clock of its lease goes
on meanwhile, as CLOCK_BOOTTIME does while a machine sleeps, and so does the timer of its guard.
With ``--boottime stands`` they do not: then the judge must find that what it ran before runs on
beside what was started again.  A half of the calls consents to further executions.

A fault lasts at least as long as is asked for, and until the router has lost the host.
"""

from __future__ import annotations

import argparse
import random
import sys
from contextlib import AsyncExitStack

import trio

from tests.rig.asleep import Asleep, Boottime, SleepingMachine, may_build
from tests.rig.client import Ask, Asks
from tests.rig.rig import Rig, Scenario, main
from tests.rig.wires import DOWN, UP, Wire, may_have_namespaces, open_wires
from trio_envserve.client import open_client
from trio_envserve.lab.killer import Act, Fault, HeldVictim, Killer
from trio_envserve.lab.processes import ANY_PORT, LOOK_S, join_process, until

HARMS = {"cut-off": "cut", "half-cut-off": "half cut", "asleep": "sleep"}
"""By host: what happens to it."""
WORKERS = 2
FIRST_S = 3.0
"""Before the first fault."""
LONGEST_S = 8.0
"""Length of the longest rollout; most are shorter."""
ALL_S = 1800.0
"""Far more than all calls take; only a hang takes longer."""


class Mix(Asks):
    """All rollouts, each asked once."""

    def nth(self, number: int) -> Ask:
        rng = random.Random(f"{self.seed}/{number}")
        seconds = rng.choice((0.05, 0.2, 1.0, LONGEST_S)) * rng.uniform(0.5, 1.0)
        return Ask(f"apart/{number}", seconds, rerun=number % 2 == 0)


class Hosts:
    """What is done to hosts, until the router has lost them."""

    def __init__(self) -> None:
        self.wires: dict[str, Wire] = {}
        self.clocks: SleepingMachine | None = None
        """Clocks of the one that falls asleep."""
        self.lost: set[str] = set()
        """Those that the router has lost."""
        self.here: set[str] = set()
        """Those that are ready now."""
        self.faults: dict[str, Fault] = {
            "sleep": self._sleep, "cut": self._cut, "half cut": self._cut,
        }  # fmt: skip

    async def _sleep(self, act: Act, held: HeldVictim) -> None:
        self.killer.write(act, held.name, pid=held.pid, lasts_s=act.lasts_s)
        with Asleep(held.pid, self.clocks):
            await self._last(act, held)

    async def _cut(self, act: Act, held: HeldVictim) -> None:
        self.killer.write(act, held.name, lasts_s=act.lasts_s)
        wire = self.wires[held.name]
        for direction in (DOWN,) if act.how == "half cut" else (UP, DOWN):
            wire.cut(direction)
        try:
            await self._last(act, held)
        finally:
            wire.mend()

    async def _last(self, act: Act, held: HeldVictim) -> None:
        await trio.sleep(act.lasts_s)
        await until(lambda: held.name in self.lost)

    async def run(self, rig: Rig, acts: list[Act]) -> None:
        self.killer = Killer(rig, self.faults)
        await self.killer.run(acts)

    async def look(
        self, rig: Rig, address: str,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:  # fmt: skip
        """Write down which the router has lost; begins when all are there, since a fault that
        comes earlier harms nobody."""
        async with open_client(address) as client:
            while sum(host.ready == WORKERS for host in (await client.stats()).hosts) < len(HARMS):
                await trio.sleep(LOOK_S)
            task_status.started()
            while True:
                stats = await client.stats()
                lost = {past.host for past in stats.past_hosts if past.state == "lost"}
                for name in lost - self.lost:
                    rig.log.write("harmed", name, of="host", how="lost")
                self.lost |= lost
                self.here = {host.host for host in stats.hosts if host.state == "ready"}
                await trio.sleep(0.2)


async def run(rig: Rig, given: argparse.Namespace) -> None:
    namespaces = may_have_namespaces() and not given.relays
    bind = "tcp://0.0.0.0:0" if namespaces else ANY_PORT
    options = ("--hosts-bind", bind, "--fence-s", str(given.fence_s), "--insecure")
    router, hosts = rig.serve(*options, workers=0), Hosts()
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(rig.kept(router, "server"))
        opened = open_wires(router.said["hosts"], list(HARMS), namespaces=namespaces)
        hosts.wires = await stack.enter_async_context(opened)
        for name, wire in hosts.wires.items():
            folder = rig.folder / name  # as on another machine, no other host has its locks
            folder.mkdir(mode=0o700)
            environ = None
            if name == "asleep" and may_build():
                clocks = await trio.to_thread.run_sync(SleepingMachine, folder, given.boottime)
                hosts.clocks, environ = clocks, clocks.environ
            host = join_process(
                wire.address, WORKERS, folder, name=name, within=wire.words, environ=environ
            )
            rig.hosts[name] = host
            await stack.enter_async_context(rig.kept(host, "host", name=name))
        nursery = await stack.enter_async_context(trio.open_nursery())
        await nursery.start(hosts.look, rig, router.said["address"])
        await stack.enter_async_context(rig.kept_clients(1, router.said["address"]))
        with rig.phase("faults", ALL_S):
            async with trio.open_nursery() as work:
                work.start_soon(hosts.run, rig, _acts(given))
                await rig.carried_out("all", in_flight=60, count=given.rollouts)
            await until(lambda: hosts.lost <= hosts.here)
        nursery.cancel_scope.cancel()
        rig.log.write("phase", "end")


def _acts(given: argparse.Namespace) -> list[Act]:
    """The faults, of hosts in the order of their names."""
    apart_s, names = given.cut_s / len(HARMS), list(HARMS)
    return [
        Act(
            FIRST_S + number * apart_s, "host", HARMS[name], names.index(name) / len(names),
            given.cut_s,
        )
        for number, name in enumerate(given.harmed)
    ]  # fmt: skip


def wants(given: argparse.Namespace) -> dict[str, int]:
    """All rollouts, some of them again by consent, and each fault."""
    faults = {f"host {HARMS[name]}": 1 for name in given.harmed}
    return {"asked": given.rollouts, "began again": 1, "host lost": len(given.harmed), **faults}


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rollouts", type=int, default=3_000)
    parser.add_argument("--cut-s", type=float, default=60.0, help="how long each fault lasts")
    parser.add_argument("--fence-s", type=float, default=5.0)
    parser.add_argument("--relays", action="store_true", help="no network namespaces")
    parser.add_argument("--boottime", type=Boottime, default=Boottime.GOES_ON, help="goes, stands")
    parser.add_argument("--harmed", nargs="+", choices=list(HARMS), default=list(HARMS))


SCENARIO = Scenario("tests.rig.apart", run, wants, options)

if __name__ == "__main__":
    sys.exit(main(SCENARIO))

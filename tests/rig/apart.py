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

from tests.rig.asleep import Boottime, SleepingMachine, may_build
from tests.rig.client import Ask
from tests.rig.killer import Act, Killer
from tests.rig.rig import LOOK_S, Rig, Scenario, main
from tests.rig.wires import may_have_namespaces, open_wires
from trio_envserve.client import open_client
from trio_envserve.lab.processes import join_process

HARMS = {"cut-off": "cut", "half-cut-off": "half cut", "asleep": "sleep"}
"""By host: what happens to it."""
WORKERS = 2
FIRST_S = 3.0
"""Before the first fault."""
LONGEST_S = 8.0
"""Length of the longest rollout; most are shorter."""
ALL_S = 1800.0
"""Far more than all calls take; only a hang takes longer."""


class Mix:
    """All rollouts, each asked once."""

    def __init__(self, seed: int, name: str) -> None:
        self._seed = seed

    def draw(self, reach: int) -> Ask:
        """Nothing is drawn here."""
        raise NotImplementedError

    def nth(self, number: int) -> Ask:
        """The rollout with this number."""
        rng = random.Random(f"{self._seed}/{number}")
        seconds = rng.choice((0.05, 0.2, 1.0, LONGEST_S)) * rng.uniform(0.5, 1.0)
        return Ask(f"apart/{number}", seconds, rerun=number % 2 == 0)

    def told(self, ask: Ask) -> None:
        """Nothing."""


async def run(rig: Rig, given: argparse.Namespace) -> None:
    """All of it."""
    namespaces = may_have_namespaces() and not given.relays
    bind = "tcp://0.0.0.0:0" if namespaces else "tcp://127.0.0.1:0"
    router = rig.serve(
        "--hosts-bind", bind, "--fence-s", str(given.fence_s), "--insecure", workers=0
    )
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(rig.kept(router, "server"))
        opened = open_wires(router.said["hosts"], list(HARMS), namespaces=namespaces)
        rig.wires = await stack.enter_async_context(opened)
        for name, wire in rig.wires.items():
            folder = rig.folder / name  # as on another machine, no other host has its locks
            folder.mkdir(mode=0o700)
            if name == "asleep" and may_build():
                rig.clocks = await trio.to_thread.run_sync(SleepingMachine, folder, given.boottime)
            host = rig.hosts[name] = join_process(
                wire.address, WORKERS, folder, name=name, within=wire.words,
                environ=rig.clocks.environ if rig.clocks and name == "asleep" else None,
            )  # fmt: skip
            await stack.enter_async_context(rig.kept(host, "host", name=name))
        nursery = await stack.enter_async_context(trio.open_nursery())
        await nursery.start(_look, rig, router.said["address"])
        await stack.enter_async_context(rig.kept_clients(1, router.said["address"]))
        with rig.phase("faults", ALL_S):
            async with trio.open_nursery() as work:
                work.start_soon(Killer(rig).run, _acts(given))
                await rig.carried_out("all", in_flight=60, count=given.rollouts)
            while not rig.lost <= rig.here:  # noqa: ASYNC110  # the router's hosts set no event
                await trio.sleep(LOOK_S)
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


async def _look(
    rig: Rig, address: str, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Write down which hosts the router has lost; begins when all are there, since a fault that
    comes earlier harms nobody."""
    async with open_client(address) as client:
        while True:
            stats = await client.stats()
            if sum(host.ready == WORKERS for host in stats.hosts) == len(HARMS):
                task_status.started()
                break
            await trio.sleep(LOOK_S)
        while True:
            stats = await client.stats()
            for name in {past.host for past in stats.past_hosts if past.state == "lost"} - rig.lost:
                rig.log.write("harmed", name, of="host", how="lost")
                rig.lost.add(name)
            rig.here = {host.host for host in stats.hosts if host.state == "ready"}
            await trio.sleep(0.2)


def wants(given: argparse.Namespace) -> dict[str, int]:
    """All rollouts, some of them again by consent, and each fault."""
    faults = {f"host {HARMS[name]}": 1 for name in given.harmed}
    return {"asked": given.rollouts, "began again": 1, "host lost": len(given.harmed), **faults}


def options(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    parser.add_argument("--rollouts", type=int, default=3_000)
    parser.add_argument("--cut-s", type=float, default=60.0, help="how long each fault lasts")
    parser.add_argument("--fence-s", type=float, default=5.0)
    parser.add_argument("--relays", action="store_true", help="no network namespaces")
    parser.add_argument("--boottime", type=Boottime, default=Boottime.GOES_ON, help="goes, stands")
    parser.add_argument("--harmed", nargs="+", choices=list(HARMS), default=list(HARMS))


SCENARIO = Scenario("apart", run, wants, options)

if __name__ == "__main__":
    sys.exit(main(SCENARIO))

"""Three hosts of one router: one is cut off, one in one direction only, one falls asleep.

``python -m tests.rig.apart`` asks for 3,000 rollouts, cuts for 60 s each, and exits with 0 only if
there is no problem.  As root the hosts have network namespaces, else there are relays
(``--relays``).

The faults begin one after the other and overlap, so that for a time no host is right.  One that
falls asleep has all of its processes stopped, guard and workers too, and reads the clocks of a
machine that has slept (where there is a C compiler).  The clock of its lease goes on meanwhile,
as CLOCK_BOOTTIME does while a machine sleeps, and so does the timer of its guard.
With ``--boottime stands`` they do not: then the judge must find that what it ran before runs on
beside what was started again.  A half of the calls consents to further executions.

A fault lasts at least as long as is asked for, and until the router has lost the host.

Theory of operation
-------------------
As root on Linux each host has a network namespace of its own, and a pair of virtual
interfaces leads to the router.  A route into nothing (``blackhole``) cuts one direction: the
packets vanish, and nobody is told.  Elsewhere there is a fault proxy for each host, which passes
nothing on while that direction is cut.

Whoever stops all processes of a machine has stopped what runs on it, and not its clocks:
CLOCK_MONOTONIC, which stands still while a machine sleeps, goes on.  So what counts a lease by
the wrong clock would seem right.  A library that is loaded before libc (``asleep.c``) takes
the time of the sleep off that clock.  CLOCK_BOOTTIME goes on, and so do the kernel's timers on
it, as on a machine that sleeps.  It is built here, by the machine's C compiler.
"""

from __future__ import annotations

import argparse
import enum
import mmap
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Final, Protocol, Self, final

import trio

from tests.proc import children
from tests.rig.client import Ask, Asks
from tests.rig.rig import Rig, Scenario, main
from trio_envserve.client import open_client
from trio_envserve.lab.killer import Act, Fault, HeldVictim, Killer
from trio_envserve.lab.processes import ANY_PORT, LOOK_S, join_process, until
from trio_envserve.net import parse_peer_address
from trio_envserve.testing.proxy import Direction, FaultProxy, open_fault_proxy

# -- wires -----------------------------------------------------------------------------

UP, DOWN = "up", "down"
"""From the host to the router, and back."""


class Wire(Protocol):
    """The way between one host and the router."""

    address: str
    """Where the host joins."""
    words: Sequence[str]
    """The words before the host's command."""

    def cut(self, direction: str) -> None:
        """Nothing passes in this direction any more."""
        ...

    def mend(self) -> None:
        """Both directions are open."""
        ...


# -- wires: namespaces -----------------------------------------------------------------------


def may_have_namespaces() -> bool:
    """Whether this user may make them."""
    return os.geteuid() == 0 and shutil.which("ip") is not None


@final
class Namespace:
    """A network of one host."""

    def __init__(self, number: int, port: int) -> None:
        # Several of these programs may run at once.
        self._name = f"te{os.getpid()}-{number}"
        net = f"10.{128 + os.getpid() % 100}.{number}"
        self._there, self._here = f"{net}.2", f"{net}.1"
        self._link = f"te{os.getpid() % 100000}{number}"
        self.address = f"tcp://{self._here}:{port}"
        self.words: Sequence[str] = ("ip", "netns", "exec", self._name)
        self._cuts: set[str] = set()

    def open(self) -> None:
        """Make it."""
        peer, inside = f"{self._link}p", ("-n", self._name)
        _ip("netns", "add", self._name)
        _ip("link", "add", self._link, "type", "veth", "peer", "name", peer)
        _ip("link", "set", peer, "netns", self._name)
        _ip("addr", "add", f"{self._here}/24", "dev", self._link)
        _ip("link", "set", self._link, "up")
        _ip(*inside, "addr", "add", f"{self._there}/24", "dev", peer)
        for device in (peer, "lo"):
            _ip(*inside, "link", "set", device, "up")

    def cut(self, direction: str) -> None:
        """See :class:`Wire`."""
        self._cuts.add(direction)
        self._route("add", direction)

    def mend(self) -> None:
        """See :class:`Wire`."""
        for direction in self._cuts:
            self._route("del", direction)
        self._cuts.clear()

    def _route(self, verb: str, direction: str) -> None:
        if direction == UP:
            _ip("-n", self._name, "route", verb, "blackhole", f"{self._here}/32")
        else:
            _ip("route", verb, "blackhole", f"{self._there}/32")

    def close(self) -> None:
        """Take it away."""
        self.mend()
        _ip("link", "del", self._link)
        _ip("netns", "del", self._name)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


# -- wires: relays ---------------------------------------------------------------------------


@final
class Relay:
    """A proxy between a host and the router."""

    words: Sequence[str] = ()

    def __init__(self, proxy: FaultProxy) -> None:
        self._proxy = proxy
        self.address = proxy.address

    def cut(self, direction: str) -> None:
        """See :class:`Wire`."""
        self._proxy.stall(Direction.TO_SERVER if direction == UP else Direction.TO_CLIENT)

    def mend(self) -> None:
        """See :class:`Wire`."""
        self._proxy.resume()


@asynccontextmanager
async def open_wires(
    router: str, names: Sequence[str], *, namespaces: bool
) -> AsyncIterator[dict[str, Wire]]:
    """A wire for each host, to the router at this address of hosts; with namespaces it must
    listen at all addresses of this machine."""
    async with AsyncExitStack() as stack:
        wires: dict[str, Wire] = {}
        for number, name in enumerate(names):
            if namespaces:
                wires[name] = namespace = Namespace(number, parse_peer_address(router).port)
                stack.callback(namespace.close)
                await trio.to_thread.run_sync(namespace.open)
            else:
                wires[name] = Relay(await stack.enter_async_context(open_fault_proxy(router)))
        yield wires


# -- a machine that sleeps -----------------------------------------------------------


_SOURCE: Final = Path(__file__).with_name("asleep.c")
_NANOSECONDS: Final = struct.Struct("=q")


class Boottime(enum.Enum):
    """The behaviour of the clock by which hosts count their leases, while the machine sleeps."""

    GOES_ON = "goes"
    """As it is."""
    STANDS_STILL = "stands"
    """As if hosts counted by another one."""


def may_build() -> bool:
    return shutil.which("cc") is not None


@final
class SleepingMachine:
    """The clocks of one machine, for processes that are started with its ``environ``."""

    def __init__(self, folder: Path, boottime: Boottime = Boottime.GOES_ON) -> None:
        """``folder``: where its files are to be, of this machine alone."""
        folder.mkdir(mode=0o700, exist_ok=True)
        library, slept = folder / "asleep.so", folder / "slept"
        words = ["cc", "-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-pthread"]
        words += ["-o", str(library), str(_SOURCE), "-ldl"]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(words)}: {done.stderr}")
        slept.write_bytes(_NANOSECONDS.pack(0))
        with slept.open("r+b") as file:
            self._slept = mmap.mmap(file.fileno(), _NANOSECONDS.size)
        self.environ: Mapping[str, str] = {
            "LD_PRELOAD": str(library), "APART_SLEPT": str(slept), "APART_BOOTTIME": boottime.value,
        }  # fmt: skip

    def has_slept(self, seconds: float) -> None:
        """So long it slept, besides what it has before."""
        (before,) = _NANOSECONDS.unpack(self._slept)
        self._slept[:] = _NANOSECONDS.pack(before + int(seconds * 1e9))


class Asleep:
    """A process and all that descends from it, stopped for as long as the block lasts."""

    def __init__(self, pid: int, machine: SleepingMachine | None) -> None:
        """``machine``: whose clocks they have; None: those of this one."""
        self._pid = pid
        self._machine = machine
        self._stopped: list[int] = []
        self._since_s = 0.0

    def __enter__(self) -> Self:
        """Parents first: so nobody is started meanwhile who is not found."""
        self._since_s = time.monotonic()
        todo = [self._pid]
        while todo:
            pid = todo.pop(0)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
                self._stopped.append(pid)
            todo += children(pid)
        return self

    def __exit__(self, *about: object) -> None:
        if self._machine is not None:
            self._machine.has_slept(time.monotonic() - self._since_s)
        for pid in self._stopped:
            with suppress(ProcessLookupError):  # its guard's time has come
                os.kill(pid, signal.SIGCONT)


# -- the scenario ----------------------------------------------------------------------

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

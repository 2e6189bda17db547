"""Whole systems of the shipped pure machines, on a virtual network and clock.

Theory of operation
-------------------
``run(seed)`` builds a world of clients, a server with its workers, and links
between them, all around the very classes that ship (``Router``,
``ClientCore``, ``WorkerCore``); lets callers ask and faults strike for some
virtual seconds; then calms down and waits until everything has come to rest.
A judge (:mod:`.judge`) compares what happened with the guarantees.

One integer decides everything: the same seed gives the same trace, whose hash
is part of the result.  ``python -m trio_envserve.testing.simulation.simulator`` runs many
seeds, or prints one as a log (``--trace SEED``).
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
import traceback
from collections import Counter
from random import Random

from ...core.terms import Epoch, Incarnation
from .actor_client import SimClient
from .actor_server import SimServer
from .actor_worker import SimWorker
from .bounds import unanswered, unfinished
from .faults import Fault, Plan, draw
from .hostile import HostileClient
from .judge import Judge
from .network import Events, Network

CALM_S = 45.0
"""Virtual time after the last fault in which everything must come to rest, the
work itself not counted: longer than a lease and than a client waits for a server."""

MOST_EVENTS = 200_000
"""A run of more events is taken for one that never ends."""


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
    """What became of a seed."""

    seed: int
    harsh: bool
    events: int
    virtual_s: float
    faults: dict[str, int]
    asked: int
    told: dict[str, int]
    executions: int
    violations: tuple[str, ...]
    digest: str
    log: tuple[str, ...] = ()


class World:
    """Everything that there is in a run; its plan is the seed's, or the one given."""

    def __init__(
        self, seed: int, *, harsh: bool = False, trace: bool = False, plan: Plan | None = None
    ) -> None:
        self.rng = Random(seed * 2 + harsh)
        self.plan = plan or draw(self.rng, harsh=harsh)  # what is drawn first: see plan_of
        self.faults: Counter[Fault] = Counter()
        self.events = Events(trace=trace)
        self.judge = Judge(lambda: self.events.now_s, self.events.note)
        self.judge.lease_s = self.plan.server.lease_s
        self.network = Network(self.events, self.rng, self.plan, self.faults)
        self.worker_by_incarnation: dict[Incarnation, SimWorker] = {}
        self.servers: list[SimServer] = []
        self.start_server()
        self.clients = [SimClient(self, index, asks) for index, asks in enumerate(self.plan.asks)]
        if self.plan.has(Fault.HOSTILE):
            HostileClient(self)
        for at_s, fault in self.plan.moments:
            self.events.after(at_s, self.strike, fault)
        self.events.after(self.plan.busy_s, self._calm_down)

    def new_id(self) -> bytes:
        """128 bits that are random in the world."""
        return self.rng.randbytes(16)

    # -- the environment ------------------------------------------------------

    def declares_rerun(self) -> bool:
        """What the environment says of itself in a worker that starts now."""
        return self.plan.declares_rerun != self.strikes(Fault.FLIP_RERUN, 0.5)

    def may_declare_rerun(self) -> bool:
        """Whether a call that leaves it to the environment may run again."""
        return self.plan.declares_rerun or self.plan.has(Fault.FLIP_RERUN)

    # -- servers --------------------------------------------------------------

    @property
    def server(self) -> SimServer:
        """The newest server, dead or alive."""
        return self.servers[-1]

    def start_server(self) -> None:
        """A new life at the same address; it listens at once."""
        server = SimServer(self, len(self.servers))
        self.servers.append(server)
        self.network.server = server

    def end_server(self, server: SimServer, how: str, pause_s: float) -> None:
        """The server's process is dead: so are its links, soon its workers, and
        after a pause there is a new one."""
        if not server.alive:
            return
        server.die(how)
        links = [*server.client_links.values(), *server.worker_links.values()]
        for link in links:
            self.network.cut(link)
        for worker in server.workers.values():
            if worker.alive:
                linger_s = self.rng.uniform(0.0, self.plan.linger_s)
                self.events.after(linger_s, worker.die, "its server is dead")
        self.events.after(pause_s, self.start_server)

    def all_dead_but(self, server: SimServer) -> bool:
        """Whether this server gets the lock: every earlier process is dead."""
        return not any(
            earlier.alive or any(worker.alive for worker in earlier.workers.values())
            for earlier in self.servers
            if earlier is not server
        )

    def dead_epochs(self, server: SimServer) -> frozenset[Epoch]:
        """The epochs before this server's."""
        return frozenset(s.epoch for s in self.servers if s is not server)

    # -- faults ---------------------------------------------------------------

    def strikes(self, fault: Fault, chance: float) -> bool:
        """Whether a fault of this kind happens here and now."""
        if not self.plan.has(fault) or self.network.calm or self.rng.random() >= chance:
            return False
        self.faults[fault] += 1
        return True

    def strike(self, fault: Fault) -> None:
        """A fault that happens at a moment, to whoever is there."""
        rng = self.rng
        self.faults[fault] += 1
        self.events.note("fault", fault.value)
        client = rng.choice(self.clients)
        workers = [w for w in self.server.workers.values() if w.alive]
        match fault:
            case Fault.CUT_CLIENT:
                self.network.cut(client.link)
            case Fault.CUT_LONG:
                client.away_s = rng.uniform(1.0, 8.0)
                self.network.cut(client.link)
            case Fault.HALF_OPEN if client.link is not None:
                client.link.half_open = True
                self.events.after(rng.uniform(1.0, 4.0), self.network.cut, client.link)
            case Fault.CUT_WORKER if workers:
                self.network.cut(rng.choice(workers).link)
            case Fault.KILL_WORKER if workers:
                rng.choice(workers).die("killed")
            case Fault.STOP_WORKER if workers:
                worker = rng.choice(workers)
                worker.hold("stopped")
                self.events.after(rng.uniform(0.5, 4.0), worker.release, "stopped")
            case Fault.KILL_SERVER:
                self.end_server(self.server, "killed", rng.uniform(0.3, 3.0))
            case Fault.RESTART_FAST:
                self.end_server(self.server, "killed", rng.uniform(0.001, 0.05))
            case Fault.STOP_SERVER:
                server = self.server
                server.hold("stopped")
                self.events.after(rng.uniform(0.5, 9.0), server.release, "stopped")
            case Fault.DRAIN_SERVER:
                self.server.post(self.server.stop)
            case Fault.KILL_CLIENT:
                client.die("killed")
            case Fault.CLOSE_CLIENT:
                client.post(client.close)
            case Fault.STOP_CLIENT:
                client.hold("stopped")
                self.events.after(rng.uniform(0.5, 8.0), client.release, "stopped")
            case Fault.CANCEL_STORM:
                client.post(client.cancel_all)
            case _:
                pass

    def _calm_down(self) -> None:
        """No more faults: what is stopped continues, what is half open is cut."""
        self.events.note("world", "calm")
        self.network.calm = True
        for process in (*self.clients, *self.servers):
            process.release("stopped")
        for worker in self.worker_by_incarnation.values():
            worker.release("stopped")
        for client in self.clients:
            if client.link is not None and client.link.half_open:
                self.network.cut(client.link)

    # -- the run --------------------------------------------------------------

    def at_rest(self) -> bool:
        """Whether nothing is left to do, as far as can be seen."""
        return not self.left()

    def left(self) -> list[str]:
        """What has not come to rest."""
        if not self.server.alive or not self.server.locked:
            return ["no server runs"]
        left = unfinished(self.server.router)
        for client in self.clients:
            if client.alive:
                left += unanswered(client.name, client.core)
        if any(e.live() for call in self.judge.calls.values() for e in call.executions):
            left.append("environment code still runs")
        return left

    def run(self) -> None:
        """Until everything is at rest, or should be."""
        work_s = sum(ask.duration_s for asks in self.plan.asks for ask in asks)
        until_s = self.plan.busy_s + CALM_S + work_s
        look_at_s = self.plan.busy_s + 1.0
        while self.events.count < MOST_EVENTS and self.events.now_s < until_s:
            if not self.events.step():
                break
            if self.events.now_s >= look_at_s:
                look_at_s += 0.5
                if self.at_rest():
                    break
        self.judge.end(self.left())


def plan_of(seed: int, *, harsh: bool = False) -> Plan:
    """What a run of this seed will meet, without running it."""
    return draw(Random(seed * 2 + harsh), harsh=harsh)


def run(seed: int, *, harsh: bool = False, trace: bool = False) -> Run:
    """Simulate one seed.  An exception of a core is a violation of its own."""
    world = World(seed, harsh=harsh, trace=trace)
    try:
        world.run()
    except Exception:  # whatever a core raises is what is looked for
        world.judge.violation("CRASH", traceback.format_exc(limit=-4))
    calls = [call for call in world.judge.calls.values() if call.honest]
    return Run(
        seed=seed,
        harsh=harsh,
        events=world.events.count,
        virtual_s=world.events.now_s,
        faults={fault.value: n for fault, n in world.faults.items()},
        asked=len(calls),
        told=dict(Counter(c.told or ("cancelled" if c.cancelled_s else "-") for c in calls)),
        executions=sum(len(call.executions) for call in world.judge.calls.values()),
        violations=tuple(world.judge.violations),
        digest=world.events.digest(),
        log=tuple(world.events.lines or ()),
    )


def table(runs: list[Run], took_s: float) -> str:
    """What became of many seeds, for people."""
    faults: Counter[str] = Counter()
    told: Counter[str] = Counter()
    for each in runs:
        faults.update(each.faults)
        told.update(each.told)
    bad = [each for each in runs if each.violations]
    lines = [
        f"runs {len(runs)}  events {sum(r.events for r in runs)}  "
        f"virtual {sum(r.virtual_s for r in runs):.0f} s  took {took_s:.1f} s  "
        f"({len(runs) / took_s:.0f} runs/s)",
        f"asked {sum(r.asked for r in runs)}  executions {sum(r.executions for r in runs)}",
        "told: " + ", ".join(f"{what} {n}" for what, n in told.most_common()),
        "faults: " + ", ".join(f"{what} {n}" for what, n in faults.most_common()),
        f"seeds with violations: {len(bad)}",
    ]
    lines += [f"  seed {r.seed}: {r.violations[0]}" for r in bad[:30]]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """The command line.  Exit code 1 if a seed violates a guarantee."""
    parser = argparse.ArgumentParser(prog="simulator", description="Simulate many seeds.")
    parser.add_argument("--seeds", default="0:200", help="FROM:TO, the end not included")
    parser.add_argument("--harsh", action="store_true", help="duplicate, delay and reorder too")
    parser.add_argument("--trace", type=int, metavar="SEED", help="print the log of one seed")
    options = parser.parse_args(arguments)
    if options.trace is not None:
        one = run(options.trace, harsh=options.harsh, trace=True)
        sys.stdout.write("\n".join((*one.log, *one.violations)) + "\n")
        return bool(one.violations)
    first, _, last = options.seeds.partition(":")
    began_s = time.monotonic()
    runs = [run(seed, harsh=options.harsh) for seed in range(int(first), int(last))]
    sys.stdout.write(table(runs, time.monotonic() - began_s) + "\n")
    return any(each.violations for each in runs)


if __name__ == "__main__":
    sys.exit(main())
